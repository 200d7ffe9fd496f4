"""`perfharness bench` as a user calls it, with real child processes that crash, hang, run out of memory, are killed."""

from __future__ import annotations

import csv
import shutil
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from perfharness import report
from perfharness.cli.main import run
from perfharness.model.bench_suite import BenchSuiteResult
from tests.integration.bench_runs import FAST, bench, cases_in, ended_in_the_middle, suite_in, write_suite
from tests.integration.launches import processes_naming
from tests.support.fake_backend import FAKE_BACKEND, write_model
from tests.unit.bench_results import known

ALL_MODES = f'[[backend]]\nname = "{FAKE_BACKEND}"\nmodes = "all"\n'


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A suite with two modes: its folder, and what was printed."""
    folder = tmp_path_factory.mktemp("measured")
    suite = write_suite(folder, more="[run]\nseed = 5\n[equality]", backends=ALL_MODES)
    done = bench(suite, "-o", folder / "out", "--no-charts")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out", done.stdout


def test_a_suite_from_its_file_to_its_results(measured: tuple[Path, str]) -> None:
    out, stdout = measured
    found = suite_in(out)
    assert ([one.status for one in found.cases], found.complete) == (["ok"] * 4, True)
    started = {one.case.case_id: one.started_unix_ns or 0 for one in found.cases}
    assert sorted(started, key=lambda case_id: started[case_id]) == found.order
    assert all(known(one.equality).equal for one in found.cases)
    for one in found.cases:
        folder = out / "cases" / one.case.case_id
        names = {path.name for path in folder.iterdir()}
        assert {"result.json", "iterations.parquet", "stdout.log", "stderr.log", "spec.json"} <= names
        iterations = pq.read_table(folder / "iterations.parquet")
        kinds = iterations["pass"].to_pylist()
        assert (kinds.count("warm-up"), kinds.count("timed")) == (2, 120)
        timed = [row for row in iterations.to_pylist() if row["pass"] == "timed"]
        assert [row["iteration"] for row in timed] == list(range(120))
        assert sorted(row["start_ns"] for row in timed) == [row["start_ns"] for row in timed]
        wall_ms = sorted(row["wall_ns"] / 1e6 for row in timed)
        latency = known(one.latency)
        assert (latency.min, latency.max) == pytest.approx((wall_ms[0], wall_ms[-1]), rel=1e-5)
    table = pq.read_table(out / "bench.parquet").to_pylist()
    assert [row["case_id"] for row in table] == [one.case.case_id for one in found.cases]
    assert table[0]["latency_median_ms"] == known(found.cases[0].latency).median.value
    assert table[0]["speedup"] == 1.0
    assert "FakeBackend/fast" in stdout
    assert run(["export", str(out), "-o", str(out / "cases.csv")]) == 0
    rows = list(csv.DictReader((out / "cases.csv").read_text().splitlines()))
    assert [row["case_id"] for row in rows] == [one.case.case_id for one in found.cases]


def test_the_results_under_other_constraints(measured: tuple[Path, str], tmp_path: Path) -> None:
    """Nothing is measured again."""
    out = Path(shutil.copytree(measured[0], tmp_path / "out"))
    again = ["bench", str(measured[0].parent / "suite.toml"), "-o", str(out), "--resume", "--no-charts", "--no-history"]
    assert run([*again, "--max-latency-ms", "0.000001"]) == 3
    assert cases_in(out) == cases_in(measured[0])
    assert suite_in(out).recommendations[0].best is None
    assert run([*again, "--baseline", "tensorflow"]) == 2


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


def test_results_are_not_mixed_with_others(measured: tuple[Path, str], tmp_path: Path) -> None:
    assert run(["bench", str(write_suite(tmp_path)), "-o", str(measured[0])]) == 2


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
    done = bench(suite, *models, "--backend", FAKE_BACKEND, "-o", out, "--timeout", "20", "--no-charts")
    assert done.returncode == 1, done.stdout + done.stderr
    found = {(one.case.model, one.case.batch_size): one for one in suite_in(out).cases}
    assert {name: (found[name, 1].status, found[name, 4].status) for name in fails} == {
        "crash": ("ok", "failed"),
        "oom": ("ok", "out-of-memory"),
        "hang": ("ok", "timeout"),
        "error": ("ok", "failed"),
        "gone": ("unavailable", "unavailable"),
    }
    assert known(found["crash", 4].process).signal == "SIGKILL"
    assert "the fake driver is not installed" in done.stdout  # the row has its reason
    assert not processes_naming(str(out))


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
def test_resume_tells_of_a_changed_suite_and_measures_what_changed(tmp_path: Path) -> None:
    suite, out = write_suite(tmp_path), tmp_path / "out"
    assert bench(suite, "-o", out, "--no-charts").returncode == 0
    before = cases_in(out)
    write_suite(tmp_path, batch_sizes="[1, 2]")
    bench(suite, "-o", out, "--resume", "--no-charts")
    assert cases_in(out)["plain", 1] == before["plain", 1]
    assert set(cases_in(out)) == {("plain", 1), ("plain", 2)}
    write_suite(tmp_path, FAST.model_copy(update={"bias": 1.0}), batch_sizes="[1, 2]")
    bench(suite, "-o", out, "--resume", "--no-charts")
    assert cases_in(out)["plain", 1] != before["plain", 1]


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
    assert equal == {
        ("plain", "fp32"): True,
        ("fast", "fp32"): True,
        ("plain", "fp16"): False,
        ("fast", "fp16"): False,
    }
    assert "fp32" in known(suite_in(out).recommendations[0].best)


def test_flags_without_a_file_and_a_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "net.py", FAST)
    flags = ("--model", model, "--backend", f"{FAKE_BACKEND}/fast", "--batch-size", "1,2", "--device", "cpu")
    out = ["-o", str(tmp_path / "out")]
    assert run(["bench", *flags, "--dry-run", *out]) == 0
    cases = capsys.readouterr().out.split()
    assert sorted(cases) == ["net-FakeBackend-fast-fp32-cpu-b1", "net-FakeBackend-fast-fp32-cpu-b2"]
    for wrong, named in (
        ([], "--model"),
        ([*flags, "--memory-limit", "12 apples"], "memory_limit"),
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
