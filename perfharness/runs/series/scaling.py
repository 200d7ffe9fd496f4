"""The scaling curve (`scaling.json`): each number of processes per GPU against the smallest one, and where it bends.

Validated models, for the file is read back.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pydantic import Field

from perfharness.model.base import Record
from perfharness.runs.series.file import SeriesFile, SeriesRow

SCALING_NAME = "scaling.json"

MARGINAL_EFFICIENCY = 0.5
"""Below this a further process brings less than half of what the first one brought, and costs a whole one's memory.
At 1 processes scale ideally, at 0 nothing is gained; half is where one costs more than it brings."""

METHOD = "first point after which a further one brings less than half of what the first one brought"


class GpuPoint(Record):
    """One GPU during one launch of the sweep, over its measured window."""

    uuid: str
    busy_share: float | None
    """Part of the window in which work of this launch ran on it."""

    power_w: float | None
    """Mean."""


class ScalingRow(SeriesRow):
    """One launch of the sweep."""

    num_processes: int
    """Per GPU."""

    num_processes_total: int | None = None
    items_per_second: float | None = None
    window_ms: float | None = None
    mean_processes_inside_a_batch: float | None = None
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    """Of a batch on the host, pooled over the processes."""

    gpus: list[GpuPoint] = Field(default_factory=list)
    gpus_reason: str | None = None
    """Why there is nothing about the GPUs."""

    findings: list[str] = Field(default_factory=list)
    """Codes of the warnings and errors of its run."""


class ScalingPoint(Record):
    """A row, and what it is against the smallest number of processes that was measured."""

    row: ScalingRow
    speedup: float | None
    efficiency: float | None
    """Throughput per process against that of the base; 1 is ideal."""

    slowdown: float | None
    """How many times fewer items a process finishes in the same time."""

    latency_ratio: float | None
    """Median latency of a batch against that of the base."""


class Knee(Record):
    """Where a further process stops being worth it."""

    num_processes: int | None
    """None: not in the range, or not known."""

    method: str
    threshold: float
    reason: str


class Scaling(SeriesFile):
    """The file."""

    num_gpus: int
    warmup_batches: int
    loop: str | None = None
    """The loop of batches that latency and throughput are about."""

    base_num_processes: int | None
    """What the others are compared with."""

    points: list[ScalingPoint]
    knee: Knee


def scaling_points(rows: Sequence[ScalingRow]) -> list[ScalingPoint]:
    """Each row with its throughput against the smallest number of processes that was measured.

    `speedup` is throughput by throughput, `slowdown` what one process got then by what one gets now, `efficiency` its
    inverse. All None where either was not measured.
    """
    base = next((row for row in sorted(rows, key=_processes) if row.items_per_second), None)
    return [_point(row, base) for row in rows]


def _processes(row: ScalingRow) -> int:
    return row.num_processes


def _point(row: ScalingRow, base: ScalingRow | None) -> ScalingPoint:
    if base is None or not base.items_per_second or not row.items_per_second:
        return ScalingPoint(row=row, speedup=None, efficiency=None, slowdown=None, latency_ratio=None)
    speedup = row.items_per_second / base.items_per_second
    efficiency = speedup * base.num_processes / row.num_processes
    latency = row.latency_p50_ms / base.latency_p50_ms if row.latency_p50_ms and base.latency_p50_ms else None
    return ScalingPoint(row=row, speedup=speedup, efficiency=efficiency, slowdown=1 / efficiency, latency_ratio=latency)


def ideal_items_per_second(scaling: Scaling) -> list[float | None]:
    """What each number of processes would give, in growing order, if every process had what one of the base had."""
    numbers = sorted(point.row.num_processes for point in scaling.points)
    base = next((point.row for point in scaling.points if point.row.num_processes == scaling.base_num_processes), None)
    if base is None or base.items_per_second is None:
        return [None] * len(numbers)
    return [number * base.items_per_second / base.num_processes for number in numbers]


def busy_share(row: ScalingRow) -> float | None:
    """Mean over the GPUs; None where one was not measured, or there is none."""
    shares = [gpu.busy_share for gpu in row.gpus if gpu.busy_share is not None]
    return sum(shares) / len(shares) if shares and len(shares) == len(row.gpus) else None


def total_power_w(row: ScalingRow) -> float | None:
    """Sum over the GPUs; None where one was not measured, or there is none."""
    powers = [gpu.power_w for gpu in row.gpus if gpu.power_w is not None]
    return sum(powers) if powers and len(powers) == len(row.gpus) else None


def find_knee(points: Sequence[ScalingPoint]) -> Knee:
    """Where a further process stops being worth it, by marginal efficiency.

    Of two neighbouring points that were measured: (T₂ - T₁) / (n₂ - n₁), in units of the base's throughput per process.
    The knee is the first point whose next step is below `MARGINAL_EFFICIENCY`. With the few points of a sweep this is
    steadier than methods of curvature (Kneedle: Satopää et al., 2011), which find a knee in a straight line with noise.
    """
    known = sorted((point for point in points if point.speedup is not None), key=lambda point: point.row.num_processes)
    if len(known) < 2:
        return _knee(None, f"{len(known)} points were measured, and it takes two")
    base = known[0].row
    per_process = (base.items_per_second or 0) / base.num_processes
    for here, further in itertools.pairwise(known):
        added = further.row.num_processes - here.row.num_processes
        before, after = here.row.items_per_second or 0.0, further.row.items_per_second or 0.0
        if after < before:
            counts = here.row.num_processes, further.row.num_processes
            return _knee(counts[0], f"{counts[1]} processes are slower than {counts[0]}, {after / before:.2f} times")
        gain = after - before
        marginal = gain / added / per_process
        if marginal < MARGINAL_EFFICIENCY:
            return _knee(
                here.row.num_processes,
                f"from {here.row.num_processes} to {further.row.num_processes} processes, each further one brought"
                f" {marginal:.2f} of what the first brought",
            )
    last = known[-1].row.num_processes
    return _knee(None, f"up to {last} processes, the most that were tried, each is worth it")


def _knee(num_processes: int | None, reason: str) -> Knee:
    return Knee(num_processes=num_processes, method=METHOD, threshold=MARGINAL_EFFICIENCY, reason=reason)
