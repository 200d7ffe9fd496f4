"""Load tests and tests of LoadGen in the history, comparisons and gates: what is taken of their files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from perfharness.model.load import LoadResult
from perfharness.model.mlperf import MlperfResult
from tests.unit.compared_runs import write_launch

NO_TIMES = {"count": 0}
Captured = pytest.CaptureFixture[str]


def phase(name: str = "load", seconds: float = 2.0, p99_ms: float | None = None, **more: Any) -> dict[str, Any]:
    latency = {
        "count": 97, "mean": {"value": 11.0, "low": 10.5, "high": 11.5},
        "p50": {"value": 10.0, "low": 9.0, "high": 12.0},
        "p99": {"value": p99_ms, "reason": None if p99_ms else "too few"},
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


def folder_of(folder: Path, test: LoadResult | MlperfResult, **more: Any) -> Path:
    write_launch(folder, {"decode": 10.0}, script="perfharness.load.worker", script_arguments=["{}"], **more)
    name = "load.json" if isinstance(test, LoadResult) else "mlperf.json"
    (folder / name).write_text(test.model_dump_json())
    return folder


def side(folder: Path, test: LoadResult | MlperfResult, turn: int = 0) -> str:
    """Three launches that measured the same."""
    return ",".join(str(folder_of(folder / str(place), test, start_s=2 * place + turn)) for place in range(3))


def compared(
    tmp_path: Path, base: LoadResult | MlperfResult, new: LoadResult | MlperfResult, capsys: Captured, *words: str
) -> dict[str, Any]:
    capsys.readouterr()
    run(["compare", side(tmp_path / "a", base), side(tmp_path / "b", new, 1), "--format", "json", *words])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["versions"][0]
    return found


def rows(version: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{one['stage']}.{one['metric']}".strip("."): one for one in version["rows"]}


# ---- the history ----


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> Any:
    """Adds a test; returns its run, and its figures."""
    monkeypatch.setenv("PERFHARNESS_HISTORY", str(tmp_path / "history.db"))

    def added(test: LoadResult | MlperfResult) -> tuple[dict[str, Any], dict[str, Any]]:
        from perfharness.runs.history import History

        folder = folder_of(tmp_path / str(len(list(tmp_path.iterdir()))), test)
        assert run(["history", "add", str(folder)]) == 0
        entry = History().entry(f"{tmp_path.name}-{folder.name}")
        return entry.run, {f"{one['stage']}.{one['metric']}".strip("."): one for one in entry.figures}

    return added


def values(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    return {name: one["value"] for name, one in figures.items() if not name.startswith("toy") and name != "throughput"}


def test_figures_of_stress_by_hand(history: Any) -> None:
    memory = [
        {"of": "process a", "verdict": "does-not-leak", "tolerance_mb_per_s": 0.02,
         "slope_mb_per_s": {"value": -0.001, "low": -0.002, "high": 0.0}},
        {"of": "process b", "verdict": "leaks", "tolerance_mb_per_s": 0.02,
         "slope_mb_per_s": {"value": 1.0, "low": 0.9, "high": 1.1}},
    ]  # fmt: skip
    sustained = {"phase": "load", "duration_s": 60, "memory": memory}
    phases = [phase("warm", 9, is_warmup=True), phase("a/b", 1, achieved_rate=9.0), phase()]
    entered, figures = history(load(*phases, sustained=sustained))
    of_phase = {"mean": 11.0, "p50": 10.0, "asked_rate": 50.0, "achieved_rate": 49.0, "error_rate": 0.03}
    assert values(figures) == {
        "latency.mean": 11.0, "latency.p50": 10.0, "asked_rate": 50.0, "achieved_rate": 49.0, "error_rate": 0.03,
        "memory_slope": 1.0, "errors/timeout.error_share": 0.02, "errors/unanswered.error_share": 0.01,
        **{f"phases/load.{name}": value for name, value in of_phase.items()},
        **{f"phases/a\\/b.{name}": value for name, value in {**of_phase, "achieved_rate": 9.0}.items()},
    }  # fmt: skip
    assert [figures["latency.p50"][name] for name in ("low", "high", "count")] == [9.0, 12.0, 97]
    assert [figures["memory_slope"][name] for name in ("low", "high")] == [0.9, 1.1]
    assert [entered[name] for name in ("kind", "script", "exit")] == ["stress", "app.py:answer", 0]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {"loadgen_rate": 499.5, "latency.mean": 2.5, "latency.p50": 2.0, "over_latency": 0.01}),
        (SINGLE, {"loadgen_latency": 2.9, "early_stopping": 3.1, "latency.mean": 2.5, "latency.p50": 2.0}),
        ({"scenario": "Offline"}, {"loadgen_rate": 499.5, "latency.p50": 2.0, "over_latency": 0.01}),
    ],
)
def test_figures_of_loadgen_are_its_own(more: dict[str, Any], expected: dict[str, float], history: Any) -> None:
    entered, figures = history(loadgen(**more))
    assert values(figures) == expected
    assert [entered[name] for name in ("kind", "model", "backend", "exit")] == ["mlperf", "net.onnx", "onnxruntime", 0]


@pytest.mark.parametrize(
    ("test", "code"),
    [
        (load(status="stopped-by-errors"), 3),
        (load(status="killed"), 1),
        (loadgen(status="failed", validity=None), 1),
        (loadgen(**INVALID, findings=[{"code": "mlperf-invalid", "severity": "error", "message": "…"}]), 3),
    ],
)
def test_the_exit_code_is_that_of_the_test(test: LoadResult | MlperfResult, code: int, history: Any) -> None:
    assert history(test)[0]["exit"] == code


def test_a_secret_in_a_url_is_masked(history: Any) -> None:
    started = ["serve", "--token", "hunter2secret"]
    target = {"kind": "http", "name": "http://user:hunter2secret@host/v1", "started": started}
    entered, _ = history(load(target=target))
    assert ("hunter2secret" in str(entered), entered["script"].endswith("@host/v1")) == (False, True)


# ---- comparisons ----


def http(**request: Any) -> LoadResult:
    return load(target={"kind": "http", "name": "http://h/v1", "request": request})


SETTINGS = loadgen().settings


@pytest.mark.parametrize(
    ("base", "new", "is_same"),
    [
        (load(), load(phase(achieved_rate=1.0)), True),
        (load(), load(profile={"phases": [{"rate": 51}]}), False),
        (http(**{"max-tokens": 64}), http(**{"max-tokens": 256}), False),
        (http(inputs={"a": {"text": "x"}}), http(inputs={"a": {"text": "y"}}), False),
        (http(body="here/a.json", model="m"), http(body="/there/a.json", model="n"), True),
        (http(**{"expect-text": "ok"}), http(), True),
        (loadgen(), loadgen(created="2027-01-01T00:00:00+00:00", queries=5), True),
        (loadgen(), loadgen(backend="torch"), True),
        (loadgen(), loadgen(settings={**SETTINGS, "target_qps": 501.0}), False),
        (loadgen(**SINGLE), loadgen(**{**SINGLE, "settings": {"target_qps": 9.0, "min_duration_ms": 600}}), True),
        (loadgen(), loadgen(settings={**SETTINGS, "min_duration_ms": 601}), False),
        (loadgen(), loadgen(asked={"dataset": "other.npz"}), False),
    ],
)
def test_other_loads_are_not_compared(
    tmp_path: Path, base: LoadResult | MlperfResult, new: LoadResult | MlperfResult, is_same: bool, capsys: Captured
) -> None:
    version = compared(tmp_path, base, new, capsys)
    assert [one["name"] for one in version["differences"] if one["decides"]] == ([] if is_same else ["load"])
    assert ({one["verdict"] for one in version["rows"]} == {"not-comparable"}) is not is_same


def test_latency_and_rates_are_compared(tmp_path: Path, capsys: Captured) -> None:
    version = compared(tmp_path, load(phase(p99_ms=20.0)), load(phase(p99_ms=30.0, achieved_rate=98.0)), capsys)
    found = rows(version)
    verdicts = {name: found[name]["verdict"] for name in ("latency.p50", "latency.p99", "achieved_rate")}
    assert verdicts == {"latency.p50": "same", "latency.p99": "slower", "achieved_rate": "faster"}
    assert found["latency.p99"]["ratio"] == pytest.approx(1.5)
    assert (found["error_rate"]["unit"], any(name.startswith("phases") for name in found)) == ("share", False)
    faster = loadgen(metric={"name": "Completed samples per second", "unit": "samples per second", "value": 999.0})
    found = rows(compared(tmp_path / "loadgen", loadgen(), faster, capsys))
    assert (found["loadgen_rate"]["ratio"], found["loadgen_rate"]["verdict"]) == (2.0, "faster")


def test_a_phase_is_compared_where_it_is_named(tmp_path: Path, capsys: Captured) -> None:
    base, new = (load(phase("steady", 9, 20.0), phase("burst", 1, ms)) for ms in (40.0, 80.0))
    found = rows(compared(tmp_path, base, new, capsys, "--stage", "phases/burst"))
    assert found["phases/burst.p99"]["ratio"] == pytest.approx(2)
    assert {name.partition(".")[0] for name in found} == {"phases/burst"}


@pytest.mark.parametrize("invalid", [(False, True), (True, False), (True, True)])
def test_an_invalid_test_is_not_comparable_on_any_side(
    tmp_path: Path, invalid: tuple[bool, bool], capsys: Captured
) -> None:
    base, new = (loadgen(**INVALID) if one else loadgen() for one in invalid)
    version = compared(tmp_path, base, new, capsys)
    assert {one["verdict"] for one in version["rows"]} == {"not-comparable"}
    assert all("Min duration, Min queries" in one["reason"] for one in version["rows"])
    assert [one["name"] for one in version["differences"] if one["decides"]] == ["validity"]
    allowed = compared(tmp_path / "allowed", base, new, capsys, "--allow", "validity")
    assert {one["verdict"] for one in allowed["rows"]} != {"not-comparable"}


HTTP = {"kind": "http", "name": "http://localhost:1/"}
FOUND = ("no-ranges", "recorder-not-finalized", "memory-grows", "memory-grows-under-nsys", "not-traced")


@pytest.mark.parametrize(
    ("test", "left"),
    [
        (load(target=HTTP), FOUND[:2] + FOUND[3:4]),
        (load(target={**HTTP, "started": ["python", "server.py"]}), FOUND[2:]),
        (load(tracer="nsys"), FOUND[:1] + FOUND[2:]),  # one request never came back
        (load(phase(errors={}), tracer="nsys"), FOUND),
        (load(phase(errors={})), FOUND[:2] + FOUND[3:4]),
        (load(phase(errors={}), tracer="nsys", sustained={"phase": "load", "duration_s": 60}), FOUND[:2] + FOUND[4:]),
    ],
)
def test_findings_that_say_nothing_about_the_target(
    tmp_path: Path, test: LoadResult, left: tuple[str, ...], capsys: Captured
) -> None:
    folder = str(folder_of(tmp_path / "out", test, errors=FOUND))
    assert run(["compare", folder, folder, "--format", "json"]) == 0
    launches = json.loads(capsys.readouterr().out)["base"]["launches"]
    assert launches[0]["errors"] == sorted(left)


def test_a_load_that_ended_early_or_cannot_be_read(tmp_path: Path) -> None:
    good, ended = folder_of(tmp_path / "a", load()), folder_of(tmp_path / "b", load(status="killed"))
    assert run(["compare", str(good), str(ended)]) == 1
    (ended / "load.json").write_text("{")
    assert run(["compare", str(good), str(ended)]) == 1


def test_more_than_two_load_tests_are_compared_with_the_first(tmp_path: Path, capsys: Captured) -> None:
    words = [side(tmp_path / name, load(), turn) for turn, name in enumerate("abc")]
    assert run(["compare", *words, "--format", "json"]) == 0
    versions = json.loads(capsys.readouterr().out)["versions"]
    assert [rows(one)["latency.p50"]["verdict"] for one in versions] == ["same", "same"]


# ---- gates ----


PHASES = load(phase("steady", 9, 20.0), phase("burst", 2, 80.0), phase("ramp.2", 1, 30.0))


@pytest.mark.parametrize(
    ("test", "text", "failed", "value"),
    [
        (PHASES, "latency.p99 > 20ms", False, 20.0),
        (PHASES, "latency.p99 >= 0.019s", True, 20.0),
        (PHASES, "latency.p50 > 9ms", True, 10.0),
        (PHASES, "latency.p99.9 > 1s", True, None),
        (PHASES, "error_rate > 0.01", True, 0.03),
        (PHASES, "achieved_rate < 48.9 requests/s", False, 49.0),
        (PHASES, "goodput < 1", True, None),
        (PHASES, "phases.burst.p99 > 25ms", True, 80.0),
        (PHASES, "phases.'ramp.2'.p99 > 25ms", True, 30.0),
        (PHASES, "phases.ramp.2.p99 > 25ms", True, 30.0),
        (PHASES, "phases.burst.error_rate > 0.01", True, 0.03),
        (PHASES, "phases.burst.p99.9 > 1ms", True, None),
        (PHASES, "phases.brust.p99 > 1ms", None, None),
        (PHASES, "phases.burst.throughput > 1", None, None),
        (PHASES, "error_rate > 1%", None, None),  # 10 % of errors on both sides would be a change of 0 %
        (PHASES, "phases.burst.error_rate > 0.5 %", None, None),
        (load(phase(errors={"x": 3}, ok=2)), "errors.x.error_share > 0.5", True, 0.6),
        (loadgen(), "loadgen_rate < 499 items/s", False, 499.5),
        (loadgen(), "loadgen_rate < 500", True, 499.5),
        (loadgen(), "latency.p50 > 1.9ms", True, 2.0),
        (loadgen(), "loadgen_latency > 1s", True, None),  # which Server has not
        (loadgen(), "latency.p99.9 > 1s", True, None),
        (loadgen(), "over_latency > 0.02", False, 0.01),
        (loadgen(**INVALID), "loadgen_rate < 1", True, None),
        (loadgen(**SINGLE), "loadgen_latency > 3ms", False, 2.9),
        (loadgen(**SINGLE), "early_stopping > 3ms", True, 3.1),
    ],
)
def test_limits(
    tmp_path: Path,
    test: LoadResult | MlperfResult,
    text: str,
    failed: bool | None,
    value: float | None,
    capsys: Captured,
) -> None:
    """`failed` None: it is no limit, or of nothing that is there."""
    folder = str(folder_of(tmp_path / "out", test))
    code = run(["compare", folder, folder, "--allow", "validity", "--fail-if", text, "--format", "json"])
    out = capsys.readouterr().out
    assert code == (2 if failed is None else 3 * failed)
    if failed is not None:
        (result,) = json.loads(out)["limits"]
        assert (result["failed"], result["value"]) == (failed, value if value is None else pytest.approx(value))
        assert (result["value"] is None) == (result["reason"] is not None)


def test_what_was_not_measured_keeps_its_reason(tmp_path: Path, capsys: Captured) -> None:
    folder = str(folder_of(tmp_path / "out", load(phase())))
    assert run(["compare", folder, folder, "--fail-if", "latency.p99 > 20ms", "--format", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["limits"][0]["reason"] == "too few"


def test_the_mean_of_shares_is_that_of_the_launches(tmp_path: Path, capsys: Captured) -> None:
    paths = [
        str(folder_of(tmp_path / str(place), load(phase(ok=1_000_000 - errors, errors={"x": errors}))))
        for place, errors in enumerate((1, 1, 600_000))
    ]
    assert run(["compare", paths[0], ",".join(paths), "--fail-if", "error_rate > 0.01", "--format", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["limits"][0]["value"] == pytest.approx(0.2, rel=1e-4)
