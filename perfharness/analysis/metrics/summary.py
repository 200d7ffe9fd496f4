"""All that the samplers saw over the measured window, `gpu_metrics` of benchmark_mean.json, and findings about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfharness.analysis.energy.work import MeasuredProcess, no_window, union_window
from perfharness.analysis.metrics.clocks import (
    LOW_CLOCK,
    LOW_MEMORY_CLOCK,
    MAX_DROP,
    Throttling,
    clock_events,
    clock_hold,
    find_throttling,
    of_any,
)
from perfharness.analysis.metrics.figures import Window, counter_total, window_figures
from perfharness.analysis.metrics.memory import MIN_GROWTH_BYTES, MIN_GROWTH_SHARE, batch_peak, growth, kernel_peak
from perfharness.analysis.metrics.results import (
    ClockHold,
    GpuMetrics,
    Growth,
    HostMetrics,
    ProcessMetrics,
    RunMetrics,
    WindowKind,
)
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.findings import Finding, Severity
from perfharness.model.telemetry import (
    GPM_RATES,
    GPM_SHARES,
    HOST,
    SINCE_LAST_READING,
    SampleLog,
    Series,
    SubjectRecord,
    process_subject,
)

Scaled = Mapping[str, tuple[str, float]]


def _same(*names: str) -> Scaled:
    return {name: (name, 1.0) for name in names}


GPU_FIGURES: Scaled = {
    **{f"power_{kind}_w": (f"power_{kind}_mw", 1e-3) for kind in ("instant", "average", "sample", "limit")},
    **_same(
        "gpu_utilization_percent", "memory_utilization_percent", "memory_used_bytes", "sm_clock_mhz",
        "memory_clock_mhz", "temperature_c", "pcie_rx_kb_per_s", "pcie_tx_kb_per_s", "pstate", *GPM_SHARES, *GPM_RATES,
    ),
}  # fmt: skip
GPU_TOTALS: Scaled = {"nvlink_rx_bytes": ("nvlink_rx_kib", 1024.0), "nvlink_tx_bytes": ("nvlink_tx_kib", 1024.0)}
PROCESS_FIGURES: Scaled = {
    **_same("cpu_percent"),
    "resident_memory_bytes": ("rss_bytes", 1.0),
    "gpu_memory_bytes": ("process_memory_bytes", 1.0),
    **_same("threads", "quota_cpus"),
}
PROCESS_TOTALS: Scaled = {
    "cpu_time_s": ("cpu_time_ns", 1e-9),
    "quota_throttled_s": ("quota_throttled_ns", 1e-9),
    **_same("quota_throttled_periods"),
    **_same("context_switches", "involuntary_context_switches", "read_bytes", "write_bytes"),
}
HOST_FIGURES = _same("cpu_percent", "steal_percent", "io_wait_percent", "memory_used_bytes")
HOST_TOTALS = _same("context_switches", "read_bytes", "write_bytes")
"""Name in the results -> metric of telemetry.parquet, and what it is multiplied by."""


@dataclass(frozen=True)
class RequestedClocks:
    """What a GPU's clocks were locked to, MHz; None: not locked, or not known."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None


def throttling_of(log: SampleLog, uuid: str, requested: RequestedClocks, work: Window | None) -> Throttling:
    """When the clocks of a GPU (the whole GPU, of a MIG instance) were lowered."""
    return find_throttling(
        log.get(uuid, "clock_event_reasons"),
        log.get(uuid, "sm_clock_mhz"),
        log.get(uuid, "memory_clock_mhz"),
        (requested.sm_mhz, requested.memory_mhz),
        work,
    )


def summarise_metrics(
    log: SampleLog,
    processes: Sequence[MeasuredProcess],
    throttling: Mapping[str, Throttling],
    requested: Mapping[str, RequestedClocks],
) -> RunMetrics:
    """Figures of GPUs, processes and host.

    Args:
        log: of the run.
        processes: of the run, those without batches too.
        throttling: of each GPU, by UUID.
        requested: clocks that GPUs were locked to, by UUID.
    """
    lifetime = union_window([process.lifetime for process in processes])
    gpus = [
        _gpu(log, record, processes, throttling.get(record.subject), requested.get(record.subject), lifetime)
        for record in log.meta.subjects
        if record.kind in ("gpu", "mig")
    ]
    host = _Observed(log, HOST, processes)
    return RunMetrics(
        gpus=gpus,
        processes={process.folder: _process(log, process, throttling) for process in processes},
        host=HostMetrics(**host.over_window(HOST_FIGURES, HOST_TOTALS), reason=host.reason),
        period_ms=log.meta.period_ns / 1e6,
        reason=host.reason,
    )


class _Observed:
    """One subject of a log over the measured window of some processes, or where there is none, while they ran."""

    def __init__(self, log: SampleLog, subject: str, processes: Sequence[MeasuredProcess]) -> None:
        self._log = log
        self._subject = subject
        self.window: Window | None = union_window([process.window for process in processes])
        self.kind: WindowKind | None = "measured"
        self.reason: str | None = None
        if self.window is None:
            self.window = union_window([process.lifetime for process in processes])
            self.kind = None if self.window is None else "run"
            self.reason = no_window(list(processes))

    def series(self, metric: str) -> Series | None:
        """Readings of a metric."""
        return self._log.get(self._subject, metric)

    def over_window(self, figures: Scaled, totals: Scaled) -> dict[str, Any]:
        """The window, its figures and its totals, as all results have them."""
        meta = self._log.meta
        failures = {one.metric: one.reason for one in reversed(meta.failures) if one.subject == self._subject}
        return {
            "window": self.kind,
            "window_s": None if self.window is None else (self.window[1] - self.window[0]) / 1e9,
            "figures": {
                name: window_figures(
                    self.series(metric),
                    self.window,
                    scale=scale,
                    period_ns=meta.update_period_ns(self._subject, metric),
                    since_last=metric in SINCE_LAST_READING,
                    reason=failures.get(metric),
                )
                for name, (metric, scale) in figures.items()
            },
            "totals": {
                name: counter_total(self.series(metric), self.window, scale) for name, (metric, scale) in totals.items()
            },
        }


def _gpu(
    log: SampleLog,
    record: SubjectRecord,
    processes: Sequence[MeasuredProcess],
    throttling: Throttling | None,
    requested: RequestedClocks | None,
    lifetime: Window | None,
) -> GpuMetrics:
    """A GPU over the window of the processes on it; a GPU without any, over that of the whole run."""
    uuid, is_mig = record.subject, record.kind == "mig"
    mine = [one for process in processes if (one := process.on(uuid)) is not None]
    seen = _Observed(log, uuid, mine or processes)
    throttling, requested = throttling or Throttling(), requested or RequestedClocks()
    sm_clock, memory_clock = seen.series("sm_clock_mhz"), seen.series("memory_clock_mhz")
    counts = [throttled_batches(process, throttling) for process in mine]
    known = [count for count in counts if count is not None]
    touched = not is_mig and throttling_known(log, uuid) and len(known) == len(counts)
    reason = seen.reason
    if is_mig:
        reason = reason or f"power, clocks, temperature and energy are those of its GPU, {record.parent_uuid}"
    return GpuMetrics(
        uuid=uuid,
        name=record.name,
        gpu_index=record.gpu_index,
        mig_uuids=sorted({gpu.uuid for process in mine for gpu in process.gpus if gpu.uuid != uuid}),
        processes=[process.folder for process in mine],
        **seen.over_window(GPU_FIGURES, GPU_TOTALS),
        busy_share=_busy_share(mine, seen.window),
        clock_events=clock_events(seen.series("clock_event_reasons"), seen.window),
        sm_clock=clock_hold(sm_clock, seen.window, throttling, LOW_CLOCK, requested.sm_mhz, lifetime),
        memory_clock=clock_hold(
            memory_clock, seen.window, throttling, LOW_MEMORY_CLOCK, requested.memory_mhz, lifetime
        ),
        throttled_batches=sum(known) if touched else None,
        reason=reason,
        batches=sum(int((~one.batches.warmup).sum()) for one in mine),
    )


def throttling_known(log: SampleLog, uuid: str) -> bool:
    """Whether the GPU reports anything that shows throttling."""
    seen = (log.get(uuid, metric) for metric in ("clock_event_reasons", "sm_clock_mhz"))
    return any(series is not None and bool(series.is_read.any()) for series in seen)


def throttled_batches(process: MeasuredProcess, throttling: Throttling) -> int | None:
    """How many of the batches that are not warm-up were touched; None where the trace has no UTC time."""
    if process.reason is not None:
        return None
    batches = process.batches
    touched = throttling.touched(batches.start_ns, batches.end_ns)
    any_reason = np.logical_or.reduce([*touched.values(), np.zeros(len(batches.warmup), dtype=np.bool_)])
    return int((any_reason & ~batches.warmup).sum())


def _busy_share(processes: Sequence[MeasuredProcess], window: Window | None) -> float | None:
    """Part of the window with traced GPU work; None where some of it is not known."""
    if window is None or not processes or any(process.work.reason for process in processes):
        return None
    spans = [process.work.all_busy() for process in processes]
    line = BusyLine(np.concatenate([start for start, _ in spans]), np.concatenate([end for _, end in spans]))
    busy = int(line.within(np.asarray([window[0]]), np.asarray([window[1]]))[0])
    return round(busy / (window[1] - window[0]), 6)


def _process(log: SampleLog, process: MeasuredProcess, throttling: Mapping[str, Throttling]) -> ProcessMetrics:
    seen, batches = _Observed(log, process_subject(process.folder), [process]), process.batches
    kept = ~batches.warmup & (seen.kind == "measured")
    start, end = batches.start_ns[kept], batches.end_ns[kept]
    gpu_memory, resident = seen.series("process_memory_bytes"), seen.series("rss_bytes")
    resident_memory = growth(resident, seen.window, is_measured=seen.kind == "measured")
    peaks = (resident_memory.peak_bytes, kernel_peak(seen.series("peak_rss_bytes")), process.max_rss_bytes)
    sensors = list(dict.fromkeys(gpu.sensor_uuid for gpu in process.gpus))
    mine = [throttling[uuid] for uuid in sensors if uuid in throttling and throttling_known(log, uuid)]
    uuids = [gpu.uuid for gpu in process.gpus]
    return ProcessMetrics(
        gpu_uuid=uuids[0] if len(uuids) == 1 else None,
        gpu_uuids=uuids,
        **seen.over_window(PROCESS_FIGURES, PROCESS_TOTALS),
        gpu_memory=growth(gpu_memory, seen.window, is_measured=seen.kind == "measured"),
        gpu_memory_per_batch=batch_peak(gpu_memory, start, end),
        resident_memory=replace(
            resident_memory, peak_bytes=max((peak for peak in peaks if peak is not None), default=None)
        ),
        resident_memory_per_batch=batch_peak(resident, start, end),
        throttled_batches=throttled_batches(process, of_any(mine)) if mine and len(mine) == len(sensors) else None,
        reason=seen.reason,
    )


MIB = 1 << 20


NSYS_HOLDS = 4.0
"""Bytes that nsys holds in the process until it ends, at most, for each byte of the trace: 1.7 to 2.6 were seen."""


def metric_findings(metrics: RunMetrics, nsys_bytes: Mapping[str, int] | None = None) -> list[Finding]:
    """Findings of a run.

    Args:
        nsys_bytes: sizes of the traces of processes that ran under nsys, by folder.
    """
    found = [finding for gpu in metrics.gpus for finding in _of_gpu(gpu)]
    for folder, process in metrics.processes.items():
        for what, grown in (("GPU memory", process.gpu_memory), ("Resident memory", process.resident_memory)):
            held = 0 if grown is process.gpu_memory else (nsys_bytes or {}).get(folder, 0)
            if grown.grows:
                found.append(_leak(folder, what, grown, process.window_s or 0.0, held))
        found.extend(_throttled(folder, process))
    found.extend(_stolen(metrics.host))
    return found


LOST_SHARE = 0.05
"""Of the CPU time that was wanted: with less, times hardly differ from those of a machine that gives all of it."""


def _throttled(folder: str, process: ProcessMetrics) -> Iterator[Finding]:
    """A CPU quota that was used up."""
    lost, used = process.totals.get("quota_throttled_s"), process.totals.get("cpu_time_s")
    cpus = process.figures["quota_cpus"].min
    if not lost or not used or cpus is None or lost < LOST_SHARE * (lost + used):
        return
    yield Finding(
        "cpu-quota-throttled",
        Severity.WARNING,
        f"A quota of {cpus:.3g} CPUs was used up: of the CPU time that was wanted, {lost / (lost + used):.0%} had to "
        f"wait for the next period ({lost:.2f} s, {process.totals.get('quota_throttled_periods') or 0:.0f} periods).",
        "Raise the quota (docker --cpus, limits.cpu of Kubernetes), or run fewer threads.",
        folder,
    )


def _stolen(host: HostMetrics) -> Iterator[Finding]:
    """CPU time that a hypervisor gave to other machines."""
    steal, busy = host.figures["steal_percent"].mean, host.figures["cpu_percent"].mean
    if not steal or not busy or steal < LOST_SHARE * busy:
        return
    yield Finding(
        "cpu-stolen",
        Severity.WARNING,
        f"The hypervisor gave {steal / busy:.0%} of the CPU time that this machine wanted to other machines.",
        "Measure on a machine that has its CPUs to itself; times of two runs here may differ by as much.",
    )


def _of_gpu(gpu: GpuMetrics) -> Iterator[Finding]:
    where = f"GPU {gpu.uuid}"
    clocks = ((gpu.sm_clock, "SM"), (gpu.memory_clock, "memory"))
    events = [event for event in gpu.clock_events or [] if event.throttles]
    is_measured = gpu.window == "measured"  # else the clock of a GPU that has yet to get work is no reference
    low = [_low(clock, name) for clock, name in clocks if clock.low_s and is_measured]
    why = "; ".join([*(f"{event.reason} for {event.seconds:.2f} s" for event in events), *low])
    if gpu.throttled_batches:
        yield Finding(
            "clocks-throttled",
            Severity.WARNING,
            f"{where}: the clocks were not held in {gpu.throttled_batches} of {gpu.batches} batches ({why}); "
            "they are in the statistics.",
            "Cool the GPU, raise its power limit or lock lower clocks.",
        )
    elif gpu.processes and why and gpu.throttled_batches is None:
        yield Finding(
            "clocks-throttled",
            Severity.WARNING,
            f"{where}: the clocks were not held ({why}); which batches that touched is not known.",
            "Cool the GPU, raise its power limit or lock lower clocks.",
        )
    elif gpu.processes and why:
        yield Finding(
            "clocks-throttled-between-batches",
            Severity.NOTE,
            f"{where}: the clocks were not held for a while, and no batch that counts was touched.",
        )
    for clock, name in clocks:
        if is_measured and clock.drop_percent is not None and clock.drop_percent > 100 * MAX_DROP and gpu.processes:
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


def _leak(folder: str, what: str, grown: Growth, seconds: float, trace_bytes: int) -> Finding:
    slope, low, high = (
        (value or 0) / MIB for value in (grown.bytes_per_s, grown.bytes_per_s_low, grown.bytes_per_s_high)
    )
    if high * seconds * MIB <= NSYS_HOLDS * trace_bytes:
        return Finding(
            "memory-grows-under-nsys",
            Severity.NOTE,
            f"{what} grows by {slope:.2f} MiB/s ({low:.2f} to {high:.2f}) over the {seconds:.1f} s measured. nsys "
            "holds what it records in the process until that ends, and that may be all of it (the trace has "
            f"{trace_bytes / MIB:.0f} MiB).",
            "Measure with `--tracer none` to see whether the program's own memory grows.",
            folder,
        )
    return Finding(
        "memory-grows",
        Severity.WARNING,
        f"{what} grows by {slope:.2f} MiB/s ({low:.2f} to {high:.2f}) over the {seconds:.1f} s measured, in the second "
        f"half too, and in all by more than {MIN_GROWTH_SHARE:.0%} and {MIN_GROWTH_BYTES // MIB} MiB.",
        "Look for what batches leave behind: outputs kept in lists, tensors that hold a graph, caches without a limit.",
        folder,
    )
