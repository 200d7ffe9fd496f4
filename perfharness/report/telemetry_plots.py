"""A run's telemetry as PNG: one picture a GPU, one for the host, with what the processes were doing above it.

Made of what is on disk, so an old run can be drawn too. matplotlib is imported here and nowhere before.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from perfharness.analysis.activity import ProcessActivity, process_activity, shares_over_time
from perfharness.analysis.trace_clock import tie_trace_clock
from perfharness.errors import ResultError
from perfharness.model.manifest import RunManifest
from perfharness.model.telemetry import (
    CLOCK_EVENT_REASONS,
    HOST,
    TELEMETRY_NAME,
    Float64,
    SampleLog,
    Series,
    process_subject,
)
from perfharness.report.clocks import machine_clock
from perfharness.report.pictures import require_matplotlib
from perfharness.report.run import Process, open_run
from perfharness.telemetry.store import read_sample_log

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


def draw_run(folder: Path) -> list[Path]:
    """Draw the telemetry of a run folder; the files that were written.

    Raises `ToolNotFoundError` without matplotlib, `ResultError` where there is no telemetry to be read.
    """
    require_matplotlib()
    log = read_sample_log(folder / TELEMETRY_NAME)
    run = open_run(folder)
    if run.manifest is None:
        raise ResultError(f"{folder} holds no manifest, so it is not known which process ran on which GPU")
    activities: dict[str, ProcessActivity] = {}
    for process in run.processes:
        activity = _activity(process, run.manifest)
        if activity is not None:
            activities[process.name] = activity
        process.release()
    title = f"{Path(run.manifest.script).name}  {run.manifest.created}"
    return draw_telemetry(folder, log, activities, title)


def draw_telemetry(folder: Path, log: SampleLog, activities: dict[str, ProcessActivity], title: str = "") -> list[Path]:
    """Draw a log: one picture for each whole GPU in it, one of the host.

    Args:
        activities: of the processes, by folder name; those without a trace are missing.
        title: of the run.
    """
    written = []
    on_gpu = {record.name: record.gpu_uuid for record in log.subjects("process") if record.name is not None}
    parents = {record.subject: record.parent_uuid for record in log.subjects("mig")}
    for gpu in log.subjects("gpu"):
        names = [name for name, uuid in on_gpu.items() if uuid is not None and parents.get(uuid, uuid) == gpu.subject]
        own = {name: activities[name] for name in names if name in activities}
        picture = _Picture(log, own, f"GPU {gpu.gpu_index} {gpu.name or ''}  {title}")
        _draw_gpu(picture, gpu.subject, names, [uuid for uuid, parent in parents.items() if parent == gpu.subject])
        written.append(picture.save(folder / f"telemetry_gpu_{gpu.gpu_index}.png"))
    picture = _Picture(log, activities, f"host  {title}")
    _draw_host(picture, list(on_gpu))
    written.append(picture.save(folder / "telemetry_host.png"))
    return written


def _activity(process: Process, manifest: RunManifest) -> ProcessActivity | None:
    if process.problem() is not None or (opened := process.opened) is None:
        return None
    clock = tie_trace_clock(opened.trace, machine_clock(manifest))
    if clock is None:
        return None
    return process_activity(opened.trace.ranges, opened.stages, opened.measures, clock)


@dataclass
class _Line:
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
class _Panel:
    """One quantity over time."""

    label: str
    lines: list[_Line]
    top: float | None = None
    from_zero: bool = True
    notes: list[str] = field(default_factory=list)


class _Picture:
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

    def draw(self, ax: Any, panel: _Panel) -> None:
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
        """Write the PNG, as a whole or not at all. Raises `ResultError`."""
        from perfharness.report.files import replacing

        with replacing(path) as temporary:
            self.figure.savefig(temporary, dpi=110, format="png")
        return path

    def _shade(self, ax: Any) -> None:
        """Grey where all that ran was warm-up, nothing where batches were measured."""
        for window in _merged(window for own in self.activities.values() for window in own.warmup):
            ax.axvspan(*self.seconds(np.asarray(window)), color="#f0e9dd", linewidth=0, zorder=0)
        measured = [own.measured for own in self.activities.values() if own.measured is not None]
        for edge in {measured_edge for window in measured for measured_edge in window} if len(measured) == 1 else ():
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


def _draw_gpu(picture: _Picture, gpu: str, processes: Sequence[str], mig: Sequence[str]) -> None:
    log = picture.log

    def line(metric: str, label: str, color: int, *, subject: str = gpu, **how: Any) -> _Line:
        return _Line(log.get(subject, metric), label, PALETTE[color % len(PALETTE)], reason=_why(log, subject, metric),
                     **how)  # fmt: skip

    memory = [line("memory_used_bytes", "GPU", 7, scale=1 / GIB)]
    memory += [line("memory_used_bytes", f"MIG {place}", place + 4, subject=uuid, scale=1 / GIB)
               for place, uuid in enumerate(mig)]  # fmt: skip
    memory += [line("process_memory_bytes", name, place, subject=process_subject(name), scale=1 / GIB)
               for place, name in enumerate(processes[:MAX_LINES])]  # fmt: skip
    power = [
        line("power_instant_mw", "instantaneous", 0, scale=1e-3),
        line("power_average_mw", "averaged", 1, scale=1e-3),
        line("power_limit_mw", "limit", 5, scale=1e-3, style="--", width=1.0),
    ]
    samples = log.get(gpu, SAMPLES)
    if samples is not None and samples.is_read.any():
        power.insert(0, _Line(samples, "driver's samples", "#bbbbbb", scale=1e-3, width=0.8))
    panels = [
        _Panel("utilisation %", [line("gpu_utilization_percent", "GPU", 0),
                                 line("memory_utilization_percent", "memory", 1)], top=104),
        _Panel("memory\nGiB", memory),
        _Panel("SM clock\nMHz", [line("sm_clock_mhz", "SM", 0)]),
        _Panel("power\nW", power),
        _Panel("temperature\n°C", [line("temperature_c", "GPU", 5)], from_zero=False),
    ]  # fmt: skip
    axes = picture.start(len(panels))
    for ax, panel in zip(axes, panels, strict=True):
        if panel.label.startswith("SM clock"):
            _mark_reasons(picture, ax, gpu)
        picture.draw(ax, panel)


def _mark_reasons(picture: _Picture, ax: Any, gpu: str) -> None:
    """Bars along the bottom where the clocks were held down, one row a reason."""
    reasons = picture.log.get(gpu, "clock_event_reasons")
    if reasons is None or not reasons.is_read.any():
        return
    bits = np.where(reasons.is_read, reasons.value, 0).astype(np.int64)
    times = picture.seconds(reasons.time_unix_ns)
    row = 0
    for reason in CLOCK_EVENT_REASONS:
        active = (bits & reason.bit) != 0
        if not reason.slows or not active.any():
            continue
        color = PALETTE[(5, 3, 7, 2, 6, 4, 1)[row % 7]]
        spans = _spans(times, active)
        ax.broken_barh(spans, (0.02 + 0.09 * row, 0.07), transform=ax.get_xaxis_transform(), color=color,
                       label=f"{reason.name} ({100 * active.mean():.0f} %)", zorder=3)  # fmt: skip
        row += 1


def _spans(times: Float64, active: Any) -> list[tuple[float, float]]:
    """Start and length of the stretches in which something was the case, each up to the next reading."""
    change = np.diff(np.concatenate([[0], active.astype(np.int8), [0]]))
    starts, ends = np.flatnonzero(change == 1), np.flatnonzero(change == -1)
    until = np.minimum(ends, len(times) - 1)
    return [(float(times[start]), float(times[end] - times[start])) for start, end in zip(starts, until, strict=True)]


def _draw_host(picture: _Picture, processes: Sequence[str]) -> None:
    log = picture.log
    few = processes[:MAX_LINES]

    def each(metric: str, scale: float = 1.0, step: str = "steps-post") -> list[_Line]:
        return [
            _Line(log.get(process_subject(name), metric), name, PALETTE[place], scale, step=step,
                  reason=_why(log, process_subject(name), metric))
            for place, name in enumerate(few)
        ]  # fmt: skip

    def rates(metric: str, scale: float = 1.0) -> list[_Line]:
        return [
            _Line(
                None if line.series is None else rate_of(line.series), line.label, line.color, scale, reason=line.reason
            )
            for line in each(metric)
        ]

    more = [f"and {len(processes) - len(few)} more processes"] if len(processes) > len(few) else []
    panels = [
        _Panel("CPU\n% of all cores", [_Line(log.get(HOST, "cpu_percent"), "busy", PALETTE[7], step=RATE),
                                       _Line(log.get(HOST, "io_wait_percent"), "I/O wait", PALETTE[1], step=RATE)],
               top=104),
        _Panel("CPU\n100 % a core", each("cpu_percent", step=RATE), notes=more),
        _Panel("resident\nGiB", each("rss_bytes", 1 / GIB), notes=more),
        _Panel("context\nswitches /s", rates("context_switches"), notes=more),
        _Panel("read + written\nMB/s", [_Line(_sum_rates(log), "machine", PALETTE[7], 1e-6, step=RATE)]),
    ]  # fmt: skip
    cores = [record.subject for record in log.subjects("core")]
    axes = picture.start(len(panels) + bool(cores))
    for ax, panel in zip(axes, panels, strict=False):
        picture.draw(ax, panel)
    if cores:
        _draw_cores(picture, axes[-1], cores)


def _draw_cores(picture: _Picture, ax: Any, cores: Sequence[str]) -> None:
    """Every core as a row: dark is busy."""
    found = [(core, series) for core in cores if (series := picture.log.get(core, "cpu_percent")) is not None]
    if not found:
        return
    times = found[0][1].time_unix_ns
    rows = np.full((len(found), len(times)), np.nan)
    for place, (_, series) in enumerate(found):
        which = np.searchsorted(series.time_unix_ns, times)
        inside = which < len(series)
        rows[place, inside] = series.value[which[inside]]
    if len(times) < 2:
        return
    edges = picture.seconds(np.append(times[:1] - (times[1] - times[0]), times))
    mesh = ax.pcolormesh(edges, np.arange(len(found) + 1) - 0.5, rows, cmap="cividis_r", vmin=0, vmax=100,
                         rasterized=True)  # fmt: skip
    ax.set_ylabel("core", fontsize="small")
    if len(found) <= 16:
        ax.set_yticks(range(len(found)))
    bar = picture.figure.colorbar(mesh, cax=ax.inset_axes((1.01, 0.0, 0.012, 1.0)))
    bar.set_label("busy %", fontsize="small")


def rate_of(counter: Series) -> Series:
    """Increase per second of a counter since the reading before; the first has none."""
    step = np.diff(counter.value, prepend=np.nan) / (np.diff(counter.time_monotonic_ns, prepend=0) / NS_PER_S)
    return Series(counter.time_unix_ns, counter.time_monotonic_ns, step, counter.is_new, counter.read_ns)


def _sum_rates(log: SampleLog) -> Series | None:
    read, written = log.get(HOST, "read_bytes"), log.get(HOST, "write_bytes")
    if read is None or written is None or len(read) != len(written):
        return None
    both = Series(read.time_unix_ns, read.time_monotonic_ns, read.value + written.value, read.is_new, read.read_ns)
    return rate_of(both)


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


def _merged(windows: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Windows that overlap as one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(windows):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _why(log: SampleLog, subject: str, metric: str) -> str:
    """The commonest reason why a metric was not read."""
    reasons = [failure for failure in log.meta.failures if (failure.subject, failure.metric) == (subject, metric)]
    return max(reasons, key=lambda failure: failure.count).reason if reasons else ""


def _legend(ax: Any, handles: Any = None, labels: Any = None, title: str | None = None) -> None:
    if handles is None:
        handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.005, 1.04), fontsize=8, frameon=False, title=title,
              title_fontsize=8, borderaxespad=0.0)  # fmt: skip


def _utc(unix_ns: int) -> str:
    return f"{datetime.fromtimestamp(unix_ns / NS_PER_S, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
