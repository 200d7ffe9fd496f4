"""Tables of several launches: a repeat, a sweep over the number of processes, cold starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console

from perfharness.model.result import path_of
from perfharness.render.terminal.console import Column, ms_text, print_table, say
from perfharness.render.text import NOT_MEASURED
from perfharness.render.views.names import row_names
from perfharness.render.views.stages import MAX_ROWS
from perfharness.runs.series.cold_start_file import ColdStart, Spread
from perfharness.runs.series.repeat_file import OverLaunches, Repeat
from perfharness.runs.series.scaling import Scaling, ScalingPoint, busy_share, total_power_w

COLD_START_LABELS = {
    "process_to_first_batch_ms": "to the first batch",
    "interpreter_and_imports_ms": "  interpreter and imports",
    "cuda_context_ms": "  CUDA context",
    "model_load_ms": "  model load",
    "start_barrier_wait_ms": "  start barrier",
    "other_ms": "  other",
    "first_batch_ms": "first batch",
}


def print_cold_start(console: Console, found: ColdStart, labels: Mapping[str, str] = COLD_START_LABELS) -> None:
    """Print the table: each part with a cold and a warm file cache, median and range."""
    columns = [Column("ms, median (range)", is_text=True), Column("cold cache"), Column("warm cache")]
    rows = [[label, _spread(found.cold[name]), _spread(found.warm[name])] for name, label in labels.items()]
    print_table(console, columns, rows)
    if found.cold_reason is not None:
        say(console, f"cold cache: {found.cold_reason}")
    for row in found.rows:
        if row.status != "ok":
            say(console, f"{row.folder}: {row.reason}")


def _spread(spread: Spread) -> str:
    if spread.median is None:
        return NOT_MEASURED
    return f"{spread.median:.1f} ({spread.min:.1f} … {spread.max:.1f})"


def print_scaling(console: Console, scaling: Scaling) -> None:
    """Print the table with one row per launch, remarks, and the knee."""
    measured = [name for name, (_, value) in SCALING_COLUMNS.items() if any(value(point) for point in scaling.points)]
    columns = [Column("-np"), *(Column(name, drop=SCALING_COLUMNS[name][0]) for name in measured)]
    rows = [
        [str(point.row.num_processes), *(SCALING_COLUMNS[name][1](point) or NOT_MEASURED for name in measured)]
        for point in scaling.points
    ]
    print_table(console, columns, rows)
    for point in scaling.points:
        if remark := _remark(point):
            say(console, f"-np {point.row.num_processes}: {remark}")
    knee = scaling.knee
    where = f"knee at -np {knee.num_processes}" if knee.num_processes is not None else "no knee"
    say(console, f"{where}: {knee.reason} ({knee.method})")


def _remark(point: ScalingPoint) -> str:
    return "; ".join(part for part in (point.row.reason, ", ".join(point.row.findings)) if part)


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


SCALING_COLUMNS: dict[str, tuple[int, Callable[[ScalingPoint], str]]] = {
    "items/s": (0, lambda point: _shown(point.row.items_per_second, ".2f")),
    "speedup": (1, lambda point: _shown(point.speedup, ".2f")),
    "efficiency": (4, lambda point: _shown(point.efficiency, ".0%")),
    "slowdown": (7, lambda point: _shown(point.slowdown, ".2f")),
    "p50 ms": (2, lambda point: _shown(point.row.latency_p50_ms, ".3f")),
    "p99 ms": (3, lambda point: _shown(point.row.latency_p99_ms, ".3f")),
    "busy": (5, lambda point: _shown(busy_share(point.row), ".0%")),
    "W": (6, lambda point: _shown(total_power_w(point.row), ".0f")),
}
"""Heading -> priority for removal on a narrow terminal, the largest first, and the value."""


REPEAT_COLUMNS = {
    "CPU": ("cpu_time", 0),
    "p50": ("cpu_time_p50", 3),
    "p95": ("cpu_time_p95", 4),
    "GPU": ("gpu_time", 1),
    "busy": ("gpu_busy_time", 5),
    "CPU/item": ("cpu_time_per_item", 2),
    "GPU/item": ("gpu_time_per_item", 6),
}
"""Heading -> metric, and its priority for removal on a narrow terminal, the largest first."""


def print_repeat(console: Console, repeat: Repeat) -> None:
    """Print the table with one row per stage, mean and interval over launches, and the throughput."""
    stages = list(repeat.stages.items())[:MAX_ROWS]
    measured = [
        heading for heading, (key, _) in REPEAT_COLUMNS.items() if any(_is_known(one.get(key)) for _, one in stages)
    ]
    say(
        console,
        f"ms per batch, without warm-up: mean of {_launches(repeat)} ± half of its 95 % interval{_scope(repeat)}",
    )
    columns = [Column("stage", is_text=True), *(Column(name, drop=REPEAT_COLUMNS[name][1]) for name in measured)]
    names = row_names([path_of(path) for path, _ in stages])
    rows = [
        [name, *(over_launches_text(metrics.get(REPEAT_COLUMNS[heading][0])) for heading in measured)]
        for name, (_, metrics) in zip(names, stages, strict=True)
    ]
    print_table(console, columns, rows)
    if len(repeat.stages) > MAX_ROWS:
        say(console, f"and {len(repeat.stages) - MAX_ROWS} more stages; all are in the JSON file")
    if (throughput := repeat.run.get("items_per_second")) is not None:
        is_known = throughput.mean is not None
        shown = f"{over_launches_text(throughput)} items/s" if is_known else f"not measured ({throughput.reason})"
        say(console, f"Throughput: {shown}")
    for row in repeat.rows:
        if row.status != "ok":
            say(console, f"{row.folder}: {row.reason}")


def _is_known(found: OverLaunches | None) -> bool:
    return found is not None and any(value is not None for value in found.values)


def _launches(repeat: Repeat) -> str:
    count = len(repeat.measured)
    return f"{count} launch{'es' if count != 1 else ''}"


def _scope(repeat: Repeat) -> str:
    """Of a single launch, what its intervals are about."""
    scopes = {one.scope for metrics in repeat.stages.values() for one in metrics.values()}
    return ", within this launch only" if "within-launch" in scopes else ""


def over_launches_text(found: OverLaunches | None) -> str:
    """Mean and half of the interval."""
    if found is None or found.mean is None:
        return NOT_MEASURED
    if found.low is None or found.high is None:
        return ms_text(found.mean)
    return f"{ms_text(found.mean)} ±{ms_text((found.high - found.low) / 2)}"
