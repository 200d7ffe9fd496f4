"""`perfharness stress`, as a user runs it."""

from __future__ import annotations

import itertools
import json
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import perfharness as api
from perfharness.load.replicas.result import Replicas
from perfharness.model.load import LoadResult
from perfharness.runs.files.run_folder import read_manifest
from perfharness.runs.history import History
from tests.integration import forked_command
from tests.integration.launches import environment, perfharness, tracing

TARGET = """
from time import sleep

class Model:
    made = 0

    def __init__(self):
        Model.made += 1
        assert Model.made <= 2

    def __call__(self, request):
        sleep(0.001)
        if request.id == 7:
            raise ValueError("planted")
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "app.py").write_text(TARGET)
    return f"{tmp_path / 'app.py'}:Model"


def test_requests_are_batches_of_the_trace(tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, place = tmp_path / "out", str(tmp_path / "history.db")
    monkeypatch.setenv("PERFHARNESS_HISTORY", place)
    done = perfharness(
        "stress", target, "--rate", 40, "--duration", "1s", "--warm-up", "500ms", "--concurrency", 2,
        "--tracer", "ranges", "--no-telemetry", "--format", "json", "-o", out,
        PERFHARNESS_HISTORY=place,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = LoadResult.model_validate(json.loads(done.stdout))
    assert found == LoadResult.model_validate_json((out / "load.json").read_text())
    warm, load = found.phases
    assert (warm.arrivals, warm.errors) == (20, {"exception:ValueError": 1})
    assert (load.arrivals, load.ok, load.concurrency) == (40, 40, 2)
    batches = api.open_run(out).batches()
    assert sorted(batches["batch_index"].to_pylist()) == list(range(20, 60))
    process = out / "proc_0_gpu_0"
    rows = {row["id"]: row for row in pq.read_table(process / "requests.parquet").to_pylist()}
    assert sorted(rows) == list(range(60))
    assert rows[7]["error"] == "exception:ValueError"
    (run,) = History().runs()
    assert (run["kind"], run["script"], run["exit"]) == ("stress", "app.py:Model", 0)
    (median,) = History().series("", "load_p50").points
    assert median["value"] == load.latency.p50.value
    source = read_manifest(out).source
    assert source is not None
    assert source.script_sha256 == sha256(TARGET.encode()).hexdigest()


@pytest.mark.slow
@pytest.mark.nsys
def test_ids_of_requests_are_in_the_trace_of_nsys(tmp_path: Path, target: str) -> None:
    out = tmp_path / "out"
    options, sites = tracing("nsys")
    done = forked_command.run(
        ("stress", target, "--rate", 40, "--duration", "1s", *options, "--no-telemetry", "-o", out),
        environment(*sites, PERFHARNESS_HISTORY="off"),
    )
    assert done.returncode == 0, done.stderr
    ids = sorted(api.open_run(out).batches()["batch_index"].to_pylist())
    assert ids == [number for number in range(40) if number != 7]  # a batch that an exception left is none
    (phase,) = LoadResult.model_validate_json((out / "load.json").read_text()).phases
    assert (phase.arrivals, phase.errors) == (40, {"exception:ValueError": 1})


def test_two_processes_share_the_load(tmp_path: Path, target: str) -> None:
    done = api.stress(
        target, rate=30, duration_s=1, num_processes=2, tracer="none", telemetry=False, history=False,
        output_dir=tmp_path / "out",
    )  # fmt: skip
    assert done.load.phases[0].arrivals == 30
    shown = done._repr_html_()
    assert shown is not None
    assert "<table>" in shown
    shares = [pq.read_table(tmp_path / "out" / f"proc_{one}_gpu_0" / "requests.parquet")["id"] for one in (0, 1)]
    assert sorted(shares[0].to_pylist()) == list(range(0, 30, 2))
    assert sorted(shares[1].to_pylist()) == list(range(1, 30, 2))


def test_batches_of_a_script_are_requests(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(
        "import sys\nfrom perfharness import PerfRecorder\nperf = PerfRecorder('toy')\n"
        "for index, element in perf.batches(range(int(sys.argv[1])), items=2):\n"
        "    with perf.range('stage'):\n        pass\nperf.finalize()\n"
    )
    done = perfharness(
        "stress", tmp_path / "toy.py", "--rate", 60, "--duration", "1s", "-np", 2, "--tracer", "ranges",
        "--no-telemetry", "--no-history", "--format", "json", "-o", tmp_path / "out", "--", 100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = LoadResult.model_validate(json.loads(done.stdout))
    assert (found.target.kind, found.phases[0].arrivals, found.phases[0].ok) == ("script", 60, 60)
    assert found.phases[0].items == 120
    table = pq.read_table(tmp_path / "out" / "proc_1_gpu_0" / "requests.parquet").to_pydict()
    batches = api.open_run(tmp_path / "out").processes[1].table("batches").to_pydict()
    assert table["id"] == list(range(30)) == batches["batch_index"][:30]
    begun = batches["cpu_start_ns"] if "cpu_start_ns" in batches else batches["start_ns"]
    gaps = [after - before for before, after in itertools.pairwise(begun[:30])]
    assert sum(gaps) >= 28 * 1e9 / 30  # in the trace too they begin when they are due


def test_a_model_under_load(tmp_path: Path) -> None:
    done = api.stress(
        "tests.contract.tiny_models:create", backend="onnxruntime", rate=40, duration_s=1, items=3, tracer="ranges",
        telemetry=False, history=False, output_dir=tmp_path / "out",
    )  # fmt: skip
    assert (done.load.target.kind, done.load.phases[0].ok, done.load.phases[0].items) == ("backend", 40, 120)
    stages = set(api.open_run(tmp_path / "out").ranges()["name"].to_pylist())
    assert {"execute", "synchronize"} <= stages


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("{target}", "--rate", "30", "--max-error-rate", "0", "--duration", "1s"), 3),
        (("{target}x", "--rate", "30"), 1),  # found when the process imports it
        (("nowhere", "--rate", "30"), 2),
        (("nowhere.onnx", "--backend", "onnxruntime", "--rate", "30"), 2),
        (("{target}", "--device", "cpu"), 2),
        (("{target}", "--arrivals", "often", "--rate", "3"), 2),
        (("{target}", "--rate", "0"), 2),
        (("{target}", "--rate", "1e9"), 2),
        (("unix:///tmp/socket", "--rate", "3"), 2),
    ],
)
def test_exit_codes(tmp_path: Path, target: str, words: tuple[str, ...], code: int) -> None:
    given = [word.format(target=target) for word in words]
    fast = ("--tracer", "none", "--no-telemetry", "--no-history", "-o", tmp_path / "out")
    done = perfharness("stress", *given, *fast)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_a_crash_of_the_target_keeps_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import os\n\ndef serve(request):\n    if request.id == 70:\n        os.abort()\n")
    done = perfharness(
        "stress", f"{tmp_path / 'app.py'}:serve", "--rate", 50, "--duration", "5s", "--tracer", "none",
        "--no-telemetry", "--no-history", "--format", "json", "-o", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 1
    found = LoadResult.model_validate(json.loads(done.stdout))
    assert found.status == "killed"
    assert "load-cut-off" in {finding.code for finding in found.findings}
    assert found.phases[0].completed == 50  # the first second; the crash was in the next one
    assert found.phases[0].duration_s == pytest.approx(1)


def test_the_knee_is_searched_rate_by_rate(tmp_path: Path, target: str) -> None:
    (tmp_path / "load.toml").write_text(
        '[load]\nobjective = "p50<=1s"\n[load.knee]\nhighest = 40\n[[load.phases]]\nduration = "2s"\nrate = 20\n'
    )
    out = tmp_path / "out"
    done = perfharness(
        "stress", target, "--profile", tmp_path / "load.toml", "--tracer", "ranges", "--no-telemetry", "--format",
        "json", "-o", out, PERFHARNESS_HISTORY="off",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = LoadResult.model_validate(json.loads(done.stdout))
    assert found.knee is not None
    assert [(step.rate, step.verdict, step.requests) for step in found.knee.steps] == [
        (20, "meets", 40),
        (40, "meets", 80),
    ]
    assert (found.knee.rate, found.knee.ended_by, found.knee.proven) == (40, "highest-meets", False)
    assert [phase.name for phase in found.phases] == ["20/s", "40/s"]
    assert [phase["rate"] for phase in found.profile["phases"]] == [20]
    assert "load-knee-not-proven" in {finding.code for finding in found.findings}
    assert len(api.open_run(out).batches()) == 119  # one of them was not answered well


@pytest.mark.slow
def test_a_target_that_never_meets_the_objective_has_no_knee(tmp_path: Path, target: str) -> None:
    (tmp_path / "load.toml").write_text(
        '[load]\nobjective = "p50<=0.1ms"\n[load.knee]\nsteps = 1\n[[load.phases]]\nduration = "1s"\n'
    )
    done = perfharness(
        "stress", target, "--profile", tmp_path / "load.toml", "--tracer", "none", "--no-telemetry", "--format", "json",
        "-o", tmp_path / "out", PERFHARNESS_HISTORY="off",
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    found = LoadResult.model_validate(json.loads(done.stdout))
    assert found.knee is not None
    assert found.knee.rate is None
    assert [step.verdict for step in found.knee.steps] == ["misses"]
    assert found.phases[0].name == "probe"
    assert found.phases[0].is_warmup


@pytest.mark.parametrize(
    "options", [["--find-knee"], ["--find-knee", "--objective", "1s", "-np", "2"], ["--knee-precision", "1"]]
)
def test_a_search_that_cannot_be(tmp_path: Path, target: str, options: list[str]) -> None:
    done = perfharness("stress", target, *options, "-o", tmp_path / "out", PERFHARNESS_HISTORY="off")
    assert done.returncode == 2, done.stderr
    assert not (tmp_path / "out").exists()


def test_a_condition_that_is_met_fails_the_run(tmp_path: Path, target: str) -> None:
    done = perfharness(
        "stress", target, "--rate", 40, "--duration", "1s", "--tracer", "none", "--no-telemetry", "--fail-if",
        "latency.p50 > 0.5ms", "--fail-if", "error_rate > 0.9", "-o", tmp_path / "out", PERFHARNESS_HISTORY="off",
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "latency.p50 > 0.5ms" in done.stderr
    assert "error_rate" not in done.stderr
    wrong = perfharness(
        "stress", target, "--fail-if", "error_rate > 1%", "-o", tmp_path / "b", PERFHARNESS_HISTORY="off"
    )
    assert wrong.returncode == 2


@pytest.mark.slow
def test_replicas_of_a_target_that_serves_one_at_a_time(tmp_path: Path) -> None:
    """40 ms a request and process: 25 answers a second of one, and twice as many of two."""
    (tmp_path / "locked.py").write_text(
        "import threading, time\nlock = threading.Lock()\ndef answer():\n    with lock:\n        time.sleep(0.04)\n"
    )
    out = tmp_path / "out"
    done = perfharness(
        "stress", tmp_path / "locked.py:answer", "--replicas", "1,2", "--repeat", 2, "--concurrency", 4, "--duration",
        "1s", "--tracer", "none", "--no-telemetry", "--format", "json", "-o", out, PERFHARNESS_HISTORY="off",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = Replicas.model_validate_json(done.stdout)
    assert found == Replicas.model_validate_json((out / "replicas.json").read_text())
    one, two = found.cases
    assert (one.figures["answers_per_second"].mean or 0) == pytest.approx(25, rel=0.2)
    assert (two.figures["answers_per_second"].mean or 0) == pytest.approx(50, rel=0.2)
    assert (found.best, found.chosen) == ("plain_2", "plain_2")
    assert [one.processes, two.processes] == [1, 2]
    assert one.figures["gpu_busy_share"].mean is None
    assert (one.figures["memory_mb"].mean or 0) > 10
    assert sorted(found.order) == [f"plain_{n}/launch_{k}" for n in (1, 2) for k in (0, 1)]
    assert "plain_1" in perfharness("analyze", out).stderr


def test_replicas_and_what_contradicts_them(tmp_path: Path, target: str) -> None:
    for options in (
        ("--replicas", "1,2", "-np", 2), ("--replicas", "1,2", "--find-knee", "--objective", "5ms"),
        ("--replicas", "0"), ("--repeat", 2), ("--sharing", "plain"), ("--start-mps",),
        ("--replicas", "1,2", "--sharing", "mps"), ("--replicas", "2", "--fail-if", "goodput < 1"),
    ):  # fmt: skip
        done = perfharness("stress", target, *options, "-o", tmp_path / "out", PERFHARNESS_HISTORY="off")
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), (options, done.stderr)
    assert not (tmp_path / "out").exists()
