"""GPU counters on a real GPU: what operations, bytes and times say (scripts/counters_check)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = Path(__file__).parents[2] / "scripts" / "counters_check"


@pytest.mark.timeout(200)
def test_counters_are_what_arithmetic_says(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "-o", str(tmp_path), "--only", "embedded"]
    done = subprocess.run(command, check=False, timeout=190)
    checks = json.loads((tmp_path / "counters_check.json").read_text("utf-8"))
    failed = [f"{check['name']}: {check['detail']}" for check in checks if not check["passed"]]
    assert not failed
    assert (done.returncode, len(checks)) == (0, 9)
