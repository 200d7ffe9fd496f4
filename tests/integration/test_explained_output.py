"""What `launch --explain`, `analyze --stage` and `export` show of a real script: the function, its line, its stacks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfharness.cli.main import run
from tests.integration.launches import environment, run_to_the_end

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
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an explaining pass."""
    folder = tmp_path_factory.mktemp("explained")
    (folder / "shown.py").write_text(SCRIPT, "utf-8")
    options = ("-w", 1, "--tracer", "embedded", "--explain", "-o", folder / "out")
    launched = run_to_the_end((*options, folder / "shown.py"), environment())
    assert launched.returncode == 0, launched.stderr
    return folder / "out"


def test_diagnose_lists_the_function_with_its_line_and_collapses_its_stacks(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which cause is first depends on what else the machine does; that the function is found does not."""
    assert run(["analyze", str(out), "--stage", "busy"]) == 0
    assert re.search(rf"busy +slow +\S*shown\.py:{LINE} ", capsys.readouterr().out)
    assert run(["export", str(out), "-o", str(tmp_path / "stacks.txt")]) == 0
    counts: dict[bool, int] = {True: 0, False: 0}
    for line in (tmp_path / "stacks.txt").read_text("utf-8").splitlines():
        stack, count = line.rsplit(" ", 1)
        counts["[busy];<module>" in stack and ";slow (" in stack] += int(count)
    assert counts[True] > 9 * counts[False]
