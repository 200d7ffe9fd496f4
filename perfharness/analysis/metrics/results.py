"""Activity of GPUs and host over the measured window, in benchmark_mean.json (docs/guides/telemetry.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfharness.model.machines import gpu_name, node_name

WindowKind = Literal["measured", "run"]
"""`run`: no measured window, so from the start of the first process to the end of the last."""


@dataclass(frozen=True)
class MetricFigures:
    """One metric over the window, weighted by time; all None with a reason if not measured."""

    new_readings: int  # updates of the source
    mean: float | None
    min: float | None
    p50: float | None
    p95: float | None  # None, like p50, for too few updates
    max: float | None
    update_period_ms: float | None
    reason: str | None


@dataclass(frozen=True)
class ClockEventTime:
    """Time for which a reason lowered the clocks."""

    reason: str
    seconds: float
    throttles: bool


@dataclass(frozen=True)
class ClockHold:
    """Whether a clock was held."""

    reference_mhz: float | None  # the request, else the clock of the best tenth of the run
    requested: bool
    before_mhz: float | None
    after_mhz: float | None
    drop_percent: float | None  # first to last tenth of the window
    low_s: float | None  # more than 5 % below the reference while not idle
    reason: str | None


@dataclass(frozen=True)
class Growth:
    """Memory over the window: its peak, and the mean growth with its 95 % interval."""

    peak_bytes: int | None  # for resident memory the kernel's peak over the process's life, if known
    bytes_per_s: float | None
    bytes_per_s_low: float | None
    bytes_per_s_high: float | None
    bytes_per_batch: float | None
    grows: bool | None
    reason: str | None


@dataclass(frozen=True)
class BatchPeak:
    """Highest memory of the batches with readings; None if sampling is too slow."""

    batches: int
    mean_bytes: float | None
    max_bytes: int | None
    reason: str | None


@dataclass(frozen=True)
class HostMetrics:
    """The machine over the measured window."""

    window: WindowKind | None
    window_s: float | None
    figures: dict[str, MetricFigures]  # units are in the keys: `power_w`, `sm_clock_mhz`, …
    totals: dict[str, float | None]  # increase of counters over the window: `nvlink_rx_bytes`, …
    reason: str | None


@dataclass(frozen=True)
class GpuMetrics(HostMetrics):
    """One GPU over the measured window."""

    uuid: str
    name: str | None
    gpu_index: int | None
    mig_uuids: list[str]  # instances used by this run; power and clocks are those of the whole GPU
    processes: list[str]
    busy_share: float | None  # part of the window with traced GPU work of this run
    clock_events: list[ClockEventTime] | None
    sm_clock: ClockHold
    memory_clock: ClockHold
    throttled_batches: int | None
    batches: int = 0  # of its processes, without the warm-up
    node: int | None = None  # its machine; null, as `host`: there is one
    host: str | None = None

    @property
    def title(self) -> str:
        """Its name in messages."""
        node = None if self.node is None else node_name(self.node, self.host)
        return gpu_name(self.gpu_index, self.uuid, node)


@dataclass(frozen=True)
class ProcessMetrics(HostMetrics):
    """One measured process and its children over its measured window."""

    gpu_uuid: str | None  # null for none or several
    gpu_uuids: list[str]
    gpu_memory: Growth
    gpu_memory_per_batch: BatchPeak
    resident_memory: Growth
    resident_memory_per_batch: BatchPeak
    throttled_batches: int | None


@dataclass(frozen=True)
class RunMetrics:
    """`gpu_metrics` of benchmark_mean.json."""

    gpus: list[GpuMetrics]
    processes: dict[str, ProcessMetrics]
    host: HostMetrics
    period_ms: float | None
    reason: str | None

    @property
    def gpu_titles(self) -> dict[str, str]:
        """Names of the GPUs in messages, by UUID."""
        return {gpu.uuid: gpu.title for gpu in self.gpus}
