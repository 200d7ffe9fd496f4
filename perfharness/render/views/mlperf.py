"""Verdict and figures of an MLPerf LoadGen test."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.model.mlperf import MlperfMetric, MlperfResult
from perfharness.render.blocks import Block, Cell, Column, Details, Figure, Items, Paragraph, Section, Table, facts
from perfharness.render.numbers import milliseconds, significant
from perfharness.runs.comparison.load_tests import loadgen_verdict

ABOUT = (
    "Verdict and figures are from LoadGen's logs. The trace is of the same test: a batch is a query, or an execution "
    "in Server and Offline."
)


def mlperf_view(result: MlperfResult) -> list[Block]:
    """Verdict and latencies."""
    return [_verdict(result), *_percentiles(result)]


def mlperf_section(result: MlperfResult) -> Section:
    """Everything that LoadGen reported."""
    blocks: list[Block] = [Paragraph(ABOUT, "note"), *mlperf_view(result)]
    said = [*result.recommendations, *result.early_stopping]
    if said:
        blocks.append(Details("What LoadGen recommends", [Items(said)]))
    settings = [
        *result.settings.items(),
        *((f"asked: {name}", value) for name, value in result.asked.items()),
        *((f"log {name}", place) for name, place in result.logs.items()),
    ]
    table = facts("mlperf settings", [[name, str(value)] for name, value in settings], "setting")
    return Section("MLPerf LoadGen", [*blocks, Details("LoadGen's settings and logs", [table])])


def mlperf_figures(result: MlperfResult) -> Iterator[Figure]:
    """Verdict, metric of the scenario, and number of queries."""
    verdict, reason, _ = loadgen_verdict(result)
    yield Figure("LoadGen's verdict", verdict, reason or result.scenario)
    if result.metric is not None:
        early = result.metric.early_stopping_ms
        note = f"early stopping: {milliseconds(early)}" if early is not None else result.metric.reason or ""
        yield Figure(result.metric.name, _value(result.metric), note)
    if result.queries is not None:
        yield Figure("queries", f"{result.queries:,}", result.scenario)


def mlperf_sentences(result: MlperfResult) -> list[str]:
    """Verdict and metric in a sentence."""
    verdict, reason, _ = loadgen_verdict(result)
    metric = "" if result.metric is None else f" {result.metric.name}: {_value(result.metric)}."
    return [f"MLPerf LoadGen, {result.scenario}: {verdict}{f': {reason}' if reason else ''}.{metric}"]


def _value(metric: MlperfMetric) -> str:
    if metric.value is None:
        return f"not known ({metric.reason or 'LoadGen reported none'})"
    return milliseconds(metric.value) if metric.unit == "ms" else f"{significant(metric.value)} samples/s"


def _verdict(result: MlperfResult) -> Table:
    verdict, reason, _ = loadgen_verdict(result)
    metric, sut = result.metric, result.sut
    rows: list[list[Cell]] = [
        ["verdict", f"{verdict}: {reason}" if reason else verdict],
        ["scenario", result.scenario],
    ]
    if metric is not None:
        rows.append([metric.name, _value(metric)])
    if metric is not None and metric.unit == "ms":
        early = metric.early_stopping_ms
        rows.append(["early stopping", f"not known ({metric.reason})" if early is None else milliseconds(early)])
    rows.append(["queries", "not known" if result.queries is None else f"{result.queries:,}"])
    if result.over_latency is not None:
        rows.append(["queries over the bound", f"{result.over_latency:,}"])
    rows += [["model", result.model], ["backend", result.backend]]
    if sut is not None:
        rows.append(["executions", f"{sut.batches:,} of {sut.samples:,} samples and {sut.padding:,} rows of padding"])
        rows += [[name, f"{value:,.4g}, measured by perfharness before the test"] for name, value in sut.told.items()]
        for kind, count in sut.errors.items():
            rows.append([f"failed: {kind}", f"{count:,} samples; {sut.first_errors.get(kind, '')}"])
        rows.append(["LoadGen", sut.loadgen or "version not known"])
    return Table("mlperf", [Column("MLPerf LoadGen"), Column("")], rows)


def _percentiles(result: MlperfResult) -> Iterator[Table]:
    if not result.percentiles and result.mean_latency_ms is None:
        return
    rows: list[list[Cell]] = [[f"p{one.percent:g}", one.latency_ms, one.reason or ""] for one in result.percentiles]
    reason = "" if result.mean_latency_ms is not None else "LoadGen reported none"
    columns = [Column("latency of a query"), Column("ms", "ms"), Column("why not known")]
    note = "Offline has one query: the mean is over its samples." if result.scenario == "Offline" else ""
    yield Table("mlperf latency", columns, [*rows, ["mean", result.mean_latency_ms, reason]], note)
