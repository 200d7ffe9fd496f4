"""Logs, settings, data and the system under test of `perfharness mlperf`, without LoadGen."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perfharness.backends import BackendOptions, ModelSource, Session
from perfharness.errors import BackendError, ResultError, ToolNotFoundError, UsageError
from perfharness.load.mlperf import (
    MlperfSettings,
    Scenario,
    check_settings,
    padding_findings,
    percentiles_of,
    plan_mlperf,
    read_detail,
    read_summary,
)
from perfharness.load.mlperf_worker import (
    FAILURES_IN_A_ROW,
    Executor,
    Requests,
    Samples,
    System,
    Work,
)
from perfharness.model.bench import TensorSpec
from perfharness.model.mlperf import SutRecord
from perfharness.recorder import PerfRecorder
from tests.support.fake_backend import FakeBackend, FakeClock, FakeScript

INPUTS = (TensorSpec(name="x", shape=(None, 4), dtype="float32"),)

SUMMARY = """\
================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : SingleStream
Mode     : PerformanceOnly
90.0th percentile latency (ns) : 6580
Result is : INVALID
  Min duration satisfied : NO
  Min queries satisfied : Yes
  Early stopping satisfied: NO
Recommendations:
 * Decrease the expected latency so the loadgen pre-generates more queries.
Early Stopping Result:
 * Only processed 20 queries.
 * Need to process at least 64 queries for early stopping.

================================================
Additional Stats
================================================
50.00 percentile latency (ns)   : 5698
"""


@pytest.mark.parametrize(("queries", "is_known"), [(9_999, False), (10_000, True), (None, False)])
def test_a_percentile_needs_ten_queries_beyond_it(queries: int | None, is_known: bool) -> None:
    found = percentiles_of("SingleStream", {"99.90_percentile_latency_ns": 5_000_000}, queries)
    (last,) = [one for one in found if one.percent == 99.9]
    assert (last.latency_ms, last.reason is None) == (5.0 if is_known else None, is_known)


def test_the_summary(tmp_path: Path) -> None:
    (tmp_path / "summary").write_text(SUMMARY)
    found = read_summary(tmp_path / "summary")
    assert (found.validity, found.headline) == ("INVALID", ("90.0th percentile latency (ns)", 6580.0))
    assert found.unsatisfied == ["Min duration", "Early stopping"]
    assert found.recommendations == ["Decrease the expected latency so the loadgen pre-generates more queries."]
    assert len(found.early_stopping) == 2
    with pytest.raises(ResultError):
        read_summary(tmp_path / "none")


def settings(**more: Any) -> MlperfSettings:
    return MlperfSettings(model="here.py:create", **{"backend": "torch", **more})


@pytest.mark.parametrize(
    "wrong",
    [
        {"backend": ""},
        {"backend": "nobody"},
        {"batch_timeout_ms": 1.0},
        {"samples_per_query": 4},
        {"user_conf": Path("none.conf")},
        {"dataset": "none.npz"},
        {"shape": ("x",)},
        {"backend_option": ("x",)},
        {"target_qps": 5.0},
        {"scenario": "Offline", "target_latency_ms": 5.0},
        {"min_duration_s": 3.0, "max_duration_s": 2.0},
        {"min_queries": 3, "max_queries": 2},
    ],
)
def test_contradictions_are_found_before_anything_starts(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check_settings(settings(**wrong))


def test_a_test_of_no_end_is_refused() -> None:
    for name in ("min_duration_s", "max_duration_s", "target_qps", "target_latency_ms", "batch_timeout_ms"):
        with pytest.raises(ValidationError):
            settings(**{name: float("inf")})


def test_sizes() -> None:
    assert settings().sizes == (1,)
    assert settings(scenario="MultiStream").sizes == (8,)
    assert settings(scenario="MultiStream", max_batch=3).sizes == (3,)
    assert settings(scenario="Server", max_batch=12).sizes == (1, 2, 4, 8, 12)
    assert settings(scenario="Server", max_batch=8).sizes == (1, 2, 4, 8)


def test_without_the_package_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)
    with pytest.raises(ToolNotFoundError, match=r"\[mlperf\]"):
        plan_mlperf("here.py:create", {"backend": "torch"})


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


def executor(
    sizes: Sequence[int], answers: Answers, requests: Requests, script: FakeScript, aborted: list[str]
) -> Executor:
    samples = Samples([{"x": np.full(4, index, np.float32)} for index in range(10)], 10, INPUTS, {"x": (4,)})
    samples.load(range(10))
    sessions: dict[int, Session] = {}
    for size in sizes:
        sessions[size] = FakeBackend(script, FakeClock(0)).load(ModelSource("m", factory="n:c"), BackendOptions())
        sessions[size].allocate({"x": (size, 4)})

    def respond(ids: Sequence[int]) -> None:
        answers.take(ids, sessions)

    return Executor(PerfRecorder("mlperf-test"), sessions, samples, respond, requests, aborted.append)


def expected(index: int) -> list[float]:
    return [2.0 * index] * 4


SCENARIOS: list[Scenario] = ["SingleStream", "Server", "Offline"]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
    st.sampled_from([(1,), (4,), (2, 8)]),
    st.sampled_from(SCENARIOS),
)
def test_every_sample_gets_its_own_answer(indices: list[int], sizes: tuple[int, ...], scenario: Scenario) -> None:
    answers, requests = Answers(), Requests()
    made = executor(sizes, answers, requests, FakeScript(), [])
    system = System(made, requests, scenario, 0.001)
    system.issue([Sample(100 + number, index) for number, index in enumerate(indices)])
    system.flush()
    system.serve()
    outcome = made.outcome
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
    answers, requests, aborted = Answers(), Requests(), list[str]()
    made = executor((4,), answers, requests, FakeScript(error_at_batch=4), aborted)
    for number in range(FAILURES_IN_A_ROW):
        assert not aborted
        query = requests.add(1, 2)
        made.serve(Work(query, [2 * number, 2 * number + 1], [0, 1], (query,)))
    assert len(aborted) == 1
    assert set(answers.rows.values()) == {None}
    assert len(answers.rows) == 2 * FAILURES_IN_A_ROW
    assert made.outcome.errors == {"exception:BackendError": 2 * FAILURES_IN_A_ROW}
    assert "batch of 4" in made.outcome.first["exception:BackendError"]
    assert set(requests.errors) == set(range(FAILURES_IN_A_ROW))


@pytest.mark.parametrize(("samples", "padding", "is_said"), [(24607, 33, False), (960, 40, True), (600, 0, False)])
def test_an_odd_last_batch_is_no_padding_worth_a_word(samples: int, padding: int, is_said: bool) -> None:
    """Offline on an H100: 33 of 24640 rows, which was reported as 0 %."""
    found = list(padding_findings(SutRecord(samples=samples, padding=padding)))
    assert [one.code for one in found] == ["mlperf-padding"] * is_said
    assert list(padding_findings(None)) == []


def test_the_detail_log(tmp_path: Path) -> None:
    line = ':::MLLOG {"key": "%s", "value": %s, "metadata": {"is_error": %s, "is_warning": false}}\n'
    text = line % ("effective_seed", 3, "false") + "something else\n" + line % ("error_runtime", '"early"', "true")
    (tmp_path / "detail").write_text(text + ':::MLLOG {"key": "cut')
    found = read_detail(tmp_path / "detail")
    assert found.starting("effective_") == {"seed": 3}
    assert found.errors == ["error_runtime: early"]
