"""Samples of a process's threads: Python stacks, and intervals from the host.

Columns, as in a trace, on the trace's clock. Written by the probe in the process, read by `trace`, assigned to stages
by the diagnosis.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from perfharness.model.columns import Columns, Int64, Integers

COARSE_NS = 10_000_000


class HostState(IntEnum):
    """State of a sampled thread."""

    RUNNING = 0  # on a CPU
    RUNNABLE = 1  # ready, but no CPU was free
    GIL = 2  # waits for the interpreter lock
    LOCK = 3  # waits for another thread: a lock, a condition, a queue, a join
    SLEEP = 4
    FILE = 5  # reads, writes, opens or syncs a file, or waits for a page of one
    SOCKET = 6  # network; in older files also pipes
    PROCESS = 7  # waits for a child process to end
    DRIVER = 8  # in a call of the GPU's driver
    OTHER = 9  # blocked in something else
    UNKNOWN = 10  # not reported by the system
    PIPE = 11  # waits for another process of this machine: a pipe or local socket
    LOOPBACK = 12  # network to this machine; in older files


class HostEventKind(IntEnum):
    """Kind of an interval."""

    COLLECTION = 0  # of the garbage collector; `detail`: the generation
    GIL_HELD = 1
    GIL_WAITED = 2  # from the tracer (nsys `python-gil`)
    CPU_CONTENTION = 3  # more ready threads than CPUs at begin and end; `detail`: how many more at least
    CPU_TIME = 4  # of all threads of the process, including native ones; `detail`: microseconds


@dataclass(frozen=True)
class Frame:
    """A function and the current line."""

    function: str
    file: str
    line: int
    suspends: bool = False  # known to be a coroutine or generator


@dataclass(frozen=True)
class HostSamples(Columns):
    """One row per sample of a thread, ordered by thread and time."""

    time_ns: Int64
    thread: Int64  # as in `Trace.ranges.thread`
    length_ns: Integers  # time it stands for: since the thread's previous sample, corrected by its CPU time
    on_cpu_ns: Integers  # part of it on a CPU; -1 if not reported
    runnable_ns: Integers  # part of it waiting for a CPU; -1 if not reported
    state: Integers  # `HostState`
    stack: Integers  # index in `stacks`
    stage: Integers  # index in `stage_paths`; -1 without an open recorder range on the thread
    gil_holder: Int64  # thread that held the interpreter lock; 0 for none or unknown
    frames: list[Frame]
    stacks: list[tuple[int, ...]]  # indices in `frames`, innermost first
    stage_paths: list[tuple[str, ...]]
    interval_ns: int  # as requested

    @property
    def is_coarse(self) -> bool:
        """Whether they are from the measured pass, and too sparse for single batches."""
        return self.interval_ns >= COARSE_NS


@dataclass(frozen=True)
class HostEvents(Columns):
    """Intervals on threads, ordered by start."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    kind: Integers  # `HostEventKind`
    detail: Integers


@dataclass(frozen=True)
class HostProbe:
    """All records of one process's probe."""

    samples: HostSamples
    events: HostEvents
    missing: tuple[str, ...] = ()  # what could not be recorded, in sentences
    together: HostSamples | None = None
    """Samples of all processes of the launch, with separate stack numbers; None if it runs alone."""

    @property
    def everyone(self) -> HostSamples:
        """Samples of the process and of those launched with it."""
        return self.samples if self.together is None else self.together
