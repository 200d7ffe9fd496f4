"""`perfharness bench sweep` with real processes of the fake backend."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from perfharness.model.bench_suite import SweepFile
from tests.integration.bench_runs import bench, ended_in_the_middle, sweep_in, write_suite
from tests.support.fake_backend import FAKE_BACKEND, FakeScript, write_model
from tests.unit.bench_results import known

SHORT = ("--warmup", "2", "--iterations", "30", "--passes", "latency", "--no-charts")
P50 = ("--latency-percentile", "p50")


def options_of(tmp_path: Path, script: FakeScript, *options: str) -> list[str]:
    text = write_model(tmp_path / "fake_model.py", script)
    chosen = ["--model", text, "--backend", FAKE_BACKEND, "--device", "cpu", "-o", str(tmp_path / "out")]
    return ["sweep", *chosen, *SHORT, *options]


def refused(tmp_path: Path, script: FakeScript, *options: str) -> subprocess.CompletedProcess[str]:
    return bench(*options_of(tmp_path, script, *options))


def run(
    tmp_path: Path, script: FakeScript, *options: str, code: int = 0
) -> tuple[subprocess.CompletedProcess[str], SweepFile]:
    done = refused(tmp_path, script, *options)
    assert done.returncode == code, done.stdout + done.stderr
    return done, sweep_in(tmp_path / "out")


def test_a_sweep_ends_where_memory_does_and_is_shown_again(tmp_path: Path) -> None:
    done, found = run(tmp_path, FakeScript(execute_ms=0.5, oom_at_batch=3), "--largest", "16")
    (cell,), out = found.cells, tmp_path / "out"
    assert (cell.batch_sizes, cell.ended_by, cell.ended_at_batch) == ([1, 2, 4], "out-of-memory", 4)
    assert [case.status for case in found.cases] == ["ok", "ok", "out-of-memory"]
    assert "a batch of 4 is out-of-memory" in done.stdout
    assert len(list((out / "cases").iterdir())) == 3
    assert refused(tmp_path, FakeScript(), "--largest", "2").returncode == 2, "results are not written over"
    for path in (out, out / "sweep.json"):
        shown = bench("show", path)
        assert (shown.returncode, shown.stdout != "", shown.stdout in done.stdout) == (0, True, True)
    other = bench("show", out, "--max-latency-ms", "4")
    assert other.returncode == 2
    assert "holds a sweep, which has neither baseline nor constraints" in other.stderr
    (out / "sweep.json").write_text("{")
    broken = bench("show", out)
    assert broken.returncode == 1
    assert "is no result of perfharness bench sweep" in broken.stderr


@pytest.mark.slow
def test_the_memory_limit_ends_a_sweep_and_is_named(tmp_path: Path) -> None:
    script = FakeScript(execute_ms=0.5, host_bytes_per_item=128 << 20)
    _, found = run(tmp_path, script, "--largest", "8", "--memory-limit", "500MB")
    (cell,) = found.cells
    assert (cell.ended_by, cell.ended_at_batch) == ("memory-limit", 4)
    assert "0.500 GB" in known(cell.reason)


def test_the_largest_batch_within_a_target_and_its_proof(tmp_path: Path) -> None:
    """0.5 ms, then 8: so far apart that a busy machine changes no verdict; whether a median has an interval it may."""
    script = FakeScript(execute_ms=0, by_batch_ms={1: 0.5, 2: 0.5, 3: 8, 4: 8})
    done, found = run(tmp_path, script, "--largest", "4", "--latency-target", "4", *P50, "--iterations", "400")
    target = known(found.cells[0].target)
    assert (target.batch_size, target.ended_by) == (2, "latency")
    latencies = {case.case.batch_size: known(case.latency) for case in found.cases}
    assert latencies[3].min > 4
    assert target.proven == ((latencies[2].median.high or 5) <= 4)
    assert "a batch of 2 meets a p50 of 4 ms" in done.stdout


def test_a_target_that_none_meets_is_exit_3(tmp_path: Path) -> None:
    done, _ = run(tmp_path, FakeScript(execute_ms=20), "--largest", "2", "--latency-target", "1", *P50, code=3)
    assert "no batch size is known to meet" in done.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--latency-target", "3", "--latency-percentile", "p90"), "is none of mean, p50, p95, p99"),
        (("--smallest", "8", "--largest", "4"), "no batch sizes from 8 to 4"),
        (("--retry-failed",), "--retry-failed goes with --resume"),
    ],
)
def test_a_wrong_command_line_starts_nothing(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    done = refused(tmp_path, FakeScript(), *options)
    assert done.returncode == 2
    assert says in done.stdout + done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_suite_says_what_is_measured_with_charts_and_rows(tmp_path: Path) -> None:
    """A backend with several settings is several cells."""
    pytest.importorskip("altair")
    backends = "".join(f'[[backend]]\nname = "{FAKE_BACKEND}"\nthreads = {threads}\n' for threads in (1, 2))
    script = FakeScript(execute_ms=0.2, layers={"conv": 0.1})
    suite, out = write_suite(tmp_path, script, "", "[8, 16]", backends, '["latency", "layers"]'), tmp_path / "out"
    done = bench("sweep", suite, "--largest", "2", "--charts", "-o", out)
    assert done.returncode == 0, done.stdout + done.stderr
    found = sweep_in(out)
    assert [cell.batch_sizes for cell in found.cells] == [[1, 2], [1, 2]]
    assert len({case_id for cell in found.cells for case_id in cell.case_ids}) == len(found.cases) == 4
    assert [layer.name for case in found.cases for layer in case.layers] == ["conv"] * 4
    assert "net, FakeBackend/plain threads=2 fp32" in done.stdout
    assert "all batch sizes were measured, up to 2" in done.stdout
    assert "charts: sweep_throughput.png, sweep_latency.png, sweep_memory.png" in done.stderr
    assert all((out / f"sweep_{name}.png").exists() for name in ("throughput", "latency", "memory"))
    rows = pq.read_table(out / "sweep.parquet").to_pylist()
    assert [(row["batch_size"], row["hostname"]) for row in rows] == [
        (size, found.machine.hostname) for size in (1, 2, 1, 2)
    ]


SLOW = FakeScript(execute_ms=0.2, by_batch_ms={4: 30.0})


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("target", [(), ("--latency-target", "100", *P50, "--iterations", "300")])
def test_a_sweep_that_is_ended_in_the_middle_is_gone_on_with(
    tmp_path: Path, number: signal.Signals, target: tuple[str, ...]
) -> None:
    """What is known is in `sweep.json` either way; Ctrl-C says how to go on."""
    options, out = ("--largest", "4", *target), tmp_path / "out"
    code, said = ended_in_the_middle(out, number, *options_of(tmp_path, SLOW, *options))
    found = sweep_in(out)
    assert not found.complete
    (cell,) = found.cells
    assert (cell.batch_sizes, cell.ended_by) == ([1, 2], "interrupted")
    assert "interrupted before a batch of 4 was measured" in known(cell.reason)
    if target:
        answer = known(cell.target)
        assert (answer.batch_size, answer.proven, answer.ended_by) == (2, False, "interrupted")
    if number is signal.SIGINT:
        assert code == 1
        assert "interrupted; --resume goes on with what is left: perfharness bench sweep" in said
    done, again = run(tmp_path, SLOW, *options, "--resume")
    assert again.complete
    assert done.stderr.count("(kept of an earlier run)") == 2
    assert again.cells[0].batch_sizes[:3] == [1, 2, 4]
    before = {case.case.batch_size: case for case in found.cases}
    assert {size: case for case in again.cases if (size := case.case.batch_size) in before} == before
    assert not list((out / "cases").glob(".*"))


@pytest.mark.slow
def test_resume_tells_what_it_measures_again(tmp_path: Path) -> None:
    """What memory ended is tried again when that is asked for."""
    hangs = FakeScript(execute_ms=0.2, hang_at_batch=4)
    _, first = run(tmp_path, hangs, "--largest", "8", "--timeout", "15")
    assert (first.cells[0].ended_by, first.cells[0].ended_at_batch) == ("timeout", 4)
    again, second = run(tmp_path, hangs, "--largest", "8", "--timeout", "16", "--resume")
    assert "again: FakeBackend/plain fp32, batch 4: it was timeout: it had not ended after 15 s" in again.stderr
    assert [known(case.process).attempts for case in second.cases] == [1, 1, 2]
    smaller, third = run(tmp_path, hangs, "--largest", "2", "--resume")
    assert third.complete
    assert "in cases/ and not part of this sweep, so not in these results: " in smaller.stdout
    full = FakeScript(execute_ms=0.3, oom_at_batch=2)
    changed, _ = run(tmp_path, full, "--largest", "2", "--resume")
    assert "batch 1: the suite, a file of the model or of its inputs, or the GPU has changed since" in changed.stderr
    assert "kept" not in changed.stderr
    kept, _ = run(tmp_path, full, "--largest", "4", "--resume")
    assert "again" not in kept.stderr
    again, found = run(tmp_path, full, "--largest", "4", "--resume", "--retry-failed")
    assert "again: FakeBackend/plain fp32, batch 2: it was out-of-memory" in again.stderr
    assert [known(case.process).attempts for case in found.cases] == [2, 3]
    assert found.cells[0].ended_at_batch == 2


@pytest.mark.slow
def test_streams_are_measured_with_each_batch_size(tmp_path: Path) -> None:
    done, found = run(tmp_path, FakeScript(execute_ms=2), "--largest", "2", "--streams", "2")
    assert [known(case.streams).streams for case in found.cases] == [2, 2]
    assert all(f"batch {batch}: 2 streams at once: " in done.stdout for batch in (1, 2))
    assert "2 instances" not in done.stdout


def test_a_sweep_does_not_go_on_with_a_suite(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bench.json").write_text("{}")
    done = refused(tmp_path, FakeScript(), "--resume")
    assert done.returncode == 2
    assert "holds results of a suite, not of a sweep; name another folder with -o" in done.stderr
