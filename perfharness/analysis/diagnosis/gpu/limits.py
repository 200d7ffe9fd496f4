"""Find what limits the GPU's own work: arithmetic, memory, latency, or too little work to fill the GPU.

Counters decide if there are any. Without them the evidence is shapes (grids against multiprocessors), bytes and times
of memsets and copies inside the GPU, and names of kernels. Each answer names its evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np

from perfharness.analysis.diagnosis.gpu.calls import stays_inside
from perfharness.analysis.diagnosis.gpu.counters import roofline_point
from perfharness.analysis.diagnosis.gpu.kernels import KINDS_OF_KERNELS
from perfharness.analysis.diagnosis.gpu.workload import StageEvents, Workload
from perfharness.analysis.timeline.grouping import sum_by_code
from perfharness.model.columns import Int64
from perfharness.model.diagnosis import GpuCounters, GpuLimit, GpuLimits, KernelKind
from perfharness.model.trace import GpuOperationKind
from perfharness.model.units import NS_PER_MS

Basis = Literal["counters", "shape", "bandwidth", "names"]

LIMIT_SHARE = 0.60
"""Share of the work's time above which all other work together cannot speed it up by more than 1.7."""
FILL_SHARE = 0.50
"""Share of multiprocessors: a grid with fewer blocks leaves at least half of the GPU idle."""
PEAK_SHARE = 0.60
"""Share of the memory's bandwidth. Nsight Compute takes less than 60 % of every peak as a sign of latency."""
SHORT_NS = 5_000
"""The smallest kernels of an H200 take 0.9 to 1.3 us (tests/golden/traces), so in a shorter kernel than this, start and
end take a fifth of the time or more."""
REPORTED_SHARE = 0.25
"""Least share of the work's time that is reported."""

MISSING_COUNTERS = (
    "whether its kernels are bound by arithmetic or by memory: no counters (use nsys with --gpu-metrics-devices, or "
    "Nsight Compute)"
)
MISSING_PIPES = "whether its kernels are bound by arithmetic: nsys counts tensor cores, but no other pipe"
MISSING_GRAPHS = "the kernels inside CUDA graphs: traced as a whole (nsys --cuda-graph-trace=node splits them)"
MISSING_SHAPES = "whether its kernels fill the GPU: the trace lacks grids or GPU properties"


@dataclass(frozen=True)
class _Parts:
    """Parts of the work's time, ns; `near_peak` covers copies and memsets, `tail` kernels."""

    work: float
    underfilled: float
    short: float
    near_peak: float
    by_name: dict[KernelKind, float]
    tail: float

    @property
    def products(self) -> float:
        return sum(self.by_name[kind] for kind in (KernelKind.TENSOR_CORE, KernelKind.FP32, KernelKind.MATRIX))


def gpu_limits(events: StageEvents, counters: Sequence[GpuCounters] = ()) -> GpuLimits:
    """Find what limits the stage's own GPU work; times per batch. `counters`: of its kernels, per GPU."""
    workload, ms = events.workload, events.per_batch / NS_PER_MS
    operations, groups, kernels = workload.trace.operations, workload.kernels, events.kernels
    others = np.compress(events.operation_kind != GpuOperationKind.KERNEL, events.operation)
    others = others[(operations.kind[others] != GpuOperationKind.MEMCPY) | stays_inside(workload.trace.details, others)]
    other_kind, other_ns = operations.kind[others], operations.end_ns[others] - operations.start_ns[others]
    # Shapes and names belong to groups, so most arrays below have one value per group.
    time, group, whole = kernels.length_ns, kernels.group, kernels.time_by_group
    overlapped = workload.overlapped_ns[kernels.operation]
    overlapped_by_group, is_short = sum_by_code(group, overlapped, len(groups)), time < SHORT_NS
    shorts = sum_by_code(group[is_short], time[is_short], len(groups))
    there, is_exchange = whole > 0, groups.kind == KINDS_OF_KERNELS.index(KernelKind.COMMUNICATION)
    is_small = (groups.fill <= FILL_SHARE) & ~is_exchange  # exchanges use few blocks on purpose
    alone = np.where(is_small, whole - overlapped_by_group, 0.0)
    short = np.where(is_small, sum_by_code(group[is_short], overlapped[is_short], len(groups)), shorts)
    named = sum_by_code(groups.kind, whole - alone - short, len(KINDS_OF_KERNELS))
    by_name = {each: float(named[position]) for position, each in enumerate(KINDS_OF_KERNELS)}
    fill, waves = groups.fill[there], groups.waves[there]
    last_wave = np.where(waves > 1, whole[there] * (1 - waves / np.ceil(waves)), 0.0)
    moved, moving, near_peak = _moved(workload, others)
    peaks = {device.memory_bytes_per_s for device in workload.gpus.facts}
    peak = peaks.pop() if len(peaks) == 1 else None
    graphs = float(other_ns[other_kind == GpuOperationKind.GRAPH].sum())
    work = float(time.sum() + other_ns.sum())
    parts = _Parts(work, float(alone.sum()), float(short.sum()), near_peak or 0.0, by_name, float(last_wave.sum()))
    counted = [each for each in counters if each.seconds]
    shares: dict[str, float] = {}
    for name in COUNTED if counted else ():  # mean over its GPUs, weighted by kernel time
        values = [getattr(each, name) for each in counted]
        if None not in values:
            shares[name] = float(np.average(values, weights=[each.seconds for each in counted]))
    limit, basis = _judge(parts, shares)
    shapes_known = not np.isnan(fill).any()
    return GpuLimits(
        limit=limit,
        basis=basis,
        work_ms=parts.work * ms,
        by_name_ms={each.value: value * ms for each, value in by_name.items()},
        underfilled_ms=parts.underfilled * ms if shapes_known else None,
        short_ms=parts.short * ms,
        tail_ms=parts.tail * ms if not np.isnan(waves).any() else None,
        moved_gb_per_s=moved / moving if moving else None,
        moved_peak_share=moved / moving * 1e9 / peak if moving and peak else None,
        at_peak_ms=None if near_peak is None else near_peak * ms,
        evidence=_evidence(parts, shares, moved / moving if moving else 0.0, with_names=basis != "counters"),
        missing=_missing(
            limit, basis, is_counted=bool(counted), shapes_known=shapes_known, graphs=graphs / (parts.work or 1)
        ),
        roofline=[
            point for each in counted if (point := roofline_point(each, workload.gpus.facts[each.gpu])) is not None
        ],
    )


def _moved(workload: Workload, at: Int64) -> tuple[float, float, float | None]:
    """Bytes read and written by memsets and copies inside the GPU, their time, and the part of it near the peak."""
    operations, details = workload.trace.operations, workload.trace.details
    at = at[(operations.kind[at] != GpuOperationKind.GRAPH) & (details.bytes[at] >= 0)]
    duration = np.maximum(operations.end_ns[at] - operations.start_ns[at], 1).astype(np.float64)
    traffic = details.bytes[at] * np.where(operations.kind[at] == GpuOperationKind.MEMCPY, 2.0, 1.0)
    peaks = [device.memory_bytes_per_s for device in workload.gpus.facts]
    peak = np.asarray([np.nan if each is None else each for each in peaks], dtype=np.float64)[workload.gpus.of[at]]
    near = traffic / duration * 1e9 >= PEAK_SHARE * peak
    known = not np.isnan(peak).any()
    return (
        float(traffic.sum()),
        float(duration.sum()) if len(at) else 0.0,
        float(duration[near].sum()) if known else None,
    )


COUNTED = {
    "tensor": "tensor cores",
    "dram": "memory",
    "sm_active": "multiprocessors with work",
    "occupancy": "warps",
}
"""Field of `GpuCounters` -> name in messages."""


def _judge(parts: _Parts, shares: Mapping[str, float]) -> tuple[GpuLimit, Basis | None]:
    """Apply the first rule that holds, strongest evidence first.

    Communication comes first because pipes, memory and multiprocessors show nothing about an exchange.
    """
    enough = LIMIT_SHARE * parts.work or inf
    tensor, dram, sm_active = (shares.get(name) for name in ("tensor", "dram", "sm_active"))
    rules: tuple[tuple[bool, GpuLimit, Basis], ...] = (
        (parts.by_name[KernelKind.COMMUNICATION] >= enough, GpuLimit.COMMUNICATION, "names"),
        (dram is not None and dram >= max(PEAK_SHARE, tensor or 0.0), GpuLimit.MEMORY, "counters"),
        (tensor is not None and tensor >= PEAK_SHARE, GpuLimit.COMPUTE, "counters"),
        (sm_active is not None and sm_active <= FILL_SHARE, GpuLimit.UNDERFILLED, "counters"),
        (parts.underfilled >= enough, GpuLimit.UNDERFILLED, "shape"),
        (parts.near_peak >= enough, GpuLimit.MEMORY, "bandwidth"),
        (parts.near_peak + parts.by_name[KernelKind.MEMORY] >= enough, GpuLimit.MEMORY, "names"),
        (parts.products >= enough, GpuLimit.COMPUTE, "names"),
    )
    return next(((limit, basis) for holds, limit, basis in rules if holds), (GpuLimit.CANNOT_TELL, None))


def _evidence(parts: _Parts, shares: Mapping[str, float], moved_gb_per_s: float, *, with_names: bool) -> list[str]:
    counted = [f"{COUNTED[name]} {100 * share:.0f} %" for name, share in shares.items()]
    by_name = parts.by_name if with_names else dict.fromkeys(parts.by_name, 0.0)
    products = parts.products if with_names else 0.0
    sentences = (
        (
            parts.underfilled,
            "are kernels with blocks for at most half of the multiprocessors, while no other kernel runs",
        ),
        (parts.short, f"are kernels shorter than {SHORT_NS / 1e3:.0f} us, mostly start and end"),
        (parts.near_peak, f"are copies inside the GPU and memsets near its memory's speed ({moved_gb_per_s:.0f} GB/s)"),
        (by_name[KernelKind.MEMORY], "are kernels that, by their names, move data more than they compute"),
        (products, "are kernels that, by their names, multiply matrices or convolve"),
        (by_name[KernelKind.TENSOR_CORE], "are kernels that, by their names, use tensor cores"),
        (by_name[KernelKind.FP32], "are FP32 products that, by their names, do not use tensor cores"),
        (by_name[KernelKind.COMMUNICATION], "are kernels that, by their names, exchange data with other GPUs"),
        (parts.tail, "(about) is last waves, which fill only part of the GPU"),
    )
    shown = [
        f"{100 * part / parts.work:.0f} % of its GPU time {what}."
        for part, what in sentences
        if part and part >= REPORTED_SHARE * parts.work
    ]
    return [f"Counters while its kernels ran, of the peak: {', '.join(counted)}.", *shown] if counted else shown


def _missing(limit: GpuLimit, basis: Basis | None, *, is_counted: bool, shapes_known: bool, graphs: float) -> list[str]:
    missing: list[str] = []
    if limit is GpuLimit.COMMUNICATION:
        return missing
    if limit is GpuLimit.CANNOT_TELL and graphs > 1 - LIMIT_SHARE:
        missing.append(MISSING_GRAPHS)
    if basis == "names" or limit is GpuLimit.CANNOT_TELL:
        missing.append(MISSING_PIPES if is_counted else MISSING_COUNTERS)
    if not shapes_known:
        missing.append(MISSING_SHAPES)
    return missing
