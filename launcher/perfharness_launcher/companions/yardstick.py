"""Was the machine the same for each launch? Counters of the kernel before and after, and a fixed loop, timed.

Nothing is done while the measured processes run: two readings of counters and two loops of some 50 ms, one before the
first process and one after the last, when its tracer has written its report: what that takes is no neighbour's doing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from perfharness.model.yardstick import YARDSTICK_COMPANION, LoopTime, OtherProcess, Yardstick
from perfharness.telemetry.host import GUESTS, IDLE, NO_STEAL, is_virtual
from perfharness_launcher.conditions import Run
from perfharness_launcher.processes.orphans import carries

TURNS, STEPS = 40, 20_000
"""A turn takes about a millisecond."""

SLOWEST = 0.1
"""So many turns are left out: one interruption says nothing about a launch; neighbours that stay slow more."""

LISTED = 8
LISTED_SHARE = 0.01
"""Of one CPU: others that used less are not listed."""

PRESSURE = Path("/proc/pressure/cpu")
LOAD = Path("/proc/loadavg")
NO_PRESSURE = "the kernel does not report how long tasks wait for a CPU (/proc/pressure/cpu)"
NO_CPU_TIMES = "the system does not count the CPU time of all processes (/proc/stat)"

Identity = tuple[int, float]


@dataclass(frozen=True)
class _CpuTimes:
    """CPU time since the machine started, seconds, of the CPUs that this process may use."""

    busy: float
    steal: float
    total: float


@dataclass(frozen=True)
class _Usage:
    """CPU time of a process since it started, seconds: its own, and that of the children that it waited for."""

    name: str
    own: float = 0.0
    children: float = 0.0


@dataclass(frozen=True)
class _Reading:
    """Counters at one time."""

    at_s: float
    cpu: _CpuTimes
    pressure_us: int | None
    own_s: float
    processes: dict[Identity, _Usage]
    """Of each process that can be seen."""


@contextmanager
def machine_load(run: Run) -> Iterator[None]:
    """Read and time before the first process and after the last."""
    strangers = set(_descendants())  # of a program that launches from Python, and has processes of its own
    runnable, loop_before, before = _runnable(), timed_loop(), _read()
    yield
    marked = {
        identity
        for process in psutil.process_iter()
        if carries(process, run.run_id) and (identity := _identity(process)) is not None
    }
    found = _compared(before, _read(), marked | (set(_descendants()) - strangers))
    loops = {"runnable_before": runnable, "loop_before": loop_before, "loop_after": timed_loop()}
    run.records[YARDSTICK_COMPANION] = found.model_copy(update=loops).model_dump(mode="json")


def timed_loop(turns: int = TURNS, steps: int = STEPS) -> LoopTime:
    """Time a loop of pure Python, whose work is always the same."""
    walls, cpu_before = [], time.thread_time_ns()
    for _ in range(turns):
        begin, value = time.perf_counter_ns(), 1
        for _ in range(steps):
            value = (value * 1_103_515_245 + 12_345) & 0x7FFFFFFF
        walls.append(time.perf_counter_ns() - begin)
    counted = max(1, round(turns * (1 - SLOWEST)))
    cpu_ns = time.thread_time_ns() - cpu_before
    return LoopTime(
        turns=turns,
        wall_ms=round(sum(sorted(walls)[:counted]) / counted / 1e6, 6),
        cpu_ms=round(cpu_ns / turns / 1e6, 6),
        min_ms=round(min(walls) / 1e6, 6),
    )


def _compared(before: _Reading, after: _Reading, ours: Collection[Identity]) -> Yardstick:
    window_s = after.at_s - before.at_s
    cpus = len(_cpus())
    spent = {one: _since(before.processes.get(one), usage) for one, usage in after.processes.items()}
    own = after.own_s - before.own_s + sum(spent[one].own + spent[one].children for one in ours if one in spent)
    total = after.cpu.total - before.cpu.total
    others = None if total <= 0 else max(0.0, after.cpu.busy - before.cpu.busy - own) / window_s
    steal_reason = NO_CPU_TIMES if total <= 0 else NO_STEAL if is_virtual() and not after.cpu.steal else None
    steal_share = None if steal_reason else round((after.cpu.steal - before.cpu.steal) / total, 6)
    pressure = None
    if before.pressure_us is not None and after.pressure_us is not None:
        pressure = round((after.pressure_us - before.pressure_us) / 1e6 / window_s, 6)
    foreign = sorted(
        (
            OtherProcess(pid=pid, name=usage.name, cpu_s=round(usage.own, 2))
            for (pid, started), usage in spent.items()
            if (pid, started) not in ours and pid != os.getpid() and usage.own >= LISTED_SHARE * window_s
        ),
        key=lambda one: -one.cpu_s,
    )
    unknown = LoopTime(turns=0, wall_ms=0, cpu_ms=0, min_ms=0)
    return Yardstick(
        window_s=round(window_s, 3),
        cpus=cpus,
        own_cpu_s=round(own, 2),
        others_cpus=None if others is None else round(others, 4),
        others_reason=NO_CPU_TIMES if others is None else None,
        others=foreign[:LISTED],
        steal_share=steal_share,
        steal_reason=steal_reason,
        pressure_share=pressure,
        pressure_reason=NO_PRESSURE if pressure is None else None,
        loop_before=unknown,
        loop_after=unknown,
    )


def _read() -> _Reading:
    processes = dict(_processes())
    own = os.times()
    own_s = own.user + own.system + own.children_user + own.children_system
    return _Reading(time.monotonic(), _cpu_times(), _pressure_us(), own_s, processes)


def _since(before: _Usage | None, after: _Usage) -> _Usage:
    if before is None:
        return after
    return _Usage(after.name, after.own - before.own, after.children - before.children)


def _descendants() -> Iterator[Identity]:
    for process in psutil.Process().children(recursive=True):
        if (identity := _identity(process)) is not None:
            yield identity


def _identity(process: psutil.Process) -> Identity | None:
    try:
        return process.pid, process.create_time()
    except psutil.Error:
        return None


def _processes() -> Iterator[tuple[Identity, _Usage]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error), process.oneshot():
            times = process.cpu_times()
            usage = _Usage(process.name(), times.user + times.system, times.children_user + times.children_system)
            yield (process.pid, process.create_time()), usage


def _cpus() -> Collection[int]:
    return os.sched_getaffinity(0)


def _cpu_times() -> _CpuTimes:
    allowed = _cpus()
    busy = steal = total = 0.0
    for cpu, times in enumerate(psutil.cpu_times(percpu=True)):
        if cpu in allowed:
            spent = {name: value for name, value in times._asdict().items() if name not in GUESTS}
            total += sum(spent.values())
            busy += sum(value for name, value in spent.items() if name not in IDLE)
            steal += spent.get("steal", 0.0)
    return _CpuTimes(busy, steal, total)


def _pressure_us() -> int | None:
    try:
        some = next(line for line in PRESSURE.read_text(encoding="ascii").splitlines() if line.startswith("some"))
        return int(some.rpartition("total=")[2])
    except (OSError, ValueError, StopIteration):
        return None


def _runnable() -> int | None:
    """Tasks that run or could, without this one."""
    try:
        running, _, _ = LOAD.read_text(encoding="ascii").split()[3].partition("/")
        return max(0, int(running) - 1)
    except (OSError, ValueError, IndexError):
        return None
