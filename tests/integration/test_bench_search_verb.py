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


@pytest.mark.slow
def test_the_memory_limit_ends_a_search_and_is_named(tmp_path: Path) -> None:
    script = FakeScript(execute_ms=0.5, host_bytes_per_item=128 << 20)
    _, found = run(tmp_path, script, "--batch-size", "1..8", "--memory-limit", "500MB")
    assert (found.searches[0].ended_by, found.searches[0].ended_at_batch) == ("memory-limit", 4)


def test_the_largest_batch_within_a_target(tmp_path: Path) -> None:
    """0.5 ms, then 30: so far apart that a busy machine changes nothing."""
    script = FakeScript(execute_ms=0, by_batch_ms={1: 0.5, 2: 0.5, 3: 30, 4: 30})
    _, found = run(tmp_path, script, "--batch-size", "1..4", "--max-latency-ms", "15", *P50, "--iterations", "100")
    (cell,) = found.searches
    assert (cell.batch_size, cell.ended_by, cell.figure) == (2, "latency", "p50")


@pytest.mark.slow
def test_a_target_that_none_meets_is_exit_3(tmp_path: Path) -> None:
    run(tmp_path, FakeScript(execute_ms=20), "--batch-size", "1..2", "--max-latency-ms", "1", *P50, code=3)


@pytest.mark.parametrize(
    "options",
    [
        ("--max-latency-ms", "3", "--latency-percentile", "p80"),
        ("--batch-size", "8..4"),
        ("--max-latency-ms", "0"),
        ("--start-up", "2"),
        ("--dry-run",),
        ("--baseline", "torch"),
        ("--retry-failed",),
    ],
)
def test_a_wrong_command_line_starts_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert cli(["bench", *options_of(tmp_path, FakeScript(), *options)]) == 2
    assert not (tmp_path / "out").exists()


SLOW = FakeScript(execute_ms=0.2, by_batch_ms={4: 30.0})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "target"),
    [(signal.SIGINT, ("--max-latency-ms", "100", *P50, "--iterations", "300")), (signal.SIGKILL, ())],
)
def test_a_search_that_is_ended_in_the_middle_is_gone_on_with(
    tmp_path: Path, number: signal.Signals, target: tuple[str, ...]
) -> None:
    """What is known is in `bench.json` either way."""
    options, out = ("--batch-size", "1..4", *target), tmp_path / "out"
    code, _ = ended_in_the_middle(out, number, *options_of(tmp_path, SLOW, *options))
    found = suite_in(out)
    assert not found.complete
    (cell,) = found.searches
    assert (cell.batch_sizes, cell.batch_size, cell.ended_by) == ([1, 2], 2, "interrupted")
    assert code == (1 if number is signal.SIGINT else -number)
    _, again = run(tmp_path, SLOW, *options, "--resume")
    assert again.complete
    assert again.searches[0].batch_sizes[:3] == [1, 2, 4]
    before = {case.case.batch_size: case for case in found.cases}
    assert {size: case for case in again.cases if (size := case.case.batch_size) in before} == before
    assert not list((out / "cases").glob(".*"))


@pytest.mark.slow
def test_resume_tells_what_it_measures_again(tmp_path: Path) -> None:
    """What memory ended is tried again when that is asked for."""
    hangs = FakeScript(execute_ms=0.2, hang_at_batch=4)
    _, first = run(tmp_path, hangs, "--batch-size", "1..8", "--timeout", "15")
    assert (first.searches[0].ended_by, first.searches[0].ended_at_batch) == ("timeout", 4)
    _, second = run(tmp_path, hangs, "--batch-size", "1..8", "--timeout", "16", "--resume")
    assert [known(case.process).attempts for case in second.cases] == [1, 1, 2]
    _, third = run(tmp_path, hangs, "--batch-size", "1..2", "--resume")
    assert third.complete
    full = FakeScript(execute_ms=0.3, oom_at_batch=2)
    _, changed = run(tmp_path, full, "--batch-size", "1..2", "--resume")
    _, kept = run(tmp_path, full, "--batch-size", "1..4", "--resume")
    assert kept.cases == changed.cases
    _, found = run(tmp_path, full, "--batch-size", "1..4", "--resume", "--retry-failed")
    assert [known(case.process).attempts for case in found.cases] == [2, 3]
    assert found.searches[0].ended_at_batch == 2
