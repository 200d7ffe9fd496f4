"""`telemetry.parquet`: activity of GPUs and host during a run, one row per reading.

In memory a `SampleLog`, with one `Series` of columns per subject and metric. `perfharness.telemetry.store` reads and
writes the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.columns import Bool, Columns, Float64, Int64

TELEMETRY_NAME = "telemetry.parquet"
LIVE_NAME = ".telemetry.jsonl"
"""While a run is measured: a line per second with the last value of each metric (`perfharness.metrics.running`)."""

TELEMETRY_VERSION = 1

HOST = "host"  # subject of the whole machine


def core_subject(core: int) -> str:
    """Subject of one CPU core."""
    return f"core:{core}"


def process_subject(folder: str) -> str:
    """Subject of a measured process and its children; `folder` is its `proc_X_gpu_Y`."""
    return f"process:{folder}"


def member_subject(folder: str, pid: int) -> str:
    """Subject of a single process of such a tree."""
    return f"{process_subject(folder)}#{pid}"


def of_node(rank: int, subject: str) -> str:
    """Subject of the host, or a core, of one node of several."""
    return subject if rank == 0 else f"node_{rank}:{subject}"


GPM_SHARES = (
    "gpm_sm_active_percent", "gpm_sm_occupancy_percent", "gpm_tensor_percent", "gpm_tensor_hmma_percent",
    "gpm_tensor_imma_percent", "gpm_tensor_dmma_percent", "gpm_tensor_dfma_percent", "gpm_fp64_percent",
    "gpm_fp32_percent", "gpm_fp16_percent", "gpm_integer_percent", "gpm_dram_percent",
)  # fmt: skip
GPM_RATES = ("gpm_pcie_rx_mib_per_s", "gpm_pcie_tx_mib_per_s", "gpm_nvlink_rx_mib_per_s", "gpm_nvlink_tx_mib_per_s")

SINCE_LAST_READING = frozenset({"cpu_percent", "io_wait_percent", "steal_percent", *GPM_SHARES, *GPM_RATES})
"""Metrics that average over the time since the previous reading."""


@dataclass(frozen=True)
class ClockEventReason:
    """One bit of `clock_event_reasons` (docs/reference/results.md)."""

    bit: int
    name: str
    slows: bool  # lowers the clocks below demand, unlike idling or a user's setting


CLOCK_EVENT_REASONS = (
    ClockEventReason(0x1, "gpu_idle", False),
    ClockEventReason(0x2, "applications_clocks_setting", False),
    ClockEventReason(0x4, "sw_power_cap", True),
    ClockEventReason(0x8, "hw_slowdown", True),
    ClockEventReason(0x10, "sync_boost", True),
    ClockEventReason(0x20, "sw_thermal_slowdown", True),
    ClockEventReason(0x40, "hw_thermal_slowdown", True),
    ClockEventReason(0x80, "hw_power_brake_slowdown", True),
    ClockEventReason(0x100, "display_clock_setting", False),
    ClockEventReason(0x200, "board_limit", True),
    ClockEventReason(0x400, "reliability", True),
)
"""NVML's bits (nvml.h, `nvmlClocksEventReason…`; the last two only under their old names)."""


def clock_event_names(bits: int) -> list[str]:
    """Names of the reasons in a reading; unknown bits by value."""
    known = [reason.name for reason in CLOCK_EVENT_REASONS if bits & reason.bit]
    rest = bits & ~sum(reason.bit for reason in CLOCK_EVENT_REASONS)
    return known + [hex(1 << position) for position in range(rest.bit_length()) if rest >> position & 1]


@dataclass(frozen=True)
class Series(Columns):
    """Readings of one metric of one subject, by time; columns of one length."""

    time_unix_ns: Int64  # middle of the reading: monotonic time plus a constant
    time_monotonic_ns: Int64
    value: Float64  # NaN if the reading failed
    is_new: Bool  # the source was updated since the previous reading
    read_ns: Int64  # duration of the reading

    @property
    def is_read(self) -> Bool:
        """Mask of successful readings."""
        return ~np.isnan(self.value)

    @property
    def usual_ns(self) -> float:
        """Median time between readings; 0 for fewer than two."""
        return float(np.median(np.diff(self.time_unix_ns))) if len(self) > 1 else 0.0

    def updates(self) -> Series:
        """Successful readings with a new value."""
        return self.select(self.is_read & self.is_new)

    def between(self, start_unix_ns: int, end_unix_ns: int) -> Series:
        """Readings in a window of time, ends included."""
        first, last = np.searchsorted(self.time_unix_ns, [start_unix_ns, end_unix_ns + 1])
        inside = np.zeros(len(self), dtype=bool)
        inside[first:last] = True
        return self.select(inside)


class SubjectRecord(Record):
    """Description of a subject."""

    subject: str
    kind: Literal["gpu", "mig", "host", "core", "process"]
    name: str | None = None
    gpu_index: int | None = None
    parent_uuid: str | None = None  # GPU of a MIG device, which has power and clocks
    pid: int | None = None
    gpu_uuid: str | None = None  # GPU of a process, or the first of several
    gpu_uuids: list[str] = Field(default_factory=list)  # of a process with several GPUs
    node: int = 0  # machine, in a run on several

    @property
    def given_gpus(self) -> list[str]:
        """UUIDs of a process's GPUs or MIG instances."""
        return self.gpu_uuids or ([] if self.gpu_uuid is None else [self.gpu_uuid])


class UpdatePeriodRecord(Record):
    """Observed update period of a source; `period_ns` is None if it changed too rarely."""

    subject: str
    metric: str
    period_ns: int | None
    changes: int
    resolved: bool = True  # False if the true period may be shorter than the time between readings


class FailureRecord(Record):
    """Failed readings and the reason."""

    subject: str
    metric: str
    reason: str
    count: int


class ClockTieRecord(Record):
    """UTC against the machine's monotonic clock: UTC = monotonic + `offset_ns`, within `error_ns`."""

    offset_ns: int  # at the start of sampling; basis of `time_unix_ns`
    error_ns: int  # half of the shortest time to read both
    moved_ns: int = 0  # adjustment of UTC until the end, not in `time_unix_ns`


class TelemetryMeta(Record):
    """Key-value metadata of the file."""

    schema_version: int = TELEMETRY_VERSION
    period_ns: int  # as requested
    clock: ClockTieRecord
    subjects: list[SubjectRecord] = Field(default_factory=list)
    update_periods: list[UpdatePeriodRecord] = Field(default_factory=list)
    failures: list[FailureRecord] = Field(default_factory=list)
    ended: Literal["stopped", "cut_off"] = "cut_off"
    """`cut_off`: the sampling process was killed, and up to 30 s of readings may be missing."""
    idle_start_unix_ns: int | None = None  # measured idle time before the first process, if any
    idle_end_unix_ns: int | None = None
    sampler_cpu_ns: int | None = None  # CPU time of the sampling threads
    driver: str | None = None

    def update_period_ns(self, subject: str, metric: str) -> int | None:
        """Observed update period of the source; None if unknown."""
        source = subject, metric
        return next((one.period_ns for one in self.update_periods if (one.subject, one.metric) == source), None)


@dataclass(frozen=True)
class SampleLog:
    """All readings of a run; keys of `series` are (subject, metric)."""

    series: Mapping[tuple[str, str], Series] = field(default_factory=dict)
    meta: TelemetryMeta = field(
        default_factory=lambda: TelemetryMeta(period_ns=0, clock=ClockTieRecord(offset_ns=0, error_ns=0))
    )

    def get(self, subject: str, metric: str) -> Series | None:
        """Readings of a metric; None if not sampled for that subject."""
        return self.series.get((subject, metric))

    def with_names(self, subjects: Mapping[str, str]) -> SampleLog:
        """Rename subjects in series and failures."""
        series = {(subjects.get(subject, subject), metric): one for (subject, metric), one in self.series.items()}
        failures = [
            one.model_copy(update={"subject": subjects.get(one.subject, one.subject)}) for one in self.meta.failures
        ]
        return SampleLog(series, self.meta.model_copy(update={"failures": failures}))

    def subjects(self, kind: str | None = None) -> Iterator[SubjectRecord]:
        """Sampled subjects of one kind (`gpu`, `mig`, `host`, `core`, `process`) or all."""
        return (record for record in self.meta.subjects if kind is None or record.kind == kind)
