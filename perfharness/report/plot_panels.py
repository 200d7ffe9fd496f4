"""Panels over one axis of time: lines with gaps, stages on top and behind, legends outside of the data."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from perfharness.analysis.activity import ProcessActivity, shares_over_time
from perfharness.analysis.timeline import merge
from perfharness.files import replacing
from perfharness.model.telemetry import Float64, SampleLog, Series

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's, told apart with every kind of colour vision."""

REST, OUTSIDE = "#999999", "#dddddd"
MAX_STAGES, MAX_LINES = 7, 8
BINS = 400
NS_PER_S = 1e9
GIB = float(1 << 30)

RATE = "steps-pre"
NOTE_WIDTH = 46

MAX_SHADED = 60
"""Up to so many stages are shaded one by one behind the lines; more would be a blur, and the top panel has them."""

SAMPLES = "power_sample_mw"

GAP_PERIODS = 4.0
"""Readings further apart than this many usual distances are not joined by a line."""


@dataclass
class Line:
    """One line of a panel."""

    series: Series | None
    label: str
    color: str
    scale: float = 1.0
    width: float = 1.4
    style: str = "-"
    reason: str = ""
    step: str = "steps-post"
    """A sensor's value holds until the next; a rate is that of the time before: `steps-pre`."""


@dataclass
class Panel:
    """One quantity over time."""

    label: str
    lines: list[Line]
    top: float | None = None
    from_zero: bool = True
    notes: list[str] = field(default_factory=list)


class Picture:
    """Panels over one axis of time, the stages on top; legends stand outside of the data."""

    def __init__(self, log: SampleLog, activities: dict[str, ProcessActivity], title: str) -> None:
        self.log = log
        self.activities = activities
        self.title = title
        times = [  # the driver's own buffer of power begins before the sampler did
            series.time_unix_ns for (_, metric), series in log.series.items() if len(series) and metric != SAMPLES
        ]
        self.begin_ns = min((int(own.min()) for own in times), default=0)
        self.end_ns = max((int(own.max()) for own in times), default=1)
        starts = [int(activity.batch_start_ns.min()) for activity in activities.values()]
        self.zero_ns = min(starts, default=self.begin_ns)

    def start(self, panels: int) -> list[Any]:
        """The axes: the stages' first, where there are any."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        stages = bool(self.activities)
        heights = ([1.3] if stages else []) + [1.0] * panels
        self.figure = Figure(figsize=(13, 1.7 * sum(heights) + 1), layout="constrained")
        FigureCanvasAgg(self.figure)
        grid = self.figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
        axes: list[Any] = list(grid[:, 0])
        self.figure.suptitle(self.title, fontsize="medium", parse_math=False)
        axes[-1].set_xlabel(f"seconds since {_utc(self.zero_ns)}" + (", the first batch" if stages else ""))
        axes[-1].set_xlim(self.seconds(self.begin_ns), self.seconds(self.end_ns))
        for ax in axes:
            ax.grid(axis="both", color="#eeeeee", linewidth=0.8)
            ax.set_axisbelow(True)
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
            self._shade(ax)
        if not stages:
            return axes
        colors = self._draw_stages(axes[0])
        self._shade_stages(axes[1:], colors)
        return axes[1:]

    def seconds(self, time_unix_ns: Any) -> Any:
        """Times of the axis."""
        return (time_unix_ns - self.zero_ns) / NS_PER_S

    def draw(self, ax: Any, panel: Panel) -> None:
        """One panel; a metric that was never read is named in it, with the reason."""
        drawn = 0
        missing: dict[str, list[str]] = {}
        for line in panel.lines:
            if line.series is None or not line.series.is_read.any():
                missing.setdefault(line.reason, []).append(line.label)
                continue
            times, values = with_gaps(self.seconds(line.series.time_unix_ns), line.series.value * line.scale)
            ax.plot(times, values, line.style, drawstyle=line.step, label=line.label, color=line.color,
                    linewidth=line.width)  # fmt: skip
            drawn += 1
        ax.set_ylabel(panel.label, fontsize="small")
        if drawn:
            if panel.from_zero:
                ax.set_ylim(bottom=0)
            if panel.top is not None:
                ax.set_ylim(top=panel.top)
            _legend(ax)
        told = [
            f"{', '.join(labels)}: not read{f' ({reason})' if reason else ''}" for reason, labels in missing.items()
        ]
        text = "\n".join(textwrap.fill(one, NOTE_WIDTH) for one in [*told, *panel.notes])
        if text:
            ax.annotate(text, (1.01, 0.0), xycoords="axes fraction", fontsize=7, color="#777777", va="bottom",
                        annotation_clip=False, parse_math=False)  # fmt: skip

    def save(self, path: Path) -> Path:
        """Write the PNG into a run folder, as a whole or not at all. Raises `ResultError`."""
        with replacing(path, follow=False) as temporary:
            self.figure.savefig(temporary, dpi=110, format="png")
        return path

    def _shade(self, ax: Any) -> None:
        """Grey where all that ran was warm-up, nothing where batches were measured."""
        warmup = [window for own in self.activities.values() for window in own.warmup]
        for window in zip(*merge(*np.asarray(warmup, dtype=np.int64).reshape(-1, 2).T), strict=True):
            ax.axvspan(*self.seconds(np.asarray(window)), color="#f0e9dd", linewidth=0, zorder=0)
        measured = [own.measured for own in self.activities.values() if own.measured]
        for edge in {edge for window in measured[0] for edge in window} if len(measured) == 1 else ():
            ax.axvline(self.seconds(edge), color="#999999", linewidth=0.8, linestyle=":")

    def _shade_stages(self, axes: Sequence[Any], colors: Mapping[str, str]) -> None:
        """Few stages are shaded behind the lines, in their colours of the top panel."""
        if sum(len(own.stage) for own in self.activities.values()) > MAX_SHADED:
            return
        for own in self.activities.values():
            for code, start, end in zip(own.stage, own.stage_start_ns, own.stage_end_ns, strict=True):
                for ax in axes:
                    ax.axvspan(self.seconds(start), self.seconds(end), color=colors.get(own.names[code], REST),
                               alpha=0.13, linewidth=0, zorder=0)  # fmt: skip

    def _draw_stages(self, ax: Any) -> dict[str, str]:
        """The share of each stage over time; returns the colours by name."""
        edges = np.linspace(self.begin_ns - self.zero_ns, self.end_ns - self.zero_ns, BINS + 1).astype(np.int64)
        found = shares_over_time(list(self.activities.values()), edges + self.zero_ns)
        names, share = _few(found.names, found.share)
        colors = [*PALETTE[: len(names) - 1], OUTSIDE]
        if len(names) > MAX_STAGES + 1:
            colors[-2] = REST
        stacked = np.concatenate([np.zeros((1, BINS)), np.cumsum(share, axis=0)]) * 100
        for place, (name, color) in enumerate(zip(names, colors, strict=True)):
            if share[place].any():
                ax.stairs(stacked[place + 1], edges / NS_PER_S, baseline=stacked[place], fill=True, color=color,
                          label=name, linewidth=0)  # fmt: skip
        ax.set_ylim(0, max(100.0, float(stacked[-1].max())))
        count = len(self.activities)
        ax.set_ylabel("stages\n% of time" + (f"\nof {count} processes" if count > 1 else ""), fontsize="small")
        batches = sum(len(own.batch_start_ns) for own in self.activities.values())
        handles, labels = ax.get_legend_handles_labels()
        from matplotlib.patches import Patch

        handles.append(Patch(color="#f0e9dd"))
        labels.append("warm-up batches")
        _legend(ax, handles, labels, title=f"{batches} batches")
        return dict(zip(names, colors, strict=True))


def with_gaps(times: Float64, values: Float64) -> tuple[Float64, Float64]:
    """The same with a break where readings are missing; those that failed are NaN, which breaks a line too."""
    if len(times) < 3:
        return times, values
    between = np.diff(times)
    wide = np.flatnonzero(between > GAP_PERIODS * np.median(between))
    return (
        np.insert(times, wide + 1, times[wide] + np.median(between)),
        np.insert(values, wide + 1, np.nan),
    )


def _few(names: list[str], share: Float64) -> tuple[list[str], Float64]:
    """The most used stages, and the others together; what was outside of stages stays last."""
    if len(names) <= MAX_STAGES + 1:
        return names, share
    most = np.sort(np.argsort(-share[:-1].sum(axis=1), kind="stable")[:MAX_STAGES])
    rest = share[:-1].sum(axis=0) - share[most].sum(axis=0)
    others = f"{len(names) - 1 - MAX_STAGES} other stages"
    return [*(names[place] for place in most), others, names[-1]], np.vstack([share[most], rest, share[-1]])


def _legend(ax: Any, handles: Any = None, labels: Any = None, title: str | None = None) -> None:
    if handles is None:
        handles, labels = ax.get_legend_handles_labels()
    legend = ax.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.005, 1.04), fontsize=8, frameon=False,
                       title=title, title_fontsize=8, borderaxespad=0.0)  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)


def _utc(unix_ns: int) -> str:
    return f"{datetime.fromtimestamp(unix_ns / NS_PER_S, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
