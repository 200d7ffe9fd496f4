"""Logs, settings, data and the system under test of `perfharness mlperf`, without LoadGen."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.backends import BackendOptions, ModelSource, Session
from perfharness.cli.main import run
from perfharness.errors import BackendError, ToolNotFoundError, UsageError
from perfharness.load.mlperf import MlperfSettings, Scenario, plan_mlperf, read_result
from perfharness.load.mlperf_worker import FAILURES_IN_A_ROW, Samples, System
from perfharness.model.bench import TensorSpec
from perfharness.model.mlperf import MlperfResult, SutRecord
from perfharness.recorder import PerfRecorder
from tests.support.fake_backend import FakeBackend, FakeClock, FakeScript

pytest.importorskip("mlperf_loadgen")

MODEL = "tests.contract.tiny_models:create"
INPUTS = (TensorSpec(name="x", shape=(None, 4), dtype="float32"),)


def log(*entries: tuple[str, Any], error: str | None = None) -> str:
    lines = [{"key": key, "value": value, "metadata": {"is_error": key == error}} for key, value in entries]
    return "something else\n".join(f":::MLLOG {json.dumps(line)}\n" for line in lines)


def result_of(folder: Path, text: str, scenario: str) -> MlperfResult:
    logs = folder / "mlperf"
    logs.mkdir(exist_ok=True)
    (logs / "mlperf_log_detail.txt").write_text(text)
    plan = plan_mlperf(MODEL, {"backend": "onnxruntime", "scenario": scenario, "telemetry": False, "history": False})
    return read_result(plan, folder, folder, [])


SINGLE = [("effective_target_latency_percentile", 0.9), ("result_90.00_percentile_latency_ns", 5_000_000)]
MULTI = [("effective_target_latency_percentile", 0.99), ("result_99.00_percentile_per_query_latency_ns", 6_000_000)]


@pytest.mark.parametrize(
    ("scenario", "entries", "metric"),
    [
        ("SingleStream", [*SINGLE, ("early_stopping_latency_ss", 7_000_000)], ("90.0th percentile latency", 5.0, 7.0)),
        ("SingleStream", [*SINGLE, ("early_stopping_latency_ss", 0)], ("90.0th percentile latency", 5.0, None)),
        ("MultiStream", [*MULTI, ("early_stopping_latency_ms", 8_000_000)], ("99.0th percentile latency", 6.0, 8.0)),
        ("Server", [("result_completed_samples_per_sec", 944.2)], ("Completed samples per second", 944.2, None)),
        ("Offline", [("result_samples_per_second", 519.2)], ("Samples per second", 519.2, None)),
        ("Offline", [], None),
    ],
)
def test_the_metric_of_a_scenario(
    tmp_path: Path, scenario: str, entries: list[tuple[str, Any]], metric: tuple[str, float, float | None] | None
) -> None:
    found = result_of(tmp_path, log(*entries), scenario).metric
    assert (found and (found.name, found.value, found.early_stopping_ms)) == metric


def test_the_log(tmp_path: Path) -> None:
    entries = [
        ("effective_seed", 3), ("result_validity", "INVALID"), ("result_min_duration_met", False),
        ("result_min_queries_met", True), ("early_stopping_met", False), ("result_invalid_reason", "Decrease. "),
        ("early_stopping_result", " * Only 20 queries.  * At least 64 are needed."), ("error_runtime", "early"),
        ("result_query_count", 9_999), ("result_99.00_percentile_latency_ns", 5_000_000),
        ("result_99.90_percentile_latency_ns", 5_000_000),
    ]  # fmt: skip
    found = result_of(tmp_path, log(*entries, error="error_runtime") + ':::MLLOG {"key": "cut', "SingleStream")
    assert (found.validity, found.invalid_reasons) == ("INVALID", ["Min duration", "Early stopping"])
    assert found.recommendations == ["Decrease."]
    assert found.early_stopping == ["Only 20 queries.", "At least 64 are needed."]
    assert (found.settings, found.loadgen_errors) == ({"seed": 3}, ["error_runtime: early"])
    latencies = {one.percent: one.latency_ms for one in found.percentiles}
    assert (latencies[99.0], latencies[99.9]) == (5.0, None)  # 10 queries must be beyond it


def settings(**more: Any) -> MlperfSettings:
    return MlperfSettings(model="here.py:create", **{"backend": "torch", **more})


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "--backend"),
        ("--backend nobody", "nobody"),
        ("--backend torch --batch-timeout 1", "--batch-timeout"),
        ("--backend torch --samples-per-query 4", "--samples-per-query"),
        ("--backend torch --user-conf none.conf", "none.conf"),
        ("--backend torch --dataset none.npz", "none.npz"),
        ("--backend torch --shape x", "x"),
        ("--backend torch --backend-option x", "NAME=VALUE"),
        ("--backend torch --target-qps 5", "--target-qps"),
        ("--backend torch --scenario Offline --target-latency 5", "--target-latency"),
        ("--backend torch --min-duration 3 --max-duration 2", "--min-duration"),
        ("--backend torch --min-queries 3 --max-queries 2", "--min-queries"),
        *((f"--backend torch --{one} inf", "finite") for one in ("min-duration", "target-qps", "target-latency")),
    ],
)
def test_contradictions_are_found_before_anything_starts(
    words: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["mlperf", MODEL, *words.split()]) == 2
    assert named in capsys.readouterr().err


def test_sizes() -> None:
    assert settings().sizes == (1,)
    assert settings(scenario="MultiStream").sizes == (8,)
    assert settings(scenario="MultiStream", max_batch=3).sizes == (3,)
    assert settings(scenario="Server", max_batch=12).sizes == (1, 2, 4, 8, 12)
    assert settings(scenario="Server", max_batch=8).sizes == (1, 2, 4, 8)


def test_without_the_package_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)
    with pytest.raises(ToolNotFoundError, match=r"\[mlperf\]"):
        plan_mlperf(MODEL, {"backend": "torch"})


def test_data(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", x=np.arange(8, dtype=np.float32).reshape(2, 4))
    spec = settings().case_spec("cpu")
    samples = Samples.of(settings(dataset=str(tmp_path / "two.npz")), INPUTS, spec)
    samples.load([1, 0])
    assert samples.batch([0], 1)["x"].tolist() == [[0, 1, 2, 3]]
    assert samples.batch([1], 3)["x"].tolist() == [[4, 5, 6, 7]] * 3, "the last one is repeated"
    for wrong in ({"samples": 3}, {"dataset": "nowhere:function"}):
        with pytest.raises(UsageError):
            Samples.of(settings(**{"dataset": str(tmp_path / "two.npz"), **wrong}), INPUTS, spec)
    with pytest.raises(UsageError, match="'y'"):
        Samples.of(settings(dataset=str(tmp_path / "two.npz")), (INPUTS[0].model_copy(update={"name": "y"}),), spec)
    drawn = []
    for _ in "ab":
        drawn.append(Samples.of(settings(seed=3), INPUTS, settings(seed=3).case_spec("cpu")))
        drawn[-1].load([5, 6])
    assert (drawn[0].batch([5], 1)["x"] == drawn[1].batch([5], 1)["x"]).all()
    assert not (drawn[0].batch([5], 1)["x"] == drawn[0].batch([6], 1)["x"]).any()


class Answers:
    """What was computed for each query that LoadGen would be told of; None: nothing."""

    def __init__(self) -> None:
        self.rows: dict[int, list[float] | None] = {}

    def take(self, ids: Sequence[int], sessions: Mapping[int, Session]) -> None:
        session = sessions[min(size for size in sessions if size >= len(ids))]
        try:
            outputs = session.read_outputs()["y"].tolist()
        except BackendError:  # no batch went well
            outputs = [None] * len(ids)
        for one, row in zip(ids, outputs, strict=False):
            assert one not in self.rows, "answered twice"
            self.rows[one] = row


class Sample:
    def __init__(self, number: int, index: int) -> None:
        self.id, self.index = number, index


def system(
    sizes: Sequence[int], answers: Answers, script: FakeScript, scenario: Scenario, aborted: list[str]
) -> System:
    samples = Samples([{"x": np.full(4, index, np.float32)} for index in range(10)], 10, INPUTS, {"x": (4,)})
    samples.load(range(10))
    sessions: dict[int, Session] = {}
    for size in sizes:
        sessions[size] = FakeBackend(script, FakeClock(0)).load(ModelSource("m", factory="n:c"), BackendOptions())
        sessions[size].allocate({"x": (size, 4)})

    def respond(ids: Sequence[int]) -> None:
        answers.take(ids, sessions)

    return System(PerfRecorder("mlperf-test"), sessions, samples, respond, aborted.append, scenario, 0.001)


def expected(index: int) -> list[float]:
    return [2.0 * index] * 4


SCENARIOS: list[Scenario] = ["SingleStream", "Server", "Offline"]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
    st.sampled_from([(1,), (4,), (2, 8)]),
    st.sampled_from(SCENARIOS),
)
def test_every_sample_gets_its_own_answer(indices: list[int], sizes: tuple[int, ...], scenario: Scenario) -> None:
    answers = Answers()
    made = system(sizes, answers, FakeScript(), scenario, [])
    made.issue([Sample(100 + number, index) for number, index in enumerate(indices)])
    made.flush()
    made.serve()
    outcome, requests = made.outcome, made.requests
    assert answers.rows == {100 + number: expected(index) for number, index in enumerate(indices)}
    assert (outcome.samples, outcome.errors) == (len(indices), {})
    if scenario != "Server":
        parts = [min(sizes[-1], len(indices) - first) for first in range(0, len(indices), sizes[-1])]
        assert outcome.padding == sum(min(size for size in sizes if size >= part) - part for part in parts)
    if scenario != "Offline":
        assert sum(requests.items) == len(indices)
        assert len(requests.items) == (len(indices) if scenario == "Server" else 1)
        assert requests.sent_ns[0] <= requests.begun_ns[0] <= requests.done_ns[0]


def test_failed_batches_are_counted_answered_and_end_the_test() -> None:
    answers, aborted = Answers(), list[str]()
    made = system((4,), answers, FakeScript(error_at_batch=4), "SingleStream", aborted)
    for number in range(FAILURES_IN_A_ROW):
        assert not aborted
        made.issue([Sample(2 * number, 0), Sample(2 * number + 1, 1)])
    assert len(aborted) == 1
    assert set(answers.rows.values()) == {None}
    assert len(answers.rows) == 2 * FAILURES_IN_A_ROW
    assert made.outcome.errors == {"exception:BackendError": 2 * FAILURES_IN_A_ROW}
    assert "batch of 4" in made.outcome.first_errors["exception:BackendError"]
    assert set(made.requests.errors) == set(range(FAILURES_IN_A_ROW))


@pytest.mark.parametrize(("samples", "padding", "is_said"), [(24607, 33, False), (960, 40, True), (600, 0, False)])
def test_an_odd_last_batch_is_no_padding_worth_a_word(
    tmp_path: Path, samples: int, padding: int, is_said: bool
) -> None:
    """Offline on an H100: 33 of 24640 rows, which was reported as 0 %."""
    (tmp_path / "mlperf").mkdir()
    sut = SutRecord(status="ok", samples=samples, padding=padding)
    (tmp_path / "mlperf" / "sut.json").write_text(sut.model_dump_json())
    found = [one.code for one in result_of(tmp_path, log(), "Offline").findings]
    assert found == ["mlperf-rules"] * (1 + is_said)  # also: no rules were applied
