"""A load test in a report: curves by hand, on the axis of the load, names that try to break out, every format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfharness
from perfharness.cli.main import run
from perfharness.load.record import Done
from perfharness.model.load import REQUESTS_NAME, WINDOWS_NAME, LoadFigure, LoadResult, Objective, PhaseResult
from perfharness.model.manifest import LOAD_NAME, MLPERF_NAME
from perfharness.render.charts.load import over_time_picture
from perfharness.runs.report.model import LoadCurve, LoadReport
from tests.support.documents import markdown_table as table
from tests.support.load_lines import FOLDER, START, S, answered, given_up, made_result, write_process
from tests.support.sample_builder import SampleBuilder
from tests.support.trace_builder import Recorded
from tests.unit.charts import lines, report_charts
from tests.unit.export_runs import process_record, run_folder
from tests.unit.load.test_load_compare import INVALID, loadgen
from tests.unit.render.test_report import HOSTILE

RATE = 100
Ends = tuple[float | None, float | None, float | None]


def requests_of(seconds: int, warmup: int, slow: float = 1.0) -> list[list[Done]]:
    """10 a second for the warm-up, then 100 a second, of which all in second k take k + 1 ms; half of it waiting."""
    found: list[list[Done]] = [[], []]
    for phase, begin, length, rate in ((0, 0, warmup, 10), (1, warmup, seconds, RATE)):
        for second, number in np.ndindex(length, rate):
            ms = slow * (2.0 if phase == 0 else second + 1.0)
            due = START + (begin + second) * S + number * S // (2 * rate)
            found[phase].append(answered(len(found[0]) + len(found[1]), due, ms, wait_ms=ms / 2, late_ms=0.1))
    return found


def folder_of(
    folder: Path, seconds: int = 30, warmup: int = 3, name: str = "load", processes: int = 1, **more: Any
) -> tuple[Path, LoadResult]:
    """A run folder of a load test without traces."""
    profile = {
        "objective": "p95=50ms",
        "concurrency": 2,
        "phases": [{"name": "warm", "duration": warmup, "rate": 10, "warmup": True},
                   {"name": name, "duration": seconds, "rate": RATE}],
    }  # fmt: skip
    run_folder(folder, process_record(0, trace=None))
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "tracer": {"kind": "none"}}))
    requests = more.pop("requests", requests_of(seconds, warmup))
    write_process(folder / FOLDER, profile, requests, workers=2, memory=lambda second: 10**8)
    for number in range(1, processes):
        write_process(folder / f"proc_{number}_gpu_0", profile, requests_of(seconds, warmup, 100.0), workers=2)
    return folder, made_result(folder, profile, processes, **more)


def hostile(folder: Path) -> Path:
    """Names of the phase, of the target, of errors and their messages that try to break out of the page."""
    requests = requests_of(30, 3)
    errors = [f"exception:{HOSTILE}"] * 3 + ["reset"]
    requests[1][-4:] = [
        one._replace(error=error, message=HOSTILE) for one, error in zip(requests[1][-4:], errors, strict=True)
    ]
    return folder_of(folder, name=HOSTILE, requests=requests, target=HOSTILE)[0]


def load_of(folder: Path) -> LoadReport:
    (found,) = perfharness.report(folder).runs
    load: LoadReport | None = found.load
    assert load is not None
    return load


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("load") / "out")[0]


@pytest.fixture(scope="module")
def made(recorded: Path) -> LoadReport:
    return load_of(recorded)


def changed(folder: Path, phase: Callable[[PhaseResult], dict[str, Any]], **more: Any) -> Path:
    """A run folder whose counted phase has these values."""
    _, result = folder_of(folder, seconds=3, warmup=1)
    warm, counted = result.phases
    phases = [warm, counted.model_copy(update=phase(counted))]
    (folder / LOAD_NAME).write_text(result.model_copy(update={"phases": phases, **more}).model_dump_json())
    return folder


def latency(phase: PhaseResult, **figures: Ends) -> dict[str, Any]:
    """The phase's latency with these figures: value and both ends of the interval."""
    made = {name: LoadFigure(value=value, low=low, high=high) for name, (value, low, high) in figures.items()}
    return {"latency": phase.latency.model_copy(update=made)}


def written(folder: Path, ending: str = "md") -> str:
    file = folder.parent / f"{folder.name}.{ending}"
    assert run(["report", str(folder), "-o", str(file)]) == 0
    return file.read_text()


def curve(load: LoadReport, of: str, time: str = "latency") -> LoadCurve:
    return next(one for one in load.curves if (one.time, one.of) == (time, of))


# ---- curves and bins ----


def test_a_percentile_is_over_as_many_seconds_as_it_needs(made: LoadReport) -> None:
    assert [point.count for point in curve(made, "p50").points] == [10] * 3 + [RATE] * 30
    assert [point.ms for point in curve(made, "p50").points[3:]] == pytest.approx(np.arange(1, 31), rel=1e-3)
    tenths = curve(made, "p90").points
    assert [(point.start_s, point.end_s, point.count) for point in tenths[:2]] == [(0, 3, 30), (3, 4, RATE)]
    assert tenths[0].ms is None  # 30 values of the warm-up: 3 are beyond it
    hundredths = curve(made, "p99").points
    assert [(point.start_s, point.end_s) for point in hundredths] == [(0, 3), (3, 13), (13, 23), (23, 33)]
    # of 10 seconds with 1, 2 … 10 ms, 100 of each, rank 990 is in the last one
    assert [point.ms for point in hundredths[1:]] == pytest.approx([10, 20, 30], rel=1e-3)
    assert all(one.of != "p99_9" for one in made.curves)


def test_what_had_no_answer_is_slower_than_all(tmp_path: Path) -> None:
    requests = requests_of(3, 1)
    requests[1][-20:] = [given_up(one.id, one.intended_ns) for one in requests[1][-20:]]
    load = load_of(folder_of(tmp_path / "out", 3, 1, requests=requests)[0])
    values = {of: curve(load, of).points[-1].ms for of in ("p50", "max")}
    assert values == {"p50": pytest.approx(3), "max": None}
    assert curve(load, "p90").points[-1].ms is None


def test_processes_are_pooled(tmp_path: Path) -> None:
    load = load_of(folder_of(tmp_path / "out", 2, 1, processes=2)[0])
    assert [point.count for point in curve(load, "p50").points] == [20, 2 * RATE, 2 * RATE]
    assert [point.ms for point in curve(load, "max").points] == pytest.approx([200, 100, 200])


def test_every_answer_is_in_its_bin(tmp_path: Path) -> None:
    bins = load_of(folder_of(tmp_path / "out", 2, 1)[0]).bins[1]
    found = [ends for *ends, count in zip(bins.edges_ms, bins.edges_ms[1:], bins.counts, strict=False) if count]
    assert (sum(bins.counts), len(found)) == (2 * RATE, 2)
    assert all(low * 0.998 <= value <= high * 1.002 for (low, high), value in zip(found, (1, 2), strict=True))


def test_telemetry_is_on_the_axis_of_the_load(made: LoadReport) -> None:
    offset = 77 * S
    moments = [START + offset + second * S for second in range(-5, 33)]
    builder = SampleBuilder(offset_ns=offset).subject("GPU-1", gpu_index=0, name="made up")
    builder.readings("GPU-1", "sm_clock_mhz", moments, [1980.0] * 15 + [1500.0] * 23)
    reasons = [4.0 if 10 <= second < 12 else 0.0 for second in range(-5, 33)]
    builder.readings("GPU-1", "clock_event_reasons", moments, reasons)
    picture = over_time_picture("x", made, builder.build())
    clock = lines(picture, "GPU 0 SM clock (MHz)")["SM"]
    assert clock[0][0] == 0
    assert min(at for at, value in clock if value == 1500) == 10
    (span,) = picture.rows["x_GPU 0 throttling"]
    assert (span["seconds"], span["until"]) == (10, 12)


# ---- the objective ----


@pytest.mark.parametrize(
    ("p95", "changes", "by_latency", "shown"),
    [
        ((20, 18, 24), {}, "meets", "met"),
        ((60, 55, 70), {}, "misses", "not met"),
        ((48, 45, 52), {}, "undecided", "undecided"),
        ((20, None, None), {}, "undecided", "undecided"),  # no interval
        ((20, 18, 24), {"ok": 282, "errors": {"refused": 18}}, "meets", "not met"),  # more than may be late
        ((20, 18, 24), {"ok": 288, "errors": {"refused": 12}}, "meets", "met"),
        ((20, 18, 24), {"asked_rate": 400.0}, "meets", "not met"),  # it does not keep up
        ((20, 18, 24), {"ok": 294, "errors": {"http-503": 6}, "allowed": 0.02}, "meets", "met"),
        ((20, 18, 24), {"ok": 294, "errors": {"http-503": 6}, "allowed": 0.01}, "meets", "not met"),
    ],
)
def test_whether_a_phase_met_the_objective(
    tmp_path: Path, p95: Ends, changes: dict[str, Any], by_latency: str, shown: str
) -> None:
    values = dict(changes)
    objective = Objective(latency_ms=50, percentile=95, max_error_rate=values.pop("allowed", None))
    more = {"windows": [], "objective": objective}
    folder = changed(tmp_path / "out", lambda phase: {**latency(phase, p95=p95), **values}, **more)
    assert load_of(folder).objective == by_latency
    text = written(folder)
    assert [row["objective"] for row in table(text, "asked/s", "objective")] == ["", shown]
    assert ("2.00 %" in text) == (objective.max_error_rate == 0.01)  # the share that failed, with the verdict


def test_the_first_figures_are_of_the_phase_that_counts(made: LoadReport) -> None:
    assert made.main == 1
    # 100 a second with 7.75 ms of service on average, 2 workers
    assert made.workers_busy == pytest.approx(100 * 7.75e-3 / 2, rel=1e-2)
    assert made.queueing_share == pytest.approx(0.5, rel=1e-3)
    assert made.objective == "undecided"  # each second is slower than the one before


# ---- the report ----


def test_a_run_without_traces_has_numbers(recorded: Path, made: LoadReport) -> None:
    assert made.result.phases[1].arrivals == 3000
    text = written(recorded)
    warm, counted = table(text, "asked/s", "p99")
    assert (warm["requests"], warm["objective"]) == ("30", "")
    assert [counted[name] for name in ("asked/s", "answered/s", "requests", "errors")] == ["100", "100", "3,000", "0"]
    assert [float(counted[name]) for name in ("p50", "p90", "p99")] == pytest.approx([15, 27, 30], rel=1e-2)
    assert table(text, "load", "seconds")[1]["seconds"] == "30"
    parts = table(text, "part", "p50")
    assert [row["part"] for row in parts] == ["queueing", "sent late", "service"] * 2
    assert float(parts[5]["mean"]) == pytest.approx(7.75, rel=1e-2)
    assert {row["setting"]: row["value"] for row in table(text, "setting")}["processes"] == "1"


def test_two_rates_are_a_chart(tmp_path: Path) -> None:
    folder, result = folder_of(tmp_path / "out", seconds=3, warmup=1)
    one, picture = result.phases[1], "load_rates_0"
    assert picture not in report_charts(folder)
    result.phases.append(one.model_copy(update={"name": "more", "asked_rate": 200.0}))
    (folder / LOAD_NAME).write_text(result.model_dump_json())
    rows = report_charts(folder)[picture]["datasets"][f"{picture}_points"]
    assert [(row["rate"], row["line"], row["ms"]) for row in rows if row["line"] == "p50"] == [
        (rate, "p50", pytest.approx(one.latency.p50.value)) for rate in (100.0, 200.0)
    ]


def test_tokens_of_a_stream_have_figures_of_their_own(tmp_path: Path) -> None:
    tokens = {"tokens": 9000, "tokens_per_second": 300.0}
    text = written(changed(tmp_path / "out", lambda phase: {"first_token": phase.service, **tokens}))
    assert table(text, "asked/s", "tokens/s")[1]["tokens/s"] == "300"
    assert [row["part"] for row in table(text, "part", "p50")][3:] == [
        "queueing", "sent late", "service", "to the first token",
    ]  # fmt: skip


def test_no_name_becomes_a_part_of_the_page(tmp_path: Path) -> None:
    for folder in (hostile(tmp_path / "out"), hostile_loadgen(tmp_path / "loadgen")):
        page = written(folder, "html")
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "<script>alert" not in written(folder).replace("\\<", "")
    rows = table(written(tmp_path / "out").replace("&lt;", "<"), "error", "message")
    assert [row["count"] for row in rows] == ["3", "1"]


def test_without_the_files_of_windows_the_rest_is_there(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path / "out", 2, 1)
    (folder / FOLDER / WINDOWS_NAME).unlink()
    load = load_of(folder)
    assert (load.curves, load.start_ns) == ([], None)
    assert load.curves_reason
    assert table(written(folder), "asked/s", "p99")


def test_a_run_without_load_has_none(tmp_path: Path) -> None:
    (found,) = perfharness.report(run_folder(tmp_path / "out", process_record(0, trace=None))).runs
    assert found.load is None


def traced(folder: Path, slow: int = 37) -> Path:
    """The same with the trace of 60 requests of 10 ms, of which one takes 30 ms more in `decode`."""
    folder_of(folder, 2, 1)
    (folder / FOLDER / REQUESTS_NAME).unlink()
    recorded = Recorded(gpu=False)
    for index in range(60):
        at, more = 100.0 * index, 30.0 if index == slow else 0.01 * (index % 7)
        recorded.batch(index, at, at + 10 + more)
        recorded.stage("decode", at + 1, at + 4 + more)
    recorded.write(folder / FOLDER / "trace.sqlite")
    run_folder(folder, process_record(0))
    return folder


def test_the_slowest_requests_are_those_of_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = traced(tmp_path / "out")
    (found,) = perfharness.report(folder).runs
    assert found.slowest is not None
    assert run(["analyze", str(folder), "--slowest", "5", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(found.slowest.result.model_dump_json())
    (loop,) = found.slowest.result.loops
    assert [loop.requests[0].index, loop.requests[0].ms] == [37, 40.0]
    assert [one.batch_index for one in found.slowest.timelines][:1] == [37]
    first = table(written(folder), "batch", "reason")[0]
    assert first["batch"] == "37"
    assert float(first["slower by"]) == pytest.approx(30.0, abs=0.1)
    assert "decode" in first["reason"]


def loadgen_folder(folder: Path, **more: Any) -> Path:
    """A run of LoadGen with the trace of 60 queries."""
    traced(folder)
    (folder / LOAD_NAME).unlink()
    (folder / MLPERF_NAME).write_text(loadgen(**more).model_dump_json())
    return folder


def test_a_test_of_loadgen_begins_with_its_verdict(tmp_path: Path) -> None:
    finding = {"code": "mlperf-invalid", "severity": "error", "message": "INVALID", "hint": ""}
    folder = loadgen_folder(tmp_path / "out", **INVALID, findings=[finding])
    report = perfharness.report(folder)
    assert report.runs[0].slowest is not None
    assert "mlperf-invalid" in {one.code for one in report.findings}
    file = tmp_path / "r.md"
    assert run(["report", str(folder), "-o", str(file)]) == 3
    text = file.read_text()
    assert all(value in text.partition("## ")[0] for value in ("**INVALID**", "499.5 samples/s"))
    rows = {row["latency of a query"]: row for row in table(text, "latency of a query")}
    assert (rows["p50"]["ms"], rows["p99.9"]["ms"]) == ("2.000", "-")
    assert rows["p99.9"]["why not known"] == "too few queries"
    assert re.search(r"asked: max_batch \| 4 ", text)


def hostile_loadgen(folder: Path) -> Path:
    """Names of the model, the metric and of what LoadGen says that try to break out of the page."""
    metric = {"name": HOSTILE, "unit": "ms", "value": 1.0}
    said = {"metric": metric, "invalid_reasons": [HOSTILE], "recommendations": [HOSTILE]}
    return loadgen_folder(folder, model=HOSTILE, backend=HOSTILE, validity="INVALID", **said)
