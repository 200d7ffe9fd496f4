"""GPU counters from nsys's trace, attributed to operations; and the roofline.

A reading is a mean over its period (0.1 ms at 10 kHz) of the whole GPU. An idle GPU counts nothing, so a reading times
its period is the work of the operations in it. Work shared with other operations is split by time, and bounded: at
least the rest if the others ran at the peak, at most all of it. nsys writes whole per cent, which widens these bounds
on a mostly idle GPU. A share with too wide bounds is left out.
"""

from __future__ import annotations

import numpy as np

from perfharness.analysis.diagnosis.gpu.calls import stays_inside
from perfharness.analysis.diagnosis.gpu.workload import StageEvents, Workload, busy_line
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.columns import Float64, Int64
from perfharness.model.diagnosis import GpuCounters, RooflinePoint
from perfharness.model.trace import GpuDevice, GpuMetric, GpuMetrics, GpuOperationKind

MAX_UNCERTAINTY = 0.10
"""Largest half-width of a share's bounds: beyond it, 40 and 60 % cannot be told apart."""

BELOW, ABOVE = 0.5, 1.0
"""Error of a whole per cent: rounding adds up to a half, truncation removes up to one."""

SHARED = 0.05
"""Least share of the operations' time with other work on the GPU that is reported."""

METRICS = {
    "sm_active": (GpuMetric.SM_ACTIVE,),
    "occupancy": (GpuMetric.OCCUPANCY,),
    "tensor": (GpuMetric.TENSOR,),
    "dram": (GpuMetric.DRAM_READ, GpuMetric.DRAM_WRITE),
}
"""Field of `GpuCounters` -> the metrics to add up."""

NOT_SAMPLED = "fp32, fp16 and fp64 pipes, and bytes over PCIe and NVLink: not in nsys's general set of metrics"


def trace_counters(events: StageEvents) -> list[GpuCounters]:
    """Counters per GPU of the stage's kernels, graphs and memsets; without these, of its copies inside a GPU."""
    workload = events.workload
    wanted = events.operation[events.operation_kind != GpuOperationKind.MEMCPY]
    if not len(wanted):
        wanted = events.operation[stays_inside(workload.trace.details, events.operation)]
    return operation_counters(workload, wanted)


def operation_counters(workload: Workload, operation: Int64) -> list[GpuCounters]:
    """Counters per GPU of these operations; empty if the trace has no readings."""
    metrics = workload.trace.gpu_metrics
    if metrics is None:
        return []
    found = []
    for gpu in np.unique(workload.gpus.of[operation]).tolist():
        own = operation[workload.gpus.of[operation] == gpu]
        found.append(_counters(workload, metrics, gpu, own))
    return found


def _counters(workload: Workload, metrics: GpuMetrics, gpu: int, operation: Int64) -> GpuCounters:
    uuid = workload.gpus.facts[gpu].uuid
    if uuid is not None and any(device.uuid is not None for device in metrics.gpus):
        sampled = [position for position, device in enumerate(metrics.gpus) if device.uuid == uuid]
    else:  # without UUIDs, a single GPU is unambiguous
        sampled = [0] if len(metrics.gpus) == 1 and len(workload.gpus) == 1 else []
    if not sampled:
        return GpuCounters(gpu, ["counters of this GPU: only other GPUs were sampled"])
    line = busy_line(workload.trace.operations, operation)
    rows = np.flatnonzero(metrics.gpu == sampled[0])
    first = np.searchsorted(metrics.end_ns[rows], line.start[0], side="right")
    rows = rows[first : np.searchsorted(metrics.start_ns[rows], line.end[-1])]
    rows = rows[line.within(metrics.start_ns[rows], metrics.end_ns[rows]) > 0]
    start, end = metrics.start_ns[rows], metrics.end_ns[rows]
    own = line.within(start, end)
    busy = np.maximum(workload.on((gpu,)).busy.within(start, end), own)
    covered = int(own.sum())
    if not covered:
        return GpuCounters(gpu, ["counters: no reading lies in the time of its GPU work"])
    missing, shares, errors = [NOT_SAMPLED], dict[str, float](), dict[str, float]()
    for name, parts in METRICS.items():
        percent = [metrics.percent[part][rows].astype(np.float64) for part in parts if part in metrics.percent]
        share = _share(np.stack(percent), end - start, own, busy) if len(percent) == len(parts) else None
        if share is None:
            missing.append(f"{name}: not a counter of this GPU or of this nsys")
            continue
        mean, low, high = share
        if (high - low) / 2 > MAX_UNCERTAINTY:
            missing.append(
                f"{name}: between {100 * low:.0f} and {100 * high:.0f} %; its work fills too little of the readings' "
                "periods"
            )
            continue
        shares[name], errors[name] = mean, (high - low) / 2
    clock_mhz = None
    if metrics.clock_mhz is not None:
        read = metrics.clock_mhz[rows]
        weight = np.where(read > 0, own, 0)  # a clock of 0 is missing
        clock_mhz = float((weight * read).sum()) / float(weight.sum()) if weight.any() else None
    return GpuCounters(
        gpu=gpu,
        missing=[*missing, *_sharing(workload, gpu, operation, line)],
        seconds=covered / 1e9,
        **shares,
        errors=errors,
        uncertainty=max(errors.values(), default=None),
        sm_clock_mhz=clock_mhz,
    )


def _share(read: Float64, length: Int64, own: Int64, busy: Int64) -> tuple[float, float, float] | None:
    """Mean of a counter over the operations' time (0 to 1), and its lower and upper bound.

    Args:
        read: per cent by part of the counter and period.
        length: of the periods; `own` is the time the operations ran in each, `busy` the time anything ran.
    """
    known = (read >= 0).all(axis=0)
    own, busy, length = own[known], busy[known], length[known]
    total = float(own.sum())
    if not total:
        return None
    percent = read[:, known].sum(axis=0)
    done = np.minimum(percent * length / 100, busy)
    least = np.minimum(np.maximum(percent - BELOW * len(read), 0) * length / 100, busy)
    most = np.minimum((percent + ABOVE * len(read)) * length / 100, own)  # `own` is at most `busy`
    low = np.maximum(least - (busy - own), 0)
    return float((done * own / busy).sum()) / total, float(low.sum()) / total, float(most.sum()) / total


def _sharing(workload: Workload, gpu: int, operation: Int64, line: BusyLine) -> list[str]:
    """Note about other work on the GPU during the operations, which the readings include."""
    is_other = workload.gpus.of == gpu
    is_other[operation] = False
    if not is_other.any():
        return []
    together = int(busy_line(workload.trace.operations, is_other).within(line.start, line.end).sum())
    if together < SHARED * line.length:
        return []
    return [f"its work alone: other work ran on the GPU during {100 * together / line.length:.0f} % of it"]


FLOPS_PER_CLOCK = {
    (7, 0): 1024,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1024,
    (8, 9): 1024,
    (9, 0): 4096,
    (10, 0): 8192,
}
"""Operations per clock of a multiprocessor's tensor cores, by compute capability: 16-bit types, no sparsity, a
multiply-add counts as two. NVIDIA's white papers: 132 multiprocessors at 1.83 GHz times 4096 give an H100 SXM's 989.4
TFLOP/s."""


def roofline_point(counters: GpuCounters, device: GpuDevice) -> RooflinePoint | None:
    """Achieved operations and bytes per second against the GPU's ceilings; None if a peak or a counter is missing.
    Tensor operations count as 16-bit multiply-adds, so the rate is an upper bound.
    """
    clock_hz = device.clock_hz if counters.sm_clock_mhz is None else counters.sm_clock_mhz * 1e6
    rate = FLOPS_PER_CLOCK.get(device.compute_capability or (0, 0))
    if counters.tensor is None or counters.dram is None or rate is None:
        return None
    if device.sm_count is None or clock_hz is None or device.memory_bytes_per_s is None:
        return None
    peak = float(device.sm_count * clock_hz * rate)
    bytes_per_s = counters.dram * device.memory_bytes_per_s
    intensity = counters.tensor * peak / bytes_per_s if bytes_per_s else None
    return RooflinePoint(
        gpu=counters.gpu,
        tensor_share=counters.tensor,
        flop_per_s=counters.tensor * peak,
        peak_flop_per_s=peak,
        bytes_per_s=bytes_per_s,
        peak_bytes_per_s=float(device.memory_bytes_per_s),
        flop_per_byte=intensity,
        ceiling_flop_per_s=min(peak, intensity * device.memory_bytes_per_s) if intensity else peak,
    )
