"""Stages of known different load on a real GPU: their energies add up to the counter's, in the known order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = Path(__file__).parents[2] / "scripts" / "energy_check"


@pytest.mark.timeout(400)
def test_energies_of_stages_add_up(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "-o", str(tmp_path)], check=False, timeout=390)
    checks = json.loads((tmp_path / "energy_check.json").read_text("utf-8"))
    failed = [f"{check['name']}: {check['detail']}" for check in checks if not check["passed"]]
    assert not failed
    assert done.returncode == 0
