"""`telemetry.parquet`: what the GPUs and the host were doing during a run, one row per reading.

In memory a `SampleLog`: one `Series` of columns for each subject and metric. `perfharness.telemetry.store` reads and
writes the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import Field

from perfharness.model.base import Record
from perfharness.model.columns import Bool, Columns, Int64
from perfharness.model.columns import Float64 as Float64

TELEMETRY_NAME = "telemetry.parquet"
LIVE_NAME = ".telemetry.jsonl"
"""While a run is measured: a line per second with the last value of each metric (`perfharness.metrics.running`)."""

TELEMETRY_VERSION = 1

HOST = "host"  # subject of the whole machine


def core_subject(core: int) -> str:
    """Subject of one CPU core."""
    return f"core:{core}"


def process_subject(folder: str) -> str:
    """Subject of a measured process and all that it started; `folder` is its `proc_X_gpu_Y`."""
    return f"process:{folder}"


def member_subject(folder: str, pid: int) -> str:
    """Subject of one process of such a tree alone."""
    return f"{process_subject(folder)}#{pid}"


def of_node(rank: int, subject: str) -> str:
    """Subject of the host, or of a core, of one node of several."""
    return subject if rank == 0 else f"node_{rank}:{subject}"


GPM_SHARES = (
    "gpm_sm_active_percent", "gpm_sm_occupancy_percent", "gpm_tensor_percent", "gpm_tensor_hmma_percent",
    "gpm_tensor_imma_percent", "gpm_tensor_dmma_percent", "gpm_tensor_dfma_percent", "gpm_fp64_percent",
    "gpm_fp32_percent", "gpm_fp16_percent", "gpm_integer_percent", "gpm_dram_percent",
)  # fmt: skip
GPM_RATES = ("gpm_pcie_rx_mib_per_s", "gpm_pcie_tx_mib_per_s", "gpm_nvlink_rx_mib_per_s", "gpm_nvlink_tx_mib_per_s")

SINCE_LAST_READING = frozenset({"cpu_percent", "io_wait_percent", "steal_percent", *GPM_SHARES, *GPM_RATES})
"""Metrics whose value is the mean over the time since the reading before."""


@dataclass(frozen=True)
class ClockEventReason:
    """One bit of `clock_event_reasons` (docs/reference/results.md)."""

    bit: int
    name: str
    slows: bool  # the clocks are lower than the work would have them; not by idling or a user's setting


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
    """Names of the reasons in a reading; a bit that is not known yet is named by its value."""
    known = [reason.name for reason in CLOCK_EVENT_REASONS if bits & reason.bit]
    rest = bits & ~sum(reason.bit for reason in CLOCK_EVENT_REASONS)
    return known + [hex(1 << position) for position in range(rest.bit_length()) if rest >> position & 1]


@dataclass(frozen=True)
class Series(Columns):
    """Readings of one metric of one subject in order of time; columns of one length."""

    time_unix_ns: Int64  # middle of the reading: the monotonic time moved by one constant
    time_monotonic_ns: Int64
    value: Float64  # NaN: the reading failed
    is_new: Bool  # the source was updated since the reading before
    read_ns: Int64  # how long the reading took

    @property
    def is_read(self) -> Bool:
        """Which readings did not fail."""
        return ~np.isnan(self.value)

    @property
    def usual_ns(self) -> float:
        """Median time from one reading to the next; 0 where there are not two."""
        return float(np.median(np.diff(self.time_unix_ns))) if len(self) > 1 else 0.0

    def select(self, which: Bool) -> Series:
        """Some of the readings."""
        return Series(*(column[which] for column in vars(self).values()))

    def updates(self) -> Series:
        """The readings that did not fail and found something new."""
        return self.select(self.is_read & self.is_new)

    def between(self, start_unix_ns: int, end_unix_ns: int) -> Series:
        """The readings in a window of time, its ends included."""
        first, last = np.searchsorted(self.time_unix_ns, [start_unix_ns, end_unix_ns + 1])
        inside = np.zeros(len(self), dtype=bool)
        inside[first:last] = True
        return self.select(inside)


class SubjectRecord(Record):
    """What a subject is."""

    subject: str
    kind: Literal["gpu", "mig", "host", "core", "process"]
    name: str | None = None
    gpu_index: int | None = None
    parent_uuid: str | None = None  # of a MIG device: its GPU, where power and clocks are
    pid: int | None = None
    gpu_uuid: str | None = None  # of a process: its GPU, or the first of several
    gpu_uuids: list[str] = Field(default_factory=list)  # of a process with several GPUs
    node: int = 0  # its machine, of a run on several

    @property
    def given_gpus(self) -> list[str]:
        """UUIDs of the GPUs of a process, or MIG instances."""
        return self.gpu_uuids or ([] if self.gpu_uuid is None else [self.gpu_uuid])


class UpdatePeriodRecord(Record):
    """How often a source was seen to change; `period_ns` is None where it changed too rarely."""

    subject: str
    metric: str
    period_ns: int | None
    changes: int
    resolved: bool = True  # False: the true one may be shorter than the time between readings


class FailureRecord(Record):
    """Readings that failed, and why."""

    subject: str
    metric: str
    reason: str
    count: int


class ClockTieRecord(Record):
    """UTC against the monotonic clock of the machine. UTC = monotonic + `offset_ns`, by at most `error_ns`."""

    offset_ns: int  # when sampling began; `time_unix_ns` is made with it
    error_ns: int  # half of the shortest time that reading both took
    moved_ns: int = 0  # how far UTC was set or stepped until the end; not part of `time_unix_ns`


class TelemetryMeta(Record):
    """The key-value metadata of the file."""

    schema_version: int = TELEMETRY_VERSION
    period_ns: int  # asked for
    clock: ClockTieRecord
    subjects: list[SubjectRecord] = Field(default_factory=list)
    update_periods: list[UpdatePeriodRecord] = Field(default_factory=list)
    failures: list[FailureRecord] = Field(default_factory=list)
    ended: Literal["stopped", "cut_off"] = "cut_off"
    """`cut_off`: the sampling process was killed, and up to 30 s of readings may be missing."""
    idle_start_unix_ns: int | None = None  # idle time before the first process; None: none was waited for
    idle_end_unix_ns: int | None = None
    sampler_cpu_ns: int | None = None  # CPU time of the sampling threads
    driver: str | None = None

    def update_period_ns(self, subject: str, metric: str) -> int | None:
        """How often the source was seen to change; None: not known."""
        for record in self.update_periods:
            if record.subject == subject and record.metric == metric:
                return record.period_ns
        return None


@dataclass(frozen=True)
class SampleLog:
    """All readings of a run. `series` has (subject, metric) as its keys."""

    series: Mapping[tuple[str, str], Series] = field(default_factory=dict)
    meta: TelemetryMeta = field(
        default_factory=lambda: TelemetryMeta(period_ns=0, clock=ClockTieRecord(offset_ns=0, error_ns=0))
    )

    def get(self, subject: str, metric: str) -> Series | None:
        """The readings of a metric; None where it was not sampled, or not for that subject."""
        return self.series.get((subject, metric))

    def with_names(self, subjects: Mapping[str, str]) -> SampleLog:
        """The same, with the series and failures of some subjects under other names."""
        series = {(subjects.get(subject, subject), metric): one for (subject, metric), one in self.series.items()}
        failures = [
            one.model_copy(update={"subject": subjects.get(one.subject, one.subject)}) for one in self.meta.failures
        ]
        return SampleLog(series, self.meta.model_copy(update={"failures": failures}))

    def subjects(self, kind: str | None = None) -> Iterator[SubjectRecord]:
        """What was sampled, of one kind (`gpu`, `mig`, `host`, `core`, `process`) or all."""
        return (record for record in self.meta.subjects if kind is None or record.kind == kind)
