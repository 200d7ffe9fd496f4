"""The programs of the corpus do what they are there for: the fault, many times; their twins, far fewer times."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fault_corpus import Fault
from tests.faults_blind.expected import EXPECTED as BLIND
from tests.faults_blind2.expected import EXPECTED as BLIND_2
from tests.faults_blind3.expected import EXPECTED as BLIND_3
from tests.faults_blind4.expected import EXPECTED as BLIND_4
from tests.faults_blind5.expected import EXPECTED as BLIND_5
from tests.faults_cpu.expected import EXPECTED
from tests.integration.launches import CHECKOUT, PATIENCE_S, environment

TESTS = Path(__file__).resolve().parents[1]
RUNNABLE = [
    (corpus, fault)
    for corpus, faults in {
        "faults_cpu": EXPECTED,
        "faults_blind": BLIND,
        "faults_blind2": BLIND_2,
        "faults_blind3": BLIND_3,
        "faults_blind4": BLIND_4,
        "faults_blind5": BLIND_5,
    }.items()
    for fault in faults
    if not fault.missing()
]


def count(corpus: str, fault: Fault, *more: str) -> int:
    """The number that the program prints last."""
    done = subprocess.run(
        [sys.executable, TESTS / corpus / f"{fault.program}.py", *fault.arguments, *more],
        capture_output=True, text=True, env=environment(), timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    return int(done.stdout.splitlines()[-1].split()[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("corpus", "fault"), RUNNABLE, ids=lambda value: value if isinstance(value, str) else value.program
)
def test_the_twin_does_less_of_the_fault(corpus: str, fault: Fault) -> None:
    faulty, mended = count(corpus, fault), count(corpus, fault, "--mended")
    assert faulty >= 3
    assert mended <= faulty / 3


def score(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, CHECKOUT / "scripts" / "score_diagnosis", "-o", tmp_path, *arguments],
        capture_output=True, text=True, env=environment(), timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_scorer_measures_both_twins_and_writes_what_it_found(tmp_path: Path) -> None:
    """Also where a limit is missed, which one program cannot reach."""
    done = score(tmp_path, "--passes", "one", "--only", "deepcopy_params", "--at-least", "2")
    assert done.returncode == 1, done.stderr
    (result,) = json.loads((tmp_path / "scores.json").read_text())
    assert (result["program"], result["tracer"], result["passes"]) == ("deepcopy_params", "embedded", "one")
    assert result["error"] is None
    assert result["score"]["said"].startswith("prepare: ")  # which verdict depends on how busy the machine is
    assert {path.parent.parent.name for path in tmp_path.glob("cpu/*/*/*/proc_*/benchmark.json")} == {
        "faulty", "mended",
    }  # fmt: skip


def test_scores_of_several_parts_are_one_table(tmp_path: Path) -> None:
    scores = {"verdict": True, "stage": True, "line": None, "twin_is_silent": True, "said": "", "said_of_twin": ""}
    parts = [[result("a", scores), result("b", {**scores, "verdict": False})], [result("b", scores)]]
    files = [tmp_path / f"{number}.json" for number in range(2)]
    for file, part in zip(files, parts, strict=True):
        file.write_text(json.dumps(part))
    assert score(tmp_path, "--table", str(files[0]), "--at-least", "2").returncode == 1
    assert score(tmp_path, "--table", *map(str, files), "--at-least", "2").returncode == 0


def result(program: str, scores: Mapping[str, object]) -> dict[str, object]:
    return {"corpus": "cpu", "program": program, "tracer": "nsys", "passes": "two", "seconds": 1.0, "score": scores}
