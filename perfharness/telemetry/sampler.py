"""Sample GPUs and host in threads of this process while a run lasts, into `telemetry.parquet`."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from perfharness.errors import ResultError
from perfharness.files import replacing
from perfharness.model.telemetry import (
    LIVE_NAME,
    ClockTieRecord,
    FailureRecord,
    SampleLog,
    SubjectRecord,
    TelemetryMeta,
)
from perfharness.telemetry import gpu
from perfharness.telemetry.cpu_quota import CpuQuota
from perfharness.telemetry.gpm import PERIOD_NS as GPM_PERIOD_NS
from perfharness.telemetry.gpm import GpmCounters
from perfharness.telemetry.gpu import PowerSamples, ProcessMemory, Questions, chosen_devices
from perfharness.telemetry.host import Host
from perfharness.telemetry.nvml import Device, Nvml, open_nvml
from perfharness.telemetry.processes import FollowedProcess, ProcessTree, read_each
from perfharness.telemetry.readings import Readings, Values

MS = 1_000_000

HOST_PERIOD_NS = 200 * MS
"""Minimum, because the kernel counts CPU time in steps of 10 ms, more than 5 % of shorter periods."""

ENERGY_PERIOD_NS = 70 * MS
"""Minimum; the counter is updated every 100 ms and takes 3 ms to read (measured on an H200)."""

MEMORY_PERIOD_NS = 10 * MS
"""Short enough to see growing memory in a measured window of 0.1 s."""

PROCESS_MEMORY_PERIOD_NS = 100 * MS
"""Minimum."""

SLOW_PERIOD_NS = 1000 * MS
"""PCIe takes 40 ms per reading. The driver keeps power samples for two seconds (measured on an H200)."""

QUOTA_PERIOD_NS = 20 * MS
"""A fifth of the usual quota period, to locate the stops of the group in it."""

WRITE_S, WRITE_SHARE = 30.0, 50
"""Write period, extended so that writing takes at most a fiftieth of the time; a killed process loses this much."""

LIVE_S = 1.0
"""Period for appending the last readings to a file for live views; takes 0.1 ms without a GPU."""

GPU_TAIL_S = 0.3
"""Time for which GPUs are read after the end, so that sensors with a period of 100 ms cover it."""

STUCK_S = 5.0
"""Longest wait for a reading at the end."""

SOURCE_FAILED = "*"
"""Metric of failures of a whole group."""


@dataclass
class Group:
    """Metrics read together in their own thread, so that a reading stuck in a driver delays no others.

    Args:
        reads: timed separately.
        idle_ns: period while there is nothing to read, if longer.
    """

    name: str
    period_ns: int
    reads: Sequence[Callable[[], Values]]
    idle_ns: int = 0
    problem: str | None = None
    cpu_ns: int = 0
    last_ns: int = 0
    has_begun: threading.Event = field(default_factory=threading.Event)

    def read(self, readings: Readings) -> int:
        """Read everything once; returns the time until the next reading."""
        is_idle = True
        for read in self.reads:
            began_ns = time.monotonic_ns()
            values = read()
            self.last_ns = time.monotonic_ns()
            readings.add(values, began_ns, self.last_ns)
            is_idle = is_idle and not values
        return max(self.period_ns, self.idle_ns if is_idle else 0)

    def run(self, readings: Readings, ending: threading.Event) -> None:
        """Read on a fixed grid of periods until the end; a group that raises is stopped."""
        due_ns = time.monotonic_ns()
        try:
            while not ending.wait(max(0, due_ns - time.monotonic_ns()) / 1e9):
                period_ns = self.read(readings)
                self.has_begun.set()
                self.cpu_ns = time.thread_time_ns()
                due_ns += period_ns * max(1, -((due_ns - time.monotonic_ns()) // period_ns))
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self.has_begun.set()


class Sampler:
    """Samples everything from `start` to `stop`.

    Args:
        path: the Parquet file.
        period_ns: usual period; some metrics have another one.
        nvml: None to read no GPUs.
        gpu_uuids: GPUs and MIG instances; parents are read as well.
    """

    def __init__(self, path: Path, period_ns: int, nvml: Nvml | None = None, gpu_uuids: Sequence[str] = ()) -> None:
        self.log = SampleLog()
        """All readings when last written."""

        self.followed: list[FollowedProcess] = []
        self.nvml_problem = None if nvml is None else nvml.opened.reason
        self._path, self._period_ns, self._nvml = path, period_ns, nvml
        self._live_path = path.with_name(LIVE_NAME)
        self._devices = [] if nvml is None else chosen_devices(nvml, gpu_uuids)
        self._offset_ns, self._offset_error_ns = _clock_offset()
        self._readings, self._host = Readings(), Host()
        self._idle: tuple[int, int] | tuple[None, None] = None, None
        self._ending = threading.Event()
        self._groups = [*self._host_groups(), *(self._gpu_groups() if self._devices else ())]
        self._threads = [self._thread(one.name, partial(one.run, self._readings, self._ending)) for one in self._groups]
        self._writer = self._thread("writer", self._write_now_and_then)

    def _host_groups(self) -> Iterator[Group]:
        period_ns, followed = max(self._period_ns, HOST_PERIOD_NS), self.followed
        yield Group("host", period_ns, [self._host.read])
        yield Group("processes", period_ns, [read_each(followed, lambda process: ProcessTree(process).read)])
        quotas = read_each(followed, lambda process: CpuQuota(process).read)
        yield Group("quotas", QUOTA_PERIOD_NS, [quotas], idle_ns=HOST_PERIOD_NS)

    def _gpu_groups(self) -> Iterator[Group]:
        gpus = [device for device in self._devices if not device.is_mig]

        def each(read: Callable[[Questions], Values], devices: Sequence[Device] = gpus) -> list[Callable[[], Values]]:
            return [partial(read, Questions(device)) for device in devices]

        of_processes = ProcessMemory(self._devices, self.followed).read
        samples = [PowerSamples(Questions(device), self._offset_ns).read for device in gpus]
        yield Group("gpu-sensors", self._period_ns, each(gpu.sensors))
        yield Group("gpu-energy", max(self._period_ns, ENERGY_PERIOD_NS), each(gpu.energy))
        yield Group("gpu-links", SLOW_PERIOD_NS, each(gpu.links))
        yield Group("gpu-memory", MEMORY_PERIOD_NS, each(gpu.memory, self._devices))
        yield Group("gpu-process-memory", max(self._period_ns, PROCESS_MEMORY_PERIOD_NS), [of_processes])
        yield Group("gpu-power-samples", SLOW_PERIOD_NS, samples)
        yield Group("gpu-counters", GPM_PERIOD_NS, [GpmCounters(device).read for device in self._devices])

    def _thread(self, name: str, run: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=run, name=f"telemetry-{name}", daemon=True)

    def start(self) -> None:
        """Start; returns when everything has been read once."""
        for thread in self._threads:
            thread.start()
        for group in self._groups:
            group.has_begun.wait()
        self._writer.start()

    def stay_idle(self, seconds: float, interrupted: Callable[[], bool]) -> None:
        """Wait while the run does not use the GPUs."""
        begin_ns = now_ns = time.monotonic_ns()
        while self._devices and now_ns < begin_ns + seconds * 1e9 and not interrupted():
            time.sleep(min(0.1, seconds))
            now_ns = time.monotonic_ns()
            self._idle = begin_ns + self._offset_ns, now_ns + self._offset_ns

    def follow(self, process: FollowedProcess) -> None:
        """Start reading this process."""
        self.followed.append(process)

    def stop(self) -> None:
        """Read everything once more and write the file. Raises `ResultError` if that fails."""
        if self._devices:
            time.sleep(GPU_TAIL_S)
        self._ending.set()
        for group, thread in zip(self._groups, self._threads, strict=True):
            thread.join(STUCK_S)
            if thread.is_alive():
                group.problem = group.problem or f"a reading had not returned after {STUCK_S:g} s"
            elif group.problem is None and 2 * (time.monotonic_ns() - group.last_ns) >= group.period_ns:
                with contextlib.suppress(Exception):  # earlier readings suffice
                    group.read(self._readings)
        self._writer.join()
        self._write("stopped")

    def _write_now_and_then(self) -> None:
        due, written_ns = time.monotonic() + WRITE_S, 0
        while not self._ending.wait(LIVE_S):
            written_ns = self._write_live(written_ns)
            if (began := time.monotonic()) >= due:
                with contextlib.suppress(ResultError):  # the disk may be full only now
                    self._write("cut_off")
                due = time.monotonic() + max(WRITE_S, WRITE_SHARE * (time.monotonic() - began))
        self._live_path.unlink(missing_ok=True)

    def _write_live(self, since_ns: int) -> int:
        """Append readings since a monotonic time to the live file; return the time now."""
        now_ns = time.monotonic_ns()
        gpus = {device.uuid: device.index for device in self._devices}
        values = self._readings.newest(since_ns)
        line = {"time_unix_ns": now_ns + self._offset_ns, "gpus": gpus, "values": values}
        with contextlib.suppress(OSError), self._live_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return now_ns

    def _write(self, ended: Literal["stopped", "cut_off"]) -> None:
        failures = [
            FailureRecord(subject=one.name, metric=SOURCE_FAILED, reason=f"the source failed: {one.problem}", count=1)
            for one in self._groups
            if one.problem is not None
        ]
        offset_ns, error_ns = _clock_offset()
        error_ns, moved_ns = error_ns + self._offset_error_ns, offset_ns - self._offset_ns
        clock = ClockTieRecord(
            offset_ns=self._offset_ns,
            error_ns=self._offset_error_ns,
            moved_ns=moved_ns if abs(moved_ns) > error_ns else 0,
        )
        meta = TelemetryMeta(
            period_ns=self._period_ns,
            clock=clock,
            subjects=[*self._host.subjects, *map(_gpu_record, self._devices), *map(_process_record, self.followed)],
            failures=failures,
            ended=ended,
            idle_start_unix_ns=self._idle[0],
            idle_end_unix_ns=self._idle[1],
            sampler_cpu_ns=sum(group.cpu_ns for group in self._groups),
            driver=None if self._nvml is None else self._nvml.ask("nvmlSystemGetDriverVersion").value,
        )
        self.log = self._readings.log(meta)
        from perfharness.telemetry.store import write_sample_log  # importing Arrow takes as long as a process start

        with replacing(self._path) as temporary:
            write_sample_log(temporary, self.log)


@contextmanager
def sampling(
    path: Path,
    period_ns: int,
    gpu_uuids: Sequence[str] = (),
    *,
    idle_s: float = 0.0,
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[Sampler]:
    """Sample while the block runs; afterwards `log` has the readings. Raises `ResultError`.

    Args:
        idle_s: time to read idle GPUs before the block, for their idle power.
        interrupted: whether to end this wait.
    """
    with open_nvml() if gpu_uuids else nullcontext() as nvml:
        sampler = Sampler(path, period_ns, nvml, gpu_uuids)
        sampler.start()
        try:
            sampler.stay_idle(idle_s, interrupted)
            yield sampler
        finally:
            sampler.stop()


def _clock_offset() -> tuple[int, int]:
    """UTC minus the monotonic clock, from the shortest of 25 brackets, and half its width.

    NTP slews both clocks (clock_gettime(2)), so the offset changes only when UTC is set or stepped.
    """
    brackets = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(25)]
    before, unix, after = min(brackets, key=lambda one: one[2] - one[0])
    return unix - (before + after) // 2, max(1, (after - before + 1) // 2)


def _gpu_record(device: Device) -> SubjectRecord:
    return SubjectRecord(
        subject=device.uuid,
        kind="mig" if device.is_mig else "gpu",
        name=device.ask("nvmlDeviceGetName").value,
        gpu_index=device.index,
        parent_uuid=device.gpu.uuid if device.is_mig else None,
    )


def _process_record(process: FollowedProcess) -> SubjectRecord:
    uuids = list(process.gpu_uuids)
    return SubjectRecord(
        subject=process.subject,
        kind="process",
        name=process.folder,
        pid=process.pid,
        gpu_uuid=uuids[0] if uuids else None,
        gpu_uuids=uuids if len(uuids) > 1 else [],
    )
