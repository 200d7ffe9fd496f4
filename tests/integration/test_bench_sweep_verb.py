"""`perfharness bench --find-batch` with real processes of the fake backend."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from perfharness.cli.main import run as cli
from perfharness.model.bench_suite import SweepFile
from tests.integration.bench_runs import bench, ended_in_the_middle, sweep_in
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
) -> tuple[subprocess.CompletedProcess[str], SweepFile]:
    done = bench(*options_of(tmp_path, script, *options))
    assert done.returncode == code, done.stdout + done.stderr
    return done, sweep_in(tmp_path / "out")


def test_a_sweep_ends_where_memory_does_and_is_printed_again(tmp_path: Path) -> None:
    done, found = run(tmp_path, FakeScript(execute_ms=0.5, oom_at_batch=3), "--batch-size", "1..16")
    (cell,), out = found.cells, tmp_path / "out"
    assert (cell.batch_sizes, cell.ended_by, cell.ended_at_batch) == ([1, 2, 4], "out-of-memory", 4)
    assert [case.status for case in found.cases] == ["ok", "ok", "out-of-memory"]
    assert len(list((out / "cases").iterdir())) == 3
    assert cli(["bench", *options_of(tmp_path, FakeScript(), "--batch-size", "1..2")]) == 2, (
        "results are not written over"
    )
    again, _ = run(tmp_path, FakeScript(execute_ms=0.5, oom_at_batch=3), "--batch-size", "1..16", "--resume")
    assert (again.stdout != "", again.stdout in done.stdout) == (True, True)


@pytest.mark.slow
def test_the_memory_limit_ends_a_sweep_and_is_named(tmp_path: Path) -> None:
    script = FakeScript(execute_ms=0.5, host_bytes_per_item=128 << 20)
    _, found = run(tmp_path, script, "--batch-size", "1..8", "--memory-limit", "500MB")
    (cell,) = found.cells
    assert (cell.ended_by, cell.ended_at_batch) == ("memory-limit", 4)


def test_the_largest_batch_within_a_target_and_its_proof(tmp_path: Path) -> None:
    """0.5 ms, then 30: so far apart that a busy machine changes no verdict; whether a median has an interval it may."""
    script = FakeScript(execute_ms=0, by_batch_ms={1: 0.5, 2: 0.5, 3: 30, 4: 30})
    _, found = run(tmp_path, script, "--batch-size", "1..4", "--max-latency-ms", "15", *P50, "--iterations", "100")
    target = known(found.cells[0].target)
    assert (target.batch_size, target.ended_by) == (2, "latency")
    latencies = {case.case.batch_size: known(case.latency) for case in found.cases}
    assert latencies[3].min > 15
    assert target.proven == ((latencies[2].median.high or 16) <= 15)


@pytest.mark.slow
def test_a_target_that_none_meets_is_exit_3(tmp_path: Path) -> None:
    run(tmp_path, FakeScript(execute_ms=20), "--batch-size", "1..2", "--max-latency-ms", "1", *P50, code=3)


@pytest.mark.parametrize(
    "options",
    [
        ("--max-latency-ms", "3", "--latency-percentile", "p90"),
        ("--batch-size", "8..4"),
        ("--batch-size", "1,2"),
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
def test_a_sweep_that_is_ended_in_the_middle_is_gone_on_with(
    tmp_path: Path, number: signal.Signals, target: tuple[str, ...]
) -> None:
    """What is known is in `sweep.json` either way."""
    options, out = ("--batch-size", "1..4", *target), tmp_path / "out"
    code, _ = ended_in_the_middle(out, number, *options_of(tmp_path, SLOW, *options))
    found = sweep_in(out)
    assert not found.complete
    (cell,) = found.cells
    assert (cell.batch_sizes, cell.ended_by) == ([1, 2], "interrupted")
    if target:
        answer = known(cell.target)
        assert (answer.batch_size, answer.proven, answer.ended_by) == (2, False, "interrupted")
    assert code == (1 if number is signal.SIGINT else -number)
    _, again = run(tmp_path, SLOW, *options, "--resume")
    assert again.complete
    assert again.cells[0].batch_sizes[:3] == [1, 2, 4]
    before = {case.case.batch_size: case for case in found.cases}
    assert {size: case for case in again.cases if (size := case.case.batch_size) in before} == before
    assert not list((out / "cases").glob(".*"))


@pytest.mark.slow
def test_resume_tells_what_it_measures_again(tmp_path: Path) -> None:
    """What memory ended is tried again when that is asked for."""
    hangs = FakeScript(execute_ms=0.2, hang_at_batch=4)
    _, first = run(tmp_path, hangs, "--batch-size", "1..8", "--timeout", "15")
    assert (first.cells[0].ended_by, first.cells[0].ended_at_batch) == ("timeout", 4)
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
    assert found.cells[0].ended_at_batch == 2


def test_a_sweep_does_not_go_on_with_a_suite(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bench.json").write_text("{}")
    assert cli(["bench", *options_of(tmp_path, FakeScript(), "--resume")]) == 2
