"""`perfharness mlperf`, as a user runs it: the real LoadGen, short, on models of the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import perfharness as api
from perfharness.model.mlperf import MlperfResult
from tests.contract import tiny_models
from tests.integration.launches import environment, perfharness, wait_for
from tests.support.fake_backend import FAKE_BACKEND, FakeScript, write_model

pytest.importorskip("mlperf_loadgen")

TINY = f"{Path(tiny_models.__file__)}:create"
QUIET = ("--tracer", "ranges", "--no-telemetry", "--no-history")


def run(out: Path, model: str, *arguments: object) -> tuple[int, MlperfResult, str]:
    """The exit code, the result and stderr."""
    done = perfharness("mlperf", model, *arguments, *QUIET, "--format", "json", "-o", out)
    assert done.stdout, done.stderr
    result = MlperfResult.model_validate(json.loads(done.stdout))
    assert result == MlperfResult.model_validate_json((out / "mlperf.json").read_text())
    return done.returncode, result, done.stderr


def codes(result: MlperfResult) -> set[str]:
    return {one.code for one in result.findings}


def logs(out: Path) -> Path:
    return out / "proc_0_gpu_0" / "mlperf"


def requests(out: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = pq.read_table(out / "proc_0_gpu_0" / "requests.parquet").to_pydict()
    return found


SCENARIOS: dict[str, tuple[object, ...]] = {
    "SingleStream": (),
    "MultiStream": ("--min-queries", 700, "--samples-per-query", 4),
    "Server": ("--target-qps", 1000, "--min-queries", 600, "--target-latency", 2000, "--max-batch", 4),
    "Offline": ("--max-batch", 16, "--fail-if", "loadgen_rate < 1"),
}


Tested = Callable[[str], tuple[Path, MlperfResult]]


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Tested:
    """A test of a scenario, on the tiny model of ONNX Runtime, made when it is first asked for."""

    @cache
    def once(scenario: str) -> tuple[Path, MlperfResult]:
        out = tmp_path_factory.mktemp("mlperf") / scenario
        options = ("--scenario", scenario, "--min-duration", 0.3, "--seed", 5, *SCENARIOS[scenario])
        code, result, said = run(out, TINY, "--backend", "onnxruntime", *options)
        assert code == 0, said
        return out, result

    return once


@pytest.mark.parametrize(
    "scenario",
    [
        "Server",
        pytest.param("Offline", marks=pytest.mark.slow),
        pytest.param("SingleStream", marks=pytest.mark.slow),
        pytest.param("MultiStream", marks=pytest.mark.slow),
    ],
)
def test_each_scenario_is_valid_by_its_own_verdict(tested: Tested, scenario: str) -> None:
    out, result = tested(scenario)
    assert (result.validity, result.invalid_reasons, result.status) == ("VALID", [], "ok")
    assert "Result is : VALID" in (logs(out) / "mlperf_log_summary.txt").read_text()
    assert (result.settings["schedule_rng_seed"], result.settings["min_duration_ms"]) == (5, 300)
    assert result.sut is not None
    assert result.sut.errors == {}
    batches = api.open_run(out).batches().to_pydict()
    assert sum(batches["items"]) == result.sut.samples
    assert len(batches["items"]) == result.sut.batches
    stages = set(api.open_run(out).stages().to_pydict()["stage"])
    assert {"write_inputs", "copy_in", "execute", "copy_out", "synchronize", "respond"} <= stages
    assert ("wait" in stages) == (scenario == "Server")
    if scenario != "Offline":
        assert result.sut.samples == result.queries * result.settings["samples_per_query"]
        assert requests(out)["id"] == list(range(result.queries or 0))
    assert result.metric is not None
    assert result.metric.unit == ("samples per second" if scenario in ("Server", "Offline") else "ms")
    if scenario == "Offline":
        # What LoadGen divides by is the latency of the one query.
        expected = result.sut.samples / result.reported["max_latency_ns"] * 1e9
        assert result.metric.value == pytest.approx(expected, rel=1e-3)


def test_latency_is_that_of_the_batches_in_the_trace(tmp_path: Path) -> None:
    model = write_model(tmp_path / "net.py", FakeScript(execute_ms=4))
    code, result, said = run(
        tmp_path / "out", model, "--backend", FAKE_BACKEND, "--min-duration", 0.5, "--min-queries", 100
    )
    assert code == 0, said
    batches = api.open_run(tmp_path / "out").batches().to_pydict()
    assert len(batches["items"]) == result.queries
    p50_ms = next(one.latency_ms for one in result.percentiles if one.percent == 50)
    assert p50_ms is not None
    own_ms = float(np.median(batches["duration_ns"])) / 1e6
    assert own_ms > 4
    # LoadGen counts from before our callback to the answer, the batch ends after it.
    assert p50_ms == pytest.approx(own_ms, rel=0.5)


def test_too_few_queries_are_invalid(tmp_path: Path) -> None:
    model = write_model(tmp_path / "net.py", FakeScript(execute_ms=1))
    code, result, said = run(
        tmp_path / "out", model, "--backend", FAKE_BACKEND, "--min-duration", 0.02, "--min-queries", 5,
        "--max-queries", 20, "--benchmark", "resnet50",
    )  # fmt: skip
    assert code == 3, said
    assert result.validity == "INVALID"
    assert result.invalid_reasons
    assert {"mlperf-invalid", "mlperf-rules"} <= codes(result)
    assert result.sut is not None
    assert result.sut.overridden["min_duration_ms"] == [600_000, 20]
    assert all(one.latency_ms is None and one.reason for one in result.percentiles if one.percent > 50)
    assert result.metric is not None
    assert (result.metric.early_stopping_ms, bool(result.metric.reason)) == (None, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "series_ms", "queries", "key", "is_more"),
    [
        # 110 ms before the test and 1 ms in it: too short
        ("Offline", (110.0,) * 9 + (0.0,) * 3000, 5, "offline_expected_qps", True),
        # 1 ms before the test and in its begin, then 7 ms: too late
        ("Server", (0.0,) * 700 + (6.0,) * 3000, 600, "server_target_qps", False),
    ],
)
def test_a_test_whose_rate_of_ours_did_not_hold_is_run_again(
    tmp_path: Path, scenario: str, series_ms: tuple[float, ...], queries: int, key: str, is_more: bool
) -> None:
    model = write_model(tmp_path / "net.py", FakeScript(execute_ms=1, series_ms=series_ms))
    options = ("--scenario", scenario, "--min-duration", 0.5, "--min-queries", queries)
    code, result, said = run(tmp_path / "out", model, "--backend", FAKE_BACKEND, *options)
    assert code == 0, said
    assert "mlperf-tried-again" in codes(result)
    first = MlperfResult.model_validate_json((tmp_path / "out/previous/mlperf.json").read_text())
    assert (first.validity, result.validity) == ("INVALID", "VALID")
    assert first.sut is not None
    assert result.sut is not None
    assert (first.sut.told[key] < result.sut.told[key]) == is_more


def test_a_system_that_fails_every_batch_ends_the_test(tmp_path: Path) -> None:
    model = write_model(tmp_path / "net.py", FakeScript(execute_ms=0, by_batch_ms={1: 0.1}))
    (tmp_path / "data.py").write_text(
        "import numpy as np\n\nclass Bad(dict):\n    pass\n\n"
        "def samples():\n    return [{'x': np.zeros(4, np.float32)}] * 3 + [{'x': np.zeros(5, np.float32)}]\n"
    )
    data = f"{tmp_path / 'data.py'}:samples"
    code, result, _ = run(tmp_path / "out", model, "--backend", FAKE_BACKEND, "--min-duration", 0.1, "--dataset", data)
    assert code == 1
    assert result.status == "failed"
    assert result.sut is not None
    assert result.sut.problem
    # It left by itself: an exception in a callback of LoadGen would have crashed it.
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["processes"][0]["exit_code"] == 1
    assert "mlperf-incomplete" in codes(result)


@pytest.mark.slow
def test_a_crash_and_an_interrupt_keep_what_was_measured(tmp_path: Path) -> None:
    model = write_model(tmp_path / "net.py", FakeScript(execute_ms=1, crash_at_execution=30))
    code, result, _ = run(tmp_path / "out", model, "--backend", FAKE_BACKEND, "--min-duration", 5)
    assert (code, result.sut, result.status) == (1, None, "failed")
    assert "mlperf-incomplete" in codes(result)

    model, out = write_model(tmp_path / "slow.py", FakeScript(execute_ms=5)), tmp_path / "interrupted"
    words = ["mlperf", model, "--backend", FAKE_BACKEND, "--min-duration", "100", *QUIET, "-o", str(out)]
    with subprocess.Popen(
        [sys.executable, "-m", "perfharness", *words], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        env=environment(),
    ) as process:  # fmt: skip
        wait_for(lambda: any("out" not in path.parts for path in tmp_path.rglob("mlperf_log_detail.txt")))
        os.kill(process.pid, signal.SIGINT)
    assert process.returncode == 1
    result = MlperfResult.model_validate_json((out / "mlperf.json").read_text())
    assert result.status == "interrupted"
    assert result.sut is not None
    assert len(requests(out)["id"]) in (result.sut.batches, result.sut.batches + 1)
