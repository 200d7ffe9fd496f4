"""What the samplers saw that a reader of the numbers must know: clocks that were not held, memory that grows."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.analysis.metrics.clocks import MAX_DROP
from perfharness.analysis.metrics.memory import MIN_GROWTH_BYTES, MIN_GROWTH_SHARE
from perfharness.analysis.metrics.results import ClockHold, GpuMetrics, Growth, RunMetrics
from perfharness.model.findings import Finding, Severity

MIB = 1 << 20


def metric_findings(metrics: RunMetrics, *, rejected: bool) -> list[Finding]:
    """Findings of a run. `rejected`: throttled batches are already excluded from the statistics."""
    found = [finding for gpu in metrics.gpus for finding in _of_gpu(gpu, rejected)]
    for folder, process in metrics.processes.items():
        for what, grown in (("GPU memory", process.gpu_memory), ("Resident memory", process.resident_memory)):
            if grown.grows:
                found.append(_leak(folder, what, grown, process.window_s or 0.0))
    return found


def _of_gpu(gpu: GpuMetrics, rejected: bool) -> Iterator[Finding]:
    where = f"GPU {gpu.uuid}"
    clocks = ((gpu.sm_clock, "SM"), (gpu.memory_clock, "memory"))
    events = [event for event in gpu.clock_events or [] if event.throttles]
    low = [_low(clock, name) for clock, name in clocks if clock.low_s]
    if gpu.throttled_batches:
        why = "; ".join([*(f"{event.reason} for {event.seconds:.2f} s" for event in events), *low])
        left = "they are excluded from the statistics" if rejected else "they are in the statistics"
        yield Finding(
            "clocks-throttled",
            Severity.WARNING,
            f"{where}: the clocks were not held in {gpu.throttled_batches} batches ({why}); {left}.",
            "Cool the GPU, raise its power limit or lock lower clocks; `--reject-throttled` leaves such batches out.",
        )
    elif gpu.processes and (events or low):
        yield Finding(
            "clocks-throttled-between-batches",
            Severity.NOTE,
            f"{where}: the clocks were not held for a while, and no batch that counts was touched.",
        )
    for clock, name in clocks:
        if clock.drop_percent is not None and clock.drop_percent > 100 * MAX_DROP and gpu.processes:
            yield Finding(
                "clocks-dropped",
                Severity.WARNING,
                f"{where}: the {name} clock fell from {clock.before_mhz:.0f} to {clock.after_mhz:.0f} MHz "
                f"({clock.drop_percent:.1f} %) from the first to the last tenth of the measured window.",
                "Compare the first batches with the last; lock the clocks with `-m`, or let the GPU warm up first.",
            )


def _low(clock: ClockHold, name: str) -> str:
    of = "the request" if clock.requested else "what it ran at before"
    return f"{name} clock more than {MAX_DROP:.0%} below {of} ({clock.reference_mhz:.0f} MHz) for {clock.low_s:.2f} s"


def _leak(folder: str, what: str, grown: Growth, seconds: float) -> Finding:
    slope, low, high = (
        (value or 0) / MIB for value in (grown.bytes_per_s, grown.bytes_per_s_low, grown.bytes_per_s_high)
    )
    return Finding(
        "memory-grows",
        Severity.WARNING,
        f"{what} grows by {slope:.2f} MiB/s ({low:.2f} to {high:.2f}) over the {seconds:.1f} s measured, in the second "
        f"half too, and in all by more than {MIN_GROWTH_SHARE:.0%} and {MIN_GROWTH_BYTES // MIB} MiB.",
        "Look for what batches leave behind: outputs kept in lists, tensors that hold a graph, caches without a limit.",
        folder,
    )
