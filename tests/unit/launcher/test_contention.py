"""The finding about processes of a launch that compete for the CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.model.manifest import EnvironmentRecord, PlacementRecord, ProcessRecord
from perfharness_launcher.outcome import contention_findings
from tests.support.launch_plans import TWO_GPUS, plan


def process(run_s: float, ready_s: float | None, runnable: float, cpus: int = 2, bound: str = "0-1") -> ProcessRecord:
    return ProcessRecord(
        index=0,
        gpu_index=0,
        folder="proc_0_gpu_0",
        command=["python"],
        ended="ok",
        cpu_run_s=run_s,
        cpu_ready_s=ready_s,
        runnable_threads=runnable,
        cpus_allowed=cpus,
        placement=PlacementRecord(cpus=bound),
    )


@pytest.mark.parametrize(
    ("processes", "script", "gpus", "words"),
    [
        ([process(5, 5.2, 1.9)] * 2, "import torch", 0, ["2 processes", "2 threads", "51 %", "torch.set_", "-np 1."]),
        ([process(5, 5, 2)] * 2, "from onnxruntime import x", 0, ["50 %", "intra_op_num_threads=1)", "-np 1"]),
        ([process(5, 5, 2)] * 2, "import numpy", 2, ["(OMP_NUM_THREADS=1)."]),
        (
            [process(9, 9, 8, 4, "0-3")],
            "import torch",
            0,
            ["1 process", "8 threads on 4 CPUs", "4 threads", "_threads(4)"],
        ),
        ([process(5, 5, 1)] * 4, "import torch", 0, ["4 processes", "1 thread on 2 CPUs", "Try -np 2."]),
        ([process(5, 5, 1.4)] * 2, "import torch", 0, ["2 threads on 2 CPUs", "-np 1"]),  # few at the start
        ([process(5, 1, 2)] * 2, "", 0, []),  # 17 %
        ([process(5, 5, 1)] * 2, "", 0, []),  # as many threads as CPUs: others take these
        ([process(5, 5, 2, 2, "0-1"), process(5, 5, 2, 2, "2-3")], "", 0, []),  # on CPUs of their own
        ([process(5, None, 2)], "", 0, []),
    ],
)
def test_threads_that_wait_for_cpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: list[ProcessRecord],
    script: str,
    gpus: int,
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pipeline.py").write_text(script)
    launched = plan({"gpus": TWO_GPUS, "environment": EnvironmentRecord()}, num_gpus=2) if gpus else plan()
    told = [f"{one.code}: {one.message} {one.hint}" for one in contention_findings(launched, processes)]
    assert len(told) == bool(words)
    assert [word for word in words if word not in told[0]] == []
