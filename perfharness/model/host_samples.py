"""What the sampler records of a process's threads: Python stacks, and intervals that the host knows.

Columns, as a trace has them; times are on the trace's clock. The probe inside the process writes them, `trace` reads
them, the diagnosis lays them onto stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from perfharness.model.columns import Columns, Int64, Integers

COARSE_NS = 10_000_000


class HostState(IntEnum):
    """What a thread did when it was sampled."""

    RUNNING = 0  # on a CPU
    RUNNABLE = 1  # ready, and no CPU was free for it
    GIL = 2  # waits for the interpreter lock
    LOCK = 3  # waits for another thread: a lock, a condition, a queue, a join
    SLEEP = 4
    FILE = 5  # reads, writes, opens, synchronises a file, or waits for a page of one
    SOCKET = 6  # network; in files of earlier versions also pipes
    PROCESS = 7  # waits for a child process to end
    DRIVER = 8  # in a call of the GPU's driver
    OTHER = 9  # blocked in something else
    UNKNOWN = 10  # not shown by the system
    PIPE = 11  # waits for another process of this machine: a pipe, or a local socket
    LOOPBACK = 12  # network, to this machine itself; in files of earlier versions


class HostEventKind(IntEnum):
    """What an interval is of."""

    COLLECTION = 0  # of the garbage collector; `detail`: the generation
    GIL_HELD = 1
    GIL_WAITED = 2  # for the interpreter lock, by the tracer (nsys `python-gil`)
    CPU_CONTENTION = 3  # more threads ready to run than CPUs at its begin and its end; `detail`: how many more at least
    CPU_TIME = 4  # of all threads of the process, native ones too; `detail`: microseconds


@dataclass(frozen=True)
class Frame:
    """A function, and the line that it was at."""

    function: str
    file: str
    line: int
    suspends: bool = False  # known to be of a coroutine or generator


@dataclass(frozen=True)
class HostSamples(Columns):
    """One row per sample of a thread, ordered by thread and time."""

    time_ns: Int64
    thread: Int64  # as in `Trace.ranges.thread`
    length_ns: Integers  # that the sample stands for: since the last one of this thread, corrected by its CPU time
    on_cpu_ns: Integers  # of that, on a CPU; -1: not reported
    runnable_ns: Integers  # of that, waiting for a CPU; -1: not reported
    state: Integers  # `HostState`
    stack: Integers  # index in `stacks`
    stage: Integers  # index in `stage_paths`; -1: no range of a recorder was open on the thread
    gil_holder: Int64  # thread that held the interpreter lock; 0: none, or not known
    frames: list[Frame]
    stacks: list[tuple[int, ...]]  # indices in `frames`, the innermost first
    stage_paths: list[tuple[str, ...]]
    interval_ns: int  # asked for

    @property
    def is_coarse(self) -> bool:
        """Whether they are those of the measured pass, too far apart to say what a single batch did."""
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
    """Everything that the probe of one process recorded."""

    samples: HostSamples
    events: HostEvents
    missing: tuple[str, ...] = ()  # what it could not record, in sentences
    together: HostSamples | None = None
    """Samples of all processes of the launch, which it may wait for, with own numbers of stacks; None: it is alone."""

    @property
    def everyone(self) -> HostSamples:
        """The samples of the process and of those that were launched together with it."""
        return self.samples if self.together is None else self.together
