"""The programs of the corpus do what they are there for: the fault, many times; their twins, far fewer times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault_corpus import Fault
from tests.faults_blind.expected import EXPECTED as BLIND
from tests.faults_blind2.expected import EXPECTED as BLIND_2
from tests.faults_blind3.expected import EXPECTED as BLIND_3
from tests.faults_blind4.expected import EXPECTED as BLIND_4
from tests.faults_blind5.expected import EXPECTED as BLIND_5
from tests.faults_cpu.expected import EXPECTED
from tests.integration.launches import PATIENCE_S, environment

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
