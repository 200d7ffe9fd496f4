"""One chart of a suite: a curve a cell, the legend and what is missing beside the data. matplotlib is imported here.

A curve has the same look in every chart of a suite.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfharness.analysis.bench_figures import accuracy_of, gives_wrong_answers
from perfharness.analysis.bench_names import CaseNames, in_groups
from perfharness.files import replacing
from perfharness.model.bench import BenchCase, CaseResult, Estimate, LatencyFigure
from perfharness.model.bench_suite import BenchSuiteResult
from perfharness.report.bench_words import first_line, short_cell, status_line

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's, told apart with every kind of colour vision."""

COLORS = tuple(color for color in PALETTE if color != "#F0E442")
"""Without the yellow, which cannot be seen on white as a line."""

STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
LEGEND_WIDTH, MAX_NOTES, MAX_NAMED = 34, 12, 450
"""Characters of a line of the legend, notes below a chart, characters of the cells that one note names."""

DIGIT_WIDTH = 0.008
"""Half of what a digit of a tick takes, of the width of the axis, with some room."""

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


class Chart:
    """One picture with one pair of axes; the legend and what is missing stand beside the data."""

    def __init__(
        self,
        suite: BenchSuiteResult,
        title: str,
        target: tuple[LatencyFigure, float] | None = None,
        names: CaseNames | None = None,
    ) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.suite, self.target = suite, target
        self.names = names or CaseNames.of((result.case for result in suite.cases), with_model=False)
        self.curves = curves_of(suite, self.names)
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
        self.without_bar: list[BenchCase] = []
        """Points of the lines that have no interval."""

    def lines(self, value: Value, what: str) -> bool:
        """A line a curve over the batch size, broken where one was not measured; returns whether there is anything."""
        drawn = False
        lacks_bar: list[BenchCase] = []
        for curve in self.curves:
            found = [value_of(result, value) for result in curve.results]
            if any(found):
                drawn = True
                sizes, values = [result.case.batch_size for result in curve.results], [one or GAP for one in found]
                self.ax.errorbar(sizes, [one.value for one in values], yerr=_errors(values), label=_label(curve),
                                 color=curve.color, linestyle=curve.style, **_look(curve))  # fmt: skip
                lacks_bar += [r.case for r, one in zip(curve.results, found, strict=True) if one and not one.interval]
            self._name_missing(curve, value, what)
        if drawn:
            self.batch_axis()
        self.without_bar = lacks_bar
        return drawn

    def note_bars(self, of: str) -> None:
        """What the bars of the lines are, and which points have none."""
        self.notes.append(f"bars: 95 % interval of {of}")
        if self.without_bar:
            named = textwrap.shorten("; ".join(self.names.cells(self.without_bar)), MAX_NAMED, placeholder=" ...")
            self.notes.append(f"no bar, for the iterations say too little: {named}")

    def points(self, across: Value, up: Value, what: str) -> bool:
        """A point a case, batch sizes at the ends; broken likewise; returns whether there is anything."""
        drawn = False
        several = len({result.case.batch_size for result in self.suite.cases}) > 1
        for curve in self.curves:
            pairs = [(value_of(result, across), value_of(result, up)) for result in curve.results]
            if any(x and y for x, y in pairs):
                drawn = True
                xs = [x if x and y else GAP for x, y in pairs]
                ys = [y if x and y else GAP for x, y in pairs]
                self.ax.errorbar([x.value for x in xs], [y.value for y in ys], xerr=_errors(xs), yerr=_errors(ys),
                                 label=_label(curve), color=curve.color, linestyle=curve.style if several else "",
                                 **{**_look(curve), "linewidth": 0.8})  # fmt: skip
                for position, offset in _ends([bool(x and y) for x, y in pairs]) if several else ():
                    result, x, y = curve.results[position], xs[position], ys[position]
                    self.ax.annotate(f"{result.case.batch_size}", (x.value, y.value), xytext=offset,
                                     textcoords="offset points", fontsize=7, color=curve.color)  # fmt: skip
            self._name_missing(curve, lambda result: value_of(result, across) and value_of(result, up), what)
        if drawn and several:
            self.notes.append("numbers: the batch size at the ends of a curve, and where it is broken")
        return drawn

    def batch_axis(self) -> None:
        """Every batch size that there is room for is a tick; a wide range is logarithmic."""
        sizes = sorted({result.case.batch_size for result in self.suite.cases})
        is_wide = len(sizes) > 2 and sizes[-1] >= 8 * sizes[0]
        places = [math.log2(size) if is_wide else size for size in sizes]
        pad = 0.05 * (places[-1] - places[0])
        if is_wide:
            self.ax.set_xscale("log", base=2)
            self.ax.set_xlim(sizes[0] / 2**pad, sizes[-1] * 2**pad)
        elif pad:
            self.ax.set_xlim(sizes[0] - pad, sizes[-1] + pad)
        ticks = apart(sizes, places)
        self.ax.set_xticks(ticks, labels=[str(size) for size in ticks])
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
            if value_of(result, value) is None:
                self.missing.append((status_line(result) or _why(result, what, self.suite), result.case))

    def _missing_notes(self) -> Iterator[str]:
        """What is not in the picture is named in it; cases of one reason together."""
        for reason, cases in in_groups(self.missing):
            short, cells = textwrap.shorten(reason, 220), self.names.cells(cases)
            if len(cells) == 1:
                yield f"not shown: {cells[0]}: {short}"
            else:
                named = textwrap.shorten("; ".join(cells), MAX_NAMED, placeholder=" ...")
                yield f"not shown, {len(cases)} cases: {short} ({named})"


def curves_of(suite: BenchSuiteResult, names: CaseNames) -> list[Curve]:
    """A colour for each backend, mode and settings, a line style and a marker for each precision and device."""
    cells: dict[tuple[str, str, str, str, str], list[CaseResult]] = {}
    for result in suite.cases:
        case = result.case
        look = (case.backend, case.mode, case.variant, case.precision, case.device)
        cells.setdefault(look, []).append(result)
    hues = list(dict.fromkeys(key[:3] for key in cells))
    kinds = list(dict.fromkeys(key[3:] for key in cells))
    curves = []
    for position, (key, results) in enumerate(cells.items()):
        rank = position / max(1, len(cells) - 1)
        hue, kind = hues.index(key[:3]), kinds.index(key[3:])
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


def value_of(result: CaseResult, value: Value) -> Estimate | None:
    """Only of cases that came to their end: half a measurement is none."""
    return value(result) if result.status == "ok" else None


def _errors(values: Sequence[Estimate]) -> list[list[float]] | None:
    """Lengths of the bars below and above; None where no value has an interval."""
    if all(one.interval is None for one in values):
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


def _why(result: CaseResult, what: str, suite: BenchSuiteResult) -> str:
    """The reason that the result gives for a field, or that it has none."""
    if what == "accuracy" and accuracy_of(result, suite.constraints.accuracy_metric) is not None:
        return f"no speed-up, for {short_cell(suite.baseline or 'the baseline')} was not measured at this batch size"
    reason = result.reasons.get(what) or result.reasons.get("telemetry")
    return f"not measured{f' ({first_line(reason)})' if reason else ''}"


def _ends(known: Sequence[bool]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Where a piece of a curve begins or ends, and on which side the number stands, in points."""
    for position, is_known in enumerate(known):
        if is_known and (position == 0 or not known[position - 1]):
            yield position, (-9, -11)
        elif is_known and (position == len(known) - 1 or not known[position + 1]):
            yield position, (5, 5)


def apart(sizes: Sequence[int], places: Sequence[float]) -> list[int]:
    """Sizes whose ticks do not run into each other; first and last are always there.

    Args:
        sizes: growing.
        places: of them on the axis, in any unit.
    """
    width = places[-1] - places[0]

    def touch(one: int, other: int) -> bool:
        digits = len(f"{sizes[one]}{sizes[other]}")
        return places[other] - places[one] < width * digits * DIGIT_WIDTH

    last = len(sizes) - 1
    kept: list[int] = []
    for position in range(last):
        if not kept or not touch(kept[-1], position):
            kept.append(position)
    while len(kept) > 1 and touch(kept[-1], last):
        kept.pop()
    return [sizes[position] for position in [*kept, last]]
