"""What the rules read of a stage, and what a rule that holds says."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfharness.model.diagnosis import Cause, FunctionTime, GpuLimit, GpuLimits, HostProfile, Verdict
from perfharness.model.trace import OsWaitKind

MISSING_CALLS = (
    "calls that start no GPU work (synchronise, allocate, load) are not recorded by the embedded tracer's measured "
    "pass; they look like time outside of CUDA (--explain records them, and so does --tracer nsys)"
)
MISSING_OS = (
    "whether the time outside of CUDA calls is computing or waiting (a lock, a sleep, a file): the operating system's "
    "calls were not recorded (`trace-os = true` in perfharness.toml, under nsys)"
)
FURTHER_SHARE = 0.05
"""Of the stage's time: a further cause that takes less, or less than half of what would make it the verdict, is not
worth the reader's time."""

STATES_OF_WAITS = {
    OsWaitKind.LOCK: ("lock",),
    OsWaitKind.SLEEP: ("sleep",),
    OsWaitKind.PROCESS: ("process", "pipe"),
    OsWaitKind.FILE: ("file",),
    OsWaitKind.SOCKET: ("socket", "loopback"),
}
"""Sampled states (`HostState`) that are a kind of waiting."""

NO_STACKS = "too few stacks were sampled (--explain samples more)"
NO_SAMPLES = "no sample of its stacks shows it"


@dataclass(frozen=True)
class OtherThread:
    """A stage in which another thread was at work while this one waited for a lock, or right after whose end it ends.

    `share` is that of the waiting, or of the ranges that end so; `chance` the share that would by chance (None where
    waits were recorded).
    """

    stage: str
    share: float
    chance: float | None


@dataclass(frozen=True)
class RestOfProcess:
    """CPU time of the other threads of a stage's process, those of native libraries too: how many CPUs they use while
    the stage is open, and while it is not.
    """

    meanwhile: float
    otherwise: float


@dataclass(frozen=True)
class Issuing:
    """How the stage's host time is spent on giving the GPU work; a moment counts under one of these only. ns, sums.

    `launching_ns` and `copying_ns` are the time in the calls and in what leads to them (`issuing.py`), the others that
    in the calls; counts are of all batches. `copies`: from the host to a GPU, with the waits that follow them.
    `read_backs`: from a GPU to the host, with the waits that follow; where the stage has only these, they are among
    the `waits`. `synchronizing_ns`: other waits. `turning_ns`:
    what leads to read-backs and waits. `issued_gpu_ns`: time on the GPU of what `launches` started.
    """

    launches: int = 0
    launching_ns: float = 0.0
    launch_calls_ns: float = 0.0
    """Of `launching_ns`: inside of the calls themselves."""
    issued_gpu_ns: float = 0.0
    copies: int = 0
    copying_ns: float = 0.0
    copies_gpu_ns: float = 0.0
    pageable_ns: float = 0.0
    """Of `copies_gpu_ns`: from pageable memory."""
    copied_bytes: float | None = None
    read_backs: int = 0
    reading_ns: float = 0.0
    read_back_bytes: float | None = None
    waits: int = 0
    synchronizing_ns: float = 0.0
    turning_ns: float = 0.0
    allocations: int = 0
    """Calls that allocate or free memory of a GPU, or pinned memory."""
    allocating_ns: float = 0.0


@dataclass(frozen=True)
class KeptCpu:
    """What the machine kept of its CPUs from a stage, as telemetry has it; None: not known, or no such thing.

    `quota_ns`: how long, in its host time, a quota of `quota_cpus` CPUs made its control group stand still.
    `stolen_share` is of the time in which it computes: given to other machines. `computing_share`: of its host time,
    what was computed at least.
    """

    quota_cpus: float | None = None
    quota_ns: float | None = None
    stolen_share: float | None = None
    computing_share: float | None = None


@dataclass(frozen=True)
class Recompiling:
    """Compilation or loading that goes on in the steady state: time of all batches, and in how many it occurs."""

    lost_ns: float
    batches: int
    sign: str
    computing_ns: float = 0.0
    """Of it, known to be outside of CUDA calls."""


@dataclass(frozen=True)
class Compiling:
    """Compilers that were at work in several ranges of a stage, by samples; times in ms a batch.

    `name`: of the one that took most, and `step`: what helps against it. `computing_ms`: of `ms`, on a CPU or ready for
    one. `line`: of the user's code, that most of it was called from.
    """

    name: str
    step: str
    ms: float
    computing_ms: float
    line: FunctionTime | None


@dataclass(frozen=True)
class Worker:
    """The thread, of any of the processes, that works while a stage waits in a loader or queue, or for a lock.

    `line`: at what; `works_ahead`: it is at work while the stage does not wait, too (None: not known, for the stage
    waits all the time, for what it has asked for); `is_loader`: the stage waits in a library that asks its workers
    ahead.
    """

    line: FunctionTime
    works_ahead: bool | None
    is_loader: bool


@dataclass(frozen=True)
class HostEvidence:
    """What sampled stacks say of a stage. Each line is the innermost one of the user's own code.

    `busiest`: where most of its host time passed. `in_libraries`: in which functions of libraries below it, those
    of most time first; `called`: by the functions that it calls itself, with all that these call. `in_state`: by
    the lower-case name of `HostState`, where most of the time in that state passed. `during`: where the calls of a
    kind were made (`copies`, `read-backs`, `waits`, `allocations`, `launches`). `beginning`: where the time before
    the steady state passed. `faulting`: where most page faults were. `work_ms` a batch, and `work_lines`: how long
    a kind of library (`loader`, and of that `loader of processes`; `hand-over`: that, or a lock, of which `full
    queue` and `drained queue`: until there is room, or nothing left; `connection pool`: until one is free; `asked`:
    what was asked for; `exchange`, `pool exchange`:
    a pipe, or a pool of processes, while the process at its other end, or the pool, sends or receives rather than
    works; `processes`, `threads`: they are made, in several ranges; `ends`: they are made ready, or ended) was on
    the stack, and the line that most of it was called from. `recorder`: the line that perfharness's own time passed
    at, which is in no other of these. `worker`: who does the work that the stage waits for in a loader.
    `crowded_ms` a batch: ready without a free CPU while the process itself had more threads ready than it has CPUs.
    `workers_queued_share`: of `hand-over`, while the threads that do the work are ready without a CPU, which other
    processes have; `workers_crowded_share`: which threads of the process itself have. `cpus_before`: how many cores
    it could run on at first, where these are more than now. `unworked_share`: of `hand-over`, while no other thread
    of any process that was launched computes.
    """

    profile: HostProfile
    busiest: FunctionTime | None = None
    in_libraries: list[FunctionTime] = field(default_factory=list)
    called: list[FunctionTime] = field(default_factory=list)
    in_state: dict[str, FunctionTime] = field(default_factory=dict)
    during: dict[str, FunctionTime] = field(default_factory=dict)
    beginning: FunctionTime | None = None
    faulting: FunctionTime | None = None
    work_ms: dict[str, float] = field(default_factory=dict)
    work_lines: dict[str, FunctionTime] = field(default_factory=dict)
    recorder: FunctionTime | None = None
    worker: Worker | None = None
    crowded_ms: float = 0.0
    workers_queued_share: float = 0.0
    workers_crowded_share: float = 0.0
    cpus_before: int | None = None
    unworked_share: float = 0.0
    compiling: Compiling | None = None


@dataclass(frozen=True)
class Figures:
    """Sums over the stage's ranges, nanoseconds.

    `wall`: host time; `span`: from each range's start to the later of its end and that of its last operation;
    `gpu_busy`: own operations; `copy_only`: own transfers without a concurrent kernel; `gpu_idle`: no operation of the
    trace ran, in `wall`; `blocking_idle`: in synchronising calls with an idle GPU; `outside`: not in
    CUDA calls; `for_stages`: waiting, or queueing, while the GPU did the work of other stages; `shared`: own
    operations, or waits, while other processes were at work on the GPU; `blocked`: outside of CUDA calls in the
    operating system, None where that was not recorded; `loading`: loading modules; `slow_start`: what batches before
    the steady state took more; `waiting_share`, `ready_share`, `collecting_share`, `crowded_share`: of `wall`, what
    its threads waited, computed or waited for a CPU, collected garbage, and waited for a CPU that their own process
    had, at least, without samples; `queued_share`: about how much of `ready_share` they waited for a CPU;
    `without_calls`: in ranges without any CUDA call, 0 where `api_is_complete`; `helpers_reads`: how many copies to
    the host threads without stages began in that time.
    """

    wall: float
    span: float
    batches: int
    gpu_busy: float
    copy_only: float
    pageable: float
    gpu_idle: float
    blocking_idle: float
    outside: float
    issuing: Issuing
    operation_time: float
    for_stages: float
    other_stage: str | None
    shared: float | None
    loading: float
    slow_start: float
    recompiling: Recompiling | None
    waiting_share: float | None
    ready_share: float | None
    api_is_complete: bool
    limits: GpuLimits
    blocked: dict[OsWaitKind, int] | None
    other_thread: OtherThread | None
    gpu_shares: dict[str, float]
    uses_gpu: bool = True
    """Whether the process made any CUDA call, or a GPU any operation of it."""
    host: HostEvidence | None = None
    """None without a profiling pass."""
    kept: KeptCpu = field(default_factory=KeptCpu)
    without_calls: float = 0.0
    collecting_share: float | None = None
    crowded_share: float | None = None
    queued_share: float | None = None
    rest_of_process: RestOfProcess | None = None
    """None where that was not read in batches."""
    helpers_reads: int = 0

    @property
    def idle(self) -> str:
        """How much of the host time the GPU is idle."""
        return percent(self.gpu_idle, self.wall)

    @property
    def missing_calls(self) -> list[str]:
        """What the tracer does not record of the calls."""
        return [] if self.api_is_complete else [MISSING_CALLS]

    def a_batch(self, count: float) -> float:
        """A count of all batches, a batch."""
        return count / self.batches if self.batches else 0.0

    def sum_ns(self, batch_ms: float) -> float:
        """A time a batch, ms, as the sum over all batches."""
        return batch_ms * 1e6 * self.batches

    def waiting_ns(self, kind: OsWaitKind) -> float:
        """Of the host time, what its threads waited so: by their sampled states where the system shows them, else by
        recorded calls.
        """
        states = STATES_OF_WAITS[kind]
        if self.host is not None and (
            self.blocked is None or any(self.host.profile.state_ms.get(state) is not None for state in states)
        ):
            return self.state_ns(*states)
        return float(self.blocked.get(kind, 0)) if self.blocked is not None else 0.0

    @property
    def waiting_outside_ns(self) -> float:
        """Of the time outside of CUDA calls, what other rules have a name for: waits, and collections."""
        waits = sum(self.waiting_ns(kind) for kind in OsWaitKind) + self.state_ns("gil", "runnable", "other")
        return waits + self.collection_ns + (self.others_ns if self.host is None else 0.0)

    @property
    def works_when_asked(self) -> bool:
        """Whether what the stage waits for in a queue is worked on only once it waits."""
        worker = None if self.host is None else self.host.worker
        return worker is not None and not worker.works_ahead and not worker.is_loader

    @property
    def others_ns(self) -> float:
        """Of the host time, how long other processes had the CPUs while the threads were ready; without samples, what
        was read of batches, in which they may have been the process's own where `crowded_ns` is only the least.
        """
        return max(self.queued_ns - max(self.crowded_ns, self.throttled_ns), 0.0)

    @property
    def throttled_ns(self) -> float:
        """Of the host time, how long a CPU quota held it up: its group stood still, while it neither ran nor waited for
        what needs no CPU of the group.
        """
        waits = sum(self.waiting_ns(kind) for kind in (OsWaitKind.SLEEP, OsWaitKind.FILE)) + self.state_ns("socket")
        return min(self.kept.quota_ns or 0.0, max(self.wall - self.state_ns("running") - waits, 0.0))

    @property
    def computing_ns(self) -> float:
        """Of the host time, what its threads computed: by their samples, else at least, by the process's CPU time."""
        if self.host is not None:
            return self.state_ns("running")
        return (self.kept.computing_share or 0.0) * self.wall

    @property
    def workers_queued_ns(self) -> float:
        """Of the host time, waiting for workers that have no CPU, for other processes have it; 0 without samples."""
        return 0.0 if self.host is None else self.host.workers_queued_share * self.work_ns("hand-over")

    @property
    def undisturbed_ns(self) -> float:
        """The host time without what other processes take: what shares of waiting are compared with."""
        return max(self.wall - self.others_ns - self.workers_queued_ns, 0.0)

    def line_during(self, calls: str) -> FunctionTime | None:
        """The line that made most of these calls (`HostEvidence.during`)."""
        return None if self.host is None else self.host.during.get(calls)

    def line_in(self, state: str) -> FunctionTime | None:
        """The line at which most of the time in a state passed."""
        return None if self.host is None else self.host.in_state.get(state)

    def line_waiting(self, kind: OsWaitKind) -> FunctionTime | None:
        """The line at which most of a kind of waiting passed."""
        return self.line_in(max(STATES_OF_WAITS[kind], key=self.state_ns))

    @property
    def no_line(self) -> str:
        """Why a line could not be had."""
        return NO_STACKS if self.host is None else NO_SAMPLES

    def state_ns(self, *states: str) -> float:
        """Of the host time, what the stage's threads spent in these states, by their samples; 0 without samples."""
        times = {} if self.host is None else self.host.profile.state_ms
        return self.sum_ns(sum(times.get(state) or 0.0 for state in states))

    def work_ns(self, kind: str) -> float:
        """Of the host time, how long a kind of library was on the stack (`HostEvidence.work_ms`); 0 without samples."""
        return 0.0 if self.host is None else self.sum_ns(self.host.work_ms.get(kind, 0.0))

    def line_of(self, kind: str) -> FunctionTime | None:
        """The line that most of that work was called from."""
        return None if self.host is None else self.host.work_lines.get(kind)

    @property
    def crowded_ns(self) -> float:
        """Of the host time, ready without a CPU, which the process's own threads had; at least, without samples."""
        if self.host is None:
            return (self.crowded_share or 0.0) * self.wall
        return self.sum_ns(self.host.crowded_ms)

    @property
    def compiling_ns(self) -> float:
        """Of the host time, how long compilers were at work; 0 without samples."""
        return 0.0 if self.host is None or self.host.compiling is None else self.sum_ns(self.host.compiling.ms)

    @property
    def waiting_for_compiler_ns(self) -> float:
        """Of the same, how long the stage's own thread waited meanwhile, as for a compiler's threads or processes."""
        found = None if self.host is None else self.host.compiling
        return 0.0 if found is None else self.sum_ns(max(found.ms - found.computing_ms, 0.0))

    @property
    def recorder_ns(self) -> float:
        """Of the host time, what perfharness took to open and close ranges; 0 without samples."""
        return 0.0 if self.host is None else self.sum_ns(self.host.profile.recorder_ms or 0.0)

    @property
    def collection_ns(self) -> float:
        """Of the host time, that of the garbage collector; without samples, at least. Its runs were timed as a whole:
        of them, as much is waiting for a CPU as of all.
        """
        if not self.wall:
            return 0.0
        runs = (self.collecting_share or 0.0) * self.wall
        if self.host is not None:
            runs = self.sum_ns(self.host.profile.collection_ms or 0.0)
        return runs * max(1 - self.queued_ns / self.wall, 0.0)

    @property
    def queued_ns(self) -> float:
        """Of the host time, waiting for a CPU, whoever had it; about, without samples."""
        return (self.queued_share or 0.0) * self.wall if self.host is None else self.state_ns("runnable")


@dataclass(frozen=True)
class Match:
    """A rule that holds for a stage: what it costs, and what to do about it.

    `lost_ns` is the part of `of_ns` (the stage's host time, or its span) that it takes. `saves_ns` is what would be
    gained at most, None where nothing in the trace bounds it.
    """

    verdict: Verdict
    lost_ns: float
    of_ns: float
    evidence: list[str]
    try_this: str
    verdict_share: float = 0.0
    """Of `of_ns`, or of `undisturbed_ns`: with so much it is what limits the stage."""
    may_be_verdict: bool = True
    saves_ns: float | None = None
    where: FunctionTime | None = None
    where_reason: str = NO_STACKS
    missing: list[str] = field(default_factory=list)
    limit: GpuLimit | None = None
    undisturbed_ns: float | None = None
    """`of_ns` without the time in which other processes had the CPUs."""

    @property
    def is_verdict(self) -> bool:
        """Whether it is what limits the stage; else it is a further cause at most."""
        return self.may_be_verdict and self.lost_ns >= self.verdict_share * self._whole_ns

    @property
    def is_cause(self) -> bool:
        """Whether it takes enough of the stage to be a further cause."""
        return self.of_ns > 0 and self.lost_ns >= max(FURTHER_SHARE, self.verdict_share / 2) * self._whole_ns

    @property
    def _whole_ns(self) -> float:
        return self.of_ns if self.undisturbed_ns is None else self.undisturbed_ns

    def cause(self, batches: int, stage_ns: float) -> Cause:
        """As it stands in results; what it saves is at most what the stage takes."""
        share = min(max(self.lost_ns / self.of_ns, 0.0), 1.0) if self.of_ns > 0 else 0.0
        saves = None
        if self.saves_ns is not None and batches:
            saves = min(max(self.saves_ns, 0.0), stage_ns) / 1e6 / batches
        return Cause(
            code=self.verdict.value,
            what=self.evidence[0] if self.evidence else self.verdict.value,
            share=share,
            where=self.where,
            where_reason=None if self.where is not None else self.where_reason,
            try_this=self.try_this,
            saves_ms=saves,
        )


def place(line: FunctionTime) -> str:
    """A function and its line, for a sentence."""
    return f"{line.function} ({line.file}:{line.line})"


def call_of(line: FunctionTime) -> str:
    """What to call a function that is to be changed: by its name where it has one, else by its line."""
    last = line.function.rpartition(".")[2]
    return f"line {line.line} of {line.file.rpartition('/')[2]}" if last.startswith("<") else line.function


def percent(part: float, whole: float) -> str:
    """A share for a sentence."""
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
