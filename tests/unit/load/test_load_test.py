"""Load tests in the history, comparisons and gates: what is taken of `load.json` and `mlperf.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfharness.errors import ResultError
from perfharness.model.load import LoadResult
from perfharness.model.mlperf import MlperfResult
from perfharness.runs.comparison.compare import compare_sides, read_side
from perfharness.runs.comparison.compared_figure import Figure
from perfharness.runs.comparison.limits import judge_run, parse_limit
from perfharness.runs.comparison.load_test import (
    LoadTest,
    loadgen_test,
    loadgen_text,
    of_no_concern,
    stress_test,
)
from perfharness.runs.comparison.matched_sides import CompareOptions
from perfharness.runs.history import launch_entry
from tests.unit.compared_runs import write_launch

NO_TIMES = {"count": 0}


def phase(name: str = "load", seconds: float = 2.0, **more: Any) -> dict[str, Any]:
    latency = {
        "count": 97, "mean": {"value": 11.0, "low": 10.5, "high": 11.5},
        "p50": {"value": 10.0, "low": 9.0, "high": 12.0},
        "p99": {"value": None, "reason": "too few"},
    }  # fmt: skip
    made = {
        "name": name, "loop": "open", "asked_rate": 50.0, "achieved_rate": 49.0, "concurrency": 1, "start_s": 0,
        "duration_s": seconds, "arrivals": 100, "sent": 100, "completed": 99, "ok": 97, "items": 97,
        "latency": latency, "queueing": NO_TIMES, "service": NO_TIMES, "lateness": NO_TIMES,
        "errors": {"timeout": 2, "unanswered": 1},
    }  # fmt: skip
    return {**made, **more}


def load(*phases: dict[str, Any], **more: Any) -> LoadResult:
    made = {
        "target": {"kind": "callable", "name": "src/app.py:answer"}, "profile": {"phases": [{"rate": 50}], "seed": 3},
        "status": "ok", "created": "2026-01-01T00:00:00+00:00", "duration_s": 2, "phases": list(phases) or [phase()],
        "windows": [],
    }  # fmt: skip
    return LoadResult.model_validate({**made, **more})


def loadgen(**more: Any) -> MlperfResult:
    percentiles = [
        {"percent": 50.0, "latency_ms": 2.0},
        {"percent": 97.0, "latency_ms": 3.0},
        {"percent": 99.9, "latency_ms": None, "reason": "too few queries"},
    ]
    made = {
        "created": "2026-01-01T00:00:00+00:00", "command": [], "status": "ok", "scenario": "Server",
        "model": "models/net.onnx", "backend": "onnxruntime",
        "asked": {"model": "models/net.onnx", "backend": "onnxruntime", "max_batch": 4, "target_qps": 500.0},
        "sut": None, "validity": "VALID", "invalid_reasons": [], "recommendations": [], "early_stopping": [],
        "metric": {"name": "Completed samples per second", "unit": "samples per second", "value": 499.5},
        "queries": 1000, "percentiles": percentiles, "mean_latency_ms": 2.5, "over_latency": 10,
        "settings": {"target_qps": 500.0, "min_duration_ms": 600, "samples_per_query": 1}, "reported": {},
        "loadgen_errors": [], "loadgen_warnings": [], "logs": {},
    }  # fmt: skip
    return MlperfResult.model_validate({**made, **more})


SINGLE = {
    "scenario": "SingleStream", "over_latency": None, "settings": {"target_qps": 900.0, "min_duration_ms": 600},
    "metric": {"name": "90.0th percentile latency", "unit": "ms", "value": 2.9, "early_stopping_ms": 3.1},
}  # fmt: skip
INVALID = {"validity": "INVALID", "invalid_reasons": ["Min duration", "Min queries"]}


def values(test: LoadTest) -> dict[str, float | None]:
    return {figure.text: one.value for figure, one in test.figures.items()}


# ---- what they come to ----


def test_figures_of_stress_by_hand() -> None:
    memory = [
        {"of": "process a", "verdict": "does-not-leak", "tolerance_mb_per_s": 0.02,
         "slope_mb_per_s": {"value": -0.001, "low": -0.002, "high": 0.0}},
        {"of": "process b", "verdict": "leaks", "tolerance_mb_per_s": 0.02,
         "slope_mb_per_s": {"value": 1.0, "low": 0.9, "high": 1.1}},
    ]  # fmt: skip
    sustained = {"phase": "load", "duration_s": 60, "memory": memory}
    test = stress_test(load(phase("warm", 9, is_warmup=True), phase(), sustained=sustained))
    assert values(test) == {
        "load_mean": 11.0, "load_p50": 10.0, "load_p90": None, "load_p95": None, "load_p99": None, "load_p99_9": None,
        "asked_rate": 50.0, "achieved_rate": 49.0, "goodput": None, "error_rate": 0.03, "memory_slope": 1.0,
        "errors/timeout.error_share": 0.02, "errors/unanswered.error_share": 0.01,
    }  # fmt: skip
    median = test.figures[Figure((), "load_p50")]
    assert (median.low, median.high, median.count) == (9.0, 12.0, 97)
    slope = test.figures[Figure((), "memory_slope")]
    assert (slope.low, slope.high, slope.reason) == (0.9, 1.1, "process b: leaks")
    assert all(one.reason for one in test.figures.values() if one.value is None)
    assert (test.kind, test.target, test.verdict) == ("stress", "src/app.py:answer", "ok")
    assert list(test.phases) == ["load"]


def test_what_is_sent_over_http_is_a_part_of_the_load() -> None:
    """Answers of 256 tokens are slower than of 64; the model, and where files lie, may differ."""

    def asked(**request: Any) -> LoadTest:
        return stress_test(load(target={"kind": "http", "name": "http://h/v1", "request": request}))

    assert asked(**{"max-tokens": 64}).load != asked(**{"max-tokens": 256}).load
    assert asked(inputs={"a": {"text": "x"}}).load != asked(inputs={"a": {"text": "y"}}).load
    assert asked(body="here/a.json", model="m").load == asked(body="/there/a.json", model="n").load
    assert asked(**{"expect-text": "ok"}).load == stress_test(load(target={"kind": "http", "name": "http://h/v1"})).load
    assert asked(model="m").arguments == ["model=m"]


def test_of_several_phases_each_has_its_figures() -> None:
    test = stress_test(load(phase("a", 2), phase("b", 4, achieved_rate=10.0)))
    assert {name: found[Figure((), "achieved_rate")].value for name, found in test.phases.items()} == {
        "a": 49.0,
        "b": 10.0,
    }
    assert test.figures[Figure((), "achieved_rate")].value == 10.0


def test_nothing_answered_has_no_rate_of_errors() -> None:
    empty = phase(
        ok=0, completed=0, arrivals=0, sent=0, errors={}, achieved_rate=None, asked_rate=None,
        latency={"count": 0, "reason": "nothing"},
    )  # fmt: skip
    test = stress_test(load(empty))
    assert set(values(test).values()) == {None}
    assert all(one.reason for one in test.figures.values())
    assert not stress_test(load(phase(is_warmup=True))).figures


@pytest.mark.parametrize(
    ("status", "code", "is_usable"), [("ok", 0, True), ("stopped-by-errors", 3, False), ("killed", 1, False)]
)
def test_a_load_that_ended_early_stands_for_no_side(status: str, code: int, is_usable: bool) -> None:
    test = stress_test(load(status=status))
    assert (test.exit_code, test.problem is None) == (code, is_usable)


def test_figures_of_loadgen_are_its_own() -> None:
    assert values(loadgen_test(loadgen())) == {
        "loadgen_rate": 499.5, "load_mean": 2.5, "load_p50": 2.0, "load_p99_9": None, "over_latency_share": 0.01,
    }  # fmt: skip
    single = loadgen_test(loadgen(**SINGLE))
    assert values(single)["loadgen_latency"] == 2.9
    assert values(single)["loadgen_early_stopping"] == 3.1
    assert single.figures[Figure((), "load_p99_9")].reason == "too few queries"
    assert single.arguments == ["backend=onnxruntime", "max_batch=4"]
    offline = loadgen_test(loadgen(scenario="Offline"))
    assert (values(offline)["load_mean"], values(offline)["load_p50"]) == (None, 2.0)


@pytest.mark.parametrize(
    ("more", "verdict", "code", "is_invalid"),
    [
        ({}, "VALID", 0, False),
        (INVALID, "INVALID", 0, True),
        ({"validity": None}, "no verdict", 0, True),
        ({"status": "failed", "validity": None}, "failed", 1, False),
    ],
)
def test_the_verdict_of_loadgen(more: dict[str, Any], verdict: str, code: int, is_invalid: bool) -> None:
    test = loadgen_test(loadgen(**more))
    assert (test.verdict, test.exit_code, test.invalid is not None) == (verdict, code, is_invalid)
    assert (test.problem is not None) == (code == 1)


@pytest.mark.parametrize(
    ("more", "is_same"),
    [
        ({"created": "2027-01-01T00:00:00+00:00", "queries": 5}, True),
        ({"backend": "torch"}, True),
        ({"settings": {**loadgen().settings, "target_qps": 501.0}}, False),
        ({"settings": {**loadgen().settings, "min_duration_ms": 601}}, False),
        ({"asked": {"dataset": "other.npz"}}, False),
    ],
)
def test_which_loads_of_loadgen_are_the_same(more: dict[str, Any], is_same: bool) -> None:
    assert (loadgen_text(loadgen()) == loadgen_text(loadgen(**more))) is is_same


def test_findings_that_say_nothing_about_the_target() -> None:
    remote = load(target={"kind": "http", "name": "http://localhost:1/"})
    started = load(target={"kind": "http", "name": "http://localhost:1/", "started": ["python", "server.py"]})
    assert "not-traced" in of_no_concern(remote)
    assert of_no_concern(started) == {"no-ranges", "recorder-not-finalized"}
    assert of_no_concern(load(tracer="nsys")) == {"recorder-not-finalized"}  # one request never came back
    assert not of_no_concern(load(phase(errors={}), tracer="nsys"))
    assert of_no_concern(load(phase(errors={}))) == {"memory-grows", "not-traced"}
    sustained = {"phase": "load", "duration_s": 60}
    judged = of_no_concern(load(phase(errors={}), tracer="nsys", sustained=sustained))
    assert judged == {"memory-grows", "memory-grows-under-nsys"}


# ---- in the history ----


def folder_of(folder: Path, test: LoadResult | MlperfResult, **more: Any) -> Path:
    write_launch(folder, {"decode": 10.0}, script="perfharness.load.worker", script_arguments=["{}"], **more)
    name = "load.json" if isinstance(test, LoadResult) else "mlperf.json"
    (folder / name).write_text(test.model_dump_json())
    return folder


def test_a_load_test_is_entered_by_its_target_with_its_figures(tmp_path: Path) -> None:
    findings = [{"code": "load-stopped", "severity": "error", "message": "…"}]
    result = load(
        phase("a", 1), phase("b/c", 3), status="stopped-by-errors", status_reason="too many", findings=findings
    )
    entry = launch_entry(folder_of(tmp_path / "out", result))
    assert (entry.run["kind"], entry.run["script"], entry.run["exit"]) == ("stress", "app.py:answer", 3)
    medians = {one["stage"]: one for one in entry.figures if one["metric"] == "load_p50"}
    assert set(medians) == {"", "phases/a", "phases/b\\/c"}
    assert [medians[""][name] for name in ("value", "low", "high", "count")] == [10.0, 9.0, 12.0, 97]
    assert "load_p99" not in {one["metric"] for one in entry.figures}
    assert ("toy/batch/decode", "cpu_time") in {(one["stage"], one["metric"]) for one in entry.figures}


def test_a_test_of_loadgen_is_entered_with_its_model(tmp_path: Path) -> None:
    findings = [{"code": "mlperf-invalid", "severity": "error", "message": "…"}]
    result = loadgen(**INVALID, findings=findings)
    entry = launch_entry(folder_of(tmp_path / "out", result))
    found = [entry.run[name] for name in ("kind", "model", "backend", "exit")]
    assert found == ["mlperf", "net.onnx", result.backend, 3]
    (rate,) = (one for one in entry.figures if one["metric"] == "loadgen_rate")
    assert (rate["value"], rate["count"]) == (499.5, 1000)


def test_another_load_is_another_setup(tmp_path: Path) -> None:
    same, other, profile = (
        launch_entry(folder_of(tmp_path / name, result)).run["setup"]
        for name, result in (
            ("a", load()), ("b", load(phase(achieved_rate=1.0))), ("c", load(profile={"phases": [{"rate": 51}]})),
        )
    )  # fmt: skip
    assert same == other
    assert profile != same


def test_a_secret_in_a_url_is_masked(tmp_path: Path) -> None:
    started = ["serve", "--token", "hunter2secret"]
    target = {"kind": "http", "name": "http://user:hunter2secret@host/v1", "started": started}
    entry = launch_entry(folder_of(tmp_path / "out", load(target=target)))
    assert "hunter2secret" not in str(entry)
    assert entry.run["script"].endswith("@host/v1")


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "out", load())
    (folder / "load.json").write_text("{")
    with pytest.raises(ResultError):
        launch_entry(folder)


# ---- in comparisons and gates ----


def compared(tmp_path: Path, base: MlperfResult, new: MlperfResult, *allowed: str) -> Any:
    sides = [
        read_side(",".join(str(folder_of(tmp_path / name / str(place), result, start_s=place)) for place in range(3)))
        for name, result in (("base", base), ("new", new))
    ]
    return compare_sides(sides[0], [sides[1]], CompareOptions(allowed=frozenset(allowed)))


def test_tests_of_loadgen_are_compared_by_their_metric(tmp_path: Path) -> None:
    faster = loadgen(metric={**loadgen().metric.model_dump(), "value": 999.0})  # type: ignore[union-attr]
    (version,) = compared(tmp_path, loadgen(), faster).versions
    rows = {row.metric: row for row in version.rows}
    assert (rows["loadgen_rate"].ratio, rows["loadgen_rate"].verdict) == (2.0, "faster")
    assert rows["load_p50"].verdict == "same"


def test_an_invalid_test_is_not_comparable_on_any_side(tmp_path: Path) -> None:
    pairs = ((loadgen(), loadgen(**INVALID)), (loadgen(**INVALID), loadgen()), (loadgen(**INVALID), loadgen(**INVALID)))
    for place, (base, new) in enumerate(pairs):
        comparison = compared(tmp_path / str(place), base, new)
        assert comparison.has_nothing
        rows = comparison.versions[0].rows
        assert {row.metric for row in rows} >= {"loadgen_rate", "load_p50", "cpu_time_per_item"}
        assert all("Min duration, Min queries" in row.reason for row in rows)
        assert [one.name for one in comparison.versions[0].deciding] == ["validity"]
    assert not compared(tmp_path / "allowed", loadgen(**INVALID), loadgen(**INVALID), "validity").has_nothing


@pytest.mark.parametrize(
    ("text", "more", "failed"),
    [
        ("loadgen_rate < 499 items/s", {}, False), ("loadgen_rate < 500", {}, True), ("latency.p50 > 1.9ms", {}, True),
        ("loadgen_latency > 1s", {}, True),  # which Server has not
        ("latency.p99.9 > 1s", {}, True),  # null
        ("loadgen_rate < 1", INVALID, True),
        ("loadgen_latency > 3ms", SINGLE, False), ("early_stopping > 3ms", SINGLE, True),
        ("over_latency > 0.02", {}, False),
    ],
)  # fmt: skip
def test_limits_of_a_test_of_loadgen(tmp_path: Path, text: str, more: dict[str, Any], failed: bool) -> None:
    (found,) = judge_run(folder_of(tmp_path / "out", loadgen(**more)), [parse_limit(text)])
    assert found.failed is failed
    assert (found.value is None) == (found.reason is not None)
