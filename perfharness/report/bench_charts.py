"""Charts of a suite as PNG: throughput, latency and memory over the batch size, power over throughput, accuracy over
speed-up. matplotlib is imported here and nowhere before.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfharness.analysis.bench_figures import (
    accuracy_loss,
    accuracy_of,
    baseline_of,
    gives_wrong_answers,
    is_higher_better,
    latency_of,
    memory_of,
    speedup,
)
from perfharness.analysis.bench_names import CaseNames, in_groups, short_backend
from perfharness.model.bench import BenchCase, CaseResult, Estimate
from perfharness.model.bench_suite import BenchMergedResult, BenchSuiteResult, MergedRow
from perfharness.report.bench_words import first_line, short_cell, status_line
from perfharness.report.files import replacing
from perfharness.report.pictures import require_matplotlib
from perfharness.report.plot_panels import PALETTE

COLORS = tuple(color for color in PALETTE if color != "#F0E442")
"""Without the yellow, which cannot be seen on white as a line."""

STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
LEGEND_WIDTH, MAX_NOTES, MAX_NAMED = 34, 12, 450
"""Characters of a line of the legend, notes below a chart, characters of the cells that one note names."""

LIMIT = "#444444"

GAP = Estimate(value=math.nan)
"""Where a curve is broken, for a straight line over a batch size would pass for a measurement."""

Value = Callable[[CaseResult], Estimate | None]


@dataclass(frozen=True)
class Curve:
    """One cell of a suite over the batch size: the same look in every chart."""

    label: str
    results: Sequence[CaseResult]
    color: str
    style: str
    marker: str
    rank: float = 0.0
    """0 for the first curve, 1 for the last: earlier ones are drawn larger, to be seen where another lies on them."""

    @property
    def is_wrong(self) -> bool:
        """Whether any of it is the speed of a wrong answer."""
        return any(gives_wrong_answers(result) for result in self.results)


def draw_charts(suite: BenchSuiteResult, folder: Path) -> list[Path]:
    """Draw all charts that the results allow, one PNG each and model; returns the files.

    A chart of something that no case has is not drawn. Raises `ToolNotFoundError` without matplotlib.
    """
    require_matplotlib("--charts")
    models = list(dict.fromkeys(case.case.model for case in suite.cases))
    written = []
    for model in models:
        own = suite.model_copy(update={"cases": [case for case in suite.cases if case.case.model == model]})
        end = "" if len(models) == 1 else "_" + "".join(c if c.isalnum() or c in "-_." else "_" for c in model)
        for name, draw in CHARTS.items():
            figure = _Chart(own, f"{model}, {_machine(own)}")
            if draw(figure):
                written.append(figure.save(folder / f"bench_{name}{end}.png"))
    return written


def draw_merged(merged: BenchMergedResult, folder: Path) -> list[Path]:
    """Throughput over batch size of all machines, one PNG a model."""
    require_matplotlib("--charts")
    written = []
    models = list(dict.fromkeys(row.model for row in merged.rows))
    for number, model in enumerate(models):
        cases = list(_cases_by_machine(merged, model))
        suite = BenchSuiteResult(created="", machine=merged.runs[0].machine, cases=cases)
        figure = _Chart(suite, f"{model}, {len(merged.runs)} machines")
        if _throughput(figure):
            end = "" if len(models) == 1 else f"_{number}"
            written.append(figure.save(folder / f"bench_merged_throughput{end}.png"))
    return written


def _cases_by_machine(merged: BenchMergedResult, model: str) -> Iterator[CaseResult]:
    """With the machine's name before the backend's; a batch size that others have of its cells is one it has not."""
    cells = [(row, cell) for row in merged.rows if row.model == model for cell in row.cells]
    devices = {(cell.run, *_cell(row)): cell.result.case.device for row, cell in cells if cell.result is not None}
    for row, cell in cells:
        if (device := devices.get((cell.run, *_cell(row)))) is None:
            continue
        case = BenchCase(
            case_id="", model=model, backend=f"{cell.run}, {short_backend(row.backend)}", mode=row.mode,
            precision=row.precision, device=cell.result.case.device if cell.result else device,
            batch_size=row.batch_size,
        )  # fmt: skip
        result = cell.result or CaseResult(case=case, status="not-run", reason=cell.reason)
        yield result.model_copy(update={"case": case})


def _cell(row: MergedRow) -> tuple[str, str, str]:
    return row.backend, row.mode, row.precision


class _Chart:
    """One picture with one pair of axes; the legend and what is missing stand beside the data."""

    def __init__(self, suite: BenchSuiteResult, title: str) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.suite = suite
        self.curves = curves_of(suite)
        self.figure = Figure(figsize=(10.5, 5.2), layout="constrained")
        FigureCanvasAgg(self.figure)
        self.ax: Any = self.figure.subplots()
        self.ax.grid(color="#eeeeee", linewidth=0.8)
        self.ax.set_axisbelow(True)
        for side in ("top", "right"):
            self.ax.spines[side].set_visible(False)
        self.figure.suptitle(title, fontsize="medium", parse_math=False)
        self.notes: list[str] = []
        self.missing: list[tuple[str, BenchCase]] = []

    def lines(self, value: Value, what: str) -> bool:
        """A line a curve over the batch size, broken where one was not measured; returns whether there is anything."""
        drawn = False
        for curve in self.curves:
            found = [_of(result, value) for result in curve.results]
            if any(found):
                drawn = True
                sizes, values = [result.case.batch_size for result in curve.results], [one or GAP for one in found]
                self.ax.errorbar(sizes, [one.value for one in values], yerr=_errors(values), label=_label(curve),
                                 color=curve.color, linestyle=curve.style, **_look(curve))  # fmt: skip
            self._name_missing(curve, value, what)
        if drawn:
            self.batch_axis()
        return drawn

    def points(self, across: Value, up: Value, what: str) -> bool:
        """A point a case, batch sizes at the ends; broken likewise; returns whether there is anything."""
        drawn = False
        several = len({result.case.batch_size for result in self.suite.cases}) > 1
        for curve in self.curves:
            pairs = [(_of(result, across), _of(result, up)) for result in curve.results]
            found = [(result, x, y) for result, (x, y) in zip(curve.results, pairs, strict=True) if x and y]
            if found:
                drawn = True
                xs = [x if x and y else GAP for x, y in pairs]
                ys = [y if x and y else GAP for x, y in pairs]
                self.ax.errorbar([x.value for x in xs], [y.value for y in ys], xerr=_errors(xs), yerr=_errors(ys),
                                 label=_label(curve), color=curve.color, linestyle=curve.style if several else "",
                                 **{**_look(curve), "linewidth": 0.8})  # fmt: skip
                ends = [(found[0], (-9, -11)), *[(one, (5, 5)) for one in found[1:][-1:]]]
                for (result, x, y), offset in ends if several else ():
                    self.ax.annotate(f"{result.case.batch_size}", (x.value, y.value), xytext=offset,
                                     textcoords="offset points", fontsize=7, color=curve.color)  # fmt: skip
            self._name_missing(curve, lambda result: _of(result, across) and _of(result, up), what)
        if drawn and several:
            self.notes.append("numbers at the ends of a curve: its smallest and largest batch size")
        return drawn

    def batch_axis(self) -> None:
        """Every batch size that was asked for is a tick; a wide range is logarithmic."""
        sizes = sorted({result.case.batch_size for result in self.suite.cases})
        if len(sizes) > 2 and sizes[-1] >= 8 * sizes[0]:
            self.ax.set_xscale("log", base=2)
        self.ax.set_xticks(_apart(sizes), labels=[str(size) for size in _apart(sizes)])
        self.ax.set_xticks([], minor=True)
        self.ax.set_xlabel("batch size (items)")

    def limit(self, value: float, label: str, *, upright: bool = False) -> None:
        """A limit that the user set."""
        (self.ax.axvline if upright else self.ax.axhline)(
            value, color=LIMIT, linestyle=(0, (6, 3)), linewidth=1.2, label=label
        )

    def spread(self, axis: str, values: Iterable[float]) -> None:
        """A logarithmic axis where values spread over more than a factor of 20, else one from zero."""
        known = [value for value in values if value > 0]
        if known and max(known) > 20 * min(known):
            getattr(self.ax, f"set_{axis}scale")("log")
            from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

            own = self.ax.yaxis if axis == "y" else self.ax.xaxis
            own.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            own.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            own.set_minor_formatter(NullFormatter())
        elif axis == "y":
            self.ax.set_ylim(bottom=0)
        else:
            self.ax.set_xlim(left=0)

    def save(self, path: Path) -> Path:
        """Write the PNG, as a whole or not at all. Raises `ResultError`."""
        handles, labels = self.ax.get_legend_handles_labels()
        legend = self.ax.legend(handles, [textwrap.fill(label, LEGEND_WIDTH) for label in labels], loc="upper left",
                                bbox_to_anchor=(1.01, 1.0), fontsize=8, frameon=False, borderaxespad=0.0)  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
        self._write_notes()
        with replacing(path) as temporary:
            self.figure.savefig(temporary, dpi=120, format="png")
        return path

    def _write_notes(self) -> None:
        """Below the data, for their number is not known beforehand."""
        notes = [*dict.fromkeys(self.notes), *self._missing_notes()]
        if len(notes) > MAX_NOTES:
            notes = [*notes[: MAX_NOTES - 1], f"and {len(notes) - MAX_NOTES + 1} more; bench.json has all"]
        if notes:
            text = "\n".join(textwrap.fill(note, 150, subsequent_indent="    ") for note in notes)
            self.figure.supxlabel(text, fontsize=7, color="#555555", x=0.01, ha="left", parse_math=False)

    def _name_missing(self, curve: Curve, value: Value, what: str) -> None:
        """Keep what is not in the picture, with the reason."""
        for result in curve.results:
            if _of(result, value) is None:
                self.missing.append((status_line(result) or _why(result, what, self.suite), result.case))

    def _missing_notes(self) -> Iterator[str]:
        """What is not in the picture is named in it; cases of one reason together."""
        names = _names(self.suite)
        for reason, cases in in_groups(self.missing):
            short, cells = textwrap.shorten(reason, 220), names.cells(cases)
            if len(cells) == 1:
                yield f"not shown: {cells[0]}: {short}"
            else:
                named = textwrap.shorten("; ".join(cells), MAX_NAMED, placeholder=" ...")
                yield f"not shown, {len(cases)} cases: {short} ({named})"


def curves_of(suite: BenchSuiteResult) -> list[Curve]:
    """A colour for each backend and mode, a line style and a marker for each precision and device."""
    cells: dict[tuple[str, str, str, str], list[CaseResult]] = {}
    for result in suite.cases:
        case = result.case
        cells.setdefault((case.backend, case.mode, case.precision, case.device), []).append(result)
    hues = list(dict.fromkeys(key[:2] for key in cells))
    kinds = list(dict.fromkeys(key[2:] for key in cells))
    curves, names = [], _names(suite)
    for position, (key, results) in enumerate(cells.items()):
        rank = position / max(1, len(cells) - 1)
        hue, kind = hues.index(key[:2]), kinds.index(key[2:])
        # more backends than colours: the marker tells them apart
        marker = MARKERS[(kind + hue // len(COLORS) * 3) % len(MARKERS)]
        ordered = sorted(results, key=lambda result: result.case.batch_size)
        curves.append(
            Curve(
                names.cell(ordered[0].case),
                ordered,
                COLORS[hue % len(COLORS)],
                STYLES[kind % len(STYLES)],
                marker,
                rank,
            )
        )
    return curves


def _throughput(chart: _Chart) -> bool:
    if not chart.lines(lambda result: result.items_per_second, "items_per_second"):
        return False
    chart.ax.set_ylabel("throughput (items/s)")
    chart.spread("y", (r.items_per_second.value for r in chart.suite.cases if r.items_per_second))
    chart.notes.append("bars: 95 % interval of the mean")
    return True


def _latency(chart: _Chart) -> bool:
    """The percentile of the target, or the median."""
    constraints = chart.suite.constraints
    which = constraints.latency_percentile if constraints.max_latency_ms is not None else "p50"
    if not chart.lines(lambda result: latency_of(result, which), "latency"):
        return False
    chart.ax.set_ylabel(f"latency of a batch, {which} (ms)")
    values = [found.value for result in chart.suite.cases if (found := latency_of(result, which))]
    target = constraints.max_latency_ms
    if target is not None:
        chart.limit(target, f"target: {which} at most {target:g} ms")
    chart.spread("y", [*values, *([target] if target is not None else [])])
    chart.notes.append(f"bars: 95 % interval of the {which}")
    return True


def _memory(chart: _Chart) -> bool:
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


def _power(chart: _Chart) -> bool:
    def watts(result: CaseResult) -> Estimate | None:
        return None if result.power_mean_w is None else Estimate(value=result.power_mean_w)

    if not chart.points(lambda result: result.items_per_second, watts, "power_mean_w"):
        return False
    chart.ax.set_xlabel("throughput (items/s)")
    chart.ax.set_ylabel("mean power (W)")
    chart.spread("x", (r.items_per_second.value for r in chart.suite.cases if r.items_per_second))
    chart.ax.set_ylim(bottom=0)
    return True


def _accuracy(chart: _Chart) -> bool:
    metric = chart.suite.constraints.accuracy_metric
    cases, baseline = chart.suite.cases, chart.suite.baseline

    def gain(result: CaseResult) -> Estimate | None:
        return speedup(result, baseline_of(result, cases, baseline))

    def loss(result: CaseResult) -> Estimate | None:
        found = accuracy_loss(result, baseline_of(result, cases, baseline), metric)
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
    chart.ax.set_xlabel(f"speed-up against {short_cell(baseline or '?')} at the same batch size")
    if metric is None:
        chart.ax.set_ylabel("accuracy loss (1 - cosine of the outputs)")
    else:
        chart.ax.set_ylabel(f"{'loss' if is_higher_better(metric) else 'growth'} of {metric}", parse_math=False)
    limit = chart.suite.constraints.max_accuracy_loss
    if limit is not None:
        chart.limit(limit, f"limit: loss of at most {limit:g}")
    chart.ax.axvline(1.0, color="#bbbbbb", linewidth=1)
    return True


CHARTS: Mapping[str, Callable[[_Chart], bool]] = {
    "throughput": _throughput,
    "latency": _latency,
    "memory": _memory,
    "power": _power,
    "accuracy": _accuracy,
}
"""File name -> what draws it; returns False where there is nothing to draw."""


def _of(result: CaseResult, value: Value) -> Estimate | None:
    """Only of cases that came to their end: half a measurement is none."""
    return value(result) if result.status == "ok" else None


def _errors(values: Sequence[Estimate]) -> list[list[float]] | None:
    """Lengths of the bars below and above; None where no value has an interval."""
    if all(one.low is None or one.high is None for one in values):
        return None
    return [
        [0.0 if one.low is None else max(0.0, one.value - one.low) for one in values],
        [0.0 if one.high is None else max(0.0, one.high - one.value) for one in values],
    ]


def _look(curve: Curve) -> dict[str, Any]:
    filled = "white" if curve.is_wrong else curve.color
    size = {"markersize": 9 - 4 * curve.rank, "linewidth": 2.8 - 1.5 * curve.rank, "elinewidth": 1.2}
    return {"marker": curve.marker, "markerfacecolor": filled, "capsize": 3, **size}


def _label(curve: Curve) -> str:
    return f"{curve.label} (wrong answers)" if curve.is_wrong else curve.label


def _names(suite: BenchSuiteResult) -> CaseNames:
    return CaseNames.of((result.case for result in suite.cases), with_model=False)


def _why(result: CaseResult, what: str, suite: BenchSuiteResult) -> str:
    """The reason that the result gives for a field, or that it has none."""
    if what == "accuracy" and accuracy_of(result, suite.constraints.accuracy_metric) is not None:
        return f"no speed-up, for {short_cell(suite.baseline or 'the baseline')} was not measured at this batch size"
    reason = result.reasons.get(what) or result.reasons.get("telemetry")
    return f"not measured{f' ({first_line(reason)})' if reason else ''}"


def _machine(suite: BenchSuiteResult) -> str:
    on_gpu = any(case.case.device == "cuda" for case in suite.cases)
    device = ", ".join(suite.machine.gpus) if on_gpu and suite.machine.gpus else suite.machine.cpu
    return f"{device or 'an unknown device'} ({suite.machine.hostname})"


def _apart(sizes: Sequence[int]) -> list[int]:
    """Ticks that do not run into each other: at most a dozen."""
    step = math.ceil(len(sizes) / 12)
    return [size for position, size in enumerate(sizes) if position % step == 0]
