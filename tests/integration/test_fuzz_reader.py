"""The fuzzer over the readers, for as long as a test may take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz_reader"


def test_no_damage_ends_in_a_traceback() -> None:
    command = [sys.executable, str(SCRIPT), "--inputs", "300", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "300 inputs, 0 tracebacks"
