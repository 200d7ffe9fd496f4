"""Conditions of a launch: context managers around its processes, such as a sampler or a wait for cool GPUs.

They are entered in order before the first process starts, and left in reverse order after the last one has ended and
before the tracers report; also after an exception, Ctrl-C, SIGTERM or SIGHUP.

A condition that starts processes removes `PERFHARNESS_RUN_ID` from their environment. Otherwise they end with the run.
"""

from __future__ import annotations

import math
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from perfharness.errors import LaunchError, PerfHarnessError
from perfharness.model.conditions import MACHINE_LOAD, GpuWait, LoopTime, MachineLoad
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import Answer, Nvml, open_nvml
from perfharness_launcher.process import RunningProcess, carries


@dataclass
class Run:
    """A run and its conditions.

    Args:
        folder: the unfinished run. Files of a condition need a name in `staging.has_name_of_a_run`.
        interrupted: whether the user asked the launch to end. Conditions that are slow to enter poll it.

    Attributes:
        records: JSON for the manifest, by name of the condition.
        of_processes: fields of `ProcessRecord`, by folder of the process.
        findings: for the manifest; an `ERROR` makes the launch exit with 3.
        started: called with each measured process after its start; must be quick.
        done: whether the processes can end; must be quick.
    """

    folder: Path
    run_id: str
    gpus: tuple[GpuRecord, ...] = ()
    interrupted: Callable[[], bool] = lambda: False
    records: dict[str, Any] = field(default_factory=dict)
    of_processes: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    started: list[Callable[[RunningProcess], None]] = field(default_factory=list)
    done: list[Callable[[], bool]] = field(default_factory=list)
    _entered: ExitStack = field(default_factory=ExitStack)

    def enter(self, conditions: Iterable[Condition]) -> None:
        """Enter conditions until the user interrupts; an unexpected error becomes a finding.

        Raises `PerfHarnessError` if a condition cancelled the launch.
        """
        for condition in conditions:
            if self.interrupted():
                return
            with self._noting("could not be set up, and the run went on without it", but=PerfHarnessError):
                manager = condition(self)
                manager.__enter__()
                self._entered.callback(self._leave_one, manager)

    def notify_started(self, process: RunningProcess) -> None:
        """Call `started` with a process."""
        for callback in self.started:
            with self._noting(f"failed when {process.spec.folder} started"):
                callback(process)

    def is_done(self) -> bool:
        """Whether the processes can end."""
        return any(is_done() for is_done in self.done)

    def leave(self) -> None:
        """Leave all conditions in reverse order; a second call does nothing."""
        self._entered.close()

    def _leave_one(self, manager: AbstractContextManager[None]) -> None:
        with self._noting("failed at its end"):
            manager.__exit__(None, None, None)

    @contextmanager
    def _noting(self, what: str, but: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        try:
            yield
        except but:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
            message = f"A condition of the launch {what}: {where}"
            self.findings.append(Finding("condition-failed", Severity.ERROR, message))


Condition = Callable[[Run], AbstractContextManager[None]]


# ---- other processes on the GPUs ----

LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
MPS_SERVER = "nvidia-cuda-mps-server"
"""Does not compute itself; its clients are listed too."""

FREE_GPU = "Wait until the GPU is free, or choose another one with --gpus."

MEMORY_V2 = 0x02000028  # nvmlMemory_v2: `used` is without what the driver reserves
UNLISTED = 0
UNLISTED_BYTES = 64 << 20
"""An idle GPU has 0 bytes in use, and a CUDA context takes more than this."""

Users = dict[int, dict[str, Any]]
"""Processes on a GPU by pid: `pid`, and `name` and `memory_bytes` if known. `UNLISTED` stands for processes of another
container: NVML lists those of its own PID namespace, but counts the memory of all.
"""


@contextmanager
def other_users(run: Run, *, required: bool = False) -> Iterator[None]:
    """List other processes on the GPUs of the run.

    If `required`, raise `LaunchError` if there is one before the launch, and exit with 3 if there is one after it.
    """
    severity = Severity.ERROR if required else Severity.WARNING
    before, found = users_of(run.gpus), list[Finding]()
    for gpu, (users, reason) in zip(run.gpus, before, strict=True):
        found += _shared(gpu, "before the run", users, severity)
        if reason is not None:
            message = f"{gpu.title}: other users are not known ({reason})."
            found.append(Finding("gpu-sharing-unknown", Severity.NOTE, message, "See `nvidia-smi` on the host."))
    if required and found:
        reasons = " ".join(finding.message for finding in found)
        raise LaunchError(f"--require-exclusive: {reasons}\nNothing was started. {FREE_GPU}")
    run.findings += found
    yield
    records = []
    for gpu, (users, reason), (last, last_reason) in zip(run.gpus, before, users_of(run.gpus), strict=True):
        came = {pid: user for pid, user in last.items() if pid not in users and _is_other(pid, run)}
        run.findings += _shared(gpu, "when the run ended", came, severity)
        listed = {"foreign_before": list(users.values()), "foreign_after": list(came.values())}
        records.append({"uuid": gpu.uuid, **listed, "reason": reason or last_reason})
    if records:
        run.records["exclusive"] = {"gpus": records}


def users_of(gpus: Sequence[GpuRecord]) -> list[tuple[Users, str | None]]:
    """Current processes on each GPU, or the reason why they are unknown."""
    if not gpus:
        return []
    with open_nvml() as nvml:
        return [_users(nvml, gpu) for gpu in gpus]


def _users(nvml: Nvml, gpu: GpuRecord) -> tuple[Users, str | None]:
    device = nvml.device(gpu.uuid) if nvml.opened.ok else None
    if device is None:
        return {}, nvml.opened.reason or "NVML does not know this GPU"
    answers = [device.ask(name) for name in LISTS]
    users: Users = {}
    for process in (one for answer in answers for one in answer.value or ()):
        memory, name = getattr(process, "usedGpuMemory", None), nvml.ask("nvmlSystemGetProcessName", process.pid).value
        if Path(name or "").name != MPS_SERVER:
            users[process.pid] = {"pid": process.pid, "name": name, "memory_bytes": memory}
    is_listed = any(answer.value for answer in answers)
    used_bytes = getattr(device.ask("nvmlDeviceGetMemoryInfo", MEMORY_V2).value, "used", 0)
    if answers[0].ok and not is_listed and not device.is_mig and used_bytes > UNLISTED_BYTES:
        users[UNLISTED] = {"pid": UNLISTED, "name": "processes of another container?", "memory_bytes": used_bytes}
    return users, answers[0].reason


def _shared(gpu: GpuRecord, when: str, users: Users, severity: Severity) -> Iterator[Finding]:
    if users:
        message = f"{gpu.title} had other users {when}: {', '.join(map(_text, users.values()))}."
        yield Finding("gpu-shared", severity, message, FREE_GPU)


def _text(user: dict[str, Any]) -> str:
    memory = "" if user["memory_bytes"] is None else f", {user['memory_bytes'] / 2**20:.0f} MiB"
    if user["pid"] == UNLISTED:
        return f"{user['name']}{memory}"
    return f"{user['pid']} ({user['name'] or 'name unknown'}{memory})"


def _is_other(pid: int, run: Run) -> bool:
    """Whether a process is alive and not part of the run."""
    if pid == UNLISTED:
        return True
    try:
        return not carries(psutil.Process(pid), run.run_id)
    except psutil.Error:
        return False


# ---- cool GPUs: a warm GPU lowers its clocks ----

PERIOD_S = 1.0
START_MARGIN_C = 5.0
"""Launches of a series begin at most this much warmer than the first one."""

Interrupted = Callable[[], bool]
Say = Callable[[str], object]


def cool_down(
    targets_c: Mapping[str, float],
    *,
    limit_s: float,
    interrupted: Interrupted = lambda: False,
    say: Say = lambda _: None,
) -> list[GpuWait]:
    """Wait until every GPU has been at or below its target once.

    Args:
        targets_c: by UUID. A GPU without a readable temperature is skipped.
        interrupted: polled every second; ends the wait.
        say: called with a line when the wait begins.
    """
    if not targets_c:
        return []
    begin, passed_s = time.monotonic(), 0.0
    with open_nvml() as nvml:
        found = {uuid: _read(nvml, uuid, target_c) for uuid, target_c in targets_c.items()}
        while waiting := [one for one in found.values() if not one.reached and one.reason is None]:
            if passed_s >= limit_s or interrupted():
                break
            if not passed_s:
                warm = ", ".join(f"now {one.begin_c} °C, target {one.target_c:g} °C" for one in waiting)
                say(f"waiting at most {limit_s:g} s until the GPUs are cool ({warm})")
            time.sleep(min(PERIOD_S, limit_s - passed_s))
            passed_s = time.monotonic() - begin
            for one in waiting:
                now = _read(nvml, one.gpu_uuid, one.target_c)
                found[one.gpu_uuid] = now.model_copy(update={"begin_c": one.begin_c, "waited_s": passed_s})
    return list(found.values())


def _read(nvml: Nvml, uuid: str, target_c: float) -> GpuWait:
    device, now = nvml.device(uuid), Answer(reason=nvml.opened.reason or "no such GPU")
    if device is not None:
        now = device.gpu.ask("nvmlDeviceGetTemperature", nvml.module.NVML_TEMPERATURE_GPU)
    reached = now.value is not None and now.value <= target_c
    return GpuWait(
        gpu_uuid=uuid,
        target_c=target_c,
        begin_c=now.value,
        end_c=now.value,
        waited_s=0.0,
        reached=reached,
        reason=now.reason,
    )


@contextmanager
def cooled_down(run: Run, target_c: float, limit_s: float, say: Say) -> Iterator[None]:
    """Wait before the first process (`--cool-down`)."""
    titles = {gpu.uuid: gpu.title for gpu in run.gpus}
    found = cool_down(dict.fromkeys(titles, target_c), limit_s=limit_s, interrupted=run.interrupted, say=say)
    warm = [_problem(one, titles[one.gpu_uuid]) for one in found if not one.reached]
    hint = "Use a higher --cool-down or cool-down-limit (perfharness.toml)."
    for problem in warm if found else ["the run uses no GPU"]:
        run.findings.append(Finding("not-cooled-down", Severity.WARNING, f"--cool-down: {problem}.", hint))
    gpus = [one.model_dump() for one in found]
    run.records["cool-down"] = {"target_c": target_c, "limit_s": limit_s, "gpus": gpus}
    yield


def _problem(result: GpuWait, gpu: str) -> str:
    if result.reason is not None:
        return f"the temperature of {gpu} cannot be read ({result.reason})"
    after = f"after {result.waited_s:.0f} s (target {result.target_c:g} °C, at first {result.begin_c} °C)"
    return f"{gpu} was still at {result.end_c} °C {after}"


def as_cool_as_first(
    gpus: Sequence[GpuRecord], first_c: dict[str, int], *, limit_s: float, interrupted: Interrupted, say: Say
) -> list[GpuWait]:
    """Wait until the GPUs are about as cool as before the first launch of a series (`first_c`, by UUID).

    GPUs that `first_c` lacks are added without a wait.
    """
    known = dict(first_c)
    targets_c = {gpu.uuid: known.get(gpu.uuid, math.inf) + START_MARGIN_C for gpu in gpus}
    found = cool_down(targets_c, limit_s=limit_s, interrupted=interrupted, say=say)
    first_c |= {one.gpu_uuid: one.begin_c for one in found if one.begin_c is not None} | known
    return [one for one in found if one.gpu_uuid in known]


# ---- load of the machine, and a reference loop ----

TURNS, STEPS = 40, 20_000
"""A turn takes 1 to 5 ms."""

TRIM = 0.1
"""Share of the slowest turns to drop, because they may have been interrupted."""

NO_STEAL = "no steal time was counted since boot; a hypervisor may not report it"
PRESSURE = Path("/proc/pressure/cpu")


@contextmanager
def machine_load(run: Run) -> Iterator[None]:
    """Read the load and time the loop, before and after."""
    loop_before, load_before, pressure_before = timed_loop(), os.getloadavg()[0], _pressure()
    steal_before, total_before = _cpu_seconds()
    yield
    steal, total = _cpu_seconds()
    share = (steal - steal_before) / (total - total_before) if steal > 0 and total > total_before else None
    run.records[MACHINE_LOAD] = MachineLoad(
        cpus=len(os.sched_getaffinity(0)),
        load_before=load_before,
        load_after=os.getloadavg()[0],
        pressure_before=pressure_before,
        pressure_after=_pressure(),
        steal_share=None if share is None else round(share, 6),
        steal_reason=NO_STEAL if share is None else None,
        loop_before=loop_before,
        loop_after=timed_loop(),
    ).model_dump(mode="json")


def timed_loop() -> LoopTime:
    """Time a fixed loop of pure Python."""
    walls, cpu_before = [], time.thread_time_ns()
    for _ in range(TURNS):
        begin, value = time.perf_counter_ns(), 1
        for _ in range(STEPS):
            value = (value * 1_103_515_245 + 12_345) & 0x7FFFFFFF
        walls.append(time.perf_counter_ns() - begin)
    cpu_ns = time.thread_time_ns() - cpu_before
    counted = sorted(walls)[: round(TURNS * (1 - TRIM))]
    return LoopTime(wall_ms=round(sum(counted) / len(counted) / 1e6, 6), cpu_ms=round(cpu_ns / TURNS / 1e6, 6))


def _cpu_seconds() -> tuple[float, float]:
    """Stolen and total CPU time since boot."""
    times = psutil.cpu_times()._asdict()
    return times.get("steal", 0.0), sum(value for name, value in times.items() if not name.startswith("guest"))


def _pressure() -> float | None:
    """Share of the last 10 s in which a task waited for a CPU (PSI, `some`), or None if not reported."""
    with suppress(OSError, ValueError, IndexError):
        return round(float(PRESSURE.read_text(encoding="ascii").split("avg10=")[1].split()[0]) / 100, 4)
    return None
