"""The programs of the corpus do what they are there for: the fault, many times; their twins, far fewer times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault_corpus import CORPORA, WITHOUT_GPU, Fault, faults_of
from tests.integration.launches import PATIENCE_S, environment

ROOT = Path(__file__).resolve().parents[2]
RUNNABLE = [(corpus, fault) for corpus in WITHOUT_GPU for fault in faults_of(corpus) if not fault.missing()]


def count(corpus: str, fault: Fault, *more: str) -> int:
    """The number that the program prints last."""
    done = subprocess.run(
        [sys.executable, ROOT / CORPORA[corpus] / f"{fault.program}.py", *fault.arguments, *more],
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
