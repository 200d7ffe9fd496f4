"""Load of the machine before the first process of a launch and after its last one, and a reference loop timed at both.

Nothing runs in between. Load and pressure are those of the whole machine; after the last process they include the
launch itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from perfharness.model.conditions import MACHINE_LOAD, LoopTime, MachineLoad
from perfharness_launcher.conditions import Run

TURNS, STEPS = 40, 20_000
"""A turn takes 1 to 5 ms."""

TRIM = 0.1
"""Drop the slowest tenth of the turns, so that one interruption does not count."""

NO_STEAL = "no steal time was counted since the machine started; a hypervisor may not report it"
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
    """Time a loop of pure Python, whose work is always the same."""
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
    """Stolen and all CPU time since the machine started."""
    times = psutil.cpu_times()._asdict()
    return times.get("steal", 0.0), sum(value for name, value in times.items() if not name.startswith("guest"))


def _pressure() -> float | None:
    """Part of the last 10 s in which a task of the machine waited for a CPU (PSI, `some`); None: not reported."""
    with suppress(OSError, ValueError, IndexError):
        return round(float(PRESSURE.read_text(encoding="ascii").split("avg10=")[1].split()[0]) / 100, 4)
    return None
