"""Charts of a suite, of suites side by side and of a sweep: one curve per cell over the batch size, or in a plane.

Notes below a chart name missing data and the reason; a curve has a gap at a batch size that was not measured.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    case_of,
    end_text,
    first_line,
    in_groups,
    is_of,
    short_backend,
    side_by_side,
    status_line,
)
from perfharness.bench.suite.merge import cases_by_machine
from perfharness.bench.suite.table import as_suite
from perfharness.model.bench import BenchCase, CaseResult, Estimate, LatencyFigure
from perfharness.model.bench_suite import BenchMergedResult, BenchSuiteResult, CellSweep, SweepFile
from perfharness.render.charts.drawing import (
    GREY,
    LIMIT,
    LINE_PALETTE,
    NUMBERS,
    Picture,
    Row,
    Sheet,
    Specification,
    layered,
    unit,
    wrapped,
)

BENCH_PAGE, SWEEP_PAGE = "bench_charts", "sweep_charts"
WIDTH, HEIGHT = 640, 380
DASHES = ([1, 0], [6, 3], [6, 3, 1, 3], [1, 3])
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-left", "triangle-right")
MAX_NOTES, MAX_NAMED = 12, 450
"""Maximum of notes below a chart, and of characters of the cells that a note names."""

LEGEND_ROWS = 28
WIDE_RANGE = 20
"""Ratio of values above which an axis is logarithmic: a linear one would hide the small values."""

Value = Callable[[CaseResult], Estimate | None]
Target = tuple[LatencyFigure, float]
"""A figure of the latency, and its limit in ms."""


@dataclass(frozen=True)
class Plot:
    """What a chart shows of each case, over the batch size or over another value.

    Args:
        field: of the results, for the reason why there is no value.
        notes: below the chart.
        bars_of: what the bars are the 95 % interval of, where points without one are named.
        limit: value and label of a limit that the user set.
        across: value and label of the other axis; None: the batch size.
    """

    value: Value
    field: str
    label: str
    notes: tuple[str, ...] = ()
    bars_of: str | None = None
    limit: tuple[float, str] | None = None
    across: tuple[Value, str] | None = None


def bench_pictures(suite: BenchSuiteResult) -> list[Picture]:
    """All charts that the results allow, of each model; those without any data are omitted."""
    limits = suite.constraints
    target = None if limits.max_latency_ms is None else (limits.latency_percentile, limits.max_latency_ms)
    return _drawn(
        _Chart(f"bench_{name}{end}", own, title, plot(own, target))
        for own, title, end in by_model(suite)
        for name, plot in CHARTS.items()
    )


SPEEDUP_ROW = 20
"""Height of a bar."""


def speedup_pictures(suite: BenchSuiteResult) -> list[Picture]:
    """A bar for each case that can be compared with the baseline, of each model."""
    if suite.baseline is None:
        return []
    return [
        picture
        for own, title, end in by_model(suite)
        if (picture := _speedup_bars(f"bench_speedup{end}", own, title)) is not None
    ]


def _speedup_bars(name: str, suite: BenchSuiteResult, title: str) -> Picture | None:
    sheet, names = Sheet(name), CaseNames.of((result.case for result in suite.cases), with_model=False)
    alt = sheet.alt
    rows: list[Row] = []
    for result in suite.cases:
        found = speedup(result, baseline_of(result, suite.cases, suite.baseline)) if result.status == "ok" else None
        if found is not None:
            wrong = " (wrong answers)" if gives_wrong_answers(result) else ""
            rows.append({"case": f"{names.case(result.case)}{wrong}", **_numbers("speedup", found)})
    if not rows:
        return None
    y = alt.Y("case:N", sort=[row["case"] for row in rows], title=None, axis=alt.Axis(labelLimit=330))
    x = alt.X("speedup:Q", title=f"speed-up against {short_backend(suite.baseline or '?')} at the same batch size")
    tooltip = [
        "case:N",
        *(alt.Tooltip(f"{field}:Q", format=".4~g") for field in ("speedup", "speedup_low", "speedup_high")),
    ]
    layers = [unit(sheet.chart("bars", rows).mark_bar(color=LINE_PALETTE[0]).encode(x=x, y=y, tooltip=tooltip))]
    known = [row for row in rows if "speedup_high" in row]
    if known:
        ends = sheet.chart("ends", known).mark_rule(strokeWidth=1.5)
        layers.append(unit(ends.encode(x=alt.X("speedup_low:Q"), x2="speedup_high:Q", y=y)))
        sheet.notes.append("lines: the widest range that the two 95 % intervals allow")
    one = sheet.chart("one", [{"speedup": 1.0}]).mark_rule(color=LIMIT, strokeDash=[4, 3])
    layers.append(unit(one.encode(x=x)))
    return sheet.made(layered(layers, WIDTH, SPEEDUP_ROW * len(rows)), title)


def merged_pictures(merged: BenchMergedResult) -> list[Picture]:
    """Throughput over batch size of all runs, one chart per model."""
    models = list(dict.fromkeys(row.model for row in merged.rows))
    suites = [
        BenchSuiteResult(created="", machine=merged.runs[0].machine, cases=list(cases_by_machine(merged, model)))
        for model in models
    ]
    return _drawn(
        _Chart(
            "bench_merged_throughput" + (f"_{number}" if len(models) > 1 else ""), suite,
            f"{model}, {side_by_side(merged)}", _throughput(suite, None),
        )
        for number, (model, suite) in enumerate(zip(models, suites, strict=True))
    )  # fmt: skip


def sweep_pictures(found: SweepFile) -> list[Picture]:
    """Throughput, latency and memory, what ended each sweep, and a ring around the largest that meets the target."""
    target = None if found.target_ms is None or found.figure is None else (found.figure, found.target_ms)
    return _drawn(
        _Chart(
            f"sweep_{name}{end}", own, title, CHARTS[name](own, target),
            [one for one in found.cells if one.model == own.cases[0].case.model],
        )
        for own, title, end in by_model(as_suite(found))
        for name in ("throughput", "latency", "memory")
    )  # fmt: skip


def _drawn(charts: Iterable[_Chart]) -> list[Picture]:
    return [picture for chart in charts if (picture := chart.picture()) is not None]


def by_model(suite: BenchSuiteResult) -> Iterator[tuple[BenchSuiteResult, str, str]]:
    """Results of each model, the title of its charts, and the suffix of their files' names."""
    models = list(dict.fromkeys(case.case.model for case in suite.cases))
    plain = ["".join(c if c.isalnum() or c in "-_." else "_" for c in model) for model in models]
    for number, model in enumerate(models):
        own = suite.model_copy(update={"cases": [case for case in suite.cases if case.case.model == model]})
        end = "" if len(models) == 1 else f"_{plain[number]}" + (f"_{number}" if plain.count(plain[number]) > 1 else "")
        yield own, f"{model}, {_machine(own)}", end


def _machine(suite: BenchSuiteResult) -> str:
    on_gpu = any(case.case.device == "cuda" for case in suite.cases)
    device = ", ".join(suite.machine.gpus) if on_gpu and suite.machine.gpus else suite.machine.cpu
    return f"{device or 'an unknown device'} ({suite.machine.hostname})"


# ---- curves ----


@dataclass(frozen=True)
class Curve:
    """One cell of a suite over the batch size, with the same style in every chart."""

    name: str
    results: Sequence[CaseResult]
    color: str
    dash: Sequence[int]
    shape: str
    marker_size: float
    line_width: float
    """Earlier curves are wider, to be visible below others."""

    @property
    def is_wrong(self) -> bool:
        """Whether any result of the curve has wrong outputs."""
        return any(gives_wrong_answers(result) for result in self.results)

    @property
    def label(self) -> str:
        """Name in the legend."""
        return wrapped(f"{self.name} (wrong answers)" if self.is_wrong else self.name)


def curves_of(suite: BenchSuiteResult, names: CaseNames) -> list[Curve]:
    """A colour for each backend, mode and settings, a dash and a marker for each precision and device."""
    cells: dict[tuple[str, str, str, str, str], list[CaseResult]] = {}
    for result in suite.cases:
        case = result.case
        cell = (case.backend, case.mode, case.variant, case.precision, case.device)
        cells.setdefault(cell, []).append(result)
    hues = list(dict.fromkeys(key[:3] for key in cells))
    kinds = list(dict.fromkeys(key[3:] for key in cells))
    curves = []
    for place, (key, results) in enumerate(cells.items()):
        hue, kind = hues.index(key[:3]), kinds.index(key[3:])
        again = hue // len(LINE_PALETTE)  # more backends than colours: marker and dash differ
        curves.append(
            Curve(
                names.cell(results[0].case),
                sorted(results, key=lambda result: result.case.batch_size),
                LINE_PALETTE[hue % len(LINE_PALETTE)],
                DASHES[(kind + again // len(SHAPES)) % len(DASHES)],
                SHAPES[(kind + 3 * again) % len(SHAPES)],
                70 - 45 * place / max(1, len(cells) - 1),
                2.8 - 1.5 * place / max(1, len(cells) - 1),
            )
        )
    return curves


class _Chart(Sheet):
    """One chart of a suite, or of the `swept` cells of a sweep."""

    def __init__(
        self, name: str, suite: BenchSuiteResult, title: str, plot: Plot, swept: Sequence[CellSweep] = ()
    ) -> None:
        super().__init__(name)
        self.suite, self.title, self.plot, self.swept = suite, title, plot, swept
        cases = [case_of(cell) for cell in swept] or [result.case for result in suite.cases]
        self.names = CaseNames.of(cases, with_model=False)
        self.curves = curves_of(suite, self.names)
        self.drawn: list[Curve] = []
        self.layers: list[Specification] = []
        self.axes: dict[str, dict[str, Any]] = {}
        self.missing: list[tuple[str, BenchCase]] = []
        self.without_bar: list[BenchCase] = []

    def picture(self) -> Picture | None:
        """One curve per cell, with its bars; None where there is no data."""
        plot, across = self.plot, self.plot.across
        rows = [row for curve in self.curves for row in self._points(curve)]
        if not self.drawn:
            return None
        sizes = sorted({result.case.batch_size for result in self.suite.cases})
        self.axes["y"] = self._quantity(plot.label, [row["y"] for row in rows], *(plot.limit or ())[:1])
        x = [row["x"] for row in rows]
        self.axes["x"] = self._batch_sizes(sizes) if across is None else self._quantity(across[1], x)
        if plot.field == "accuracy":
            self._layer(self.chart("upright", [{"x": 1.0}]).mark_rule(color=GREY), x=self._at("x"))
        self._sweep_ends()
        if plot.limit is not None:
            self._limit(*plot.limit)
        self._curves(rows, lines=across is None or len(sizes) > 1)
        self._rings(rows)
        if across is not None and len(sizes) > 1:
            self._batch_numbers(rows)
        if plot.bars_of is not None:
            self.notes.append(f"bars: 95 % interval of {plot.bars_of}")
        if plot.bars_of is not None and self.without_bar:
            named = textwrap.shorten("; ".join(self.names.cells(self.without_bar)), MAX_NAMED, placeholder=" ...")
            self.notes.append(f"no bar, for the iterations say too little: {named}")
        notes = [*dict.fromkeys([*self.notes, *plot.notes]), *self._missing_notes()]
        if len(notes) > MAX_NOTES:
            notes = [*notes[: MAX_NOTES - 1], f"and {len(notes) - MAX_NOTES + 1} more; bench.json has all"]
        self.notes = notes
        return self.made(layered(self.layers, WIDTH, HEIGHT), self.title)

    def _points(self, curve: Curve) -> list[Row]:
        """The points of a curve, gaps included; none where nothing was measured. Partial measurements do not count."""
        plot, rows = self.plot, []
        for result in curve.results:
            batch = result.case.batch_size
            row: Row = {"curve": curve.label, "batch": batch, "size": curve.marker_size, "width": curve.line_width,
                        "x": None if plot.across else batch, "y": None}  # fmt: skip
            values = {"y": plot.value(result)} | ({"x": plot.across[0](result)} if plot.across else {})
            if result.status == "ok" and None not in values.values():
                row |= {key: number for name, one in values.items() for key, number in _numbers(name, one).items()}
                if "y_low" not in row:
                    self.without_bar.append(result.case)
            else:
                self.missing.append((status_line(result) or _why(result, plot.field, self.suite), result.case))
            rows.append(row)
        if all(row["y"] is None for row in rows):
            return []
        self.drawn.append(curve)
        return rows

    def _batch_numbers(self, rows: Sequence[Row]) -> None:
        """The batch size at the first point of each unbroken part of a curve, and at the last one of several."""
        parts: list[list[Row]] = [[]]
        for row, before in zip(rows, [None, *rows], strict=False):
            if row["y"] is None or before is None or before["curve"] != row["curve"]:
                parts.append([])
            if row["y"] is not None:
                parts[-1].append(row)
        first, last = [part[0] for part in parts if part], [part[-1] for part in parts if len(part) > 1]
        for ends, own, (right, down) in (("begin", first, (-7, 13)), ("end", last, (8, -6))):
            text = self.chart(ends, own).mark_text(dx=right, dy=down)
            color = self._scale(self.alt.Color, [one.color for one in self.drawn], legend=None)
            self._layer(text, x=self._at("x"), y=self._at("y"), text="batch:Q", color=color)
        self.notes.append("numbers: the batch size at the ends of a curve, and where it is broken")

    def _sweep_ends(self) -> None:
        """Text where a sweep ended; a mark would look like a value."""
        for size, ended in in_groups((one.ended_at_batch, one) for one in self.swept):
            known = [one for one in ended if one.ended_by != "interrupted"]
            if size is None or not known:
                continue
            chart = self.chart(f"end_{size}", [{"x": size}])
            self._layer(chart.mark_rule(color=LIMIT, strokeDash=[2, 2]), x=self._at("x"))
            for place, cell in enumerate(known):
                color = next((one.color for one in self.curves if is_of(one.results[0].case, cell)), LIMIT)
                style = {"angle": 270, "align": "left", "baseline": "bottom", "dx": 4, "dy": -3 - 12 * place}
                text = chart.mark_text(text=str(cell.ended_by), color=color, **style)
                self._layer(text, x=self._at("x"), y=self.alt.value(HEIGHT))
                self.missing = [one for one in self.missing if not (is_of(one[1], cell) and one[1].batch_size == size)]

    def _rings(self, rows: Sequence[Row]) -> None:
        """Rings around the largest batch that meets the target; a note says how each sweep ended."""
        rings: list[Row] = []
        for cell in self.swept:
            best = None if cell.target is None else cell.target.batch_size
            labels = {one.label for one in self.curves if is_of(one.results[0].case, cell)}
            own = [row for row in rows if row["curve"] in labels and row["x"] == best and row["y"] is not None]
            self.notes.append(f"{'ring: ' if own else ''}{self.names.cell(case_of(cell))}: {end_text(cell)}")
            rings += own
        if rings:
            mark = self.chart("rings", rings).mark_point(size=320, strokeWidth=1.8, filled=False)
            self._layer(mark, x=self._at("x"), y=self._at("y"), stroke=self._strokes())

    def _limit(self, value: float, label: str) -> None:
        chart = self.chart("limit", [{"y": value}])
        self._layer(chart.mark_rule(color=LIMIT, strokeDash=[6, 3], strokeWidth=1.2), y=self._at("y"))
        text = chart.mark_text(text=label, align="left", baseline="bottom", dx=5, dy=-3, color=LIMIT)
        self._layer(text, x=self.alt.value(0), y=self._at("y"))

    def _curves(self, rows: list[Row], *, lines: bool) -> None:
        """Bars of the intervals, lines, markers; markers of wrong outputs are hollow."""
        alt, stroke = self.alt, self._strokes()
        for name, other in (("y", "x"), ("x", "y")):
            if bars := self._bars(rows, name):
                chart, channels = self.chart(f"{name}_bars", bars), {other: self._at(other), "stroke": stroke}
                low, high = self._at(name, f"{name}_low"), self._at(name, f"{name}_high")
                self._layer(chart.mark_rule(strokeWidth=1.2), **{name: low, f"{name}2": f"{name}_high:Q"}, **channels)
                tick = chart.mark_point(shape="stroke", size=75, angle=0 if name == "y" else 90, opacity=1)
                for end in (low, high):
                    self._layer(tick, **{name: end}, **channels)
        place = {"x": self._at("x"), "y": self._at("y"), "stroke": stroke}
        for number, dash in enumerate(DASHES if lines else ()):
            labels = {one.label for one in self.drawn if one.dash == dash}
            if own := [row for row in rows if row["curve"] in labels]:
                line = self.chart(f"lines_{number}", own).mark_line(strokeDash=dash)
                width = alt.StrokeWidth("width:Q", scale=None, legend=None)
                self._layer(line, **place, strokeWidth=width, order="batch:Q")
        self._layer(
            self.chart("points", rows).mark_point(strokeWidth=1.5, opacity=1),
            **place,
            fill=self._scale(alt.Fill, ["white" if one.is_wrong else one.color for one in self.drawn]),
            shape=self._scale(alt.Shape, [one.shape for one in self.drawn]),
            size=alt.Size("size:Q", scale=None, legend=None),
            tooltip=["curve:N", "batch:Q", *(f"{name}:Q" for name in ("x", "y", "y_low", "y_high"))],
        )

    def _bars(self, rows: list[Row], name: str) -> list[Row]:
        """Bars of points with an interval; on a logarithmic axis one that reaches 0 ends at the smallest value."""
        bars = [row for row in rows if row.get(f"{name}_low") is not None]
        if self.axes[name]["scale"].to_dict().get("type") != "log":
            return bars
        least = min(row[name] for row in rows if row[name] is not None)
        return [row if row[f"{name}_low"] > 0 else {**row, f"{name}_low": least} for row in bars]

    def _strokes(self) -> Any:
        return self._scale(self.alt.Stroke, [one.color for one in self.drawn])

    def _scale(self, channel: Any, values: Sequence[Any], **more: Any) -> Any:
        """A channel by curve; all channels share one legend."""
        alt = self.alt
        labels = [one.label for one in self.drawn]
        how = {"legend": alt.Legend(title=None, columns=-(-len(labels) // LEGEND_ROWS)), **more}
        return channel("curve:N", scale=alt.Scale(domain=labels, range=list(values)), **how)

    def _at(self, channel: str, field: str | None = None) -> Any:
        kind = {"x": self.alt.X, "y": self.alt.Y}[channel]
        return kind(f"{field or channel}:Q", **self.axes[channel])

    def _batch_sizes(self, sizes: Sequence[int]) -> dict[str, Any]:
        """An axis of batch sizes, with as many labels as fit; logarithmic for a wide range."""
        alt, wide = self.alt, len(sizes) > 2 and sizes[-1] >= 8 * sizes[0]
        axis = alt.Axis(values=sizes, labelOverlap="greedy", format="d", grid=False)
        scale = alt.Scale(padding=24, nice=False, **({"type": "log", "base": 2} if wide else {"zero": False}))
        return {"title": "batch size (items)", "axis": axis, "scale": scale}

    def _quantity(self, label: str, values: Iterable[float | None], *more: float) -> dict[str, Any]:
        """An axis: logarithmic for a wide range, on both sides of 0 if necessary; else from zero."""
        alt = self.alt
        known = [value for value in (*values, *more) if value is not None]
        sizes = [abs(value) for value in known if value]
        scale: dict[str, Any] = {"zero": True, "nice": True}
        ticks: dict[str, Any] = {}
        if sizes and max(sizes) > WIDE_RANGE * min(sizes):
            scale = {"type": "log", "nice": False, "padding": 12}
            if min(known) <= 0:
                decades = range(
                    math.floor(math.log10(max(min(sizes), 1e-6 * max(sizes)))), math.ceil(math.log10(max(sizes))) + 1
                )
                tens = [10.0**decade for decade in decades]
                ticks = {"values": [*(-ten for ten in tens if -ten >= min(known)), 0, *tens]}
                scale |= {"type": "symlog", "constant": tens[0]}
                self.notes.append(f"the axis of the {label.split(' (')[0]} is logarithmic above {tens[0]:g}")
        axis = alt.Axis(format=NUMBERS, labelOverlap="greedy", **ticks)
        return {"title": textwrap.wrap(label, 60), "scale": alt.Scale(**scale), "axis": axis}

    def _missing_notes(self) -> Iterator[str]:
        """Notes on missing data, grouped by reason."""
        for reason, cases in in_groups(self.missing):
            short, cells = textwrap.shorten(reason, 220), self.names.cells(cases)
            if len(cells) == 1:
                yield f"not shown: {cells[0]}: {short}"
            else:
                named = textwrap.shorten("; ".join(cells), MAX_NAMED, placeholder=" ...")
                yield f"not shown, {len(cases)} cases: {short} ({named})"

    def _layer(self, mark: Any, **encoding: Any) -> None:
        self.layers.append(unit(mark.encode(**encoding)))


def _why(result: CaseResult, what: str, suite: BenchSuiteResult) -> str:
    """The result's reason for a field, or that there is none."""
    if what == "accuracy" and accuracy_of(result, suite.constraints.accuracy_metric) is not None:
        return f"no speed-up, for {short_backend(suite.baseline or 'the baseline')} was not measured at this batch size"
    reason = result.reasons.get(what) or result.reasons.get("telemetry")
    return f"not measured{f' ({first_line(reason)})' if reason else ''}"


def _numbers(name: str, one: Estimate | None) -> dict[str, float]:
    """The value, and the ends of its interval if it has one."""
    if one is None:
        return {}
    low, high = one.interval or (None, None)
    return {name: one.value} | ({} if low is None or high is None else {f"{name}_low": low, f"{name}_high": high})


# ---- the charts ----


def _throughput(suite: BenchSuiteResult, target: Target | None) -> Plot:
    """Items per second over the batch size."""
    return Plot(lambda one: one.items_per_second, "items_per_second", "throughput (items/s)", bars_of="the mean")


def _latency(suite: BenchSuiteResult, target: Target | None) -> Plot:
    """The figure of the target, or the median, over the batch size."""
    which, most = target or ("p50", None)
    limit = None if most is None else (most, f"target: {which} at most {most:g} ms")
    label = f"latency of a batch, {which} (ms)"
    return Plot(lambda one: latency_of(one, which), "latency", label, bars_of=f"the {which}", limit=limit)


def _memory(suite: BenchSuiteResult, target: Target | None) -> Plot:
    """Peak memory over the batch size."""
    kinds = {"cpu": "resident memory of the process", "cuda": "memory of the device"}
    label = " or ".join(kinds[device] for device in sorted({result.case.device for result in suite.cases}))
    most = suite.constraints.memory_limit_bytes
    limit = None if most is None else (most / 1e9, f"limit: {most / 1e9:g} GB")
    notes = ("no bars: a peak has no interval",)
    return Plot(lambda one: _estimate(memory_of(one), 1e9), "memory", f"peak {label} (GB)", notes, limit=limit)


def _power(suite: BenchSuiteResult, target: Target | None) -> Plot:
    """Mean power over throughput, both of the telemetry pass; or throughput of the timed rounds."""
    notes = ["no bars of the power: its mean has no interval"]
    if any(result.telemetry_items_per_second is not None for result in suite.cases):
        notes.insert(0, "throughput: of the pass in which power was read")
    return Plot(
        lambda one: _estimate(one.power_mean_w), "power_mean_w", "mean power (W)", tuple(notes),
        across=(lambda one: _estimate(one.telemetry_items_per_second) or one.items_per_second, "throughput (items/s)"),
    )  # fmt: skip


def _accuracy(suite: BenchSuiteResult, target: Target | None) -> Plot:
    """Accuracy loss over speed-up."""
    limits, cases, baseline = suite.constraints, suite.cases, suite.baseline
    metric, declared, most = limits.accuracy_metric, limits.accuracy_direction, limits.max_accuracy_loss
    label = "accuracy loss (1 - cosine of the outputs)"
    if metric is not None:
        label = f"{'growth' if direction_of(metric, declared) == 'lower' else 'loss'} of {metric}"

    def loss(one: CaseResult) -> Estimate | None:
        return _estimate(accuracy_loss(one, baseline_of(one, cases, baseline), metric, declared))

    return Plot(
        loss, "accuracy", label,
        ("bars: the widest speed-up that the two 95 % intervals allow; the loss has no interval",),
        limit=None if most is None else (most, f"limit: loss of at most {most:g}"),
        across=(lambda one: speedup(one, baseline_of(one, cases, baseline)),
                f"speed-up against {short_backend(baseline or '?')} at the same batch size"),
    )  # fmt: skip


def _estimate(value: float | None, unit: float = 1.0) -> Estimate | None:
    return None if value is None else Estimate(value=value / unit)


CHARTS: Mapping[str, Callable[[BenchSuiteResult, Target | None], Plot]] = {
    "throughput": _throughput,
    "latency": _latency,
    "memory": _memory,
    "power": _power,
    "accuracy": _accuracy,
}
"""Suffix of a file's name -> its chart."""
