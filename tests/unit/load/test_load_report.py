"""A load test in a report: curves by hand, on the axis of the load, names that try to break out, every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.cli.main import run
from perfharness.load.profile import checked_profile
from perfharness.load.reported import load_report, phase_verdict, report_of
from perfharness.load.result import load_result
from perfharness.model.load import WINDOWS_NAME, LoadFigure, LoadResult, Objective, TargetRecord
from perfharness.model.manifest import LOAD_NAME, MLPERF_NAME
from perfharness.render.blocks import Figures, Section
from perfharness.render.charts.load import over_time_picture
from perfharness.render.html import html_page
from perfharness.render.markdown import markdown
from perfharness.render.report.files import gather_all
from perfharness.render.report.load_sections import load_sections, load_sentences
from perfharness.render.report.sections import document_of
from perfharness.runs.files.run_folder import ReadAs
from perfharness.runs.report.model import LoadCurve, LoadReport
from tests.support import load_lines
from tests.support.documents import tables_of
from tests.support.load_lines import MS, S, hdr
from tests.support.sample_builder import SampleBuilder
from tests.support.trace_builder import Recorded
from tests.unit.charts import lines
from tests.unit.export_runs import process_record, run_folder
from tests.unit.load.test_load_compare import INVALID, loadgen
from tests.unit.render.test_report import HOSTILE

START = 5000 * S
"""Of the load, on the monotonic clock."""

RATE = 100
FOLDER = "proc_0_gpu_0"


def window(phase: int, index: int, start_s: float, latency_ms: list[float], **changes: Any) -> dict[str, Any]:
    """A second with these latencies, half of each waiting."""
    latency_ns = np.array(latency_ms) * MS
    half, late = hdr(latency_ns / 2), hdr([0.1 * MS] * len(latency_ms))
    begin_ns = START + round(start_s * S)
    times = {"start_ns": begin_ns, "end_ns": begin_ns + S, "last_done_ns": begin_ns + S - 1}
    own = {"within_objective": len(latency_ms), "in_flight_max": 2, "rss_bytes": 10**8 + index * 10**6}
    parts = {"queueing": half, "service": half, "lateness": late}
    return load_lines.window(index, latency_ns, phase=phase, **{**times, **own, **parts, **changes})


def lines_of(seconds: int = 30, warmup: int = 3, name: str = "load") -> tuple[LoadResult, list[dict[str, Any]]]:
    """A warm-up at 10 a second, then 100 a second, of which all in second k take k + 1 ms."""
    profile = checked_profile({
        "objective": "p95=50ms", "concurrency": 2,
        "phases": [{"name": "warm", "duration": warmup, "rate": 10, "warmup": True},
                   {"name": name, "duration": seconds, "rate": RATE}],
    })  # fmt: skip
    lines: list[dict[str, Any]] = [{"kind": "run", "start_ns": START}]
    for phase, begin, length in ((0, 0, warmup), (1, warmup, seconds)):
        lines.append({
            "kind": "phase", "index": phase, "start_ns": START + begin * S, "end_ns": START + (begin + length) * S,
            "concurrency": 2,
        })  # fmt: skip
        for second in range(length):
            latency = [2.0] * 10 if phase == 0 else [second + 1.0] * RATE
            lines.append(window(phase, second, begin + second, latency))
    lines.append({"kind": "end", "status": "ok", "reason": None})
    return load_result(TargetRecord(kind="callable", name="made"), profile, [lines]), lines


def made(**options: Any) -> LoadReport:
    result, lines = lines_of(**options)
    return report_of(result, [lines], START)


def folder_of(folder: Path, result: LoadResult, lines: list[dict[str, Any]]) -> Path:
    """A run folder of a load test without traces."""
    run_folder(folder, process_record(0, trace=None))
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "tracer": {"kind": "none"}}))
    (folder / LOAD_NAME).write_text(result.model_dump_json())
    (folder / FOLDER).mkdir()
    (folder / FOLDER / WINDOWS_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def hostile(folder: Path) -> Path:
    """Names of the phase, of the target, of errors and their messages that try to break out of the page."""
    result, lines = lines_of(name=HOSTILE)
    lines[-3]["errors"] = {f"exception:{HOSTILE}": 3, "reset": 1}
    lines[-3]["first"] = [{"kind": f"exception:{HOSTILE}", "request": 7, "at_s": 30.5, "message": HOSTILE}]
    profile = checked_profile(result.profile)
    target = TargetRecord(kind="callable", name=HOSTILE)
    return folder_of(folder, load_result(target, profile, [lines]), lines)


def curve(load: LoadReport, of: str, time: str = "latency") -> LoadCurve:
    return next(one for one in load.curves if (one.time, one.of) == (time, of))


# ---- content ----


def test_a_percentile_is_over_as_many_seconds_as_it_needs() -> None:
    load = made()
    assert [point.count for point in curve(load, "p50").points] == [10] * 3 + [RATE] * 30
    assert [point.ms for point in curve(load, "p50").points[3:]] == pytest.approx(np.arange(1, 31), rel=1e-3)
    tenths = curve(load, "p90").points
    assert [(point.start_s, point.end_s, point.count) for point in tenths[:2]] == [(0, 3, 30), (3, 4, RATE)]
    assert tenths[0].ms is None  # 30 values of the warm-up: 3 are beyond it
    hundredths = curve(load, "p99").points
    assert [(point.start_s, point.end_s) for point in hundredths] == [(0, 3), (3, 13), (13, 23), (23, 33)]
    # of 10 seconds with 1, 2 … 10 ms, 100 of each, rank 990 is in the last one
    assert [point.ms for point in hundredths[1:]] == pytest.approx([10, 20, 30], rel=1e-3)
    assert all(one.of != "p99_9" for one in load.curves)


@pytest.mark.parametrize(
    ("p95", "changes", "verdict"),
    [
        ((20, 18, 24), {}, "meets"),
        ((60, 55, 70), {}, "misses"),
        ((48, 45, 52), {}, "undecided"),
        ((20, None, None), {}, "undecided"),  # no interval
        ((20, 18, 24), {"ok": 940, "errors": {"refused": 60}}, "misses"),  # more than may be late
        ((20, 18, 24), {"ok": 960, "errors": {"refused": 40}}, "meets"),
        ((20, 18, 24), {"asked_rate": 400.0}, "misses"),  # it does not keep up
    ],
)
def test_whether_a_phase_met_the_objective(
    p95: tuple[float, float | None, float | None], changes: dict[str, Any], verdict: str
) -> None:
    result, _ = lines_of()
    warm, phase = result.phases
    value, low, high = p95
    latency = phase.latency.model_copy(update={"p95": LoadFigure(value=value, low=low, high=high)})
    asked = phase.model_copy(update={"latency": latency, **changes})
    result = result.model_copy(update={"phases": [warm, asked], "windows": []})
    assert phase_verdict(result, asked) == verdict
    assert phase_verdict(result, warm) is None


def test_what_had_no_answer_is_slower_than_all() -> None:
    result, lines = lines_of()
    lines[-3] |= {"unanswered": 20, "latency": hdr([MS] * 80)}
    load = report_of(result, [lines], START)
    (at,) = [point for point in curve(load, "p90").points if point.start_s <= 31 < point.end_s]
    (middle,) = [point for point in curve(load, "p50").points if point.start_s <= 31 < point.end_s]
    (highest,) = [point for point in curve(load, "max").points if point.start_s <= 31 < point.end_s]
    assert (at.ms, highest.ms) == (None, None)
    assert middle.ms == pytest.approx(1, rel=1e-3)


def test_processes_are_pooled() -> None:
    result, lines = lines_of()
    slow = [dict(line) for line in lines]
    for line in slow:
        if line["kind"] == "window":
            line["latency"] = hdr([100 * MS] * (2 * line["completed"]))
    load = report_of(result, [lines, slow], START)
    assert [point.count for point in curve(load, "p50").points[3:]] == [3 * RATE] * 30
    assert [point.ms for point in curve(load, "p50").points] == pytest.approx([100] * 33, rel=1e-3)


def test_errors_beyond_the_objective_are_said_with_its_verdict() -> None:
    """The latency is of those that were answered."""
    result, _ = lines_of()
    phase = result.phases[1]
    few = phase.model_copy(update={"ok": phase.ok - 60, "errors": {"http-503": 60}})  # of 3,000
    for limit, is_said in ((None, False), (0.02, False), (0.01, True)):
        objective = Objective(latency_ms=50, percentile=95, max_error_rate=limit)
        changed = result.model_copy(update={"phases": [result.phases[0], few], "objective": objective})
        assert ("2.00%" in load_sentences(report_of(changed, [], None))[0]) == is_said


def test_the_sentences_are_about_the_phase_that_counts() -> None:
    load = made()
    assert load.main == 1
    # 100 a second with 7.75 ms of service on average, 2 workers
    assert load.workers_busy == pytest.approx(100 * 7.75e-3 / 2, rel=1e-2)
    assert load.queueing_share == pytest.approx(0.5, rel=1e-3)
    assert load.objective == "undecided"  # it has no interval yet
    assert len(load_sentences(load)) == 2


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(10, 40, "meets"), (51, 60, "misses"), (40, 60, "undecided"), (None, None, "undecided")],
)
def test_the_objective_is_judged_by_the_interval(low: float | None, high: float | None, verdict: str) -> None:
    result, lines = lines_of()
    phase = result.phases[1]
    latency = phase.latency.model_copy(update={"p95": LoadFigure(value=45.0, low=low, high=high)})
    phases = [result.phases[0], phase.model_copy(update={"latency": latency})]
    assert report_of(result.model_copy(update={"phases": phases}), [lines], START).objective == verdict


def test_every_answer_is_in_its_bin() -> None:
    bins = made(seconds=2).bins[1]
    assert sum(bins.counts) == 2 * RATE
    found = [
        (low, high) for low, high, count in zip(bins.edges_ms, bins.edges_ms[1:], bins.counts, strict=False) if count
    ]
    assert len(found) == 2
    assert all(low * 0.998 <= value <= high * 1.002 for (low, high), value in zip(found, (1, 2), strict=True))


# ---- charts ----


def test_telemetry_is_on_the_axis_of_the_load() -> None:
    load, offset = made(), 77 * S
    moments = [START + offset + second * S for second in range(-5, 33)]
    builder = SampleBuilder(offset_ns=offset).subject("GPU-1", gpu_index=0, name="made up")
    builder.readings("GPU-1", "sm_clock_mhz", moments, [1980.0] * 15 + [1500.0] * 23)
    reasons = [4.0 if 10 <= second < 12 else 0.0 for second in range(-5, 33)]
    builder.readings("GPU-1", "clock_event_reasons", moments, reasons)
    picture = over_time_picture("x", load, builder.build())
    clock = lines(picture, "GPU 0 SM clock (MHz)")["SM"]
    assert clock[0][0] == 0
    assert min(at for at, value in clock if value == 1500) == 10
    (span,) = picture.rows["x_GPU 0 throttling"]
    assert (span["seconds"], span["until"]) == (10, 12)


# ---- the report ----


def test_over_http_what_the_launched_generator_lacks_is_no_finding(tmp_path: Path) -> None:
    result, lines = lines_of()
    codes = []
    for kind in ("callable", "http"):
        target = result.target.model_copy(update={"kind": kind})
        traced = result.model_copy(update={"target": target, "tracer": "nsys"})
        folder = folder_of(tmp_path / kind, traced, lines)
        codes.append({one.code for one in gather_all([folder], ReadAs(), None).findings})
    assert codes[0] - codes[1] == {"not-traced"}


def test_tokens_of_a_stream_have_rows_of_their_own(tmp_path: Path) -> None:
    result, lines = lines_of()
    first = result.phases[1].model_copy(update={"first_token": result.phases[1].service})
    result = result.model_copy(update={"phases": [result.phases[0], first]})
    document = document_of(gather_all([folder_of(tmp_path / "out", result, lines)], ReadAs(), None))
    table = tables_of(document)["load times"]
    assert [row[1] for row in table.rows if row[0] == "load"] == [
        "latency", "queueing", "service", "to the first token", "generator late",
    ]  # fmt: skip


def test_a_run_without_traces_has_numbers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "out", *lines_of())
    assert run(["report", str(folder), "-o", str(tmp_path / "r.md")]) == 0
    report = gather_all([folder], ReadAs(), None)
    assert json.loads(report.model_dump_json())["runs"][0]["load"]["result"]["phases"][1]["arrivals"] == 3000
    tables = tables_of(document_of(report))
    assert tables["load phases"].rows[1][2:9] == [30.0, 100.0, 100.0, 3000, 3000, 3000, 3000]
    assert {"load times", "load intervals", "load profile"} <= {*tables}


def test_no_name_becomes_a_part_of_the_page(tmp_path: Path) -> None:
    report = gather_all([hostile(tmp_path / "out")], ReadAs(), None)
    document = document_of(report)
    loadgen_page = html_page(document_of(gather_all([hostile_loadgen(tmp_path / "loadgen")], ReadAs(), None)))
    for page in (html_page(document), loadgen_page):
        assert "<script>alert" not in page
        assert "<img src=x" not in page
    assert "<script>alert" not in markdown(document).replace("\\<", "")


def test_without_the_files_of_windows_the_rest_is_there(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "out", *lines_of())
    (folder / FOLDER / WINDOWS_NAME).unlink()
    load = load_report(folder)
    assert load is not None
    assert (load.curves, load.start_ns) == ([], None)
    assert load.curves_reason
    assert len(load.moments) == 33
    (section,) = load_sections(load, 0, None)
    assert isinstance(section, Section)


def test_a_run_without_load_has_none(tmp_path: Path) -> None:
    assert load_report(run_folder(tmp_path / "out", process_record(0))) is None


def traced(folder: Path, result: LoadResult, lines: list[dict[str, Any]], slow: int = 37, **requests: Any) -> Path:
    """The same with the trace of 60 requests of 10 ms, of which one takes 30 ms more in `decode`."""
    folder_of(folder, result, lines)
    recorded = Recorded(gpu=False)
    for index in range(60):
        at, more = 100.0 * index, 30.0 if index == slow else 0.01 * (index % 7)
        recorded.batch(index, at, at + 10 + more)
        recorded.stage("decode", at + 1, at + 4 + more)
    recorded.write(folder / FOLDER / "trace.sqlite")
    run_folder(folder, process_record(0))
    return folder


def test_the_slowest_requests_are_those_of_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = traced(tmp_path / "out", *lines_of())
    report = gather_all([folder], ReadAs(), None)
    (found,) = report.runs
    assert found.slowest is not None
    assert run(["analyze", str(folder), "--slowest", "5", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(found.slowest.result.model_dump_json())
    (loop,) = found.slowest.result.loops
    assert [loop.requests[0].index, loop.requests[0].ms] == [37, 40.0]
    assert [one.batch_index for one in found.slowest.timelines][:1] == [37]
    document = document_of(report)
    (table,) = (one for name, one in tables_of(document).items() if name.startswith("slowest "))
    headings = [column.heading for column in table.columns]
    first = dict(zip(headings, table.rows[0], strict=True))
    assert first["batch"] == "37"
    assert first["by"] == pytest.approx(30.0, abs=0.1)
    assert "decode" in str(first["what made it slow"])


def loadgen_folder(folder: Path, **more: Any) -> Path:
    """A run of LoadGen with the trace of 60 queries."""
    traced(folder, *lines_of())
    (folder / LOAD_NAME).unlink()
    (folder / MLPERF_NAME).write_text(loadgen(**more).model_dump_json())
    return folder


def test_a_test_of_loadgen_begins_with_its_verdict(tmp_path: Path) -> None:
    finding = {"code": "mlperf-invalid", "severity": "error", "message": "INVALID", "hint": ""}
    report = gather_all([loadgen_folder(tmp_path / "out", **INVALID, findings=[finding])], ReadAs(), None)
    document = document_of(report)
    (figures,) = (block for block in document.summary if isinstance(block, Figures))
    shown = {one.value for one in figures.figures}
    assert {"INVALID", "499.5 samples/s"} <= shown
    rows = {name: table.rows for name, table in tables_of(document).items()}
    assert ["p50", 2.0, ""] in rows["mlperf latency"]
    assert ["p99.9", None, "too few queries"] in rows["mlperf latency"]
    assert ["asked: max_batch", "4"] in rows["mlperf settings"]
    assert report.runs[0].slowest is not None
    assert "mlperf-invalid" in {one.code for one in report.findings}


def hostile_loadgen(folder: Path) -> Path:
    """Names of the model, the metric and of what LoadGen says that try to break out of the page."""
    metric = {"name": HOSTILE, "unit": "ms", "value": 1.0}
    said = {"metric": metric, "invalid_reasons": [HOSTILE], "recommendations": [HOSTILE]}
    return loadgen_folder(folder, model=HOSTILE, backend=HOSTILE, validity="INVALID", **said)
