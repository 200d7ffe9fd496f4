"""GPUs, processes and host over the measured window: `gpu_metrics` of benchmark_mean.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from perfharness.analysis.energy.work import MeasuredProcess, no_window, union_window
from perfharness.analysis.metrics.clocks import (
    RequestedClocks,
    Throttling,
    clock_events,
    clock_hold,
    of_any,
    throttling_known,
)
from perfharness.analysis.metrics.figures import counter_total, window_figures
from perfharness.analysis.metrics.memory import batch_peak, growth
from perfharness.analysis.metrics.results import (
    GpuMetrics,
    Growth,
    HostMetrics,
    ProcessMetrics,
    RunMetrics,
    WindowKind,
)
from perfharness.analysis.timeline.busy import BusyLine, Window, union
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
"""Name in the results -> metric of telemetry.parquet and factor."""


def _same(*names: str) -> Scaled:
    return {name: (name, 1.0) for name in names}


GPU_FIGURES: Scaled = {
    **{f"power_{kind}_w": (f"power_{kind}_mw", 1e-3) for kind in ("instant", "average", "sample", "limit")},
    **_same("gpu_utilization_percent", "memory_utilization_percent", "memory_used_bytes"),
    **_same("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "pcie_rx_kb_per_s", "pcie_tx_kb_per_s", "pstate"),
    **_same(*GPM_SHARES, *GPM_RATES),
}
GPU_TOTALS: Scaled = {"nvlink_rx_bytes": ("nvlink_rx_kib", 1024.0), "nvlink_tx_bytes": ("nvlink_tx_kib", 1024.0)}
PROCESS_FIGURES: Scaled = {
    **_same("cpu_percent", "threads", "quota_cpus"),
    "resident_memory_bytes": ("rss_bytes", 1.0),
    "gpu_memory_bytes": ("process_memory_bytes", 1.0),
}
PROCESS_TOTALS: Scaled = {
    "cpu_time_s": ("cpu_time_ns", 1e-9),
    "quota_throttled_s": ("quota_throttled_ns", 1e-9),
    **_same("quota_throttled_periods", "context_switches", "involuntary_context_switches"),
    **_same("read_bytes", "write_bytes"),
}
HOST_FIGURES = _same("cpu_percent", "steal_percent", "io_wait_percent", "memory_used_bytes")
HOST_TOTALS = _same("context_switches", "read_bytes", "write_bytes")


def summarise_metrics(
    log: SampleLog,
    processes: Sequence[MeasuredProcess],
    throttling: Mapping[str, Throttling],
    requested: Mapping[str, RequestedClocks],
    hosts: Mapping[int, str | None] = MappingProxyType({}),
) -> RunMetrics:
    """Figures of GPUs, processes and host. `throttling`, `requested`: by UUID; `hosts`: by node, empty for one."""
    gpus = [
        replace(
            _gpu(log, record, processes, throttling.get(record.subject), requested.get(record.subject)),
            node=record.node if hosts else None,
            host=hosts.get(record.node),
        )
        for record in log.meta.subjects
        if record.kind in ("gpu", "mig")
    ]
    host = HostMetrics(**_Observed(log, HOST, processes).results(HOST_FIGURES, HOST_TOTALS))
    own = {process.folder: _process(log, process, processes, throttling) for process in processes}
    return RunMetrics(gpus, own, host, log.meta.period_ns / 1e6, host.reason)


def summarise_other_hosts(log: SampleLog, processes: Sequence[MeasuredProcess]) -> dict[str, HostMetrics]:
    """Figures of the other nodes' machines, by the subject of their readings."""
    return {
        one.subject: HostMetrics(**_Observed(log, one.subject, processes).results(HOST_FIGURES, HOST_TOTALS))
        for one in log.subjects("host")
        if one.subject != HOST
    }


class _Observed:
    """One subject of a log over the measured window of some processes, or while they ran if there is none."""

    def __init__(self, log: SampleLog, subject: str, processes: Sequence[MeasuredProcess]) -> None:
        self._log = log
        self._subject = subject
        self.window: Window | None = union_window([process.window for process in processes])
        self.kind: WindowKind | None = "measured"
        self.reason: str | None = None
        if self.window is None:
            self.window = union_window([process.lifetime for process in processes])
            self.kind = None if self.window is None else "run"
            self.reason = no_window(processes)

    def series(self, metric: str) -> Series | None:
        """Readings of a metric."""
        return self._log.get(self._subject, metric)

    def results(self, figures: Scaled, totals: Scaled) -> dict[str, Any]:
        """Fields of `HostMetrics`."""
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
            "reason": self.reason,
        }


def _gpu(
    log: SampleLog,
    record: SubjectRecord,
    processes: Sequence[MeasuredProcess],
    throttling: Throttling | None,
    requested: RequestedClocks | None,
) -> GpuMetrics:
    """A GPU over the window of its processes, or of the whole run if it has none."""
    uuid, is_mig = record.subject, record.kind == "mig"
    mine = [one for process in processes if (one := process.on(uuid)) is not None]
    lifetime = union_window([process.lifetime for process in processes])
    seen = _Observed(log, uuid, mine or processes)
    throttling, requested = throttling or Throttling(), requested or RequestedClocks()
    low_s = {} if seen.window is None else throttling.within(seen.window)
    holds = [
        clock_hold(seen.series(metric), seen.window, request, work=lifetime, low_s=low_s.get(name, 0.0))
        for name, metric, request in requested.each()
    ]
    counts = [throttled_batches(process, throttling) for process in mine]
    known = [count for count in counts if count is not None]
    results = seen.results(GPU_FIGURES, GPU_TOTALS)
    if is_mig:
        results["reason"] = results["reason"] or f"power, clocks and temperature are those of GPU {record.parent_uuid}"
    return GpuMetrics(
        **results,
        uuid=uuid,
        name=record.name,
        gpu_index=record.gpu_index,
        mig_uuids=sorted({gpu.uuid for process in mine for gpu in process.gpus if gpu.uuid != uuid}),
        processes=[process.folder for process in mine],
        busy_share=_busy_share(mine, seen.window),
        clock_events=clock_events(seen.series("clock_event_reasons"), seen.window),
        sm_clock=holds[0],
        memory_clock=holds[1],
        throttled_batches=None if is_mig or not throttling_known(log, uuid) or len(known) < len(counts) else sum(known),
        batches=sum(int((~one.batches.warmup).sum()) for one in mine),
    )


def throttled_batches(process: MeasuredProcess, throttling: Throttling) -> int | None:
    """Number of throttled batches, without warm-up; None if the trace has no UTC time."""
    if process.reason is not None:
        return None
    batches = process.batches
    return int((throttling.any_touched(batches.start_ns, batches.end_ns) & ~batches.warmup).sum())


def _busy_share(processes: Sequence[MeasuredProcess], window: Window | None) -> float | None:
    """Part of the window with traced GPU work; None if some is unknown."""
    if window is None or not processes or any(process.work.reason for process in processes):
        return None
    line = BusyLine(*union([spans for process in processes for spans in process.work.busy]))
    busy = int(line.within(np.asarray([window[0]]), np.asarray([window[1]]))[0])
    return round(busy / (window[1] - window[0]), 6)


def _process(
    log: SampleLog,
    process: MeasuredProcess,
    processes: Sequence[MeasuredProcess],
    throttling: Mapping[str, Throttling],
) -> ProcessMetrics:
    seen, batches = _Observed(log, process_subject(process.folder), [process]), process.batches
    kept = ~batches.warmup & (seen.kind == "measured")
    start, end = batches.start_ns[kept], batches.end_ns[kept]
    count = len(start) if seen.kind == "measured" else None
    gpu_memory, resident = seen.series("process_memory_bytes"), seen.series("rss_bytes")
    memory = growth(resident, seen.window, count)
    kernel = seen.series("peak_rss_bytes")
    known = None if kernel is None or not kernel.is_read.any() else int(np.nanmax(kernel.value))
    peaks = [peak for peak in (memory.peak_bytes, known, process.max_rss_bytes) if peak is not None]
    sensors = list(dict.fromkeys(gpu.sensor_uuid for gpu in process.gpus))
    mine = [throttling[uuid] for uuid in sensors if uuid in throttling and throttling_known(log, uuid)]
    uuids = [gpu.uuid for gpu in process.gpus]
    return ProcessMetrics(
        **seen.results(PROCESS_FIGURES, PROCESS_TOTALS),
        gpu_uuid=uuids[0] if len(uuids) == 1 else None,
        gpu_uuids=uuids,
        gpu_memory=_gpu_memory(log, process, processes, growth(gpu_memory, seen.window, count, is_on_gpu=True), seen),
        gpu_memory_per_batch=batch_peak(gpu_memory, start, end),
        resident_memory=replace(memory, peak_bytes=max(peaks, default=None)),
        resident_memory_per_batch=batch_peak(resident, start, end),
        throttled_batches=throttled_batches(process, of_any(mine)) if mine and len(mine) == len(sensors) else None,
    )


def _gpu_memory(
    log: SampleLog, process: MeasuredProcess, processes: Sequence[MeasuredProcess], own: Growth, seen: _Observed
) -> Growth:
    """GPU memory of a process. If its growth is unknown (pids of another namespace, a short run), the growth of its
    GPU's memory, unless another process of the run uses that GPU.
    """
    uuids = [gpu.uuid for gpu in process.gpus]
    alone = len(uuids) == 1 and sum(one.on(uuids[0]) is not None for one in processes) == 1
    if own.bytes_per_s is not None or not alone or seen.kind != "measured":
        return own
    count = int((~process.batches.warmup).sum())
    whole = growth(log.get(uuids[0], "memory_used_bytes"), seen.window, count, is_on_gpu=True)
    if whole.bytes_per_s is None:
        return own
    reason = f"{own.reason}; the growth is of all memory in use on its GPU"
    return replace(whole, peak_bytes=own.peak_bytes, reason=reason)
