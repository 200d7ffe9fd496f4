"""A test of MLPerf LoadGen on the terminal: its verdict and figures, then the stages as of every run."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from perfharness.model.mlperf import MlperfMetric, MlperfResult
from perfharness.model.result import ProcessResult, Tree
from perfharness.render.console import print_blocks
from perfharness.render.terminal.console import Column, fixed, print_table, say
from perfharness.render.text import NOT_MEASURED
from perfharness.render.views.result import result_view


def print_mlperf(console: Console, result: MlperfResult, mean: Tree, processes: Mapping[str, ProcessResult]) -> None:
    """Print it.

    Args:
        mean: `benchmark_mean.json`.
        processes: their results, by folder.
    """
    say(console, f"MLPerf LoadGen {result.sut.loadgen if result.sut else ''}, {result.scenario}")
    if result.validity is not None:
        say(console, f"{result.validity}{_because(result)}")
    if result.metric is not None:
        say(console, _metric_line(result.metric))
    known = [one for one in result.percentiles if one.latency_ms is not None]
    if known:
        rows = [[f"p{one.percent:g}", f"{one.latency_ms:.3f}"] for one in known]
        rows.append(["mean", fixed(result.mean_latency_ms)])
        say(console, f"latency of {result.queries} queries, ms, by LoadGen")
        print_table(console, [Column("", is_text=True, is_whole=True), Column("ms")], rows)
    if unknown := [one for one in result.percentiles if one.latency_ms is None]:
        names = ", ".join(f"p{one.percent:g}" for one in unknown)
        say(console, f"{names}: not known ({unknown[0].reason})")
    if result.over_latency:
        say(console, f"{result.over_latency} queries were over the bound")
    say(console, "")
    print_blocks(console, result_view(mean, processes))


def _because(result: MlperfResult) -> str:
    return f": not satisfied: {', '.join(result.invalid_reasons)}" if result.invalid_reasons else ""


def _metric_line(metric: MlperfMetric) -> str:
    """Its name has the unit of a rate."""
    value = NOT_MEASURED if metric.value is None else f"{metric.value:.6g}"
    if metric.unit != "ms":
        return f"{metric.name}: {value}"
    estimate = metric.reason if metric.early_stopping_ms is None else f"{metric.early_stopping_ms:.6g} ms"
    return f"{metric.name}: {value} ms; early stopping estimate: {estimate}"
