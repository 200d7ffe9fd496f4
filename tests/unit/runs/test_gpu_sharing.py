"""When the processes of a run were at work on one GPU, each on a clock of its own."""

from __future__ import annotations

from pathlib import Path

from perfharness.model.manifest import ProcessRecord
from perfharness.model.trace import Trace
from perfharness.runs.files.process_traces import ProcessTraces
from perfharness.runs.gpu_sharing import GpuSharing
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder
from tests.unit.run_records import manifest_of as run_of
from tests.unit.run_records import process

UTC = 1_700_000_000_000_000_000


def write_trace(folder: Path, began: int | None, run: tuple[int, int]) -> None:
    builder = TraceBuilder()
    if began is not None:
        builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC + began)
    builder.kernel((0, 5), run)
    folder.mkdir(parents=True)
    builder.write(folder / "trace.sqlite")


def opened(run: Path, process: ProcessRecord) -> Trace:
    return open_trace(run / process.folder / "trace.sqlite")


def test_another_process_is_laid_on_this_ones_clock(tmp_path: Path) -> None:
    mine, other = process(0), process(1)
    write_trace(tmp_path / mine.folder, 1000, (100, 200))
    write_trace(tmp_path / other.folder, 1500, (100, 300))
    others = GpuSharing(ProcessTraces(tmp_path), run_of(mine, other)).others_of(mine)(opened(tmp_path, mine))
    assert others.busy is not None
    assert (others.count, others.busy.start.tolist(), others.busy.end.tolist()) == (1, [600], [800])


def test_alone_on_its_gpu_there_is_nothing(tmp_path: Path) -> None:
    mine, other = process(0), process(1, gpu_uuid="GPU-2")
    write_trace(tmp_path / mine.folder, 1000, (100, 200))
    others = GpuSharing(ProcessTraces(tmp_path), run_of(mine, other)).others_of(mine)(opened(tmp_path, mine))
    assert others.busy is not None
    assert (others.count, others.busy.length) == (0, 0)


def test_what_cannot_be_known_is_said(tmp_path: Path) -> None:
    mine, clockless, traceless = process(0), process(1), process(2, trace=None)
    write_trace(tmp_path / mine.folder, 1000, (100, 200))
    write_trace(tmp_path / clockless.folder, None, (100, 300))
    without_clock = GpuSharing(ProcessTraces(tmp_path), run_of(mine, clockless)).others_of(mine)(opened(tmp_path, mine))
    without_trace = GpuSharing(ProcessTraces(tmp_path), run_of(mine, traceless)).others_of(mine)(opened(tmp_path, mine))
    assert without_clock.busy is None
    assert without_trace.busy is None
    assert without_clock.reason
    assert without_trace.reason


def test_processes_of_several_gpus_share_what_both_were_given(tmp_path: Path) -> None:
    """Groups 1-2 and 2-3, and each trace says on which GPU what ran: only work on GPU 2 is shared."""
    mine, other = process(0, gpu_uuids=["GPU-1", "GPU-2"]), process(1, gpu_uuids=["GPU-2", "GPU-3"])
    for one, began in ((mine, 1000), (other, 1500)):
        builder = TraceBuilder(gpu=False)
        builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC + began)
        for number, uuid in enumerate(one.gpu_uuids):
            builder.row("TARGET_INFO_GPU", id=number, name="Test GPU", uuid=uuid.removeprefix("GPU-"))
            builder.kernel((0, 5), (100 + 1000 * number, 300 + 1000 * number), device=number)
        (tmp_path / one.folder).mkdir(parents=True)
        builder.write(tmp_path / one.folder / "trace.sqlite")
    others = GpuSharing(ProcessTraces(tmp_path), run_of(mine, other)).others_of(mine)(opened(tmp_path, mine))
    assert others.busy is not None
    assert (others.count, others.gpu_uuid) == (1, "2")
    assert (others.busy.start.tolist(), others.busy.end.tolist()) == ([600], [800])
    both = process(1, gpu_uuids=["GPU-2", "GPU-1"])
    unknown = GpuSharing(ProcessTraces(tmp_path), run_of(mine, both)).others_of(mine)(opened(tmp_path, mine))
    assert (unknown.busy, unknown.count) == (None, 1), "two are shared, and what is of which is not separated"
