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

    RUNNING = 0
    """On a CPU."""
    RUNNABLE = 1
    """Ready, and no CPU was free for it."""
    GIL = 2
    """Waits for the interpreter lock."""
    LOCK = 3
    """Waits for another thread: a lock, a condition, a queue, a join."""
    SLEEP = 4
    FILE = 5
    """Reads, writes, opens, synchronises a file, or waits for a page of one."""
    SOCKET = 6
    """Network. In files of earlier versions also pipes."""
    PROCESS = 7
    """Waits for a child process to end."""
    DRIVER = 8
    """In a call of the GPU's driver."""
    OTHER = 9
    """Blocked in something else."""
    UNKNOWN = 10
    """The system does not show it."""
    PIPE = 11
    """Waits for another process of this machine: a pipe, or a local socket."""
    LOOPBACK = 12
    """Network, to this machine itself; in files of earlier versions."""


class HostEventKind(IntEnum):
    """What an interval is of."""

    COLLECTION = 0
    """Of the garbage collector; `detail` is the generation."""
    GIL_HELD = 1
    GIL_WAITED = 2
    """Of the interpreter lock, where the tracer records it (nsys `python-gil`)."""
    CROWDED = 3
    """At its begin and its end more threads of the process were ready to run than it has CPUs; `detail`: how many more
    at least."""
    CPU_TIME = 4
    """What all threads of the process ran, those of native libraries too; `detail`: microseconds."""


@dataclass(frozen=True)
class Frame:
    """A function, and the line that it was at. `suspends`: it is known to be of a coroutine or generator."""

    function: str
    file: str
    line: int
    suspends: bool = False


@dataclass(frozen=True)
class HostSamples(Columns):
    """One row a sample of a thread, ordered by thread and time; the columns are aligned.

    `length_ns` is the time that the sample stands for: since the last one of this thread, corrected by its CPU time.
    `on_cpu_ns` and `runnable_ns`: of that, how long the thread ran, and how long it waited for a CPU; -1 where the
    system does not report it. `stack` indexes `stacks`, each of them indices of `frames`, the innermost frame first.
    `stage` indexes `stage_paths`, -1: no range of a recorder was open on the thread (read off the recorder's stack).
    """

    time_ns: Int64
    thread: Int64
    """As in `Trace.ranges.thread`."""
    length_ns: Integers
    on_cpu_ns: Integers
    runnable_ns: Integers
    state: Integers
    """`HostState`."""
    stack: Integers
    stage: Integers
    gil_holder: Int64
    """The thread that held the interpreter lock at that moment, as `thread`; 0: none did, or it is not known."""

    frames: list[Frame]
    stacks: list[tuple[int, ...]]
    stage_paths: list[tuple[str, ...]]
    interval_ns: int
    """Asked for; `length_ns` has what came of it."""

    @property
    def is_coarse(self) -> bool:
        """Whether they are those of the measured pass, too far apart to say what a single batch did."""
        return self.interval_ns >= COARSE_NS


@dataclass(frozen=True)
class HostEvents(Columns):
    """Intervals on threads, ordered by start; the columns are aligned."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    kind: Integers
    """`HostEventKind`."""
    detail: Integers


@dataclass(frozen=True)
class HostProbe:
    """Everything that the probe of one process recorded. `missing`: what it could not, each a sentence."""

    samples: HostSamples
    events: HostEvents
    missing: tuple[str, ...] = ()
    together: HostSamples | None = None
    """The samples of all processes that were launched together, where it is not the only one: those that it waits for
    may be among them. Their frames and stacks have numbers of their own."""

    @property
    def everyone(self) -> HostSamples:
        """The samples of the process and of those that were launched together with it."""
        return self.samples if self.together is None else self.together
