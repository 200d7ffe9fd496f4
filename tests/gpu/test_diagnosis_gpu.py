"""Some programs of the fault corpus on a real GPU under nsys, one pass: the fault is named, its mended twin is not
accused, and what the diagnosis rests on was measured. `scripts/score_diagnosis --corpus gpu` judges all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.faults.corpus import FOLDER, Fault, judge, read_faults
from tests.integration.launches import environment
from tests.schemas import valid

pytestmark = pytest.mark.gpu

TIMEOUT_S = 270

FAULTS = {fault.program: fault for fault in read_faults("gpu")}
PROGRAMS = (
    "value_per_map", "unpinned_copy", "decode_loop", "first_use", "shared_gpu", "rms_norm_by_hand", "repeated_clones",
    "one_row", "slow_producer",
)  # fmt: skip

ASKED_AGAIN = ("value_per_map", "shared_gpu")
"""Of these `perfharness analyze --stage` is asked too; it must say what stands in benchmark.json."""

Diagnoses = list[dict[str, Any]]
"""One a process."""


def perfharness(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfharness", *arguments],
        capture_output=True, text=True, check=False, cwd=FOLDER / "gpu", env=environment(), timeout=TIMEOUT_S,
    )  # fmt: skip


@pytest.fixture(scope="module")
def diagnoses_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Diagnoses]:
    """Each program launched once, whichever test asks first."""

    @lru_cache
    def once(program: str, mended: bool) -> Diagnoses:
        return launched(tmp_path_factory.mktemp(program) / "run", FAULTS[program], mended=mended)

    return once


def launched(folder: Path, fault: Fault, *, mended: bool) -> Diagnoses:
    """Launch a program and read what was found."""
    options = fault.twin_options if mended else fault.options
    done = perfharness(
        "launch", "--no-telemetry", "--tracer", "nsys", "-o", str(folder), *options,
        f"{fault.program}.py", *(["--mended"] if mended else []),
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{findings_of(folder)}"
    bodies = [valid("benchmark", path) for path in sorted(folder.glob("proc_*/benchmark.json"))]
    found = [body["diagnosis"] for body in bodies]
    for diagnosis in found:
        stage = stage_of(diagnosis, fault)
        print(fault.program, "mended" if mended else "faulty", stage["causes"])
    if fault.program in ASKED_AGAIN and not mended:
        said = perfharness("analyze", str(folder), "--stage", fault.stage, "--format", "json")
        assert said.returncode == 0, said.stdout + said.stderr
        again = [diagnosis["stages"][0]["causes"] for diagnosis in json.loads(said.stdout).values()]
        assert again == [stage_of(diagnosis, fault)["causes"] for diagnosis in found]
    return found


def stage_of(diagnosis: dict[str, Any], fault: Fault) -> dict[str, Any]:
    (stage,) = [stage for stage in diagnosis["stages"] if stage["path"][-1] == fault.stage]
    return dict(stage)


def findings_of(folder: Path) -> str:
    """What the launch found, a line each: why it did not end with 0."""
    found = []
    for path in [folder / "manifest.json", *sorted(folder.glob("*/benchmark.json"))]:
        if path.exists():
            body = json.loads(path.read_text("utf-8"))
            found += [f"{path.name}: {finding}" for finding in body.get("meta", body).get("findings", [])]
    return "\n".join(found) or "no findings were written"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_planted_fault_is_named(program: str, diagnoses_of: Callable[[str, bool], Diagnoses]) -> None:
    fault = FAULTS[program]
    for diagnosis in diagnoses_of(program, False):
        score = judge(fault, diagnosis, None)
        assert score.verdict, score.said
        (gpu,) = diagnosis["gpus"]
        assert gpu["sm_count"] > 0
        assert gpu["memory_bytes_per_s"] > 0
        stage = stage_of(diagnosis, fault)
        if program == "slow_producer":
            assert stage["kernels"] == []
        if program == "repeated_clones":
            # Bytes by time cannot exceed what the memory can; the second-level cache is smaller than these copies.
            assert 0.6 <= stage["limits"]["moved_peak_share"] <= 1.0
        if program == "first_use":
            assert "too-short" in [loop["state"] for loop in diagnosis["warmup"]]
        if program == "unpinned_copy":
            (upload,) = [copies for copies in stage["copies"] if copies["bytes"] > 1e6]
            assert upload["host_memory"] == "pageable"


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_verdict_is_gone_once_it_is_mended(program: str, diagnoses_of: Callable[[str, bool], Diagnoses]) -> None:
    fault = FAULTS[program]
    (mended,) = diagnoses_of(program, True)
    score = judge(fault, diagnoses_of(program, False)[0], mended)
    assert score.twin_is_silent, score.said_of_twin
