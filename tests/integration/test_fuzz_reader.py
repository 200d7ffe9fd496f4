"""The fuzzer over the readers, for as long as a test may take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz_reader"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "damage"), [("sqlite", "table_dropped"), ("parquet", "file_dropped")])
def test_no_damage_ends_in_a_traceback(kind: str, damage: str) -> None:
    command = [sys.executable, str(SCRIPT), "--inputs", "300", "--seed", "7", "--format", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert damage in done.stdout
    assert done.stdout.splitlines()[-1] == "300 inputs, 0 tracebacks"
