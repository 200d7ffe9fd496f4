"""Charts of a suite as PNG: throughput, latency and memory over the batch size, power over throughput, accuracy over
speed-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from perfharness.analysis.bench_figures import (
    accuracy_loss,
    baseline_of,
    direction_of,
    latency_of,
    memory_of,
    speedup,
)
from perfharness.analysis.bench_names import short_backend
from perfharness.model.bench import BenchCase, CaseResult, Estimate
from perfharness.model.bench_suite import BenchMergedResult, BenchSuiteResult, MergedRow
from perfharness.report.bench_chart import Chart
from perfharness.report.bench_words import short_cell, side_by_side
from perfharness.report.pictures import require_matplotlib


def draw_charts(suite: BenchSuiteResult, folder: Path) -> list[Path]:
    """Draw all charts that the results allow, one PNG each and model; returns the files.

    A chart of something that no case has is not drawn. Raises `ToolNotFoundError` without matplotlib.
    """
    require_matplotlib("--charts")
    limits = suite.constraints
    target = None if limits.max_latency_ms is None else (limits.latency_percentile, limits.max_latency_ms)
    written = []
    for own, title, end in by_model(suite):
        for name, draw in CHARTS.items():
            chart = Chart(own, title, target)
            if draw(chart):
                written.append(chart.save(folder / f"bench_{name}{end}.png"))
    return written


def by_model(suite: BenchSuiteResult) -> Iterator[tuple[BenchSuiteResult, str, str]]:
    """What there is of each model, the title of its charts, and the end of their files' names."""
    models = list(dict.fromkeys(case.case.model for case in suite.cases))
    plain = ["".join(c if c.isalnum() or c in "-_." else "_" for c in model) for model in models]
    for number, model in enumerate(models):
        own = suite.model_copy(update={"cases": [case for case in suite.cases if case.case.model == model]})
        end = "" if len(models) == 1 else f"_{plain[number]}" + (f"_{number}" if plain.count(plain[number]) > 1 else "")
        yield own, f"{model}, {_machine(own)}", end


def draw_merged(merged: BenchMergedResult, folder: Path) -> list[Path]:
    """Throughput over batch size of all runs, one PNG a model."""
    require_matplotlib("--charts")
    written = []
    models = list(dict.fromkeys(row.model for row in merged.rows))
    for number, model in enumerate(models):
        cases = list(_cases_by_machine(merged, model))
        suite = BenchSuiteResult(created="", machine=merged.runs[0].machine, cases=cases)
        figure = Chart(suite, f"{model}, {side_by_side(merged)}")
        if throughput(figure):
            end = "" if len(models) == 1 else f"_{number}"
            written.append(figure.save(folder / f"bench_merged_throughput{end}.png"))
    return written


def _cases_by_machine(merged: BenchMergedResult, model: str) -> Iterator[CaseResult]:
    """With the run's name before the backend's; a batch size that others have of its cells is one it has not."""
    cells = [(row, cell) for row in merged.rows if row.model == model for cell in row.cells]
    devices = {(cell.run, *_cell(row)): cell.result.case.device for row, cell in cells if cell.result is not None}
    for row, cell in cells:
        if (device := devices.get((cell.run, *_cell(row)))) is None:
            continue
        case = BenchCase(
            case_id="", model=model, backend=f"{cell.run}, {short_backend(row.backend)}", mode=row.mode,
            precision=row.precision, device=cell.result.case.device if cell.result else device,
            batch_size=row.batch_size, variant=row.variant,
        )  # fmt: skip
        result = cell.result or CaseResult(case=case, status="not-run", reason=cell.reason)
        yield result.model_copy(update={"case": case})


def _cell(row: MergedRow) -> tuple[str, ...]:
    return row.backend, row.mode, row.precision, row.variant, row.device


def throughput(chart: Chart) -> bool:
    """Items per second over the batch size; returns whether there is anything to draw, as all of them do."""
    if not chart.lines(lambda result: result.items_per_second, "items_per_second"):
        return False
    chart.ax.set_ylabel("throughput (items/s)")
    chart.spread("y", (r.items_per_second.value for r in chart.suite.cases if r.items_per_second))
    chart.note_bars("the mean")
    return True


def latency(chart: Chart) -> bool:
    """The figure of the target, or the median, over the batch size."""
    which, target = chart.target or ("p50", None)
    if not chart.lines(lambda result: latency_of(result, which), "latency"):
        return False
    chart.ax.set_ylabel(f"latency of a batch, {which} (ms)")
    values = [found.value for result in chart.suite.cases if (found := latency_of(result, which))]
    if target is not None:
        chart.limit(target, f"target: {which} at most {target:g} ms")
    chart.spread("y", [*values, *([target] if target is not None else [])])
    chart.note_bars(f"the {which}")
    return True


def memory(chart: Chart) -> bool:
    """Peak memory over the batch size."""

    def gigabytes(result: CaseResult) -> Estimate | None:
        memory = memory_of(result)
        return None if memory is None else Estimate(value=memory / 1e9)

    if not chart.lines(gigabytes, "memory"):
        return False
    devices = {result.case.device for result in chart.suite.cases}
    kind = {"cpu": "resident memory of the process", "cuda": "memory of the device"}
    chart.ax.set_ylabel(f"peak {' or '.join(kind[device] for device in sorted(devices))} (GB)")
    limit = chart.suite.constraints.memory_limit_bytes
    if limit is not None:
        chart.limit(limit / 1e9, f"limit: {limit / 1e9:g} GB")
    chart.ax.set_ylim(bottom=0)
    return True


def power(chart: Chart) -> bool:
    """Mean power over throughput, both of the pass with the sampler; the timed one where results have no such rate."""

    def rate(result: CaseResult) -> Estimate | None:
        again = result.telemetry_items_per_second
        return result.items_per_second if again is None else Estimate(value=again)

    def watts(result: CaseResult) -> Estimate | None:
        return None if result.power_mean_w is None else Estimate(value=result.power_mean_w)

    if not chart.points(rate, watts, "power_mean_w"):
        return False
    chart.ax.set_xlabel("throughput (items/s)")
    chart.ax.set_ylabel("mean power (W)")
    chart.spread("x", (found.value for result in chart.suite.cases if (found := rate(result))))
    if any(result.telemetry_items_per_second is not None for result in chart.suite.cases):
        chart.notes.append("throughput: of the pass in which power was read")
    chart.ax.set_ylim(bottom=0)
    return True


def accuracy(chart: Chart) -> bool:
    """Accuracy loss over speed-up."""
    metric, declared = chart.suite.constraints.accuracy_metric, chart.suite.constraints.accuracy_direction
    cases, baseline = chart.suite.cases, chart.suite.baseline

    def gain(result: CaseResult) -> Estimate | None:
        return speedup(result, baseline_of(result, cases, baseline))

    def loss(result: CaseResult) -> Estimate | None:
        found = accuracy_loss(result, baseline_of(result, cases, baseline), metric, declared)
        return None if found is None else Estimate(value=found)

    if not chart.points(gain, loss, "accuracy"):
        return False
    losses = [abs(one.value) for result in cases if result.status == "ok" and (one := loss(result))]
    small = [value for value in losses if value > 0]
    if small and max(small) > 20 * min(small):
        decade = 10.0 ** math.floor(math.log10(max(min(small), max(small) * 1e-6)))
        chart.ax.set_yscale("symlog", linthresh=decade)
        chart.notes.append(f"the axis of the loss is logarithmic above {decade:g}")
    else:
        chart.ax.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    chart.ax.set_xlabel(f"speed-up against {short_cell(baseline or '?')} at the same batch size", parse_math=False)
    if metric is None:
        chart.ax.set_ylabel("accuracy loss (1 - cosine of the outputs)")
    else:
        chart.ax.set_ylabel(
            f"{'growth' if direction_of(metric, declared) == 'lower' else 'loss'} of {metric}", parse_math=False
        )
    limit = chart.suite.constraints.max_accuracy_loss
    if limit is not None:
        chart.limit(limit, f"limit: loss of at most {limit:g}")
    chart.ax.axvline(1.0, color="#bbbbbb", linewidth=1)
    return True


CHARTS: Mapping[str, Callable[[Chart], bool]] = {
    "throughput": throughput,
    "latency": latency,
    "memory": memory,
    "power": power,
    "accuracy": accuracy,
}
"""File name -> what draws it; returns False where there is nothing to draw."""


def _machine(suite: BenchSuiteResult) -> str:
    on_gpu = any(case.case.device == "cuda" for case in suite.cases)
    device = ", ".join(suite.machine.gpus) if on_gpu and suite.machine.gpus else suite.machine.cpu
    return f"{device or 'an unknown device'} ({suite.machine.hostname})"
