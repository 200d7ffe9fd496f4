"""Charts of a suite: speed-ups, curves over the batch size, accuracy loss, layers of the best case.

Curves have gaps at batch sizes that were not measured; notes give the reasons.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perfharness.analysis.suites.bench_figures import (
    accuracy_loss,
    accuracy_of,
    baseline_of,
    direction_of,
    gives_wrong_answers,
    latency_of,
    memory_of,
    speedup,
)
from perfharness.analysis.suites.bench_names import (
    CaseNames,
    device_text,
    first_line,
    in_groups,
    short_backend,
    status_line,
)
from perfharness.model.bench import BenchCase, CaseResult, Estimate, LatencyFigure
from perfharness.model.bench_suite import BenchSuiteResult
from perfharness.render.charts.drawing import (
    DASHED,
    LIMIT,
    LINE_PALETTE,
    NUMBERS,
    WIDE_RANGE,
    Picture,
    Row,
    Sheet,
    Specification,
    alt,
    fields,
    numbers,
    short_label,
    wrapped,
)
from perfharness.render.numbers import scaled

BENCH_PAGE = "bench_charts"
WIDTH, HEIGHT, ROW_HEIGHT = 640, 340, 20
DASHES = ([1, 0], [6, 3], [6, 3, 1, 3], [1, 3])
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-left", "triangle-right")
MAX_NOTES, MAX_NAMED, MAX_LAYERS = 12, 450, 25
"""Limits: notes of a chart, characters of the cases in a note, bars of layers."""

LEGEND_ROWS = 20

Value = Callable[[CaseResult], Estimate | None]


@dataclass(frozen=True)
class Plot:
    """Quantity of a chart with one point per case.

    Args:
        field: field of a result whose reason explains a missing value.
        limit: value and label of the user's limit.
        across: value and label of the x axis, or None for the batch size.
    """

    name: str
    value: Value
    field: str
    label: str
    limit: tuple[float, str] | None = None
    across: tuple[Value, str] | None = None


def bench_pictures(suite: BenchSuiteResult) -> list[Picture]:
    """Draw all charts of each model that have data."""
    found = []
    for own, title, end in by_model(suite):
        curves = [_curves(f"bench_{plot.name}{end}", own, title, plot) for plot in _plots(own)]
        found += [_speedups(f"bench_speedup{end}", own, title), *curves, _layers(f"bench_layers{end}", own)]
    return [picture for picture in found if picture is not None]


def by_model(suite: BenchSuiteResult) -> Iterator[tuple[BenchSuiteResult, str, str]]:
    """Results of each model, the title of its charts, and the suffix of their names."""
    models = in_groups((case.case.model, case) for case in suite.cases)
    for number, (model, cases) in enumerate(models):
        own = suite.model_copy(update={"cases": list(cases)})
        end = f"_{re.sub(r'[^A-Za-z0-9.-]', '_', model)}_{number}" if len(models) > 1 else ""
        on_gpu = any(case.case.device == "cuda" for case in cases)
        machine = suite.machine if on_gpu else suite.machine.model_copy(update={"gpus": []})
        yield own, f"{model}, {device_text(machine)} ({machine.hostname})", end


# ---- plots ----


def _plots(suite: BenchSuiteResult) -> Iterator[Plot]:
    limits, cases, baseline = suite.constraints, suite.cases, suite.baseline
    yield Plot("throughput", lambda one: one.items_per_second, "items_per_second", "throughput (items/s)")
    target = limits.max_latency_ms
    which: LatencyFigure = "p50" if target is None else limits.latency_percentile
    yield Plot(
        "latency",
        lambda one: latency_of(one, which),
        "latency",
        f"latency of a batch, {which} (ms)",
        None if target is None else (target, f"target: {which} at most {target:g} ms"),
    )
    kinds = {"cpu": "resident memory of the process", "cuda": "memory of the device"}
    label = " or ".join(kinds[device] for device in sorted({result.case.device for result in cases}))
    most = limits.memory_limit_bytes
    yield Plot(
        "memory",
        lambda one: _estimate(scaled(memory_of(one), 1e9)),
        "memory",
        f"peak {label} (GB)",
        None if most is None else (most / 1e9, f"limit: {most / 1e9:g} GB"),
    )
    metric, declared, loss = limits.accuracy_metric, limits.accuracy_direction, limits.max_accuracy_loss
    label = "accuracy loss (1 - cosine of the outputs)"
    if metric is not None:
        label = f"{'growth' if direction_of(metric, declared) == 'lower' else 'loss'} of {metric}"
    yield Plot(
        "accuracy",
        lambda one: _estimate(accuracy_loss(one, baseline_of(one, cases, baseline), metric, declared)),
        "accuracy",
        label,
        None if loss is None else (loss, f"limit: loss of at most {loss:g}"),
        (lambda one: speedup(one, baseline_of(one, cases, baseline)), _speedup_label(suite)),
    )
    rate = "throughput of the telemetry pass (items/s)"
    yield Plot(
        "power",
        lambda one: _estimate(one.power_mean_w),
        "power_mean_w",
        "mean power of the GPU (W)",
        across=(lambda one: _estimate(one.telemetry_items_per_second), rate),
    )


def _speedup_label(suite: BenchSuiteResult) -> str:
    return f"speed-up against {short_backend(suite.baseline or '?')} (same batch size)"


def _estimate(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(value=value)


def _ends(name: str, one: Estimate | None) -> Row:
    """Value and ends of its interval, as fields of a row."""
    low, high = (one.interval if one else None) or (None, None)
    return {name: one and one.value, f"{name}_low": low, f"{name}_high": high}


# ---- bars ----


def _speedups(name: str, suite: BenchSuiteResult, title: str) -> Picture | None:
    sheet, names = Sheet(name), CaseNames.of((result.case for result in suite.cases), with_model=False)
    rows: list[Row] = []
    for result in suite.cases:
        found = speedup(result, baseline_of(result, suite.cases, suite.baseline)) if result.status == "ok" else None
        if found is not None:
            wrong = " (wrong answers)" if gives_wrong_answers(result) else ""
            rows.append({"case": f"{names.case(result.case)}{wrong}", **_ends("speedup", found)})
    if not rows:
        return None
    x = alt.X("speedup:Q").title(textwrap.wrap(_speedup_label(suite), 44))
    y = alt.Y("case:N").sort([row["case"] for row in rows]).title(None)
    tooltip = [*fields("case:N"), *numbers("speedup", "speedup_low", "speedup_high")]
    bars = sheet.chart("bars", rows).encode(y=y)
    one = sheet.chart("one", [{"speedup": 1.0}]).mark_rule(color=LIMIT, strokeDash=DASHED)
    chart = alt.layer(
        bars.mark_bar(color=LINE_PALETTE[0]).encode(x=x, tooltip=tooltip),
        bars.mark_rule(strokeWidth=1.5).encode(x="speedup_low:Q", x2="speedup_high:Q"),
        one.encode(x=x),
    )
    sheet.notes.append("lines: range that both 95 % intervals allow")
    return sheet.made(chart.properties(width=WIDTH, height=ROW_HEIGHT * len(rows)), title)


def layers_of_best(suite: BenchSuiteResult) -> tuple[CaseResult, list[Row]] | None:
    """Recommended case and its layers, longest first, the last ones joined; None without layers."""
    best = {one.best for one in suite.recommendations}
    result = next((one for one in suite.cases if one.layers and one.case.case_id in best), None)
    if result is None:
        return None
    layers = sorted(result.layers, key=lambda one: -one.milliseconds)
    rows: list[Row] = [
        {"layer": f"{place}. {short_label(one.name, 44)}", "name": one.name, "ms": one.milliseconds}
        for place, one in enumerate(layers[:MAX_LAYERS], 1)
    ]
    if rest := layers[MAX_LAYERS:]:
        label = f"{len(rest)} other layers"
        rows.append({"layer": label, "name": label, "ms": sum(one.milliseconds for one in rest)})
    return result, rows


def _layers(name: str, suite: BenchSuiteResult) -> Picture | None:
    if (found := layers_of_best(suite)) is None:
        return None
    result, rows = found
    sheet = Sheet(name)
    y = alt.Y("layer:N").sort([row["layer"] for row in rows]).title(None)
    chart = sheet.chart("layers", rows, width=WIDTH, height=alt.Step(ROW_HEIGHT)).mark_bar(color=LINE_PALETTE[0])
    chart = chart.encode(x=alt.X("ms:Q").title("ms per inference"), y=y, tooltip=[*fields("name:N"), *numbers("ms")])
    case = CaseNames.of((one.case for one in suite.cases), with_model=True).case(result.case)
    return sheet.made(chart, f"layers of {case}")


# ---- curves ----


@dataclass(frozen=True)
class Curve:
    """Cell of a suite over the batch size, with the same style in every chart."""

    label: str
    results: Sequence[CaseResult]
    is_wrong: bool
    color: str
    dash: Sequence[int]
    shape: str


def curves_of(suite: BenchSuiteResult, names: CaseNames) -> list[Curve]:
    """Curves with one colour per backend, mode and settings, and one dash and marker per precision, device and GPU."""
    cells = in_groups(
        (((case.backend, case.mode, case.variant), (case.precision, case.device, case.gpu)), result)
        for result in suite.cases
        for case in [result.case]
    )
    hues = list(dict.fromkeys(hue for (hue, _), _ in cells))
    kinds = list(dict.fromkeys(kind for (_, kind), _ in cells))
    curves = []
    for (own_hue, own_kind), results in cells:
        again, hue = divmod(hues.index(own_hue), len(LINE_PALETTE))
        kind = kinds.index(own_kind) + 3 * again  # if there are more backends than colours, dash and marker differ
        is_wrong = any(gives_wrong_answers(result) for result in results)
        name = names.cell(results[0].case)
        curves.append(
            Curve(
                wrapped(f"{name} (wrong answers)" if is_wrong else name),
                sorted(results, key=lambda result: result.case.batch_size),
                is_wrong,
                LINE_PALETTE[hue],
                DASHES[kind % len(DASHES)],
                SHAPES[kind % len(SHAPES)],
            )
        )
    return curves


def _curves(name: str, suite: BenchSuiteResult, title: str, plot: Plot) -> Picture | None:
    """Draw one curve per cell, with intervals; None without data."""
    sheet, names = Sheet(name), CaseNames.of((result.case for result in suite.cases), with_model=False)
    missing: list[tuple[str, BenchCase]] = []
    rows: list[Row] = []
    drawn: list[Curve] = []
    for curve in curves_of(suite, names):
        own = [_point(curve, result, plot, suite, missing) for result in curve.results]
        if any(row["y"] is not None for row in own):
            rows += own
            drawn.append(curve)
    if not drawn:
        return None
    limits = [] if plot.limit is None else [plot.limit[0]]
    y_axis = _quantity(sheet, plot.label, [*(row["y"] for row in rows), *limits])
    if plot.across is None:
        x_axis = _batch_sizes(sorted({result.case.batch_size for result in suite.cases}))
    else:
        x_axis = _quantity(sheet, plot.across[1], [row["x"] for row in rows])
        sheet.notes.append("numbers: largest batch size")
        if any(row["x_low"] for row in rows):
            sheet.notes.append("horizontal bars: range that both 95 % intervals allow")
    for field, axis in (("x", x_axis), ("y", y_axis)):
        if axis["scale"].get("type") == "log":  # which cannot show 0
            least = min(row[field] for row in rows if row[field] is not None)
            for row in rows:
                row[f"{field}_low"] = row[f"{field}_low"] and max(row[f"{field}_low"], least)
    if any(row["y_low"] for row in rows):
        sheet.notes.append("bars: 95 % intervals")
    sheet.notes += _missing_notes(names, missing)
    if len(sheet.notes) > MAX_NOTES:
        sheet.notes[MAX_NOTES - 1 :] = [f"{len(sheet.notes) - MAX_NOTES + 1} more reasons are in bench.json"]
    return sheet.made(_drawn(sheet, rows, drawn, plot, x_axis, y_axis), title)


def _drawn(
    sheet: Sheet, rows: list[Row], curves: Sequence[Curve], plot: Plot, x_axis: Specification, y_axis: Specification
) -> Any:
    """Layers of a chart: intervals, lines, and markers, which are hollow for wrong answers."""

    def x(field: str) -> Any:
        return alt.X(f"{field}:Q", **x_axis)

    def y(field: str) -> Any:
        return alt.Y(f"{field}:Q", **y_axis)

    def by_curve(channel: Any, values: Sequence[Any]) -> Any:
        scaled = channel("curve:N").title(None).scale(domain=[one.label for one in curves], range=list(values))
        return scaled.legend(columns=-(-len(curves) // LEGEND_ROWS))

    chart = sheet.chart("points", rows).encode(stroke=by_curve(alt.Stroke, [one.color for one in curves]))
    rule = chart.mark_rule(strokeWidth=1.2)
    at_value = chart.encode(x=x("x"), y=y("y"))
    dash = by_curve(alt.StrokeDash, [one.dash for one in curves]).legend(None)
    points = at_value.mark_point(strokeWidth=1.5, opacity=1, size=45).encode(
        fill=by_curve(alt.Fill, ["white" if one.is_wrong else one.color for one in curves]),
        shape=by_curve(alt.Shape, [one.shape for one in curves]),
        tooltip=[*fields("curve:N", "batch:Q"), *numbers("x", "y", "y_low", "y_high")],
    )
    layers = [
        rule.encode(x=x("x"), y=y("y_low"), y2="y_high:Q"),
        at_value.mark_line(strokeWidth=1.6).encode(strokeDash=dash, order="batch:Q"),
        points,
    ]
    if plot.across is not None:
        last = {row["curve"]: row for row in rows if row["y"] is not None}
        text = sheet.chart("last", list(last.values())).mark_text(dy=-9)
        layers += [
            rule.encode(x=x("x_low"), x2="x_high:Q", y=y("y")),
            text.encode(x=x("x"), y=y("y"), text="batch:Q"),
        ]
    if plot.limit is not None:
        most = sheet.chart("limit", [{"y": plot.limit[0]}]).encode(y=y("y"))
        text = most.mark_text(text=plot.limit[1], align="left", baseline="bottom", dx=5, dy=-3, color=LIMIT)
        layers += [most.mark_rule(color=LIMIT, strokeDash=DASHED), text.encode(x=alt.value(0))]
    chart = alt.layer(*layers).resolve_legend(strokeDash="independent")
    return chart.properties(width=WIDTH, height=HEIGHT)


def _point(
    curve: Curve, result: CaseResult, plot: Plot, suite: BenchSuiteResult, missing: list[tuple[str, BenchCase]]
) -> Row:
    """Point of a result; for a missing value, a gap and an entry in `missing`."""
    y = plot.value(result) if result.status == "ok" else None
    x = _estimate(result.case.batch_size) if plot.across is None else plot.across[0](result)
    if x is None or y is None:
        missing.append((status_line(result) or _why(result, plot.field, suite), result.case))
        x, y = (x, None) if plot.across is None else (None, None)
    return {"curve": curve.label, "batch": result.case.batch_size, **_ends("x", x), **_ends("y", y)}


def _batch_sizes(sizes: Sequence[int]) -> Specification:
    """Axis of batch sizes, logarithmic for a wide range."""
    wide = len(sizes) > 2 and sizes[-1] >= 8 * sizes[0]
    axis = {"values": sizes, "labelOverlap": "greedy", "format": "d", "grid": False}
    scale = {"padding": 24, "nice": False, **({"type": "log", "base": 2} if wide else {"zero": False})}
    return {"title": "batch size (items)", "axis": axis, "scale": scale}


def _quantity(sheet: Sheet, label: str, values: Sequence[float | None]) -> Specification:
    """Axis from zero; for a wide range logarithmic, or symmetric-logarithmic if values are 0 or less."""
    known = [value for value in values if value is not None]
    sizes = [abs(value) for value in known if value]
    axis: dict[str, Any] = {"format": NUMBERS, "labelOverlap": "greedy"}
    scale: dict[str, Any] = {"zero": True, "nice": True}
    if sizes and max(sizes) > WIDE_RANGE * min(sizes):
        scale = {"type": "log", "nice": False, "padding": 12}
        if min(known) <= 0:
            first = math.floor(math.log10(max(min(sizes), 1e-6 * max(sizes))))
            tens = [10.0**decade for decade in range(first, math.ceil(math.log10(max(sizes))) + 1)]
            axis["values"] = [*(-ten for ten in tens if -ten >= min(known)), 0, *tens]
            scale |= {"type": "symlog", "constant": tens[0]}
            sheet.notes.append(f"the axis of the {label.split(' (')[0]} is logarithmic above {tens[0]:g}")
    return {"title": textwrap.wrap(label, 44), "scale": scale, "axis": axis}


def _missing_notes(names: CaseNames, missing: Sequence[tuple[str, BenchCase]]) -> Iterator[str]:
    for reason, cases in in_groups(missing):
        named = textwrap.shorten("; ".join(names.cells(cases)), MAX_NAMED, placeholder=" ...")
        yield f"not shown: {named}: {textwrap.shorten(reason, 220)}"


def _why(result: CaseResult, what: str, suite: BenchSuiteResult) -> str:
    if what == "accuracy" and accuracy_of(result, suite.constraints.accuracy_metric) is not None:
        return f"no speed-up: {short_backend(suite.baseline or 'the baseline')} was not measured at this batch size"
    reason = result.reasons.get(what)
    return f"not measured{f' ({first_line(reason)})' if reason else ''}"
