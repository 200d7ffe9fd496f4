"""Telemetry of GPUs and host."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.analysis.metrics.results import GpuMetrics, MetricFigures, RunMetrics
from perfharness.render.blocks import Block, Cell, Column, Paragraph, Table
from perfharness.render.numbers import number, percent, scaled, significant, size

MIB = float(1 << 20)
POWER = ("power_sample_w", "power_instant_w", "power_average_w")
FIGURES = (
    *POWER,
    "gpu_utilization_percent",
    "memory_utilization_percent",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "memory_used_bytes",
)
"""Metrics of a GPU in the table; others are in benchmark_mean.json."""

UNITS = {"bytes": "MiB", "w": "W", "percent": "%", "mhz": "MHz", "c": "°C", "mj": "mJ"}


def machine_view(metrics: RunMetrics | None) -> list[Block]:
    """One line per GPU in use; nothing without telemetry."""
    return [Paragraph(_line(gpu)) for gpu in (metrics.gpus if metrics is not None else ()) if gpu.processes]


def _line(gpu: GpuMetrics) -> str:
    whole = " (over the whole run)" if gpu.window == "run" else ""
    return f"{gpu.title}: {', '.join(_parts(gpu)) or 'nothing was measured'}{whole}"


def _parts(gpu: GpuMetrics) -> Iterator[str]:
    known = {name: found for name, found in gpu.figures.items() if found.mean is not None}
    power = next((known[name] for name in POWER if name in known), None)
    if power is not None:
        yield f"{number(power.mean, 'count')} W (up to {number(power.max, 'count')})"
    if gpu.busy_share is not None:
        yield f"busy {percent(gpu.busy_share)}"
    for name, unit in (("sm_clock_mhz", "MHz"), ("temperature_c", "°C")):
        if name in known:
            yield f"{number(known[name].mean, 'count')} {unit}"
    memory = gpu.figures.get("memory_used_bytes")
    if memory is not None and memory.max is not None:
        yield f"memory up to {size(memory.max)}"
    if gpu.throttled_batches:
        yield f"{gpu.throttled_batches} batches throttled"


def telemetry_view(metrics: RunMetrics) -> list[Block]:
    """Tables of all metrics of the GPUs and the host."""
    blocks: list[Block] = []
    for gpu in metrics.gpus:
        window = "the measured window" if gpu.window == "measured" else "the whole run"
        title = f"{gpu.title} {gpu.name or ''}".strip()
        figures = {name: gpu.figures[name] for name in FIGURES if name in gpu.figures}
        blocks += _metrics(title, figures, f"{title}, over {window}")
        if gpu.clock_events:
            lowered = ", ".join(f"{one.reason} {significant(one.seconds)} s" for one in gpu.clock_events)
            blocks.append(Paragraph(f"{gpu.title}: clocks were lowered ({lowered})."))
    return [*blocks, *_metrics("host", metrics.host.figures, "Host")]


def _metrics(name: str, figures: dict[str, MetricFigures], note: str) -> list[Block]:
    columns = [
        Column("metric"),
        *(Column(one, "number") for one in ("mean", "min", "p50", "p95", "max")),
        Column("readings", "count", "updates of the source"),
    ]
    rows = [_metric_row(metric, found) for metric, found in figures.items() if found.mean is not None]
    return [Table(name, columns, rows, note)] if rows else []


def _metric_row(name: str, found: MetricFigures) -> list[Cell]:
    stem, _, unit = name.rpartition("_")
    label = f"{stem} ({UNITS[unit]})" if unit in UNITS else name
    values = (found.mean, found.min, found.p50, found.p95, found.max)
    shown = [scaled(value, MIB if unit == "bytes" else 1.0) for value in values]
    return [label.replace("_", " "), *shown, found.new_readings]
