"""Findings about the machine: growing memory, lost CPU time, clocks that were not held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfharness.analysis.metrics.clocks import MAX_DROP
from perfharness.analysis.metrics.results import ClockHold, GpuMetrics, HostMetrics, ProcessMetrics, RunMetrics
from perfharness.model.findings import Finding, Severity

MIB = 1 << 20
NSYS_HOLDS = 4.0
"""Upper limit of the memory nsys uses in the process per byte of its trace; 1.7 to 2.6 were measured."""

LOST_SHARE = 0.05
"""Share of the requested CPU time that must be lost for a finding."""


def metric_findings(metrics: RunMetrics, nsys_bytes: Mapping[str, int] | None = None) -> list[Finding]:
    """Findings about a run. `nsys_bytes`: trace sizes of processes under nsys, by folder."""
    found = [finding for gpu in metrics.gpus for finding in _clocks(gpu)]
    for folder, process in metrics.processes.items():
        found += _memory(folder, process, (nsys_bytes or {}).get(folder, 0))
        found += _throttled(folder, process)
    return [*found, *_stolen(metrics.host)]


def _memory(folder: str, process: ProcessMetrics, trace_bytes: int) -> Iterator[Finding]:
    kept = "outputs kept in lists, tensors that hold a graph (no torch.inference_mode), unlimited caches"
    for what, grown in (("GPU memory", process.gpu_memory), ("Resident memory", process.resident_memory)):
        if not grown.grows:
            continue
        seconds = process.window_s or 0.0
        slopes = (grown.bytes_per_s, grown.bytes_per_s_low, grown.bytes_per_s_high)
        slope, low, high = (value or 0.0 for value in slopes)
        each = "" if grown.bytes_per_batch is None else f"{grown.bytes_per_batch / 1e6:.3g} MB per batch "
        per_s = f"{slope / MIB:.2f} MiB/s, {low / MIB:.2f} to {high / MIB:.2f}"
        message = f"{what} grows by {each}({per_s}) over {seconds:.1f} s, and keeps growing in the second half."
        if grown is process.resident_memory and high * seconds <= NSYS_HOLDS * trace_bytes:
            yield Finding(
                "memory-grows-under-nsys",
                Severity.NOTE,
                f"{message} This may be nsys, which keeps its records in the process (trace: {trace_bytes / MIB:.0f} "
                "MiB).",
                "Measure with `--tracer none` to see whether the program's own memory grows.",
                folder,
            )
        else:
            hint = f"Look for objects that batches leave behind: {kept}."
            yield Finding("memory-grows", Severity.WARNING, message, hint, folder)


def _throttled(folder: str, process: ProcessMetrics) -> Iterator[Finding]:
    """An exhausted CPU quota."""
    lost, used = process.totals.get("quota_throttled_s"), process.totals.get("cpu_time_s")
    cpus = process.figures["quota_cpus"].min
    if not lost or not used or cpus is None or lost < LOST_SHARE * (lost + used):
        return
    periods = process.totals.get("quota_throttled_periods") or 0
    yield Finding(
        "cpu-quota-throttled",
        Severity.WARNING,
        f"A quota of {cpus:.3g} CPUs was exhausted: {100 * lost / (lost + used):.0f} % of the needed CPU time had to "
        f"wait for the next period ({lost:.2f} s, {periods:.0f} periods).",
        "Raise the quota (docker --cpus, limits.cpu of Kubernetes), or run fewer threads.",
        folder,
    )


def _stolen(host: HostMetrics) -> Iterator[Finding]:
    """CPU time that the hypervisor gave to other machines."""
    steal, busy = host.figures["steal_percent"].mean, host.figures["cpu_percent"].mean
    if not steal or not busy or steal < LOST_SHARE * busy:
        return
    yield Finding(
        "cpu-shared",
        Severity.WARNING,
        f"The hypervisor gave {100 * steal / busy:.0f} % of the CPU time that this machine needed to other machines.",
        "Measure on a machine with dedicated CPUs; times of two runs here may differ by as much.",
    )


def _clocks(gpu: GpuMetrics) -> Iterator[Finding]:
    where, is_measured = gpu.title, gpu.window == "measured"  # before it gets work, a clock is no reference
    clocks = ((gpu.sm_clock, "SM"), (gpu.memory_clock, "memory"))
    events = [f"{event.reason} for {event.seconds:.2f} s" for event in gpu.clock_events or [] if event.throttles]
    why = "; ".join([*events, *(_low(clock, name) for clock, name in clocks if clock.low_s and is_measured)])
    step = "Cool the GPU, raise its power limit or lock lower clocks."
    if gpu.throttled_batches:
        message = f"{where}: clocks were throttled in {gpu.throttled_batches} of {gpu.batches} batches ({why})"
        yield Finding("clocks-throttled", Severity.WARNING, f"{message}; these are in the statistics.", step)
    elif gpu.processes and why and gpu.throttled_batches is None:
        message = f"{where}: clocks were throttled ({why}), in unknown batches."
        yield Finding("clocks-throttled", Severity.WARNING, message, step)
    elif gpu.processes and why:
        message = f"{where}: clocks were throttled for a while, but only between measured batches."
        yield Finding("clocks-throttled", Severity.NOTE, message)
    for clock, name in clocks:
        if is_measured and clock.drop_percent is not None and clock.drop_percent > 100 * MAX_DROP and gpu.processes:
            yield Finding(
                "clocks-throttled",
                Severity.WARNING,
                f"{where}: the {name} clock fell from {clock.before_mhz:.0f} to {clock.after_mhz:.0f} MHz "
                f"({clock.drop_percent:.1f} %) from the first to the last tenth of the measured window.",
                "Compare the first batches with the last; lock the clocks with `-m`, or warm up the GPU first.",
            )


def _low(clock: ClockHold, name: str) -> str:
    of = "the request" if clock.requested else "its best"
    below = f"{name} clock more than {100 * MAX_DROP:.0f} % below {of}"
    return f"{below} ({clock.reference_mhz:.0f} MHz) for {clock.low_s:.2f} s"
