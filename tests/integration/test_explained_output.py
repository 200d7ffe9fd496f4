"""What `launch --explain`, `analyze --stage` and `export` show of a real script: the line, and the stacks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.launches import perfharness as verb

SCRIPT = """
import hashlib
from perfharness import PerfRecorder

def slow(rounds):
    digest = b"x"
    for _ in range(rounds):
        digest = hashlib.sha256(digest * 100).digest()  # the line

perf = PerfRecorder("shown")
with perf.range("loop"):
    for _ in perf.batches(range(14)):
        with perf.range("busy"):
            slow(6000)
perf.finalize()
"""
LINE = next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if "the line" in line)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with an explaining pass, and what the launch printed."""
    folder = tmp_path_factory.mktemp("explained")
    (folder / "shown.py").write_text(SCRIPT, "utf-8")
    options = ("-w", 1, "--tracer", "embedded", "--no-telemetry", "--explain", "-o", folder / "out")
    launched = verb("launch", *options, folder / "shown.py")
    assert launched.returncode == 0, launched.stderr
    return folder / "out", launched.stdout


def test_a_launch_prints_what_limits_each_stage_and_the_function(run: tuple[Path, str]) -> None:
    """Which cause is first depends on what else the machine does; that the function is found does not."""
    _, said = run
    head = next(line for line in said.splitlines() if "limited by" in line)
    assert head.split()[:2] == ["stage", "batches"]
    assert re.search(r"^ 1\. busy \(", said, re.MULTILINE)
    assert "With --explain" not in said


def test_the_function_is_listed_and_its_stacks_are_exported(run: tuple[Path, str], tmp_path: Path) -> None:
    out, _ = run
    diagnosed = verb("analyze", out, "--stage", "busy")
    assert diagnosed.returncode == 0, diagnosed.stderr
    assert re.search(rf"busy +slow +\S*shown\.py:{LINE} ", diagnosed.stdout)
    assert "GPU" not in diagnosed.stdout.replace("proc_0_gpu_0", "")
    assert verb("export", out, "-o", tmp_path / "stacks.txt").returncode == 0
    counts: dict[bool, int] = {True: 0, False: 0}
    for line in (tmp_path / "stacks.txt").read_text("utf-8").splitlines():
        stack, count = line.rsplit(" ", 1)
        counts["[busy];<module>" in stack and ";slow (" in stack] += int(count)
    assert counts[True] > 9 * counts[False]
