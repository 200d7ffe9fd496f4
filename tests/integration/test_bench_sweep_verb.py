"""`perfharness bench sweep` with real processes of the fake backend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from perfharness.model.bench_search import SWEEP_NAME, SweepFile
from perfharness.testing.fake_backend import FAKE_BACKEND, FakeScript, write_model
from tests.integration.launches import PATIENCE_S, processes_naming, wait_for


def command(tmp_path: Path, script: FakeScript, *options: str) -> list[str]:
    text = write_model(tmp_path / "fake_model.py", script)
    return [
        sys.executable, "-m", "perfharness", "bench", "sweep", "--model", text, "--backend", FAKE_BACKEND,
        "--device", "cpu", "--warmup", "2", "--iterations", "30", "--passes", "latency", "--no-charts",
        "-o", str(tmp_path / "out"), *options,
    ]  # fmt: skip


def result(tmp_path: Path) -> SweepFile | None:
    file = tmp_path / "out" / SWEEP_NAME
    return SweepFile.model_validate_json(file.read_text()) if file.exists() else None


def run(tmp_path: Path, script: FakeScript, *options: str) -> tuple[subprocess.CompletedProcess[str], SweepFile | None]:
    done = subprocess.run(
        command(tmp_path, script, *options), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return done, result(tmp_path)


def show(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "perfharness", "bench", "show", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_a_sweep_ends_where_memory_does(tmp_path: Path) -> None:
    done, found = run(tmp_path, FakeScript(execute_ms=0.5, oom_at_batch=3), "--largest", "16")
    assert done.returncode == 0, done.stdout + done.stderr
    assert found is not None
    (cell,) = found.cells
    assert (cell.batch_sizes, cell.ended_by, cell.ended_at_batch) == ([1, 2, 4], "out-of-memory", 4)
    assert [case.status for case in found.cases] == ["ok", "ok", "out-of-memory"]
    assert "a batch of 4 is out-of-memory" in done.stdout
    assert len(list((tmp_path / "out" / "cases").iterdir())) == 3
    again, _ = run(tmp_path, FakeScript(), "--largest", "2")
    assert again.returncode == 2, "results are not written over"


def test_the_memory_limit_ends_a_sweep_and_is_named(tmp_path: Path) -> None:
    script = FakeScript(execute_ms=0.5, host_bytes_per_item=128 << 20)
    done, found = run(tmp_path, script, "--largest", "8", "--memory-limit", "500MB")
    assert found is not None, done.stdout + done.stderr
    (cell,) = found.cells
    assert (cell.ended_by, cell.ended_at_batch) == ("memory-limit", 4)
    assert cell.reason is not None
    assert "0.500 GB" in cell.reason


@pytest.mark.slow
def test_streams_are_measured_with_each_batch_size(tmp_path: Path) -> None:
    done, found = run(tmp_path, FakeScript(execute_ms=2), "--largest", "2", "--streams", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert found is not None
    assert [case.streams and case.streams.streams for case in found.cases] == [2, 2]
    for batch in (1, 2):
        assert f"batch {batch}: 2 streams at once: " in done.stdout
    assert "2 instances" not in done.stdout


def test_the_largest_batch_within_a_target_and_its_proof(tmp_path: Path) -> None:
    """0.5 ms, then 8: so far apart that a busy machine changes no verdict; whether a median has an interval it may."""
    done, found = run(
        tmp_path, FakeScript(execute_ms=0, by_batch_ms={1: 0.5, 2: 0.5, 3: 8, 4: 8}), "--largest", "4",
        "--latency-target", "4", "--latency-percentile", "p50", "--iterations", "400",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert found is not None
    target = found.cells[0].target
    assert target is not None
    assert (target.batch_size, target.ended_by) == (2, "latency")
    latencies = {case.case.batch_size: case.latency for case in found.cases}
    best, above = latencies[2], latencies[3]
    assert best is not None
    assert above is not None
    assert above.min > 4
    assert target.proven == (best.median.high is not None and best.median.high <= 4)
    assert "a batch of 2 meets a p50 of 4 ms" in done.stdout


def test_a_target_that_none_meets_is_exit_3(tmp_path: Path) -> None:
    done, found = run(
        tmp_path, FakeScript(execute_ms=20), "--largest", "2", "--latency-target", "1", "--latency-percentile", "p50"
    )
    assert done.returncode == 3
    assert found is not None
    assert "no batch size is known to meet" in done.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--latency-target", "3", "--latency-percentile", "p90"), "is none of mean, p50, p95, p99"),
        (("--smallest", "8", "--largest", "4"), "no batch sizes from 8 to 4"),
    ],
)
def test_a_wrong_command_line_starts_nothing(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    done, found = run(tmp_path, FakeScript(), *options)
    assert done.returncode == 2
    assert says in done.stdout + done.stderr
    assert found is None


def test_charts_and_rows_of_a_sweep(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    done, found = run(tmp_path, FakeScript(execute_ms=0.5), "--largest", "2", "--charts")
    assert done.returncode == 0, done.stdout + done.stderr
    assert found is not None
    assert "charts: sweep_throughput.png, sweep_latency.png, sweep_memory.png" in done.stderr
    assert all((tmp_path / "out" / f"sweep_{name}.png").exists() for name in ("throughput", "latency", "memory"))
    rows = pq.read_table(tmp_path / "out" / "sweep.parquet").to_pylist()
    assert [(row["batch_size"], row["hostname"]) for row in rows] == [
        (1, found.machine.hostname),
        (2, found.machine.hostname),
    ]
    assert "all batch sizes were measured, up to 2" in done.stdout


def test_a_sweep_is_shown_again(tmp_path: Path) -> None:
    done, _ = run(tmp_path, FakeScript(execute_ms=0.5), "--largest", "2", "--no-charts")
    out = tmp_path / "out"
    for shown in (show(out), show(out / "sweep.json")):
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout
        assert shown.stdout in done.stdout
    refused = show(out, "--max-latency-ms", "4")
    assert refused.returncode == 2
    assert "holds a sweep, which has neither baseline nor constraints" in refused.stdout + refused.stderr
    (out / "sweep.json").write_text("{")
    broken = show(out)
    assert broken.returncode == 1
    assert "is no result of perfharness bench sweep" in broken.stdout + broken.stderr


SLOW = FakeScript(execute_ms=0.2, by_batch_ms={4: 30.0})


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize(
    "target", [(), ("--latency-target", "100", "--latency-percentile", "p50", "--iterations", "300")]
)
def test_a_sweep_that_is_ended_in_the_middle_is_gone_on_with(
    tmp_path: Path, number: signal.Signals, target: tuple[str, ...]
) -> None:
    """What is known is in `sweep.json` either way; Ctrl-C says how to go on."""
    options = ("--largest", "4", *target)
    with subprocess.Popen(
        command(tmp_path, SLOW, *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            running = tmp_path / "out" / "cases" / ".fake_model-FakeBackend-plain-fp32-cpu-b4.running"
            wait_for((running / "status.json").exists)
            os.kill(process.pid, number)
            said = process.communicate(timeout=PATIENCE_S)[0]
        finally:
            process.kill()
    wait_for(lambda: not processes_naming(str(tmp_path / "out")))
    found = result(tmp_path)
    assert found is not None
    assert not found.complete
    (cell,) = found.cells
    assert (cell.batch_sizes, cell.ended_by) == ([1, 2], "interrupted")
    assert "interrupted before a batch of 4 was measured" in (cell.reason or "")
    if target:
        assert cell.target is not None
        assert (cell.target.batch_size, cell.target.proven, cell.target.ended_by) == (2, False, "interrupted")
    if number is signal.SIGINT:
        assert process.returncode == 1
        assert "interrupted; --resume goes on with what is left: perfharness bench sweep" in said
    done, again = run(tmp_path, SLOW, *options, "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert again is not None
    assert again.complete
    assert done.stderr.count("(kept of an earlier run)") == 2
    assert again.cells[0].batch_sizes[:3] == [1, 2, 4]
    before = {case.case.batch_size: case for case in found.cases}
    assert {size: case for case in again.cases if (size := case.case.batch_size) in before} == before
    assert not list((tmp_path / "out" / "cases").glob(".*"))


@pytest.mark.slow
def test_resume_tells_what_it_measures_again(tmp_path: Path) -> None:
    hangs = FakeScript(execute_ms=0.2, hang_at_batch=4)
    _, first = run(tmp_path, hangs, "--largest", "8", "--timeout", "4")
    assert first is not None
    assert (first.cells[0].ended_by, first.cells[0].ended_at_batch) == ("timeout", 4)
    again, second = run(tmp_path, hangs, "--largest", "8", "--timeout", "5", "--resume")
    assert second is not None
    assert "again: FakeBackend/plain fp32, batch 4: it was timeout: it had not ended after 4 s" in again.stderr
    assert [case.process.attempts for case in second.cases if case.process] == [1, 1, 2]
    smaller, third = run(tmp_path, hangs, "--largest", "2", "--resume")
    assert third is not None
    assert third.complete
    assert "in cases/ and not part of this sweep, so not in these results: " in smaller.stdout
    changed, _ = run(tmp_path, FakeScript(execute_ms=0.3), "--largest", "2", "--resume")
    assert "batch 1: the suite, a file of the model or of its inputs, or the GPU has changed since" in changed.stderr
    assert "kept" not in changed.stderr


@pytest.mark.slow
def test_what_memory_ended_is_tried_again_when_that_is_asked_for(tmp_path: Path) -> None:
    full = FakeScript(execute_ms=0.2, oom_at_batch=2)
    run(tmp_path, full, "--largest", "4")
    kept, _ = run(tmp_path, full, "--largest", "4", "--resume")
    assert "again" not in kept.stderr
    again, found = run(tmp_path, full, "--largest", "4", "--resume", "--retry-failed")
    assert "again: FakeBackend/plain fp32, batch 2: it was out-of-memory" in again.stderr
    assert found is not None
    assert [case.process.attempts for case in found.cases if case.process] == [1, 2]
    assert found.cells[0].ended_at_batch == 2
    alone, _ = run(tmp_path, full, "--retry-failed")
    assert alone.returncode == 2
    assert "--retry-failed goes with --resume" in alone.stderr


def test_a_sweep_does_not_go_on_with_a_suite(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "bench.json").write_text("{}")
    done, _ = run(tmp_path, FakeScript(), "--resume")
    assert done.returncode == 2
    assert "holds results of a suite, not of a sweep; name another folder with -o" in done.stderr


def test_a_suite_says_what_is_measured(tmp_path: Path) -> None:
    write_model(tmp_path / "net.py", FakeScript(execute_ms=0.2, layers={"conv": 0.1}))
    suite = tmp_path / "suite.toml"
    suite.write_text(
        f'models = ["net.py:create"]\nbackends = ["{FAKE_BACKEND}"]\ndevice = "cpu"\nbatch_sizes = [8, 16]\n'
        '[measure]\npasses = ["latency", "layers"]\n[latency]\nwarmup = 2\niterations = 30\n'
    )
    out = tmp_path / "out"
    arguments = [str(suite), "--largest", "2", "--no-charts", "-o", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "perfharness", "bench", "sweep", *arguments],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = result(tmp_path)
    assert found is not None
    assert [(case.case.batch_size, [layer.name for layer in case.layers]) for case in found.cases] == [
        (1, ["conv"]),
        (2, ["conv"]),
    ]


def test_a_backend_with_several_settings_is_several_cells(tmp_path: Path) -> None:
    write_model(tmp_path / "net.py", FakeScript(execute_ms=0.2))
    backends = "".join(f'[[backend]]\nname = "{FAKE_BACKEND}"\nthreads = {threads}\n' for threads in (1, 2))
    suite, out = tmp_path / "suite.toml", tmp_path / "out"
    suite.write_text(
        f'models = ["net.py:create"]\ndevice = "cpu"\n{backends}'
        '[measure]\npasses = ["latency"]\n[latency]\nwarmup = 2\niterations = 30\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "perfharness", "bench", "sweep", str(suite), "--largest", "2", "--no-charts", "-o", out],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = result(tmp_path)
    assert found is not None
    assert [cell.batch_sizes for cell in found.cells] == [[1, 2], [1, 2]]
    assert len({case_id for cell in found.cells for case_id in cell.case_ids}) == len(found.cases) == 4
    assert "net, FakeBackend/plain threads=2 fp32" in done.stdout
