"""The scaling curve as a picture: throughput with the ideal line, latency, efficiency, GPU busy and power."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfharness.errors import ToolNotFoundError
from perfharness.model.distribution import install_command
from perfharness.model.scaling import Scaling, ScalingPoint
from perfharness.render.series import mean_of, sum_of

PICTURE_NAME = "scaling.png"


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
        axes[1][1], points, "GPU busy", {"busy share": [mean_of([g.busy_share for g in p.row.gpus]) for p in points]}
    )
    axes[1][0].set_ylim(bottom=0)
    axes[1][1].set_ylim(0, 1)
    if all(not gpu.busy_share for point in points for gpu in point.row.gpus):
        axes[1][1].text(0.5, 0.5, "not measured", ha="center", transform=axes[1][1].transAxes)
    power = [sum_of([gpu.power_w for gpu in point.row.gpus]) for point in points]
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
