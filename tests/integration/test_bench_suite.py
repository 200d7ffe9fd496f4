"""`perfharness bench` as a user calls it, with real child processes that crash, hang, run out of memory, are killed."""

from __future__ import annotations

import csv
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from perfharness import report
from perfharness.cli.main import run
from perfharness.model.bench import CaseResult
from perfharness.model.bench_suite import BenchSuiteResult
from tests.integration.bench_runs import FAST, bench, cases_in, ended_in_the_middle, suite_in, write_suite
from tests.integration.launches import processes_naming
from tests.support.documents import markdown_table
from tests.support.fake_backend import FAKE_BACKEND, FakeScript, write_model
from tests.unit.bench_results import known

ALL_MODES = f'[[backend]]\nname = "{FAKE_BACKEND}"\nmodes = "all"\n'
TOKENS = '[[model]]\nsource = "net.py:create"\ntokens_per_item = 16\n'
SLOW_START = FakeScript(execute_ms=2, load_ms=30, allocate_ms=20, first_extra_ms=40, layers={"conv": 0.7, "relu": 0.1})


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A suite with two modes and all passes: its folder, and what was printed."""
    folder = tmp_path_factory.mktemp("measured")
    more = "[run]\nseed = 5\n[equality]\n[telemetry]\nseconds = 0.3\n"
    passes = '["latency", "telemetry"]'
    suite = write_suite(folder, SLOW_START, more, "[1, 4]", ALL_MODES, passes, TOKENS)
    done = bench(suite, "--layers", "-o", folder / "out", "--no-charts")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out", done.stdout


def test_a_suite_from_its_file_to_its_results(measured: tuple[Path, str], tmp_path: Path) -> None:
    out, stdout = measured
    found = suite_in(out)
    assert ([one.status for one in found.cases], found.complete) == (["ok"] * 4, True)
    started = {one.case.case_id: one.started_unix_ns or 0 for one in found.cases}
    assert sorted(started, key=lambda case_id: started[case_id]) == found.order
    for one in found.cases:
        folder = out / "cases" / one.case.case_id
        names = {path.name for path in folder.iterdir()}
        assert {"result.json", "iterations.parquet", "stdout.log", "stderr.log", "spec.json", "outputs.npz"} <= names
        rows = pq.read_table(folder / "iterations.parquet").to_pylist()
        timed = [row for row in rows if row["pass"] == "timed"]
        assert (len(rows), [row["iteration"] for row in timed]) == (122, list(range(120)))
        starts, walls = (np.array([row[name] for row in timed]) for name in ("start_ns", "wall_ns"))
        assert (np.diff(starts) >= walls[:-1]).all()
        latency, rate = known(one.latency), known(one.items_per_second)
        assert (latency.min, latency.median.value, latency.max) == pytest.approx(
            (walls.min() / 1e6, np.median(walls) / 1e6, walls.max() / 1e6), rel=1e-5
        )
        assert (latency.iterations, latency.warmup_iterations, latency.min >= 2.0) == (120, 2, True)
        assert rate.value == pytest.approx(1e3 * one.case.batch_size / latency.mean.value)
        assert known(one.tokens_per_second).value == pytest.approx(16 * rate.value)
        start = {name: known(getattr(one.startup, f"{name}_ms")) for name in ("load", "allocate", "first_inference")}
        assert (start["load"] >= 30, start["allocate"] >= 20, start["first_inference"] >= 42) == (True, True, True)
        assert [layer.name for layer in one.layers] == ["conv", "relu"]
        for name in ("utilization_percent", "energy_per_item_j", "power_mean_w", "clock_drop_percent"):
            assert (getattr(one, name), bool(one.reasons[name])) == (None, True)
        assert known(one.memory.host_peak_bytes) > 10**7
        assert known(one.equality).equal
    table = pq.read_table(out / "bench.parquet").to_pylist()
    assert [row["case_id"] for row in table] == [one.case.case_id for one in found.cases]
    assert table[0]["latency_median_ms"] == known(found.cases[0].latency).median.value
    assert table[0]["speedup"] == 1.0
    assert run(["export", str(out), "-o", str(tmp_path / "cases.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "cases.csv").read_text().splitlines()))
    assert [row["case_id"] for row in rows] == [one.case.case_id for one in found.cases]
    best = known(found.recommendations[0].best)
    lines = stdout.splitlines()
    assert "take FakeBackend/" in next(line for line in lines if line.strip()), f"{best} is named first"
    assert any(line.split()[:1] == ["conv"] and "87.5 %" in line for line in lines)


def test_the_results_under_other_constraints(measured: tuple[Path, str], tmp_path: Path) -> None:
    """Nothing is measured again."""
    out = Path(shutil.copytree(measured[0], tmp_path / "out"))
    suite = str(measured[0].parent / "suite.toml")
    again = ["bench", suite, "--layers", "-o", str(out), "--resume", "--no-charts", "--no-history"]
    assert run([*again, "--max-latency-ms", "0.000001"]) == 3
    assert cases_in(out) == cases_in(measured[0])
    assert suite_in(out).recommendations[0].best is None
    assert run([*again, "--baseline", "tensorflow"]) == 2
    assert run(["bench", suite, "-o", str(out)]) == 2, "results are not mixed with others"


def test_suites_are_reported_side_by_side(measured: tuple[Path, str], tmp_path: Path) -> None:
    one, two, page = measured[0], tmp_path / "two", tmp_path / "page.md"
    two.mkdir()
    settings = {"latency.iterations": 130}
    other = BenchSuiteResult.model_validate({**suite_in(one).model_dump(), "settings": settings})
    (two / "bench.json").write_text(other.model_dump_json())
    (merged,) = report(one, two).merged
    assert [len(row.cells) for row in merged.merged.rows] == [2] * 4
    assert report(one).merged == []
    assert run(["report", str(one), str(two), "-o", str(page)]) == 0
    assert "latency.iterations" in page.read_text()
    assert [row["layer"] for row in markdown_table(page.read_text(), "layer", "share")] == ["conv", "relu"]


FAILING: Mapping[str, tuple[FakeScript, str, str | None, str]] = {
    # name: (script, status of a batch of 4, signal, a word of the reason); a batch of 1 is measured
    "oom": (FAST.model_copy(update={"oom_at_batch": 4}), "out-of-memory", None, "batch of 4"),
    "oom_later": (FAST.model_copy(update={"oom_at_batch": 4, "oom_in_execute": True}), "out-of-memory", None, "run"),
    "error": (FAST.model_copy(update={"error_at_batch": 4}), "failed", None, "batch of 4"),
    "crash": (FAST.model_copy(update={"crash_at_batch": 4}), "failed", "SIGKILL", "SIGKILL"),
    "big": (FAST.model_copy(update={"host_bytes_per_item": 128 << 20}), "memory-limit", None, "--memory-limit"),
}


def test_failures_are_rows_and_end_one_case_each(tmp_path: Path) -> None:
    """One model each, for a script knows one way to fail from a batch size on."""
    suite, out = write_suite(tmp_path), tmp_path / "out"
    sources = [write_model(tmp_path / f"{name}.py", script) for name, (script, *_) in FAILING.items()]
    gone = FAST.model_copy(update={"unavailable": "the fake driver is not installed"})
    sources.append(write_model(tmp_path / "gone.py", gone))
    models = [part for source in sources for part in ("--model", source)]
    limit = ("--memory-limit", "400MB")
    done = bench(suite, *models, "--backend", FAKE_BACKEND, *limit, "-o", out, "--no-charts")
    assert done.returncode == 1, done.stdout + done.stderr
    found = {(one.case.model, one.case.batch_size): one for one in suite_in(out).cases}
    for name, (_, status, end, word) in FAILING.items():
        one, four = found[name, 1], found[name, 4]
        assert (one.status, four.status, known(four.process).signal) == ("ok", status, end), name
        assert word in known(four.reason)
        assert (four.latency is None, four.startup.load_ms is not None) == (True, True), "what was known is kept"
        assert known(four.memory.host_peak_bytes) > 1 << 20
    assert {found["gone", size].status for size in (1, 4)} == {"unavailable"}
    assert "the fake driver is not installed" in done.stdout
    assert not processes_naming(str(out))


def test_a_crash_after_the_latency_keeps_it(tmp_path: Path) -> None:
    """First inference, warm-up, timed rounds and those with the device's events; then the outputs."""
    script = FakeScript(has_device=True, execute_ms=1, copy_out_ms=2, crash_at_execution=1 + 2 + 120 + 120)
    suite, out = write_suite(tmp_path, script, batch_sizes="[4]", passes='["latency", "outputs"]'), tmp_path / "out"
    assert bench(suite, "-o", out, "--no-charts").returncode == 1
    (found,) = suite_in(out).cases
    assert (found.status, known(found.process).signal) == ("failed", "SIGKILL")
    own, latency = known(found.execute_latency), known(found.latency)
    assert (own.min >= 1.0, latency.min >= 3.0, own.median.value < latency.median.value) == (True, True, True)
    assert found.memory.device_allocator_bytes == 1_000


@pytest.mark.slow
def test_a_speed_that_changes_is_told_and_a_hang_is_a_timeout(tmp_path: Path) -> None:
    """Each timed round is 0.4 ms longer than the last; in the telemetry pass all take 150 ms longer."""
    series = (*[0.0] * 3, *(0.4 * each for each in range(120)), *[150.0] * 500)
    slower = FakeScript(execute_ms=1, series_ms=series, hang_at_batch=4)
    suite = write_suite(tmp_path, slower, "[telemetry]\nseconds = 0.5\n", passes='["latency", "telemetry"]')
    assert bench(suite, "-o", tmp_path / "out", "--timeout", "30", "--no-charts").returncode == 1
    found, hanging = suite_in(tmp_path / "out").cases
    assert known(known(found.latency).drift_percent) > 20
    assert known(found.telemetry_items_per_second) < 1 / 0.151
    assert {"latency", "telemetry_items_per_second"} <= set(found.reasons)
    assert known(found.items_per_second).low is None, "of 120 iterations there is no interval"
    assert hanging.status == "timeout"


def test_resume_keeps_what_is_done_and_tries_passing_failures_again(tmp_path: Path) -> None:
    suite, out = write_suite(tmp_path, FAST.model_copy(update={"crash_at_batch": 4})), tmp_path / "out"
    assert bench(suite, "-o", out, "--no-charts").returncode == 1
    before = cases_in(out)
    assert [one.status for one in before.values()] == ["ok", "failed"]
    bench(suite, "-o", out, "--resume", "--no-charts")
    after = cases_in(out)
    assert after["plain", 1] == before["plain", 1]
    assert known(after["plain", 4].process).attempts == 2


@pytest.mark.slow
def test_resume_measures_what_changed(tmp_path: Path) -> None:
    suite, out = write_suite(tmp_path), tmp_path / "out"

    def resumed(sizes: str, bias: float = 0.0) -> dict[tuple[str, int], CaseResult]:
        write_suite(tmp_path, FAST.model_copy(update={"bias": bias}), batch_sizes=sizes)
        bench(suite, "-o", out, "--resume", "--no-charts")
        return cases_in(out)

    first, sizes, model = resumed("[1, 4]"), resumed("[1, 2]"), resumed("[1, 2]", bias=1.0)
    assert set(sizes) == {("plain", 1), ("plain", 2)}
    assert sizes["plain", 1] == first["plain", 1] != model["plain", 1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_suite_that_is_ended_in_the_middle_is_gone_on_with(tmp_path: Path, number: signal.Signals) -> None:
    """The finished cases are there either way, and no process is left."""
    slow = FAST.model_copy(update={"by_batch_ms": {4: 150.0}})
    suite, out = write_suite(tmp_path, slow, "[run]\nshuffle = false"), tmp_path / "out"
    code, _ = ended_in_the_middle(out, number, suite, "-o", out, "--no-charts")
    assert [one.status for one in cases_in(out).values()] == ["ok", "not-run"]
    assert not suite_in(out).complete
    assert code == (1 if number is signal.SIGINT else -number)
    again = bench(suite, "-o", out, "--resume", "--no-charts")
    assert again.returncode == 0, again.stdout + again.stderr
    assert suite_in(out).complete
    assert not list((out / "cases").glob(".*"))


@pytest.mark.slow
def test_a_wrong_answer_is_a_row_that_says_so(tmp_path: Path) -> None:
    """fp16 of the fake backend rounds; a tolerance of nothing calls that wrong."""
    script = FAST.model_copy(update={"scale": 1.2345678})
    more = "[equality]\nabsolute = 0\nrelative = 0\n[equality.precision.fp16]\nabsolute = 0\nrelative = 1e-5\n"
    suite, out = write_suite(tmp_path, script, more, "[1]", ALL_MODES), tmp_path / "out"
    done = bench(suite, "--precision", "fp32,fp16", "-o", out, "--no-charts")
    assert done.returncode == 3, done.stdout + done.stderr
    equal = {(one.case.mode, one.case.precision): known(one.equality).equal for one in suite_in(out).cases}
    modes = ("plain", "fast")
    assert equal == {(mode, kind): kind == "fp32" for mode in modes for kind in ("fp32", "fp16")}
    assert "fp32" in known(suite_in(out).recommendations[0].best)


@pytest.mark.slow
def test_cells_whose_names_are_alike_are_compared_each_with_its_own(tmp_path: Path) -> None:
    """Two models have one name as files, and two cells one name as a baseline; the first is the baseline.

    With one thread the model `full` has no memory, whatever the batch; with two it runs.
    """
    scripts = {
        "a b": (FAST.model_copy(update={"bias_of_threads": 1.0}), [1]),
        "a_b": (FAST.model_copy(update={"bias": 5.0}), [1]),
        "full": (FAST.model_copy(update={"oom_with_threads": 1}), [1, 2]),
    }
    models = ""
    for place, (name, (script, sizes)) in enumerate(scripts.items()):
        source = write_model(tmp_path / f"m{place}.py", script)
        models += f'[[model]]\nname = "{name}"\nsource = "{source}"\nbatch_sizes = {sizes}\n'
    backends = "".join(f'[[backend]]\nname = "{FAKE_BACKEND}"\nthreads = {count}\n' for count in (1, 2))
    more = '[equality]\n[accuracy]\ninputs = "data"\n[run]\nshuffle = false\n'
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "a.npy", np.zeros(4, np.float32))
    suite = write_suite(tmp_path, more=more, backends=f'baseline = "{FAKE_BACKEND}"\n{backends}', model=models)
    assert run(["bench", str(suite), "-o", str(tmp_path / "out"), "--no-charts"]) == 3
    found = {(one.case.model, one.case.variant, one.case.batch_size): one for one in suite_in(tmp_path / "out").cases}
    equal = {key: known(one.equality).equal for key, one in found.items() if key[0] != "full"}
    assert equal == {(name, f"threads={n}", 1): (name, n) != ("a b", 2) for name in ("a b", "a_b") for n in (1, 2)}
    assert {known(one.equality).reference for one in found.values()} == {f"{FAKE_BACKEND}/plain/fp32 threads=1"}
    worst = [known(found[name, "threads=2", 1].accuracy).metrics["max_absolute"] for name in ("a b", "a_b")]
    assert worst == [1.0, 0.0]
    ends = {key[1:]: one.status for key, one in found.items() if key[0] == "full"}
    assert ends == {(f"threads={n}", size): "ok" if n == 2 else "out-of-memory" for n in (1, 2) for size in (1, 2)}
    assert found["full", "threads=1", 2].started_unix_ns is None


def test_flags_without_a_file_and_a_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "net.py", FAST)
    flags = ("--model", model, "--backend", f"{FAKE_BACKEND}/fast", "--batch-size", "1,2", "--device", "cpu")
    out = ["-o", str(tmp_path / "out")]
    assert run(["bench", *flags, "--dry-run", *out]) == 0
    cases = capsys.readouterr().out.split()
    assert sorted(cases) == ["net-FakeBackend-fast-fp32-cpu-b1", "net-FakeBackend-fast-fp32-cpu-b2"]
    for wrong, named in (
        ([], "--model"),
        ([*flags, "--batch-size", "x"], "1..64"),
    ):
        assert run(["bench", *wrong, *out]) == 2
        assert named in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_memory_ends_a_cell(tmp_path: Path) -> None:
    suite, out = write_suite(tmp_path, FAST.model_copy(update={"oom_at_batch": 4})), tmp_path / "out"
    done = bench(suite, "--batch-size", "2..8", "--in-order", "-o", out, "--no-charts")
    assert done.returncode == 0, done.stdout + done.stderr
    small, ended, skipped = suite_in(out).cases
    assert (small.status, ended.status, skipped.status) == ("ok", "out-of-memory", "out-of-memory")
    assert (ended.started_unix_ns is None, skipped.started_unix_ns is None) == (False, True)
