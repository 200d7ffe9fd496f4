"""`telemetry.parquet`: what the GPUs and the host were doing during a run, one row a reading.

In memory a `SampleLog`: one `Series` of columns for each subject and metric. `perfharness.telemetry.store` reads and
writes the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from perfharness.model.trace import Bool, Int64

Float64 = npt.NDArray[np.float64]

TELEMETRY_NAME = "telemetry.parquet"
TELEMETRY_VERSION = 1

HOST = "host"
"""Subject of what the machine as a whole did."""


def core_subject(core: int) -> str:
    """Subject of one CPU core."""
    return f"core:{core}"


def process_subject(folder: str) -> str:
    """Subject of a measured process and all that it started; `folder` is its `proc_X_gpu_Y`."""
    return f"process:{folder}"


@dataclass(frozen=True)
class Metric:
    """What a metric means.

    A reading holds from then on, until the next, but for `SINCE_LAST_READING`.

    Args:
        name: with its unit.
        meaning: for the documentation and the plots, without the unit.
        counter: the value only grows, and a difference of two readings is what counts.
        computed: the value is made at the reading, or delivered once; else the source updates it now and then, and
            readings repeat.
    """

    name: str
    meaning: str
    counter: bool = False
    computed: bool = False


GPU_METRICS = (
    Metric("power_instant_mw", "power drawn, at the sensor's last sample"),
    Metric("power_average_mw", "power drawn, averaged by the driver (over one second on Ampere and later)"),
    Metric(
        "power_sample_mw", "power drawn, from the driver's own buffer of samples, at the driver's times", computed=True
    ),
    Metric("power_limit_mw", "enforced power limit"),
    Metric("energy_total_mj", "energy since the driver was loaded", counter=True),
    Metric("sm_clock_mhz", "clock of the multiprocessors"),
    Metric("memory_clock_mhz", "clock of the memory"),
    Metric("temperature_c", "temperature of the GPU"),
    Metric("gpu_utilization_percent", "share of time in which at least one kernel ran"),
    Metric("memory_utilization_percent", "share of time in which memory was read or written"),
    Metric("memory_used_bytes", "memory allocated, by all processes and the driver", computed=True),
    Metric("pcie_rx_kb_per_s", "received over PCIe"),
    Metric("pcie_tx_kb_per_s", "sent over PCIe"),
    Metric("nvlink_rx_kib", "received over NVLink, all links", counter=True),
    Metric("nvlink_tx_kib", "sent over NVLink, all links", counter=True),
    Metric("pstate", "performance state: 0 is the fastest"),
    Metric("clock_event_reasons", "why the clocks are not higher: bits of `CLOCK_EVENT_REASONS`"),
)
PROCESS_METRICS = (
    Metric("process_memory_bytes", "memory of its GPU that the process tree has allocated", computed=True),
    Metric("cpu_percent", "CPU time of the process tree, 100 is one core", computed=True),
    Metric("cpu_time_ns", "CPU time of the process tree since it started", counter=True, computed=True),
    Metric("rss_bytes", "resident memory of the process tree", computed=True),
    Metric("threads", "threads of the process tree", computed=True),
    Metric("context_switches", "context switches of the process tree", counter=True, computed=True),
    Metric("involuntary_context_switches", "those that the scheduler forced", counter=True, computed=True),
    Metric("read_bytes", "read from storage by the process tree", counter=True, computed=True),
    Metric("write_bytes", "written to storage by the process tree", counter=True, computed=True),
)
HOST_METRICS = (
    Metric("cpu_percent", "CPU time of all processes, 100 is all cores; or of one core", computed=True),
    Metric("io_wait_percent", "idle CPU time in which a process waited for storage, 100 is all cores", computed=True),
    Metric("memory_used_bytes", "memory in use, without caches", computed=True),
    Metric("context_switches", "context switches of the machine", counter=True, computed=True),
    Metric("read_bytes", "read from storage", counter=True, computed=True),
    Metric("write_bytes", "written to storage", counter=True, computed=True),
)


SINCE_LAST_READING = frozenset({"cpu_percent", "io_wait_percent"})
"""Metrics whose value is the mean over the time since the reading before."""


@dataclass(frozen=True)
class ClockEventReason:
    """One bit of `clock_event_reasons`.

    Args:
        name: ours; up to driver 535 NVML called them `throttle reasons`, `old_name` being `nvidia-smi`'s of that time.
        slows: whether the clocks are lower than the work would have them; idling and a user's own setting are not.
        meaning: for the documentation.
    """

    bit: int
    name: str
    old_name: str
    slows: bool
    meaning: str


CLOCK_EVENT_REASONS = (
    ClockEventReason(0x1, "gpu_idle", "clocks_throttle_reasons.gpu_idle", False, "nothing runs, so the clocks fall"),
    ClockEventReason(
        0x2,
        "applications_clocks_setting",
        "clocks_throttle_reasons.applications_clocks_setting",
        False,
        "these clocks were requested, perhaps `-m`",
    ),
    ClockEventReason(
        0x4,
        "sw_power_cap",
        "clocks_throttle_reasons.sw_power_cap",
        True,
        "the power limit is reached, and the driver lowers the clocks",
    ),
    ClockEventReason(
        0x8,
        "hw_slowdown",
        "clocks_throttle_reasons.hw_slowdown",
        True,
        "temperature, power brake or power draw: the hardware halves the clocks, or more",
    ),
    ClockEventReason(
        0x10,
        "sync_boost",
        "clocks_throttle_reasons.sync_boost",
        True,
        "another GPU of its group is slowed down, and this one with it",
    ),
    ClockEventReason(
        0x20,
        "sw_thermal_slowdown",
        "clocks_throttle_reasons.sw_thermal_slowdown",
        True,
        "GPU or memory too hot: the driver lowers the clocks",
    ),
    ClockEventReason(
        0x40,
        "hw_thermal_slowdown",
        "clocks_throttle_reasons.hw_thermal_slowdown",
        True,
        "too hot: the hardware halves the clocks, or more",
    ),
    ClockEventReason(
        0x80,
        "hw_power_brake_slowdown",
        "clocks_throttle_reasons.hw_power_brake_slowdown",
        True,
        "the power supply asks for it",
    ),
    ClockEventReason(
        0x100,
        "display_clock_setting",
        "clocks_throttle_reasons.display_clock_setting",
        False,
        "a display's settings ask for these clocks",
    ),
    ClockEventReason(
        0x200,
        "board_limit",
        "clocks_throttle_reasons.board_limit",
        True,
        "the board's limit is reached (an old name of NVML)",
    ),
    ClockEventReason(
        0x400,
        "reliability",
        "clocks_throttle_reasons.reliability",
        True,
        "the voltage's limit is reached (an old name of NVML)",
    ),
)
"""NVML's bits (nvml.h, `nvmlClocksEventReason…`; the last two only under their old names)."""


def clock_event_names(bits: int) -> list[str]:
    """Names of the reasons in a reading; a bit that is not known yet is named by its value."""
    known = [reason.name for reason in CLOCK_EVENT_REASONS if bits & reason.bit]
    rest = bits & ~sum(reason.bit for reason in CLOCK_EVENT_REASONS)
    return known + [hex(1 << position) for position in range(rest.bit_length()) if rest >> position & 1]


@dataclass(frozen=True)
class Series:
    """Readings of one metric of one subject in order of time; columns of one length.

    `value` is NaN where the reading failed. `is_new` is false where the source had not been updated since the reading
    before. Times are the middle of the reading, which took `read_ns`; UTC is the monotonic clock moved by one constant.
    """

    time_unix_ns: Int64
    time_monotonic_ns: Int64
    value: Float64
    is_new: Bool
    read_ns: Int64

    def __len__(self) -> int:
        return len(self.value)

    @property
    def is_read(self) -> Bool:
        """Which readings did not fail."""
        return ~np.isnan(self.value)

    def select(self, which: Bool) -> Series:
        """Some of the readings."""
        return Series(
            self.time_unix_ns[which],
            self.time_monotonic_ns[which],
            self.value[which],
            self.is_new[which],
            self.read_ns[which],
        )

    def updates(self) -> Series:
        """The readings that did not fail and found something new."""
        return self.select(self.is_read & self.is_new)

    def between(self, start_unix_ns: int, end_unix_ns: int) -> Series:
        """The readings in a window of time, its ends included."""
        first, last = np.searchsorted(self.time_unix_ns, [start_unix_ns, end_unix_ns + 1])
        inside = np.zeros(len(self), dtype=bool)
        inside[first:last] = True
        return self.select(inside)


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class SubjectRecord(_Model):
    """What a subject is."""

    subject: str
    kind: Literal["gpu", "mig", "host", "core", "process"]
    name: str | None = None
    gpu_index: int | None = None
    parent_uuid: str | None = None
    """Of a MIG device: the GPU that it is part of, where power and clocks are."""

    pid: int | None = None
    gpu_uuid: str | None = None
    """Of a process: its GPU."""


class UpdatePeriodRecord(_Model):
    """How often a source was seen to change; `period_ns` is None where it changed too rarely."""

    subject: str
    metric: str
    period_ns: int | None
    changes: int
    resolved: bool = True
    """False: as short as the time between readings, so the true one may be shorter."""


class FailureRecord(_Model):
    """Readings that failed, and why."""

    subject: str
    metric: str
    reason: str
    count: int


class TickRecord(_Model):
    """How well one source's rhythm was kept."""

    source: str
    period_ns: int
    ticks: int
    late: int
    """Begun more than half a period after their time."""

    missed: int
    """Not begun at all, since the one before was not over."""

    latest_ns: int = 0
    """How late the latest was."""


class ClockTieRecord(_Model):
    """UTC against the monotonic clock of the machine. UTC = monotonic + `offset_ns`, by at most `error_ns`."""

    offset_ns: int
    """Of the clocks as they stood when sampling began; `time_unix_ns` is made with it."""

    error_ns: int
    """Half of the shortest time that reading both took."""

    moved_ns: int = 0
    """How far UTC was set or stepped against it until the end, furthest; not part of `time_unix_ns`."""


class TelemetryMeta(_Model):
    """The key-value metadata of the file."""

    schema_version: int = TELEMETRY_VERSION
    period_ns: int
    """Asked for."""

    clock: ClockTieRecord
    subjects: list[SubjectRecord] = Field(default_factory=list)
    update_periods: list[UpdatePeriodRecord] = Field(default_factory=list)
    failures: list[FailureRecord] = Field(default_factory=list)
    ticks: list[TickRecord] = Field(default_factory=list)
    ended: Literal["stopped", "parent_died", "cut_off"] = "cut_off"
    """`cut_off`: the sampler did not come to its end; the readings up to then are there."""

    idle_start_unix_ns: int | None = None
    idle_end_unix_ns: int | None = None
    """A time before the first process was started; None where none was waited for."""

    sampler_cpu_ns: int | None = None
    """CPU time that the sampler itself took."""

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

    def metrics(self, subject: str) -> list[str]:
        """What was sampled of a subject."""
        return [metric for owner, metric in self.series if owner == subject]

    def subjects(self, kind: str | None = None) -> Iterator[SubjectRecord]:
        """What was sampled, of one kind (`gpu`, `mig`, `host`, `core`, `process`) or all."""
        return (record for record in self.meta.subjects if kind is None or record.kind == kind)
