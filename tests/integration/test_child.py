"""What stands between the tracer and the measured process, by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from perfharness_launcher.processes import child
from tests.integration.launches import PATIENCE_S


def test_a_launcher_that_died_before_it_was_heard_is_not_waited_for(tmp_path: Path) -> None:
    control, status = tmp_path / "control", tmp_path / "status"
    os.mkfifo(control)
    command = [sys.executable, "-c", "print('measured')"]
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            child.__file__,
            control,
            status,
            tmp_path / "out",
            tmp_path / "err",
            "22",
            "",
            *command,
        ],
        timeout=PATIENCE_S,
    )
    assert done.returncode == child.EXIT_NOT_STARTED
    states = [json.loads(line)["state"] for line in status.read_text("utf-8").splitlines()]
    assert states == ["ready", "not_started"]
    assert not (tmp_path / "out").exists()
