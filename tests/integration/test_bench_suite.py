"""`perfharness bench` as a user calls it, with real child processes that crash, hang, run out of memory, are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from perfharness.model.bench import CaseResult
from perfharness.model.bench_suite import BenchSuiteResult
from perfharness.testing.fake_backend import FAKE_BACKEND, FakeScript, write_model
from tests.integration.launches import PATIENCE_S, environment, processes_naming

FAST = FakeScript(execute_ms=0.2, per_item_ms=0.05)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "perfharness", "bench", *map(str, arguments)]


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(), timeout=PATIENCE_S, check=False
    )


def write_suite(
    folder: Path, script: FakeScript = FAST, more: str = "", batch_sizes: str = "[1, 4]", modes: str = "all"
) -> Path:
    write_model(folder / "net.py", script)
    path = folder / "suite.toml"
    path.write_text(
        f"""
models = ["net.py:create"]
batch_sizes = {batch_sizes}
device = "cpu"
[[backend]]
name = "{FAKE_BACKEND}"
modes = "{modes}"
[latency]
warmup = 2
iterations = 120
[measure]
passes = ["latency"]
{more}
"""
    )
    return path


def results(out: Path) -> BenchSuiteResult:
    return BenchSuiteResult.model_validate_json((out / "bench.json").read_text())


def by_cell(out: Path) -> dict[tuple[str, int], CaseResult]:
    return {(one.case.mode, one.case.batch_size): one for one in results(out).cases}


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_suite_from_its_file_to_its_results(tmp_path: Path) -> None:
    suite, out = write_suite(tmp_path, more="[run]\nseed = 5\n[equality]"), tmp_path / "out"
    done = bench(suite, "-o", out, "--no-charts")
    assert done.returncode == 0, done.stdout + done.stderr
    found = results(out)
    assert [one.status for one in found.cases] == ["ok"] * 4
    assert found.complete
    assert sorted(found.order) == sorted(one.case.case_id for one in found.cases)
    started = {one.case.case_id: one.started_unix_ns or 0 for one in found.cases}
    assert sorted(started, key=lambda case_id: started[case_id]) == found.order
    assert all(one.equality is not None and one.equality.equal for one in found.cases)
    for case_id in found.order:
        folder = out / "cases" / case_id
        names = {path.name for path in folder.iterdir()}
        assert {"result.json", "iterations.parquet", "stdout.log", "stderr.log", "spec.json"} <= names
        iterations = pq.read_table(folder / "iterations.parquet")
        kinds = iterations["pass"].to_pylist()
        assert (kinds.count("warm-up"), kinds.count("timed")) == (2, 120)
        wall_ms = sorted(row["wall_ns"] / 1e6 for row in iterations.to_pylist() if row["pass"] == "timed")
        latency = next(one for one in found.cases if one.case.case_id == case_id).latency
        assert latency is not None
        assert latency.min == pytest.approx(wall_ms[0], rel=1e-5)
        assert latency.max == pytest.approx(wall_ms[-1], rel=1e-5)
    table = pq.read_table(out / "bench.parquet").to_pylist()
    assert [row["case_id"] for row in table] == [one.case.case_id for one in found.cases]
    assert table[0]["latency_median_ms"] == found.cases[0].latency.median.value  # type: ignore[union-attr]
    assert table[0]["speedup"] == 1.0
    assert "net: take FakeBackend/" in done.stdout
    assert "FakeBackend/fast" in done.stdout


def test_results_are_not_mixed_with_others(tmp_path: Path) -> None:
    suite, out = write_suite(tmp_path, batch_sizes="[1]"), tmp_path / "out"
    (out / "cases" / "old").mkdir(parents=True)
    done = bench(suite, "-o", out)
    assert done.returncode == 2
    assert "holds results of a suite already; --resume goes on with them" in done.stderr


@pytest.mark.slow
def test_a_crash_a_hang_and_no_memory_end_one_case_each(tmp_path: Path) -> None:
    """One model each, for a script knows one way to fail from a batch size on."""
    fails = {
        "crash": FAST.model_copy(update={"crash_at_batch": 4}),
        "oom": FAST.model_copy(update={"oom_at_batch": 4}),
        "hang": FAST.model_copy(update={"hang_at_batch": 4}),
        "error": FAST.model_copy(update={"error_at_batch": 4}),
        "gone": FAST.model_copy(update={"unavailable": "the fake driver is not installed"}),
    }
    suite, out = write_suite(tmp_path), tmp_path / "out"
    sources = [write_model(tmp_path / f"{name}.py", script) for name, script in fails.items()]
    models = [part for source in sources for part in ("--model", source)]
    done = bench(suite, *models, "--backend", FAKE_BACKEND, "-o", out, "--timeout", "10", "--no-charts")
    assert done.returncode == 1, done.stdout + done.stderr
    found = {(one.case.model, one.case.batch_size): one for one in results(out).cases}
    assert {name: (found[name, 1].status, found[name, 4].status) for name in fails} == {
        "crash": ("ok", "failed"),
        "oom": ("ok", "out-of-memory"),
        "hang": ("ok", "timeout"),
        "error": ("ok", "failed"),
        "gone": ("unavailable", "unavailable"),
    }
    assert "SIGKILL" in (found["crash", 4].reason or "")
    assert found["crash", 4].process is not None
    assert found["crash", 4].process.signal == "SIGKILL"
    assert "10 s" in (found["hang", 4].reason or "")
    assert found["error", 4].reason == "the fake model does not run a batch of 4"
    assert found["gone", 1].reason is not None
    assert "the fake driver is not installed" in done.stdout  # the row has its reason
    assert not processes_naming(str(out))


def test_resume_keeps_what_is_done_and_tries_passing_failures_again(tmp_path: Path) -> None:
    broken = FAST.model_copy(update={"crash_at_batch": 4})
    suite, out = write_suite(tmp_path, broken, modes="plain"), tmp_path / "out"
    assert bench(suite, "-o", out, "--no-charts").returncode == 1
    before = by_cell(out)
    assert {cell: one.status for cell, one in before.items()} == {
        ("plain", 1): "ok",
        ("plain", 4): "failed",
    }
    again = bench(suite, "-o", out, "--resume", "--no-charts")
    assert "kept of an earlier run: 1 of 2 cases" in again.stderr
    assert "again: net-FakeBackend-plain-fp32-cpu-b4: it was failed" in again.stderr
    after = by_cell(out)
    assert after["plain", 1] == before["plain", 1]
    assert after["plain", 4].process is not None
    assert after["plain", 4].process.attempts == 2


@pytest.mark.slow
def test_resume_tells_of_a_changed_suite_and_measures_what_changed(tmp_path: Path) -> None:
    suite, out = write_suite(tmp_path, modes="plain"), tmp_path / "out"
    assert bench(suite, "-o", out, "--no-charts").returncode == 0
    before = by_cell(out)
    write_suite(tmp_path, batch_sizes="[1, 2]", modes="plain")
    grown = bench(suite, "-o", out, "--resume", "--no-charts")
    assert "kept of an earlier run: 1 of 2 cases" in grown.stderr
    assert "in cases/ and no longer in the suite" in grown.stdout
    assert by_cell(out)["plain", 1] == before["plain", 1]
    assert set(by_cell(out)) == {("plain", 1), ("plain", 2)}
    write_suite(tmp_path, FAST.model_copy(update={"bias": 1.0}), batch_sizes="[1, 2]", modes="plain")
    changed = bench(suite, "-o", out, "--resume", "--no-charts")
    assert "the suite, a file of the model or of its inputs, or the GPU has changed since" in changed.stderr
    assert by_cell(out)["plain", 1] != before["plain", 1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_suite_that_is_ended_in_the_middle_is_gone_on_with(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C prints how to continue; after a SIGKILL the finished cases are there too, and no process is left."""
    slow = FAST.model_copy(update={"by_batch_ms": {4: 150.0}})
    more = "[run]\nshuffle = false"
    suite, out = write_suite(tmp_path, slow, more, modes="plain"), tmp_path / "out"
    with subprocess.Popen(
        command(suite, "-o", out, "--no-charts"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as suite_process:
        try:
            running = out / "cases" / ".net-FakeBackend-plain-fp32-cpu-b4.running"
            wait_for((running / "status.json").exists, "the second case is measured")
            os.kill(suite_process.pid, number)
            said = suite_process.communicate(timeout=PATIENCE_S)[0]
        finally:
            suite_process.kill()
    wait_for(lambda: not processes_naming(str(out)), "nobody is left behind")
    done = json.loads((out / "bench.json").read_text())
    statuses = {one["case"]["case_id"]: one["status"] for one in done["cases"]}
    assert statuses["net-FakeBackend-plain-fp32-cpu-b1"] == "ok"
    assert statuses["net-FakeBackend-plain-fp32-cpu-b4"] == "not-run"
    assert not done["complete"]
    if number is signal.SIGINT:
        assert suite_process.returncode == 1
        assert "interrupted with 1 of 2 cases left; --resume goes on with what is left: perfharness bench" in said
    again = bench(suite, "-o", out, "--resume", "--no-charts")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "kept of an earlier run: 1 of 2 cases" in again.stderr
    assert results(out).complete
    assert not list((out / "cases").glob(".*"))


@pytest.mark.slow
def test_a_wrong_answer_is_a_row_that_says_so(tmp_path: Path) -> None:
    """fp16 of the fake backend rounds; a tolerance of nothing calls that wrong."""
    script = FAST.model_copy(update={"scale": 1.2345678})
    more = "[equality]\nabsolute = 0\nrelative = 0\n[equality.precision.fp16]\nabsolute = 0\nrelative = 1e-5\n"
    suite, out = write_suite(tmp_path, script, more=more, batch_sizes="[1]"), tmp_path / "out"
    done = bench(suite, "--precision", "fp32,fp16", "-o", out, "--no-charts")
    assert done.returncode == 3, done.stdout + done.stderr
    equal = {(one.case.mode, one.case.precision): one.equality for one in results(out).cases}
    assert {cell: record.equal for cell, record in equal.items() if record} == {
        ("plain", "fp32"): True,
        ("fast", "fp32"): True,
        ("plain", "fp16"): False,
        ("fast", "fp16"): False,
    }
    assert "wrong answer: output y differs by up to" in done.stdout
    assert " !" in done.stdout
    taken = results(out).recommendations[0].best
    assert taken is not None
    assert "fp32" in taken


def test_show_under_other_constraints_and_merge(tmp_path: Path) -> None:
    suite, one, two = write_suite(tmp_path, batch_sizes="[1]"), tmp_path / "one", tmp_path / "two"
    assert bench(suite, "-o", one, "--no-charts").returncode == 0
    shown = bench("show", one, "--max-latency-ms", "0.000001")
    assert shown.returncode == 3, shown.stderr
    assert "none meets the constraints; nearest is" in shown.stdout
    wrong = bench("show", one, "--baseline", "jax")
    assert wrong.returncode == 2
    assert "is no cell of these results; there are: " in wrong.stderr
    assert bench(suite, "-o", two, "--iterations", "130", "--no-charts").returncode == 0
    merged = bench("merge", one, two, "-o", tmp_path / "merged", "--no-charts")
    assert merged.returncode == 3, merged.stdout + merged.stderr
    assert "not the same: setting latency.iterations differs: " in merged.stdout
    rows = json.loads((tmp_path / "merged" / "bench_merged.json").read_text())["rows"]
    assert [len(row["cells"]) for row in rows] == [2, 2]
    assert bench("merge", one, "-o", tmp_path / "x").returncode == 2


def test_flags_without_a_file_and_a_dry_run(tmp_path: Path) -> None:
    model = write_model(tmp_path / "net.py", FAST)
    flags = ("--model", model, "--backend", f"{FAKE_BACKEND}/fast", "--batch-size", "1,2", "--device", "cpu")
    dry = bench(*flags, "--dry-run", "-o", tmp_path / "out")
    assert dry.returncode == 0, dry.stderr
    assert sorted(dry.stdout.split()) == ["net-FakeBackend-fast-fp32-cpu-b1", "net-FakeBackend-fast-fp32-cpu-b2"]
    assert not (tmp_path / "out").exists()
    nothing = bench("-o", tmp_path / "out")
    assert nothing.returncode == 2
    assert "name a suite (perfharness bench suite.toml), or --model and --backend" in nothing.stderr
    bad = bench(*flags, "--memory-limit", "12 apples")
    assert bad.returncode == 2
    assert "`measure.memory_limit`: could not interpret byte unit: apples (it is '12 apples')" in bad.stderr
    assert bench(*flags, "--batch-size", "x").returncode == 2


def test_memory_ends_a_cell(tmp_path: Path) -> None:
    suite, out = write_suite(tmp_path, FAST.model_copy(update={"oom_at_batch": 4}), modes="plain"), tmp_path / "out"
    done = bench(suite, "--batch-size", "2..8", "--in-order", "-o", out, "--no-charts")
    assert done.returncode == 0, done.stdout + done.stderr
    small, ended, skipped = results(out).cases
    assert (small.status, ended.status, skipped.status) == ("ok", "out-of-memory", "out-of-memory")
    assert ended.started_unix_ns is not None
    assert skipped.started_unix_ns is None
    assert "not run, for a batch of 4 is so already" in (skipped.reason or "")


def test_help_tells_of_all_three(tmp_path: Path) -> None:
    said = bench("--help").stdout
    assert "bench show" in said
    assert "bench merge" in said
    assert bench("merge", "--help").returncode == 0
