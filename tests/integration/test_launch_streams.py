"""A launch and who reads what it prints: a reader that has gone, and one that does not read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.launches import PATIENCE_S, command, environment, manifest, wait_for

LINES = 20_000
SCRIPT = f"""
import sys
print("up", flush=True)
if sys.argv[1:] == ["many"]:
    for number in range({LINES}):
        print("line", number, "x" * 100)
    print("the end", end="")
"""
PLAIN = ("--tracer", "none")


def test_a_reader_that_has_gone_ends_it_and_what_was_measured_is_there(script: Path, tmp_path: Path) -> None:
    """As in `perfharness launch … | head -1`."""
    out = tmp_path / "out"
    with subprocess.Popen(
        command(*PLAIN, "-v", "-o", out, script, "many"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(),
    ) as launcher:  # fmt: skip
        assert launcher.stdout is not None
        assert launcher.stdout.readline()
        launcher.stdout.close()
        assert launcher.wait(PATIENCE_S) == 1
    assert manifest(out)["run_id"]


@pytest.mark.slow
def test_a_reader_that_does_not_read_holds_up_nothing_and_gets_every_line(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        command(*PLAIN, "-v", "-o", out, script, "many"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment(),
    ) as launcher:  # fmt: skip
        assert launcher.stdout is not None
        wait_for((out / "manifest.json").exists)
        printed = launcher.stdout.read().decode().splitlines()
        assert launcher.wait(PATIENCE_S) == 0
    mirrored = [line.partition(" | ")[2] for line in printed if line.startswith("proc_0_gpu_0 | ")]
    assert mirrored == ["up", *(f"line {number} {'x' * 100}" for number in range(LINES)), "the end"]
