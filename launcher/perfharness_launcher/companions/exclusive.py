"""Other processes on the launch's GPUs, before the run and while it lasts.

NVML lists who has a context on a GPU, by pid. A process is of this run when the run's id is in its environment or in
that of a process above it, read under /proc. In a container NVML may report the host's pids, which mean nothing under
the /proc of the container: then a finding reports only that there is another user.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from perfharness.errors import LaunchError
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import Device, Nvml, open_nvml
from perfharness_launcher.conditions import Condition, Run
from perfharness_launcher.processes.orphans import belongs

PERIOD_S = 0.5
JOIN_S = 10.0
"""How long a query of the driver may take at the end; what was found until then is reported."""

LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
SERVERS = frozenset({"nvidia-cuda-mps-server"})
"""They do no work of their own; the clients whose work they submit are listed too."""

IDLE_UTILISATION_PERCENT = 5
IDLE_MEMORY_BYTES = 256 << 20
"""Above either, a GPU on which NVML lists no process is in use; the driver's own reserve is not counted."""

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the pid namespace that the machine started with (Linux, include/linux/proc_ns.h)."""


@dataclass(frozen=True)
class GpuUser:
    """A process on a GPU, as NVML names it; name and memory are None where they are not known."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None

    def __str__(self) -> str:
        memory = "" if self.memory_bytes is None else f", {self.memory_bytes / 2**20:.0f} MiB"
        return f"{self.pid} ({self.name or 'name unknown'}{memory})"


@dataclass(frozen=True)
class ProcessView:
    """What /proc reports. Injected by tests.

    Args:
        belongs: whether a pid carries this run's id; None: there is no such process here, or it cannot be looked into.
        sees_all: whether pids here are those of the whole machine, so that NVML and /proc mean the same by one.
        name: of a process.
    """

    belongs: Callable[[int], bool | None]
    sees_all: bool
    name: Callable[[int], str | None]


@dataclass
class _Watched:
    """Who was on one GPU."""

    gpu: GpuRecord
    before: dict[int, GpuUser] = field(default_factory=dict)
    during: dict[int, GpuUser] = field(default_factory=dict)
    doubtful: dict[int, GpuUser] = field(default_factory=dict)
    """Users under pids of another namespace; they may belong to the run."""

    unknown_before: set[int] = field(default_factory=set)
    """Pids that the last poll could not identify."""

    refusal: str | None = None
    polls: int = 0

    @property
    def label(self) -> str:
        """The GPU, for messages."""
        return f"GPU {self.gpu.index}{' (MIG)' if self.gpu.mig else ''} {self.gpu.uuid}"

    def record(self) -> dict[str, Any]:
        """The entry in the manifest."""
        users = {
            "foreign_before": self.before,
            "foreign_during": self.during,
            "of_another_pid_namespace": self.doubtful,
        }
        listed = {name: [asdict(user) for _, user in sorted(found.items())] for name, found in users.items()}
        return {"uuid": self.gpu.uuid, **listed, "looks": self.polls, "reason": self.refusal}


class ExclusiveGpus:
    """Watches who else is on the GPUs of a launch.

    Args:
        required: whether a foreign process ends the launch before it begins, and makes it fail (exit code 3) where it
            comes later; otherwise it is a warning.
        nvml: `pynvml`, or one that answers like it; None: as `open_nvml` decides.
        view: of the processes; None: this machine's, for the run.
    """

    def __init__(
        self,
        *,
        required: bool = False,
        nvml: Any = None,
        view: ProcessView | None = None,
        period_s: float = PERIOD_S,
    ) -> None:
        self._required = required
        self._severity = Severity.ERROR if required else Severity.WARNING
        self._module = nvml
        self._view = view
        self._period_s = period_s
        self._watched: list[_Watched] = []
        self._before: list[Finding] = []
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, run: Run) -> None:
        """Poll the GPUs before any process of the run, then from a thread; without a GPU, do nothing.

        Raises:
            LaunchError: exclusive GPUs are required, and one is in use or that is not known.
        """
        if self._view is None:
            self._view = view_of_run(run.run_id)
        self._watched = [_Watched(gpu) for gpu in run.gpus]
        if not self._watched:
            return
        with open_nvml(self._module) as nvml:
            for watched in self._watched:
                watched.before = {user.pid: user for user in self._users(nvml, watched)}  # no process of the run yet
                self._before += self._idle_findings(nvml, watched)
        if self._required and (problems := self._findings()):
            raise LaunchError(
                "--require-exclusive: " + "; ".join(finding.message for finding in problems) + "\nnothing was started"
            )
        self._thread = threading.Thread(target=self._watch, name="perfharness-exclusive", daemon=True)
        self._thread.start()

    def stop(self, run: Run) -> None:
        """Stop polling; report the other users."""
        if self._thread is None:
            return
        self._done.set()
        self._thread.join(JOIN_S)
        run.findings += self._findings()
        gpus = [watched.record() for watched in self._watched]
        run.records["exclusive"] = {"period_s": self._period_s, "gpus": gpus}

    def _watch(self) -> None:
        with open_nvml(self._module) as nvml:
            while True:
                for watched in self._watched:
                    self.poll(nvml, watched)
                if self._done.wait(self._period_s):
                    return

    def poll(self, nvml: Nvml, watched: _Watched) -> None:
        """Read the users. A process may end between two queries, so one that is not in /proc must be listed twice."""
        assert self._view is not None, "started"
        watched.polls += 1
        unknown = set()
        for user in self._users(nvml, watched):
            belongs = user.pid in watched.before or self._view.belongs(user.pid)
            if belongs:
                continue
            if not self._view.sees_all:
                watched.doubtful[user.pid] = user
            elif belongs is False or user.pid in watched.unknown_before:
                watched.during[user.pid] = user
            else:
                unknown.add(user.pid)
        watched.unknown_before = unknown

    def _users(self, nvml: Nvml, watched: _Watched) -> list[GpuUser]:
        device = nvml.device(watched.gpu.uuid) if nvml.opened.ok else None
        if device is None:
            watched.refusal = nvml.opened.reason or "NVML does not know this GPU"
            return []
        users: dict[int, GpuUser] = {}
        for function in LISTS:
            answer = device.ask(function)
            if not answer.ok and function == LISTS[0]:
                watched.refusal = answer.reason
            for process in answer.value or ():
                user = self._user(nvml, process)
                if user.name is None or Path(user.name).name not in SERVERS:
                    users[user.pid] = user
        return list(users.values())

    def _user(self, nvml: Nvml, process: Any) -> GpuUser:
        assert self._view is not None, "started"
        pid, memory = int(process.pid), getattr(process, "usedGpuMemory", None)
        name = self._view.name(pid) if self._view.sees_all else None
        if name is None:
            name = nvml.ask("nvmlSystemGetProcessName", pid).value
        return GpuUser(pid, name, None if memory is None else int(memory))

    def _idle_findings(self, nvml: Nvml, watched: _Watched) -> Iterator[Finding]:
        """Signs of use on a GPU without listed processes: another container's processes are in no list."""
        device = nvml.device(watched.gpu.uuid) if nvml.opened.ok else None
        if device is not None and not watched.before and (signs := " and ".join(_signs_of_use(device))):
            yield Finding(
                "gpu-in-use-before",
                self._severity,
                f"{watched.label}: {signs} before the run, though no process is listed on it",
                "processes of other containers are not listed; see `nvidia-smi` on the host",
            )

    def _findings(self) -> list[Finding]:
        return [*self._before, *(finding for watched in self._watched for finding in self._findings_of(watched))]

    def _findings_of(self, watched: _Watched) -> Iterator[Finding]:
        if watched.before:
            yield Finding(
                "gpu-shared",
                self._severity,
                f"{watched.label} was in use by others before the run: {_listed(watched.before)}",
                "wait for them, take another GPU (--gpus), or read the times as those of a shared GPU",
            )
        if watched.during:
            yield Finding(
                "gpu-shared",
                self._severity,
                f"{watched.label} was used by others while the run lasted: {_listed(watched.during)}",
                "measure again when it is free; --require-exclusive keeps a launch from starting on a used GPU",
            )
        unknown = (
            f"who else used it is not known ({watched.refusal})"
            if watched.refusal is not None
            else f"{len(watched.doubtful)} processes used it under pids of another pid namespace, which may be those of"
            " this run or others"
        )
        if watched.refusal is not None or watched.doubtful:
            yield Finding(
                "gpu-sharing-unknown",
                Severity.NOTE,
                f"{watched.label}: {unknown}",
                "run perfharness on the host, or the container with the host's pid namespace (docker run --pid=host)",
            )


def other_users(*, required: bool) -> Condition:
    """Watch who else is on the GPUs of a launch."""

    @contextmanager
    def condition(run: Run) -> Iterator[None]:
        watch = ExclusiveGpus(required=required)
        watch.start(run)
        yield
        watch.stop(run)

    return condition


def _signs_of_use(device: Device) -> Iterator[str]:
    rates = device.ask("nvmlDeviceGetUtilizationRates")
    if rates.ok and rates.value.gpu >= IDLE_UTILISATION_PERCENT:
        yield f"its utilisation was {rates.value.gpu} %"
    version = getattr(device.nvml, "nvmlMemory_v2", None)
    memory = device.ask("nvmlDeviceGetMemoryInfo", version) if version is not None else None
    if memory is not None and memory.ok and memory.value.used >= IDLE_MEMORY_BYTES:
        yield f"{memory.value.used / 2**20:.0f} MiB of its memory were taken"


def _listed(users: Mapping[int, GpuUser]) -> str:
    return ", ".join(str(user) for _, user in sorted(users.items()))


def view_of_run(run_id: str) -> ProcessView:
    """The processes of this machine; of the run are those that carry its id, and all below them."""
    return ProcessView(belongs=lambda pid: _belongs(pid, run_id), sees_all=_sees_all(), name=_name)


def _belongs(pid: int, run_id: str) -> bool | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else belongs(process, run_id)
    except psutil.Error:
        return None


def _sees_all() -> bool:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        return False


def _name(pid: int) -> str | None:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None
