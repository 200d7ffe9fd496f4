"""What samples say of a stage's causes: which lines of the user's code they lead to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.diagnosis.host.call_roles import ROLE_NAMES
from perfharness.analysis.diagnosis.host.issuing import stretches
from perfharness.analysis.diagnosis.rules.evidence import Compiling, HostEvidence, Worker
from perfharness.analysis.diagnosis.workload import StageEvents
from perfharness.analysis.host_samples.awaits import SELECTS
from perfharness.analysis.host_samples.compilers import (
    COMPILERS,
    Names,
    compilers_of_stacks,
    frames_named,
)
from perfharness.analysis.host_samples.contention import own_contention
from perfharness.analysis.host_samples.frames import is_library
from perfharness.analysis.host_samples.host_profile import (
    BOUNDARY_NS,
    COMPUTING,
    NEAR_NS,
    NS_PER_MS,
    Spans,
    collections_of_stage,
    functions_called,
    functions_inside,
    host_profile,
    inside,
    lines_during,
    own_functions,
)
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.diagnosis import FunctionTime
from perfharness.model.host_samples import HostProbe, HostSamples, HostState
from perfharness.model.trace import PID_SHIFT, Bool, Int64

MIN_SAMPLES = 5
"""Samples inside of calls of a kind that name a line by themselves; with fewer, those near one (`NEAR_NS`) do."""

MIN_OF_STAGE = 5
"""Samples of a stage that say something of it: of one or two, what they happened to meet would be all of its time."""
MIN_OF_MEASURED = 10
"""The same in the measured pass. A stage with fewer has no evidence of them: its CPU time, which the recorder reads,
says more."""

MIN_UNWORKED = 20
"""Samples of waits that can say that nobody works meanwhile: on a busy machine threads are sampled late."""

LOADERS = (
    "torch/utils/data/dataloader.py", "multiprocessing/queues.py", "multiprocessing/pool.py", "queue.py",
    "concurrent/futures/_base.py",
)  # fmt: skip
"""Ends of files that are on a stack while a thread waits for what others prepare. A bare pipe may be anything's."""
TAKES: Names = dict.fromkeys(LOADERS) | dict.fromkeys(("multiprocessing/queues.py", "queue.py"), frozenset({"get"}))
FULL_QUEUES: Names = dict.fromkeys(("multiprocessing/queues.py", "queue.py"), frozenset({"put"}))
DRAINED_QUEUES: Names = dict.fromkeys(("multiprocessing/queues.py", "queue.py"), frozenset({"join"}))
"""Whose wait is for what others make, and, the other way round, for others to take something, or to have done all."""
BATCH_LOADERS = ("torch/utils/data/dataloader.py",)
"""Those of them whose workers are asked ahead, so that waiting for them is never meant."""
ASKED: Names = dict.fromkeys(("multiprocessing/pool.py", "concurrent/futures/_base.py"))
"""Those of them that are waited in for work that was asked for, piece by piece."""
PYTHON_WAITS: Names = {
    "threading.py": frozenset({
        "Condition.wait", "wait", "Event.wait", "Semaphore.acquire", "acquire", "__enter__", "Thread.join", "join",
        "Barrier.wait",
    }),
}  # fmt: skip
"""Functions that wait for another thread of Python; a lock that is waited for elsewhere may be that of native code."""
CONNECTION_POOLS: Names = {
    "sqlalchemy/pool/impl.py": frozenset({"_do_get"}),
    "urllib3/connectionpool.py": frozenset({"_get_conn"}),
    "redis/connection.py": frozenset({"get_connection"}),
    "psycopg_pool/pool.py": frozenset({"getconn"}),
    "dbutils/pooled_db.py": frozenset({"connection"}),
}
"""Functions that wait, in a queue or for a lock, until somebody gives a connection back: nobody prepares one."""
TRANSFERS = (
    "multiprocessing/connection.py", "multiprocessing/reduction.py", "multiprocessing/managers.py", "pickle.py",
    "socket.py",
)  # fmt: skip
"""Ends of files that are on a stack while a process sends, receives, packs or unpacks."""
POOLS = ("multiprocessing/queues.py", "multiprocessing/pool.py", "concurrent/futures/process.py")
"""Ends of files that send, to processes of a pool, what they are to do, and fetch what they have done."""
MEANWHILE_SHARE = 0.25
"""Of a wait at pipes: with less of it known, nothing is said of what the other process did meanwhile."""
STARTS_PROCESSES: Names = {
    "multiprocessing/process.py": frozenset({"start"}),
    "concurrent/futures/process.py": frozenset({"_launch_processes", "_spawn_process", "_adjust_process_count"}),
    "loky/process_executor.py": frozenset({"_start_executor_manager_thread", "_adjust_process_count"}),
    "torch/utils/data/dataloader.py": frozenset({"_MultiProcessingDataLoaderIter.__init__"}),
}
STARTS_THREADS: Names = {
    "threading.py": frozenset({"Thread.start", "start"}),
    "concurrent/futures/thread.py": frozenset({"_adjust_thread_count"}),
}
ENDS: Names = {
    "multiprocessing/pool.py": frozenset({"__init__", "terminate", "_terminate_pool", "_help_stuff_finish"}),
    "concurrent/futures/process.py": frozenset({"__init__", "shutdown"}),
    "loky/process_executor.py": frozenset({"shutdown"}),
    "torch/utils/data/dataloader.py": frozenset({"_shutdown_workers"}),
}
"""Functions, by the ends of their files, that are on a stack only while workers are made, and while they are made ready
or ended."""
RECURS = 3
"""Ranges of a stage in which something has to occur to be no first use: that takes one, or one for each shape."""
IDLE_SHARE = 0.25
"""Of the time in which the stage does not wait for it: a worker that is at work for less works when it is asked to."""
ASKED_SHARE = 0.25
"""Of a wait: work that takes so much of it and is done only when it is asked for is what the wait is for, whatever
other threads do all the time. The rest of it may be the way there and back."""
SOME_SHARE = 0.10
"""Of a wait: work that takes less of it is not what the wait is for."""
ALWAYS_SHARE = 0.95
"""Of the time: a stage that waits for more shows nothing of what its workers do otherwise."""
WAITING = (
    HostState.LOCK, HostState.PIPE, HostState.LOOPBACK, HostState.SOCKET, HostState.SLEEP, HostState.OTHER,
)  # fmt: skip


LIBRARIES: Mapping[str, Names] = {
    "loader": TAKES,
    "full queue": FULL_QUEUES,
    "drained queue": DRAINED_QUEUES,
    "batch loader": dict.fromkeys(BATCH_LOADERS),
    "asked": ASKED,
    "connection pool": CONNECTION_POOLS,
    "processes": STARTS_PROCESSES,
    "threads": STARTS_THREADS,
    "ends": ENDS,
}


@dataclass(frozen=True)
class KnownStacks:
    """Which stacks have a frame of each kind of library, which compiler is at work on each (its place in `COMPILERS`,
    -1: none), and which are in a selector, and in a wait for another thread, where a thread that is ready has been
    woken and has nothing to compute; last entries, False and -1, are for samples without a stack.
    """

    on: Mapping[str, Bool]
    compiler: Int64
    selects: Bool
    waits: Bool


def known_stacks(samples: HostSamples) -> KnownStacks:
    """Of all stacks that were sampled."""
    on = {kind: stacks_with(samples, frames_named(samples.frames, names)) for kind, names in LIBRARIES.items()}
    selects = [bool(stack) and samples.frames[stack[0]].file.endswith(SELECTS) for stack in samples.stacks]
    wakes = set(frames_named(samples.frames, PYTHON_WAITS))
    waits = [bool(stack) and stack[0] in wakes for stack in samples.stacks]
    compilers = compilers_of_stacks(samples.frames, samples.stacks)
    is_in = (np.asarray([*each, False], dtype=np.bool_) for each in (selects, waits))
    return KnownStacks(on, compilers, *is_in)


def stacks_with(samples: HostSamples, frames: Sequence[int]) -> Bool:
    """Which stacks have one of these frames; a last entry, False, is for samples without a stack."""
    found = np.zeros(len(samples.stacks) + 1, dtype=np.bool_)
    chosen = set(frames)
    if chosen:
        found[:-1] = [not chosen.isdisjoint(stack) for stack in samples.stacks]
    return found


def host_evidence(events: StageEvents, known: KnownStacks, is_early: Bool | None = None) -> HostEvidence | None:
    """None where the process's threads were not sampled, or too little in the measured pass.

    Args:
        known: `known_stacks`.
        is_early: which of the stage's ranges lie before the steady state.
    """
    probe, profile = events.workload.host_probe, events.profile
    if probe is None or profile is None:
        return None
    samples, rows = probe.samples, events.sample_rows
    if samples.is_coarse and len(rows) < MIN_OF_MEASURED:
        return None
    if len(rows) < MIN_OF_STAGE:
        rows = rows[:0]
        profile = host_profile(probe, events.spans, rows)
    state = samples.state[rows]
    total = float(samples.length_ns[rows].sum())
    ms_per_ns = events.ms(events.wall) / total if total else 0.0

    def busiest(chosen: Int64) -> FunctionTime | None:
        return next(iter(own_functions(samples, chosen, ms_per_ns)), None)

    in_state = {kind.name.lower(): line for kind in HostState if (line := busiest(rows[state == kind])) is not None}
    work = _work(probe, rows, events.spans, known.on)
    work_lines = {kind: line for kind, chosen in work.items() if (line := busiest(chosen)) is not None}
    work_ms = {kind: float(samples.length_ns[work[kind]].sum()) * ms_per_ns for kind in work_lines}
    stack = samples.stack[rows]
    is_woken = known.selects[stack] | (known.waits[stack] & (state == HostState.RUNNABLE))
    computing = rows[np.isin(state, COMPUTING) & ~is_woken]
    own = busiest(computing)
    inner = [] if own is None else functions_inside(samples, computing, ms_per_ns, own)
    called = [] if own is None else functions_called(samples, computing, ms_per_ns, own)
    meanwhile = _meanwhile(probe, events.spans, work["hand-over"])
    return HostEvidence(
        profile=profile,
        busiest=own,
        in_libraries=[function for function in inner if is_library(function.file)],
        called=called,
        in_state=in_state,
        during=_lines_of_calls(samples, events) | _lines_of_collections(probe, events),
        beginning=None if is_early is None else busiest(_rows_within(samples, rows, events.spans, is_early)),
        faulting=_most_faults(samples, rows),
        work_ms=work_ms,
        work_lines=work_lines,
        recorder=next(iter(own_functions(samples, rows, ms_per_ns, of_recorder=True)), None),
        worker=_worker(probe, events.spans, rows, work["hand-over"], known.on),
        workers_queued_share=meanwhile.queued,
        unworked_share=meanwhile.unworked,
        workers_crowded_share=meanwhile.crowded,
        cpus_before=probe.cpus if probe.cpus and profile.cpus and profile.cpus < probe.cpus else None,
        crowded_ms=(profile.state_ms.get("runnable") or 0.0) * own_contention(probe.events, samples, rows),
        compiling=_compiling(probe, events, known.compiler, ms_per_ns),
    )


def _compiling(probe: HostProbe, events: StageEvents, of_stack: Int64, ms_per_ns: float) -> Compiling | None:
    """Compilers on the Python stacks of several ranges of the stage."""
    samples, rows = probe.samples, events.sample_rows
    on_stack = of_stack[samples.stack[rows]]
    chosen, lengths = rows[on_stack >= 0], samples.length_ns.astype(np.float64)
    spent = np.bincount(on_stack[on_stack >= 0], weights=lengths[chosen], minlength=len(COMPILERS)) * ms_per_ns
    computing = float(lengths[chosen[np.isin(samples.state[chosen], COMPUTING)]].sum()) * ms_per_ns
    if not _recurs(samples.time_ns[chosen], events.spans):
        return None
    compiler = COMPILERS[int(spent.argmax())]
    line = next(iter(own_functions(samples, chosen, ms_per_ns)), None)
    return Compiling(compiler.name, compiler.step, float(spent.sum()), computing, line)


def _work(probe: HostProbe, rows: Int64, spans: Spans, in_library: Mapping[str, Bool]) -> dict[str, Int64]:
    """The samples in which each kind of library was at work, or was waited in, where that is what counts."""
    samples = probe.samples
    state = samples.state[rows]
    on_stack = {kind: is_on[samples.stack[rows]] for kind, is_on in in_library.items()}
    makes_threads = on_stack["threads"] & ~on_stack["processes"]
    makes = on_stack["processes"] | makes_threads
    for_connection = on_stack["connection pool"] & (state == HostState.LOCK)
    waits = on_stack["loader"] & np.isin(state, WAITING) & ~(makes | on_stack["ends"] | for_connection)
    has_no_room = on_stack["full queue"] & np.isin(state, WAITING)
    has_work_left = on_stack["drained queue"] & np.isin(state, WAITING)
    work = {
        "loader": rows[waits],
        "loader of processes": rows[waits & (state == HostState.PIPE)],
        "connection pool": rows[for_connection],
        "full queue": rows[has_no_room],
        "drained queue": rows[has_work_left],
        "asked": rows[waits & on_stack["asked"]],
        "exchange": _exchange(probe, rows[(state == HostState.PIPE) & ~waits]),
        "pool exchange": _exchange(probe, rows[waits & ~on_stack["batch loader"]], of_pool=True),
        "processes": rows[on_stack["processes"]],
        # A new thread's first work, and its turn with the interpreter lock, are waited for in `Thread.start`.
        "threads": rows[makes_threads & np.isin(state, COMPUTING)],
        "hand-over": rows[
            waits
            | has_no_room
            | has_work_left
            | ((state == HostState.LOCK) & ~(on_stack["processes"] | on_stack["ends"] | for_connection))
        ],
        "ends": rows[on_stack["ends"] & ~makes],
    }
    once = {kind for kind in ("processes", "threads") if not _recurs(samples.time_ns[work[kind]], spans)}
    once |= {"ends"} if {"processes", "threads"} <= once else set()
    return {kind: chosen for kind, chosen in work.items() if kind not in once}


def _exchange(probe: HostProbe, waits: Int64, *, of_pool: bool = False) -> Int64:
    """The waits at pipes, or for a pool's processes, all or none: where other processes, and the threads of a pool,
    meanwhile rather send and receive than work.
    """
    nothing = np.empty(0, dtype=np.int64)
    if not len(waits):
        return nothing
    mine, samples = probe.samples, probe.everyone
    start, end = mine.time_ns[waits] - mine.length_ns[waits], mine.time_ns[waits]
    if of_pool:
        others = ~np.isin(samples.thread, mine.thread[waits])
    else:
        others = ~np.isin(samples.thread >> PID_SHIFT, mine.thread[waits] >> PID_SHIFT)
    others &= np.isin(samples.state, COMPUTING) & (samples.stack >= 0)
    others &= (samples.time_ns >= start.min()) & (samples.time_ns - samples.length_ns <= end.max())
    at = np.flatnonzero(others)
    stacks = np.unique(samples.stack[at])
    sending = [stack for stack in stacks.tolist() if _is_transfer(samples, stack, of_pool=of_pool)]
    transfers = np.isin(samples.stack[at], sending)
    meanwhile = [
        float(
            BusyLine(samples.time_ns[those] - samples.length_ns[those], samples.time_ns[those]).within(start, end).sum()
        )
        for those in (at[transfers], at[~transfers])
    ]
    is_exchange = meanwhile[0] > meanwhile[1] and meanwhile[0] >= MEANWHILE_SHARE * float((end - start).sum())
    return waits if is_exchange else nothing


def _is_transfer(samples: HostSamples, stack: int, *, of_pool: bool) -> bool:
    """Whether it is in a library that sends or receives, below the innermost function of the user's own; of a pool, if
    that is the pool's.
    """
    files = [samples.frames[number].file for number in samples.stacks[stack]]
    below = list(itertools.takewhile(is_library, files))
    wanted = (TRANSFERS, POOLS) if of_pool else (TRANSFERS,)
    return all(any(f"/{file}".endswith(tuple(f"/{end}" for end in ends)) for file in below) for ends in wanted)


def _recurs(moments_ns: Int64, spans: Spans) -> bool:
    """Whether these moments are in several ranges of the stage."""
    return len(np.unique(np.searchsorted(np.sort(spans.start_ns), moments_ns))) >= RECURS


def _rows_within(samples: HostSamples, rows: Int64, spans: Spans, which: Bool) -> Int64:
    return rows[inside(samples.time_ns[rows], spans.start_ns[which], spans.end_ns[which])]


def _most_faults(samples: HostSamples, rows: Int64) -> FunctionTime | None:
    """The line of the user's code at which most pages were touched for the first time."""
    faults = np.maximum(samples.counts[rows, 0], 0)
    if not faults.any():
        return None
    weighed = samples.length_ns.copy()
    weighed[rows] = faults
    return next(iter(own_functions(replace(samples, length_ns=weighed), rows[faults > 0], 0.0)), None)


def _worker(probe: HostProbe, spans: Spans, rows: Int64, waits: Int64, in_library: Mapping[str, Bool]) -> Worker | None:
    """Who does the work that some samples of the stage wait for, in code of the user's own."""
    mine, samples = probe.samples, probe.everyone
    # With the result there, a thread may still wait for a CPU at the same place.
    waited_in = mine.stack[waits]
    places = np.unique(waited_in[waited_in >= 0])
    there = rows[np.isin(mine.stack[rows], places)]
    start, end = mine.time_ns[there] - mine.length_ns[there], mine.time_ns[there]
    others = ~np.isin(samples.thread, spans.thread)
    others &= (samples.time_ns >= spans.start_ns.min()) & (samples.time_ns <= spans.end_ns.max())
    at = np.flatnonzero(others)
    # A forked worker has its parent's frames around its own.
    waiting = {number for stack in places.tolist() for number in mine.stacks[stack]}
    known = {(mine.frames[number].function, mine.frames[number].file) for number in waiting}
    is_work = np.asarray([_is_work(samples, stack, known) for stack in samples.stacks] + [False], dtype=np.bool_)
    is_at_work = is_work[samples.stack[at]] & (samples.state[at] != HostState.LOCK)
    meanwhile = inside(samples.time_ns[at], start, end + BOUNDARY_NS)
    working = at[meanwhile & is_at_work]
    lines = own_functions(samples, working, 1e-6)
    lines = [one for one in lines if not is_library(one.file) and (one.function, one.file) not in known]
    if not lines:
        return None
    window = int(spans.end_ns.max() - spans.start_ns.min())
    waits_line, otherwise = BusyLine(start, end), at[~meanwhile & is_at_work]
    waited = waits_line.length
    if sum(line.self_ms for line in lines) * NS_PER_MS < SOME_SHARE * waited:
        return None

    def works_ahead(line: FunctionTime) -> bool:
        of_line = [
            number for number, frame in enumerate(samples.frames)
            if (frame.function, frame.file) == (line.function, line.file)
        ]  # fmt: skip
        has_line = stacks_with(samples, of_line)
        threads = np.unique(samples.thread[working][has_line[samples.stack[working]]])
        theirs = otherwise[np.isin(samples.thread[otherwise], threads)]
        ahead = BusyLine(samples.time_ns[theirs] - samples.length_ns[theirs], samples.time_ns[theirs])
        ahead_ns = ahead.length - float(waits_line.within(ahead.start, ahead.end).sum())
        return ahead_ns >= IDLE_SHARE * (window - waited)

    is_loader = bool(in_library["batch loader"][waited_in].any())
    if window - waited < (1 - ALWAYS_SHARE) * window:
        is_asked = np.count_nonzero(in_library["asked"][waited_in]) > len(waits) / 2
        return Worker(lines[0], works_ahead=None if is_asked else True, is_loader=is_loader)
    enough = [line for line in lines if line.self_ms * NS_PER_MS >= ASKED_SHARE * waited] or lines[:1]
    asked = next((line for line in enough if not works_ahead(line)), None)
    return Worker(asked or lines[0], works_ahead=asked is None, is_loader=is_loader)


def _is_work(samples: HostSamples, stack: tuple[int, ...], waiting: set[tuple[str, str]]) -> bool:
    """Whether a worker's stack is in a function of the user's own, and that does not wait for what it is to do.

    Args:
        waiting: functions and files of who waits for it.
    """
    for number in stack:
        frame = samples.frames[number]
        if frame.file.endswith(LOADERS):
            return False
        if not is_library(frame.file):
            return (frame.function, frame.file) not in waiting
    return False


@dataclass(frozen=True)
class Meanwhile:
    """What other threads, of all processes, do while some samples of a stage wait, as shares of these waits.

    `queued`: they are ready without a CPU, which other processes have; without these they would have been done by so
    much sooner. `crowded`: the same, where threads of the process itself have it. `unworked`: none of them computes or
    is ready to; 0 of too few samples, of which others may have missed what they did.
    """

    queued: float = 0.0
    crowded: float = 0.0
    unworked: float = 0.0


def _meanwhile(probe: HostProbe, spans: Spans, waits: Int64) -> Meanwhile:
    if not len(waits):
        return Meanwhile()
    mine, samples = probe.samples, probe.everyone
    start, end = mine.time_ns[waits] - mine.length_ns[waits], mine.time_ns[waits]
    at = np.flatnonzero(~np.isin(samples.thread, spans.thread) & np.isin(samples.state, COMPUTING))
    at = at[inside(samples.time_ns[at] - samples.length_ns[at] // 2, start, end)]
    at_work = BusyLine(samples.time_ns[at] - samples.length_ns[at], samples.time_ns[at])
    worked = float(at_work.within(start, end).sum() / (end - start).sum())
    unworked = 1 - worked if len(waits) >= MIN_UNWORKED else 0.0
    ran, queued = (float(np.maximum(column[at], 0).sum()) for column in (samples.on_cpu_ns, samples.runnable_ns))
    if not queued:
        return Meanwhile(unworked=unworked)
    crowded = own_contention(probe.events, samples, at)
    share = queued / (ran + queued)
    return Meanwhile(worked * (1 - crowded) * share, worked * crowded * share, unworked)


def _lines_of_collections(probe: HostProbe, events: StageEvents) -> dict[str, FunctionTime]:
    """The line of the user's code at which most of the garbage collector's time passed."""
    runs, mine = probe.events, collections_of_stage(probe, events.spans)
    stretch = runs.thread[mine], runs.start_ns[mine], runs.end_ns[mine]
    lines = lines_during(probe.samples, *stretch, own_code=True)
    return {"collections": lines[0].scaled(events.per_batch)} if lines else {}


def _lines_of_calls(samples: HostSamples, events: StageEvents) -> dict[str, FunctionTime]:
    """By the kind of call, the line of the user's code that most of its time was spent at."""
    found = {}
    for role, name in ROLE_NAMES.items():
        thread, start, end = stretches(events, role)
        if not len(start):
            continue
        lines = lines_during(samples, thread, start, end, own_code=True)
        if sum(line.self_ms for line in lines) * 1e6 < MIN_SAMPLES * samples.interval_ns:
            lines = lines_during(samples, thread, start - NEAR_NS, end + NEAR_NS, own_code=True)
        if lines:
            found[name] = lines[0].scaled(events.per_batch)
    return found
