"""`perfharness stress`, as a user runs it."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import perfharness as api
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


QUIET = ("--tracer", "none", "--no-telemetry", "--no-history")


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
    (median,) = History().series("latency", "p50").points
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
    shares = [pq.read_table(tmp_path / "out" / f"proc_{one}_gpu_0" / "requests.parquet")["id"] for one in (0, 1)]
    assert sorted(shares[0].to_pylist()) == list(range(0, 30, 2))
    assert sorted(shares[1].to_pylist()) == list(range(1, 30, 2))


def test_a_model_under_load(tmp_path: Path) -> None:
    done = api.stress(
        "tests.contract.tiny_models:create", backend="onnxruntime", rate=40, duration_s=1, items=3, tracer="ranges",
        telemetry=False, history=False, output_dir=tmp_path / "out",
    )  # fmt: skip
    assert (done.load.target.kind, done.load.phases[0].ok, done.load.phases[0].items) == ("backend", 40, 120)
    stages = set(api.open_run(tmp_path / "out").ranges()["name"].to_pylist())
    assert {"execute", "synchronize"} <= stages


def test_a_target_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("class Model:\n    def __init__(self):\n        {}['weights']\n"
                                     "    def __call__(self):\n        pass\n")  # fmt: skip
    done = perfharness("stress", f"{tmp_path / 'app.py'}:Model", "--rate", 30, *QUIET, "-o", tmp_path / "out")
    assert (done.returncode, "weights" in done.stderr, "Traceback" in done.stderr) == (1, True, False)


def test_conditions_that_are_met_fail_the_run(tmp_path: Path, target: str) -> None:
    limits = ("--max-error-rate", 0, "--fail-if", "latency.p50 > 0.5ms", "--fail-if", "error_rate > 0.9")
    done = perfharness("stress", target, "--rate", 30, "--duration", "1s", *limits, *QUIET, "-o", tmp_path / "out")
    assert done.returncode == 3, done.stderr
    assert "latency.p50 > 0.5ms" in done.stderr
    assert "error_rate > 0.9" not in done.stderr


def test_a_crash_of_the_target_keeps_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import os\n\ndef serve(request):\n    request.id == 170 and os.abort()\n")
    load = ("--rate", 50, "--duration", "5s", "--format", "json", "-o", tmp_path / "out")
    done = perfharness("stress", f"{tmp_path / 'app.py'}:serve", *load, *QUIET)
    assert done.returncode == 1
    found = LoadResult.model_validate(json.loads(done.stdout))
    assert found.status == "killed"
    assert "load-stopped" in {finding.code for finding in found.findings}
    assert 0 < found.phases[0].completed <= 170  # whole windows of a second; the crash was in the fourth one
