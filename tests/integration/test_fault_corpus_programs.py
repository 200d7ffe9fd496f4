"""The programs of the corpus do what they are there for: the fault, many times; their twins, far fewer times."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.corpus import Fault, read_faults
from tests.integration.launches import PATIENCE_S, environment

RUNNABLE = [fault for fault in read_faults("cpu") if not fault.missing()]


def count(fault: Fault, *more: str) -> int:
    """The number that the program prints last."""
    command = [sys.executable, str(fault.path), *more]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S, check=True)
    return int(done.stdout.splitlines()[-1].split()[0])


@pytest.mark.slow
@pytest.mark.parametrize("fault", RUNNABLE, ids=lambda fault: fault.program)
def test_the_twin_does_less_of_the_fault(fault: Fault) -> None:
    faulty, mended = count(fault), count(fault, "--mended")
    assert faulty >= 3
    assert mended <= faulty / 3
