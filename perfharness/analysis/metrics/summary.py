"""All that the samplers saw over the measured window: `gpu_metrics` of benchmark_mean.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.energy.work import MeasuredProcess, no_window, union_window
from perfharness.analysis.metrics.clocks import (
    LOW_CLOCK,
    LOW_MEMORY_CLOCK,
    Throttling,
    clock_events,
    clock_hold,
    find_throttling,
)
from perfharness.analysis.metrics.figures import Window, counter_total, window_figures
from perfharness.analysis.metrics.memory import batch_peak, growth
from perfharness.analysis.metrics.results import (
    GpuMetrics,
    HostMetrics,
    MetricFigures,
    ProcessMetrics,
    RunMetrics,
    WindowKind,
)
from perfharness.analysis.timeline import BusyLine
from perfharness.model.telemetry import HOST, SINCE_LAST_READING, SampleLog, SubjectRecord, process_subject

Scaled = Mapping[str, tuple[str, float]]


def _same(*names: str) -> Scaled:
    return {name: (name, 1.0) for name in names}


GPU_FIGURES: Scaled = {
    **{f"power_{kind}_w": (f"power_{kind}_mw", 1e-3) for kind in ("instant", "average", "sample", "limit")},
    **_same(
        "gpu_utilization_percent", "memory_utilization_percent", "memory_used_bytes", "sm_clock_mhz",
        "memory_clock_mhz", "temperature_c", "pcie_rx_kb_per_s", "pcie_tx_kb_per_s", "pstate",
    ),
}  # fmt: skip
GPU_TOTALS: Scaled = {"nvlink_rx_bytes": ("nvlink_rx_kib", 1024.0), "nvlink_tx_bytes": ("nvlink_tx_kib", 1024.0)}
PROCESS_FIGURES: Scaled = {
    **_same("cpu_percent"),
    "resident_memory_bytes": ("rss_bytes", 1.0),
    "gpu_memory_bytes": ("process_memory_bytes", 1.0),
    **_same("threads"),
}
PROCESS_TOTALS: Scaled = {
    "cpu_time_s": ("cpu_time_ns", 1e-9),
    **_same("context_switches", "involuntary_context_switches", "read_bytes", "write_bytes"),
}
HOST_FIGURES = _same("cpu_percent", "io_wait_percent", "memory_used_bytes")
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
    window, kind = _window(processes)
    lifetime = union_window([process.lifetime for process in processes])
    gpus = [
        _gpu(log, record, processes, throttling.get(record.subject), requested.get(record.subject), lifetime)
        for record in log.meta.subjects
        if record.kind in ("gpu", "mig")
    ]
    reason = None if kind == "measured" else no_window(list(processes))
    return RunMetrics(
        gpus=gpus,
        processes={process.folder: _process(log, process, throttling) for process in processes},
        host=HostMetrics(
            window=kind,
            window_s=_seconds(window),
            figures=_figures(log, HOST, HOST_FIGURES, window),
            totals=_totals(log, HOST, HOST_TOTALS, window),
            reason=reason,
        ),
        period_ms=log.meta.period_ns / 1e6,
        reason=reason,
    )


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
    mine = [process for process in processes if uuid in (process.gpu_uuid, process.sensor_uuid)]
    window, kind = _window(mine or processes)
    throttling = throttling or Throttling()
    sm_clock, memory_clock = (log.get(uuid, metric) for metric in ("sm_clock_mhz", "memory_clock_mhz"))
    requested = requested or RequestedClocks()
    reason = None if kind == "measured" else no_window(list(mine or processes))
    if is_mig:
        reason = reason or f"power, clocks, temperature and energy are those of its GPU, {record.parent_uuid}"
    return GpuMetrics(
        uuid=uuid,
        name=record.name,
        gpu_index=record.gpu_index,
        mig_uuids=sorted({process.gpu_uuid or "" for process in mine if process.gpu_uuid != uuid}),
        processes=[process.folder for process in mine],
        window=kind,
        window_s=_seconds(window),
        busy_share=_busy_share(mine, window),
        figures=_figures(log, uuid, GPU_FIGURES, window),
        totals=_totals(log, uuid, GPU_TOTALS, window),
        clock_events=clock_events(log.get(uuid, "clock_event_reasons"), window),
        sm_clock=clock_hold(sm_clock, window, throttling, LOW_CLOCK, requested.sm_mhz, lifetime),
        memory_clock=clock_hold(memory_clock, window, throttling, LOW_MEMORY_CLOCK, requested.memory_mhz, lifetime),
        throttled_batches=_sum_throttled(mine, throttling) if not is_mig and throttling_known(log, uuid) else None,
        reason=reason,
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
    any_reason = np.logical_or.reduce([*touched.values(), np.zeros(len(batches.kept), dtype=np.bool_)])
    return int((any_reason & ~batches.warmup).sum())


def _sum_throttled(processes: Sequence[MeasuredProcess], throttling: Throttling) -> int | None:
    counts = [throttled_batches(process, throttling) for process in processes]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _busy_share(processes: Sequence[MeasuredProcess], window: Window | None) -> float | None:
    """Part of the window with traced GPU work; None where some of it is not known."""
    if window is None or not processes or any(process.work.reason for process in processes):
        return None
    spans = [process.work.all_busy() for process in processes]
    line = BusyLine(np.concatenate([start for start, _ in spans]), np.concatenate([end for _, end in spans]))
    busy = int(line.within(np.asarray([window[0]]), np.asarray([window[1]]))[0])
    return round(busy / (window[1] - window[0]), 6)


def _process(log: SampleLog, process: MeasuredProcess, throttling: Mapping[str, Throttling]) -> ProcessMetrics:
    subject, batches = process_subject(process.folder), process.batches
    window, kind = _window([process])
    kept = batches.kept if kind == "measured" else np.zeros_like(batches.kept)
    start, end = batches.start_ns[kept], batches.end_ns[kept]
    gpu_memory, resident = log.get(subject, "process_memory_bytes"), log.get(subject, "rss_bytes")
    mine = throttling.get(process.sensor_uuid or "")
    known = process.sensor_uuid is not None and throttling_known(log, process.sensor_uuid)
    return ProcessMetrics(
        gpu_uuid=process.gpu_uuid,
        window=kind,
        window_s=_seconds(window),
        figures=_figures(log, subject, PROCESS_FIGURES, window),
        totals=_totals(log, subject, PROCESS_TOTALS, window),
        gpu_memory=growth(gpu_memory, window),
        gpu_memory_per_batch=batch_peak(gpu_memory, start, end),
        resident_memory=growth(resident, window),
        resident_memory_per_batch=batch_peak(resident, start, end),
        throttled_batches=throttled_batches(process, mine) if known and mine is not None else None,
        reason=None if kind == "measured" else no_window([process]),
    )


def _figures(log: SampleLog, subject: str, wanted: Scaled, window: Window | None) -> dict[str, MetricFigures]:
    return {
        name: window_figures(
            log.get(subject, metric),
            window,
            scale=scale,
            period_ns=log.meta.update_period_ns(subject, metric),
            since_last=metric in SINCE_LAST_READING,
            reason=next((f.reason for f in log.meta.failures if (f.subject, f.metric) == (subject, metric)), None),
        )
        for name, (metric, scale) in wanted.items()
    }


def _totals(log: SampleLog, subject: str, wanted: Scaled, window: Window | None) -> dict[str, float | None]:
    return {name: counter_total(log.get(subject, metric), window, scale) for name, (metric, scale) in wanted.items()}


def _window(processes: Sequence[MeasuredProcess]) -> tuple[Window | None, WindowKind | None]:
    """The measured window of processes, or where there is none, the time in which they ran."""
    measured = union_window([process.window for process in processes])
    if measured is not None:
        return measured, "measured"
    lifetime = union_window([process.lifetime for process in processes])
    return lifetime, None if lifetime is None else "run"


def _seconds(window: Window | None) -> float | None:
    return None if window is None else (window[1] - window[0]) / 1e9
