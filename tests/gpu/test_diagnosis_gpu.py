"""A planted fault of each kind is named on a real GPU, and no longer once it is mended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("faulty_pipeline.py")
SCHEMA = ROOT / "docs" / "schema" / "benchmark.schema.json"
TIMEOUT_S = 120

FAULTS = {
    "item": "synchronization-bound",
    "pageable": "copy-bound",
    "tiny": "launch-bound",
    "sleep": "cpu-bound",
    "first_use": "first-use",
    "shared": "waiting-on-process",
}
MENDED = {"pageable": "gpu-bound", "tiny": "gpu-bound", "sleep": "gpu-bound", "first_use": "gpu-bound",
          "shared": "gpu-bound"}  # fmt: skip
"""What the mended twin must be; that of `item` still launches a hundred small kernels, so only its fault must go."""


def perfharness(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "launcher"), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "perfharness", *arguments], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path}, timeout=TIMEOUT_S,
    )  # fmt: skip


def diagnosis_of(folder: Path, fault: str, *, mended: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Of each process the diagnosis and its stage `work`."""
    processes = "2" if fault == "shared" and not mended else "1"
    batches = ["--batches", "600"] if fault == "shared" else []  # long enough for the two to meet
    warmup = "5" if fault == "first_use" and mended else "1"
    launched = perfharness(
        "launch", "-np", processes, "-w", warmup, "--tracer", "nsys", "-o", str(folder), str(SCRIPT), fault,
        *(["--mended"] if mended else []), *batches,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stdout + launched.stderr
    said = perfharness("diagnose", str(folder), "--stage", "work", "--format", "json")
    assert said.returncode == 0, said.stdout + said.stderr
    diagnoses = list(json.loads(said.stdout).values())
    stages = [diagnosis["stages"][0] for diagnosis in diagnoses]
    for stage in stages:
        print(fault, "mended" if mended else "faulty", stage["verdict"], stage["gpu"]["copies"], stage["host"],
              stage["gpu_during"], stage["cost"], stage["cpu_ms"], stage["gpu"]["busy_ms"],
              stage["gpu"]["shared_with_processes_ms"])  # fmt: skip
    for path in folder.glob("proc_*/benchmark.json"):
        body = json.loads(path.read_text("utf-8"))
        jsonschema.validate(body, json.loads(SCHEMA.read_text("utf-8")))
        assert body["diagnosis"]["stages"]
    return diagnoses, stages


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(fault: str, tmp_path: Path) -> None:
    diagnoses, stages = diagnosis_of(tmp_path / "run", fault, mended=False)
    assert {stage["verdict"]["verdict"] for stage in stages} == {FAULTS[fault]}
    if fault == "first_use":
        assert "warmup-too-short" in [finding["code"] for finding in diagnoses[0]["findings"]]
    if fault == "pageable":
        assert "pageable" in " ".join(stages[0]["verdict"]["evidence"])


@pytest.mark.parametrize("fault", FAULTS)
def test_the_verdict_is_gone_once_it_is_mended(fault: str, tmp_path: Path) -> None:
    diagnoses, stages = diagnosis_of(tmp_path / "run", fault, mended=True)
    verdicts = {stage["verdict"]["verdict"] for stage in stages}
    assert FAULTS[fault] not in verdicts
    assert verdicts == {MENDED.get(fault, *verdicts)}
    if fault == "first_use":
        assert "warmup-too-short" not in [finding["code"] for finding in diagnoses[0]["findings"]]
