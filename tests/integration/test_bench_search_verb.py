"""`perfharness bench --find-batch` with real processes of the fake backend."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from perfharness.cli.main import run as cli
from perfharness.model.bench_suite import BenchSuiteResult
from tests.integration.bench_runs import bench, ended_in_the_middle, suite_in
from tests.support.fake_backend import FAKE_BACKEND, FakeScript, write_model
from tests.unit.bench_results import known

SHORT = ("--warmup", "2", "--iterations", "30", "--passes", "latency", "--no-charts")
P50 = ("--latency-percentile", "p50")


def options_of(tmp_path: Path, script: FakeScript, *options: str) -> list[str]:
    text = write_model(tmp_path / "fake_model.py", script)
    chosen = ["--model", text, "--backend", FAKE_BACKEND, "--device", "cpu", "-o", str(tmp_path / "out")]
    return ["--find-batch", *chosen, *SHORT, *options]


def run(
    tmp_path: Path, script: FakeScript, *options: str, code: int = 0
) -> tuple[subprocess.CompletedProcess[str], BenchSuiteResult]:
    done = bench(*options_of(tmp_path, script, *options))
    assert done.returncode == code, done.stdout + done.stderr
    return done, suite_in(tmp_path / "out")


def test_a_search_ends_where_memory_does_and_is_printed_again(tmp_path: Path) -> None:
    done, found = run(tmp_path, FakeScript(execute_ms=0.5, oom_at_batch=3), "--batch-size", "1..16")
    (cell,), out = found.searches, tmp_path / "out"
    assert (cell.batch_sizes, cell.batch_size) == ([1, 2, 4], 2)
    assert (cell.ended_by, cell.ended_at_batch) == ("out-of-memory", 4)
    assert [case.status for case in found.cases] == ["ok", "ok", "out-of-memory"]
    assert len(list((out / "cases").iterdir())) == 3
    again = options_of(tmp_path, FakeScript(), "--batch-size", "1..2")
    assert cli(["bench", *again]) == 2, "results are not written over"
    later, _ = run(tmp_path, FakeScript(execute_ms=0.5, oom_at_batch=3), "--batch-size", "1..16", "--resume")
    assert (later.stdout != "", later.stdout in done.stdout) == (True, True)


@pytest.mark.parametrize(
    ("by_batch_ms", "target", "code", "largest"),
    [
        # so far apart that a busy machine changes nothing
        ({1: 0.5, 2: 0.5, 3: 30, 4: 30}, "15", 0, 2),
        pytest.param({1: 20, 2: 20}, "1", 3, None, marks=pytest.mark.slow),
    ],
)
def test_the_largest_batch_within_a_target(
    tmp_path: Path, by_batch_ms: dict[int, float], target: str, code: int, largest: int | None
) -> None:
    script = FakeScript(execute_ms=0, by_batch_ms=by_batch_ms)
    sizes = ("--batch-size", f"1..{max(by_batch_ms)}", "--iterations", "100")
    _, found = run(tmp_path, script, *sizes, "--max-latency-ms", target, *P50, code=code)
    (cell,) = found.searches
    assert (cell.batch_size, cell.ended_by, cell.figure) == (largest, "latency", "p50")


@pytest.mark.parametrize(
    "options",
    [
        "--max-latency-ms 3 --latency-percentile p80",
        "--batch-size 8..4",
        "--max-latency-ms 0",
        "--start-up 2",
        "--dry-run",
        "--baseline torch",
        "--retry-failed",
    ],
)
def test_a_wrong_command_line_starts_nothing(tmp_path: Path, options: str) -> None:
    assert cli(["bench", *options_of(tmp_path, FakeScript(), *options.split())]) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_search_that_is_killed_is_gone_on_with(tmp_path: Path) -> None:
    """What is known is in `bench.json`."""
    slow, options, out = FakeScript(execute_ms=0.2, by_batch_ms={4: 30.0}), ("--batch-size", "1..4"), tmp_path / "out"
    code, _ = ended_in_the_middle(out, signal.SIGKILL, *options_of(tmp_path, slow, *options))
    found = suite_in(out)
    (cell,) = found.searches
    assert (cell.batch_sizes, cell.batch_size, cell.ended_by) == ([1, 2], 2, "interrupted")
    assert (code, found.complete) == (-signal.SIGKILL, False)
    _, again = run(tmp_path, slow, *options, "--resume")
    assert (again.complete, again.searches[0].batch_sizes, again.cases[:2]) == (True, [1, 2, 4], found.cases)
    assert not list((out / "cases").glob(".*"))


@pytest.mark.slow
def test_resume_measures_again_what_took_too_long_and_on_request_what_memory_ended(tmp_path: Path) -> None:
    hangs = FakeScript(execute_ms=0.2, hang_at_batch=4)
    _, first = run(tmp_path, hangs, "--batch-size", "1..8", "--timeout", "15")
    assert (first.searches[0].ended_by, first.searches[0].ended_at_batch) == ("timeout", 4)
    _, second = run(tmp_path, hangs, "--batch-size", "1..8", "--timeout", "16", "--resume")
    assert [known(case.process).attempts for case in second.cases] == [1, 1, 2]
    full = FakeScript(execute_ms=0.3, oom_at_batch=2)
    _, changed = run(tmp_path, full, "--batch-size", "1..2", "--resume")
    _, kept = run(tmp_path, full, "--batch-size", "1..4", "--resume")
    assert kept.cases == changed.cases
    _, found = run(tmp_path, full, "--batch-size", "1..4", "--resume", "--retry-failed")
    assert [known(case.process).attempts for case in found.cases] == [2, 3]
