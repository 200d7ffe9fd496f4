"""Processes of a run on one GPU: how much of a stage's time another one was at work there, each on its own clock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfharness.cli.main import run
from tests.support.trace_builder import MS, Recorded
from tests.unit.export_runs import RUN_START, process_record, run_folder

BATCH = """
batch#{index} 0..50 items=1
launch 2..3 -> 5..45
launch 3..4 -> 5..25 device=1
cudaStreamSynchronize 4..46
"""
ONE, TWO, OTHER_TWO = ["GPU-1"], ["GPU-1", "GPU-2"], ["GPU-2", "GPU-3"]


@pytest.mark.parametrize(
    ("mine", "other", "later_ms", "share", "why"),
    [
        (ONE, ONE, 20, 0.42, None),  # at work in 25..65: 20 ms of our own work, and 1 ms of the wait after it
        (ONE, ["GPU-2"], 20, None, None),
        (TWO, OTHER_TWO, 10, 0.22, None),  # on GPU-2 in 15..55: 10 ms of our own work there, and 1 ms of the wait
        (TWO, TWO, 10, None, "2 GPUs"),
        (ONE, ONE, None, None, "start time"),
        (ONE, ONE, "no trace", None, "no trace"),
    ],
)
def test_work_of_another_process_on_the_gpu(
    tmp_path: Path, mine: list[str], other: list[str], later_ms: object, share: float | None, why: str | None
) -> None:
    records = []
    for number, (gpus, at) in enumerate(((mine, 0), (other, later_ms))):
        trace = Recorded(gpu=False)
        if isinstance(at, int):
            trace.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=RUN_START + at * MS)
        for place, uuid in enumerate(gpus):
            trace.row("TARGET_INFO_GPU", id=place, name="Test GPU", uuid=uuid.removeprefix("GPU-"))
        for index in range(6):
            lines = [line for line in BATCH.splitlines() if len(gpus) > 1 or "device" not in line]
            trace.add("\n".join(lines).format(index=index), at=100 * index)
        left = None if at == "no trace" else "trace.sqlite"
        given = gpus if len(gpus) > 1 else []
        records.append(process_record(number, gpu_uuid=gpus[0], gpu_uuids=given, trace=left))
        (tmp_path / records[-1].folder).mkdir()
        trace.write(tmp_path / records[-1].folder / "trace.sqlite")
    run_folder(tmp_path, *records)
    assert run(["analyze", str(tmp_path), "-q"]) == (3 if later_ms == "no trace" else 0)
    tree = json.loads((tmp_path / "proc_0_gpu_0" / "benchmark.json").read_text())
    (stage,) = tree["diagnosis"]["stages"]
    shares = [cause["share"] for cause in stage["causes"] if cause["code"] == "waiting"]
    assert shares == ([] if share is None else [pytest.approx(share)])
    found = [one["message"] for one in tree["meta"]["findings"] if one["code"] == "gpu-sharing-unknown"]
    assert len(found) == (why is not None)
    assert why is None or why in found[0]
