"""A test of MLPerf LoadGen as a part of a report."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.model.mlperf import MlperfMetric, MlperfResult
from perfharness.render.blocks import (
    Block,
    Cell,
    Column,
    Details,
    Figure,
    Items,
    Paragraph,
    Section,
    Table,
)
from perfharness.render.numbers import milliseconds, significant
from perfharness.runs.comparison.load_tests import loadgen_verdict

ABOUT = (
    "Verdict and figures are those of LoadGen, from its logs. What perfharness traced of the same test is below: a "
    "batch is a query, or of Server and Offline an execution."
)


def mlperf_figures(result: MlperfResult) -> Iterator[Figure]:
    """LoadGen's verdict, and what the scenario is judged by."""
    verdict, reason, _ = loadgen_verdict(result)
    yield Figure("LoadGen's verdict", verdict, reason or result.scenario)
    if result.metric is not None:
        note = result.metric.reason or ""
        if result.metric.early_stopping_ms is not None:
            note = f"early stopping: {milliseconds(result.metric.early_stopping_ms)}"
        yield Figure(result.metric.name, _value(result.metric), note)
    if result.queries is not None:
        yield Figure("queries", f"{result.queries:,}", result.scenario)


def mlperf_sentences(result: MlperfResult) -> list[str]:
    """Whether the test is valid, and its metric."""
    verdict, reason, _ = loadgen_verdict(result)
    because = f": {reason}" if reason else ""
    begin = f"MLPerf LoadGen, {result.scenario}: {verdict}{because}"
    if result.metric is None:
        return [f"{begin}."]
    return [f"{begin}. {result.metric.name}: {_value(result.metric)}."]


def mlperf_section(result: MlperfResult) -> Section:
    """Everything that LoadGen said."""
    blocks: list[Block] = [Paragraph(ABOUT, "note"), _verdict(result)]
    if result.percentiles:
        blocks.append(_percentiles(result))
    said = [*result.recommendations, *result.early_stopping]
    if said:
        blocks.append(Details("What LoadGen recommends", [Items(said)]))
    blocks.append(Details("LoadGen's settings", [_settings(result)]))
    return Section("MLPerf LoadGen", blocks)


def _value(metric: MlperfMetric) -> str:
    if metric.value is None:
        return f"not known ({metric.reason or 'LoadGen reported none'})"
    return milliseconds(metric.value) if metric.unit == "ms" else f"{significant(metric.value)} samples/s"


def _verdict(result: MlperfResult) -> Table:
    verdict, reason, _ = loadgen_verdict(result)
    rows: list[list[Cell]] = [
        ["verdict", verdict + (f": {reason}" if reason else "")],
        ["scenario", result.scenario],
    ]
    if result.metric is not None:
        rows.append([result.metric.name, _value(result.metric)])
        if result.metric.unit == "ms":
            early = result.metric.early_stopping_ms
            shown = f"not known ({result.metric.reason})" if early is None else milliseconds(early)
            rows.append(["early stopping estimate", shown])
    rows.append(["queries", "not known" if result.queries is None else f"{result.queries:,}"])
    if result.over_latency is not None:
        rows.append(["queries over the bound", f"{result.over_latency:,}"])
    rows += [["model", result.model], ["backend", result.backend]]
    if (sut := result.sut) is not None:
        rows.append(["executions", f"{sut.batches:,} of {sut.samples:,} samples, and {sut.padding:,} rows of padding"])
        rows += [[f"failed: {kind}", f"{count:,} samples; {sut.first_errors.get(kind, '')}"]
                 for kind, count in sut.errors.items()]  # fmt: skip
        rows.append(["LoadGen", sut.loadgen or "version not known"])
    rows += [[f"log {name}", place] for name, place in result.logs.items()]
    return Table("mlperf", [Column("what"), Column("value")], rows)


def _percentiles(result: MlperfResult) -> Table:
    rows: list[list[Cell]] = [[f"p{one.percent:g}", one.latency_ms, one.reason or ""] for one in result.percentiles]
    rows.append(["mean", result.mean_latency_ms, "" if result.mean_latency_ms is not None else "LoadGen reported none"])
    return Table(
        "mlperf latency",
        [Column("latency of a query"), Column("by LoadGen", "ms"), Column("why not known")],
        rows,
        "ms. Of Offline, which has one query, the mean is over its samples." if result.scenario == "Offline" else "ms",
    )


def _settings(result: MlperfResult) -> Table:
    rows: list[list[Cell]] = [[name, str(value)] for name, value in result.settings.items()]
    rows += [[f"asked: {name}", str(value)] for name, value in result.asked.items()]
    return Table("mlperf settings", [Column("setting"), Column("value")], rows)
