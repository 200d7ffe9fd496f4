"""A sweep over the number of processes: a row from each run, `scaling.json`, the table and the picture."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from perfharness.errors import ToolNotFoundError
from perfharness.files import read_regular, write_text
from perfharness.model.distribution import install_command
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import RunManifest
from perfharness.model.result import ProcessResult, Tree
from perfharness.model.scaling import SCALING_NAME, GpuPoint, Scaling, ScalingPoint, ScalingRow
from perfharness.report.console import Column, print_table, say
from perfharness.report.terminal import NOT_MEASURED

PICTURE_NAME = "scaling.png"
POWER_FIGURES = ("power_sample_w", "power_instant_w", "power_average_w")
"""The finest first."""

OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|OUT_OF_MEMORY|MemoryError|bad_alloc", re.IGNORECASE)
NO_METRICS = "the GPUs were not sampled in this run"


def scaling_row(
    num_processes: int,
    folder: str,
    manifest: RunManifest,
    mean: Tree,
    results: dict[str, ProcessResult],
    findings: Sequence[Finding],
) -> ScalingRow:
    """What one launch of a sweep says; numbers only where all of its processes ended well."""
    codes = sorted({finding.code for finding in findings if finding.severity is not Severity.NOTE})
    common: dict[str, Any] = {
        "num_processes": num_processes,
        "num_processes_total": len(manifest.processes),
        "folder": folder,
        "findings": codes,
    }
    bad = [process for process in manifest.processes if process.ended != "ok"]
    if bad:
        return ScalingRow(**common, status="failed", reason=why_it_failed(len(bad), len(manifest.processes), findings))
    throughput = mean["throughput"]
    latency = _latency(mean, results)
    gpus, gpus_reason = _gpus(mean)
    return ScalingRow(
        **common,
        status="ok",
        reason=throughput["reason"],
        items_per_second=throughput["items_per_second"],
        window_ms=throughput["window_ms"],
        mean_processes_inside_a_batch=(throughput["concurrency"] or {}).get("mean_processes"),
        latency_p50_ms=latency.get("p50"),
        latency_p99_ms=latency.get("p99"),
        gpus=gpus,
        gpus_reason=gpus_reason,
    )


def why_it_failed(count: int, total: int, findings: Sequence[Finding]) -> str:
    """One sentence: how many processes, how the first one ended, and whether memory ran out."""
    ends = [finding for finding in findings if finding.code.startswith("process-")]
    if not ends:
        return f"{count} of {total} processes did not end well"
    first = f"{ends[0].process}: {ends[0].message.splitlines()[0].split('; the end of')[0]}"
    memory = "out of memory; " if any(OUT_OF_MEMORY.search(finding.message) for finding in ends) else ""
    return f"{memory}{count} of {total} processes did not end well ({first})"


def loop_path(results: dict[str, ProcessResult]) -> tuple[str, ...] | None:
    """The one loop of batches of all processes, or None where there are several or none."""
    paths = {loop.path for result in results.values() for loop in result.loops}
    return paths.pop() if len(paths) == 1 else None


def _latency(mean: Tree, results: dict[str, ProcessResult]) -> dict[str, Any]:
    path = loop_path(results)
    if path is None:
        return {}
    tree = mean["stats_minus_warmup"]
    for name in path:
        tree = tree.get(name, {})
    found: dict[str, Any] = tree.get("cpu_time", {})
    return found


def _gpus(mean: Tree) -> tuple[list[GpuPoint], str | None]:
    metrics = mean.get("gpu_metrics")
    if not metrics:
        return [], NO_METRICS
    points = [
        GpuPoint(uuid=gpu["uuid"], busy_share=gpu["busy_share"], power_w=_power(gpu["figures"]))
        for gpu in metrics["gpus"]
    ]
    return points, None if points else metrics.get("reason") or NO_METRICS


def _power(figures: dict[str, Any]) -> float | None:
    means = [figures[name]["mean"] for name in POWER_FIGURES if name in figures]
    return next((value for value in means if value is not None), None)


def write_scaling(scaling: Scaling, folder: Path) -> bool:
    """Write `scaling.json`; not where it has no number and an earlier one has. Raises `ResultError`."""
    path = folder / SCALING_NAME
    if not _has_numbers(scaling):
        with suppress(OSError, ValidationError):
            if _has_numbers(Scaling.model_validate_json(read_regular(path))):
                return False
    write_text(path, lambda file: print(scaling.model_dump_json(indent=2), file=file))
    return True


def _has_numbers(scaling: Scaling) -> bool:
    return any(point.row.items_per_second is not None for point in scaling.points)


# ---- for people ----


def print_scaling(console: Console, scaling: Scaling) -> None:
    """The table, a row a launch, what is to be said of each, and the knee."""
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


def _known(values: list[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return known if known and len(known) == len(values) else None


def _mean(values: list[float | None]) -> float | None:
    known = _known(values)
    return None if known is None else sum(known) / len(known)


def _sum(values: list[float | None]) -> float | None:
    known = _known(values)
    return None if known is None else sum(known)


SCALING_COLUMNS: dict[str, tuple[int, Callable[[ScalingPoint], str]]] = {
    "items/s": (0, lambda point: _shown(point.row.items_per_second, ".2f")),
    "speedup": (1, lambda point: _shown(point.speedup, ".2f")),
    "efficiency": (4, lambda point: _shown(point.efficiency, ".0%")),
    "slowdown": (7, lambda point: _shown(point.slowdown, ".2f")),
    "p50 ms": (2, lambda point: _shown(point.row.latency_p50_ms, ".3f")),
    "p99 ms": (3, lambda point: _shown(point.row.latency_p99_ms, ".3f")),
    "busy": (5, lambda point: _shown(_mean([gpu.busy_share for gpu in point.row.gpus]), ".0%")),
    "W": (6, lambda point: _shown(_sum([gpu.power_w for gpu in point.row.gpus]), ".0f")),
}
"""Heading -> when it is left out of a narrow terminal, the largest first, and what stands in it."""


def draw_scaling(scaling: Scaling, folder: Path) -> Path:
    """Draw `scaling.png`: throughput with the ideal line, latency, efficiency, GPU busy and power.

    Raises:
        ToolNotFoundError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToolNotFoundError(
            f"{PICTURE_NAME} needs matplotlib, which is not installed; {install_command('plots')}"
        ) from error
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    points = sorted(
        (point for point in scaling.points if point.row.items_per_second is not None),
        key=lambda point: point.row.num_processes,
    )
    _draw_throughput(axes[0][0], points, scaling)
    _draw_lines(
        axes[0][1],
        points,
        "latency of a batch (ms)",
        {"p50": [p.row.latency_p50_ms for p in points], "p99": [p.row.latency_p99_ms for p in points]},
    )
    _draw_lines(axes[1][0], points, "throughput per process, of the first's", {"": [p.efficiency for p in points]})
    _draw_lines(
        axes[1][1], points, "GPU busy", {"busy share": [_mean([g.busy_share for g in p.row.gpus]) for p in points]}
    )
    axes[1][0].set_ylim(bottom=0)
    axes[1][1].set_ylim(0, 1)
    if all(not gpu.busy_share for point in points for gpu in point.row.gpus):
        axes[1][1].text(0.5, 0.5, "not measured", ha="center", transform=axes[1][1].transAxes)
    power = [_sum([gpu.power_w for gpu in point.row.gpus]) for point in points]
    if any(value is not None for value in power):
        second = axes[1][1].twinx()
        _draw_lines(second, points, "power (W)", {"power": power}, color="tab:red")
    figure.suptitle(f"{Path(scaling.script).name}: {scaling.num_gpus} GPU(s), processes per GPU", parse_math=False)
    path = folder / PICTURE_NAME
    figure.savefig(path, dpi=120)
    return path


def _draw_throughput(axes: Any, points: list[ScalingPoint], scaling: Scaling) -> None:
    numbers = [point.row.num_processes for point in points]
    _draw_lines(axes, points, "items/s", {"measured": [point.row.items_per_second for point in points]})
    base = next((point.row for point in points if point.row.num_processes == scaling.base_num_processes), None)
    if base is not None and base.items_per_second is not None:
        per_process = base.items_per_second / base.num_processes
        axes.plot(numbers, [number * per_process for number in numbers], "--", color="grey", label="ideal")
    if scaling.knee.num_processes is not None:
        axes.axvline(scaling.knee.num_processes, color="tab:orange", linewidth=1, label="knee")
    for failed in (point.row for point in scaling.points if point.row.status == "failed"):
        axes.axvline(failed.num_processes, color="tab:red", linestyle=":", label="failed")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def _draw_lines(
    axes: Any,
    points: list[ScalingPoint],
    label: str,
    lines: dict[str, Sequence[float | None]],
    color: str | None = None,
) -> None:
    """Points that were not measured are gaps."""
    numbers = [point.row.num_processes for point in points]
    for name, values in lines.items():
        heights = [float("nan") if value is None else value for value in values]
        axes.plot(numbers, heights, "o-", color=color, label=name or None)
    if len(lines) > 1:
        axes.legend(fontsize="small")
    axes.set_xlabel("processes per GPU")
    axes.set_ylabel(label)
    axes.set_xticks(numbers)
    axes.grid(alpha=0.3)
