"""A run's telemetry as PNG: one picture a GPU, one for the host, with what the processes were doing above it.

Made of what is on disk, so an old run can be drawn too. matplotlib is imported here and nowhere before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from perfharness.analysis.activity import ProcessActivity, process_activity
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
from perfharness.report.plot_panels import GIB, MAX_LINES, NS_PER_S, PALETTE, RATE, SAMPLES, Line, Panel, Picture
from perfharness.report.run import Process, open_run
from perfharness.telemetry.store import read_sample_log


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
        picture = Picture(log, own, f"GPU {gpu.gpu_index} {gpu.name or ''}  {title}")
        _draw_gpu(picture, gpu.subject, names, [uuid for uuid, parent in parents.items() if parent == gpu.subject])
        written.append(picture.save(folder / f"telemetry_gpu_{gpu.gpu_index}.png"))
    picture = Picture(log, activities, f"host  {title}")
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


def _draw_gpu(picture: Picture, gpu: str, processes: Sequence[str], mig: Sequence[str]) -> None:
    log = picture.log

    def line(metric: str, label: str, color: int, *, subject: str = gpu, **how: Any) -> Line:
        return Line(log.get(subject, metric), label, PALETTE[color % len(PALETTE)], reason=_why(log, subject, metric),
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
        power.insert(0, Line(samples, "driver's samples", "#bbbbbb", scale=1e-3, width=0.8))
    panels = [
        Panel("utilisation %", [line("gpu_utilization_percent", "GPU", 0),
                                 line("memory_utilization_percent", "memory", 1)], top=104),
        Panel("memory\nGiB", memory),
        Panel("SM clock\nMHz", [line("sm_clock_mhz", "SM", 0)]),
        Panel("power\nW", power),
        Panel("temperature\n°C", [line("temperature_c", "GPU", 5)], from_zero=False),
    ]  # fmt: skip
    axes = picture.start(len(panels))
    for ax, panel in zip(axes, panels, strict=True):
        if panel.label.startswith("SM clock"):
            _mark_reasons(picture, ax, gpu)
        picture.draw(ax, panel)


def _mark_reasons(picture: Picture, ax: Any, gpu: str) -> None:
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


def _draw_host(picture: Picture, processes: Sequence[str]) -> None:
    log = picture.log
    few = processes[:MAX_LINES]

    def each(metric: str, scale: float = 1.0, step: str = "steps-post") -> list[Line]:
        return [
            Line(log.get(process_subject(name), metric), name, PALETTE[place], scale, step=step,
                  reason=_why(log, process_subject(name), metric))
            for place, name in enumerate(few)
        ]  # fmt: skip

    def rates(metric: str) -> list[Line]:
        counters = each(metric, step=RATE)
        return [replace(line, series=None if line.series is None else rate_of(line.series)) for line in counters]

    more = [f"and {len(processes) - len(few)} more processes"] if len(processes) > len(few) else []
    panels = [
        Panel("CPU\n% of all cores", [Line(log.get(HOST, "cpu_percent"), "busy", PALETTE[7], step=RATE),
                                       Line(log.get(HOST, "io_wait_percent"), "I/O wait", PALETTE[1], step=RATE)],
               top=104),
        Panel("CPU\n100 % a core", each("cpu_percent", step=RATE), notes=more),
        Panel("resident\nGiB", each("rss_bytes", 1 / GIB), notes=more),
        Panel("context\nswitches /s", rates("context_switches"), notes=more),
        Panel("read + written\nMB/s", [Line(_sum_rates(log), "machine", PALETTE[7], 1e-6, step=RATE)]),
    ]  # fmt: skip
    cores = [record.subject for record in log.subjects("core")]
    axes = picture.start(len(panels) + bool(cores))
    for ax, panel in zip(axes, panels, strict=False):
        picture.draw(ax, panel)
    if cores:
        _draw_cores(picture, axes[-1], cores)


def _draw_cores(picture: Picture, ax: Any, cores: Sequence[str]) -> None:
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


def _why(log: SampleLog, subject: str, metric: str) -> str:
    """The commonest reason why a metric was not read."""
    reasons = [failure for failure in log.meta.failures if (failure.subject, failure.metric) == (subject, metric)]
    return max(reasons, key=lambda failure: failure.count).reason if reasons else ""
