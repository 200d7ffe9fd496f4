"""Windows of a process that has used a real GPU for a while: the same kernels as in a launch, complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.trace import open_trace
from tests.integration.launches import perfharness
from tests.integration.test_record import mean_of, record, running

pytestmark = pytest.mark.gpu

BATCHES = 20
LOOP = """
import itertools, sys
import torch
from perfharness import PerfRecorder
perf = PerfRecorder("loop")
matrix = torch.ones(512, 512, device="cuda")
for index in itertools.count() if len(sys.argv) < 2 else range(int(sys.argv[1])):
    with perf.batch(index, total_items=1):
        with perf.range("infer"):
            answer = (matrix @ matrix).relu().sum()
        with perf.range("download"):
            answer.cpu()
perf.finalize()
"""


def operations(trace: Path) -> list[int]:
    """GPU operations of each batch."""
    found = open_trace(trace)
    counts = Analysis(found).table.projection.operation_count
    return [int(count) for count in counts[found.ranges.has_payload]]


def test_each_batch_of_a_window_has_the_kernels_of_a_launch(tmp_path: Path) -> None:
    launched = tmp_path / "launched"
    (tmp_path / "launched.py").write_text(LOOP)
    options = ("--tracer", "embedded", "--no-telemetry", "-o", launched)
    done = perfharness("launch", *options, tmp_path / "launched.py", BATCHES)
    assert done.returncode == 0, done.stderr
    expected = operations(launched / "proc_0_gpu_0/trace.sqlite")[-1]
    with running(tmp_path, LOOP) as process:
        for number in range(3):
            out = tmp_path / f"win_{number}"
            done = record(process.pid, out, "--batches", BATCHES)
            assert done.returncode == 0, done.stderr
            assert operations(next(out.glob("proc_0_gpu_*/trace.sqlite"))) == [expected] * BATCHES
            assert mean_of(out)["stats_minus_warmup"]["loop"]["batch"]["infer"]["gpu_time"]["min"] > 0
        assert process.poll() is None
