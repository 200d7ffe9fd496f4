"""When the processes of a run were at work on one GPU, each on a clock of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.diagnosis import OtherProcesses
from perfharness.model.manifest import ProcessRecord
from perfharness.runs.files.process_traces import traces_of
from perfharness.runs.gpu_sharing import GpuSharing
from tests.support.trace_builder import TraceBuilder
from tests.unit.run_records import manifest_of, process

UTC = 1_700_000_000_000_000_000


def write_trace(folder: Path, began: int | None, uuids: list[str]) -> None:
    """On GPU n of the process, work of 200 ns, 1000 ns after that on the one before."""
    builder = TraceBuilder(gpu=not uuids)
    if began is not None:
        builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC + began)
    for number, uuid in enumerate(uuids or ["GPU-1"]):
        if uuids:
            builder.row("TARGET_INFO_GPU", id=number, name="Test GPU", uuid=uuid.removeprefix("GPU-"))
        builder.kernel((0, 5), (100 + 1000 * number, 300 + 1000 * number), device=number)
    folder.mkdir(parents=True)
    builder.write(folder / "trace.sqlite")


def beside(run: Path, mine: ProcessRecord, other: ProcessRecord, other_began: int | None = 1500) -> OtherProcesses:
    """What the first process, whose trace began at 1000, is told of the other one."""
    for one, began in ((mine, 1000), (other, other_began)):
        if one.trace is not None:
            write_trace(run / one.folder, began, one.gpu_uuids)
    manifest = manifest_of(mine, other)
    traces, record = traces_of(run, manifest), manifest.measured_processes[0]
    sharing = GpuSharing(traces, manifest)
    works = sharing.work_of_others(record)
    return sharing.others(record, traces[record.folder].open(), works)


@pytest.mark.parametrize(
    ("gpus", "other_gpus", "start_ns"),
    [
        ([], [], [600]),
        (["GPU-1", "GPU-2"], ["GPU-2", "GPU-3"], [600]),
        (["GPU-2", "GPU-3"], ["GPU-1", "GPU-2"], [1600]),
    ],
)
def test_work_on_a_shared_gpu_is_on_the_clock_of_the_process(
    tmp_path: Path, gpus: list[str], other_gpus: list[str], start_ns: list[int]
) -> None:
    """Of several GPUs only work on the one that both were given."""
    found = beside(tmp_path, process(0, gpu_uuids=gpus), process(1, gpu_uuids=other_gpus))
    assert found.busy is not None
    assert (found.count, found.gpu_uuid) == (1, "2" if gpus else "1")
    assert (found.busy.start.tolist(), found.busy.end.tolist()) == (start_ns, [start_ns[0] + 200])


def test_alone_on_its_gpu_there_is_nothing(tmp_path: Path) -> None:
    found = beside(tmp_path, process(0), process(1, gpu_uuid="GPU-2"))
    assert found.busy is not None
    assert (found.count, found.busy.length) == (0, 0)


@pytest.mark.parametrize("why", ["no clock", "no trace", "two are shared"])
def test_what_cannot_be_known_has_a_reason(tmp_path: Path, why: str) -> None:
    gpus = ["GPU-1", "GPU-2"] if why == "two are shared" else []
    other = process(1, gpu_uuids=gpus, trace=None if why == "no trace" else "trace.sqlite")
    found = beside(tmp_path, process(0, gpu_uuids=gpus), other, None if why == "no clock" else 1500)
    assert (found.busy, found.count) == (None, 1)
    assert found.reason
