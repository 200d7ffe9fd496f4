"""Rules about threads that wait: for other threads, processes, files, the network, the interpreter lock, a CPU."""

from __future__ import annotations

from dataclasses import replace

from perfharness.analysis.diagnosis.rules.calls import MANY_WAITS, READ_BACK_STEP, TURNS_SHARE
from perfharness.analysis.diagnosis.rules.evidence import MISSING_OS, Figures, Match, call_of, percent, place
from perfharness.analysis.diagnosis.rules.gpu import REPORTED_SHARE, WAITING_SHARE
from perfharness.model.diagnosis import FunctionTime, Verdict
from perfharness.model.trace import OsWaitKind

AT_WORK_SHARE = 0.50
"""Of the waiting. With less, most of it passes while no thread works in the stage that is named."""
IDLE_SHARE = 0.25
"""Of the time in which a stage is not open: other threads that compute for less work when it asks them to."""
CERTAIN_SHARE = 0.20
"""Of the host time, of waiting that was read in batches: where others have the CPUs for most of it, less may be the
error of a few readings."""
BLOCKED_SHARE = 0.50
"""Of the host time: most of it is spent blocked."""
NAMED_WAIT_SHARE = 0.30
"""Of the host time, of a wait whose cause is known: it overlaps with nothing on that thread."""
GIL_SHARE = 0.20
"""Of the host time. Threads that take turns by chance, each half of the time in Python, wait less than that: one gives
the lock away every 5 ms."""
RUNNABLE_SHARE = 0.20
"""Of the host time. A thread that finds no CPU for a fifth of it shares its CPUs with more threads than there are."""

UNWORKED_SHARE = 0.80
"""Of a wait for other threads, while none of them computes: what ends it is no work of theirs."""

WAITS_FOR = {
    OsWaitKind.LOCK: "locks and queues",
    OsWaitKind.SLEEP: "sleeping",
    OsWaitKind.PROCESS: "other processes",
    OsWaitKind.FILE: "files and pipes",
    OsWaitKind.SOCKET: "sockets",
}
WAITING_STATES = ("lock", "pipe", "loopback", "socket", "sleep", "process", "other", "file")
LOADER_STEP = (
    "Prepare batches faster: more workers (num_workers), prefetching (prefetch_factor), cheaper decoding; the function "
    "named is what the stage waits in."
)
WORKER_STEP = (
    "Make {} faster, give it more threads, or have it work ahead: ask for the next result before this one is needed, "
    "and compute meanwhile."
)
ASKED_STEP = (
    "Ask for the next result before this one is needed, and compute meanwhile; hand over larger pieces of work."
)
DRAIN_STEP = "Make {} faster, or give the queue more workers: more room in it only delays the wait."
JOIN_STEP = (
    "Wait once at the end, or only for what this batch needs, not for all that is in the queue; make {} faster, or "
    "give the queue more workers."
)
CONNECTION_STEP = (
    "Give connections back sooner: none is held while something else is waited for or computed; or have more of them "
    "(pool_size, maxsize)."
)
POOL_STEP = "Make the workers once, before the loop, and keep them: one pool or executor, persistent_workers=True."
READ_STEP = "Look at the work that the value comes from; ask for it later, when it is there."
GIL_STEP = (
    "Move the work that holds the lock into a process of its own, or into native code that releases it; use fewer "
    "threads."
)
PROCESS_STEP = (
    "Look at the process that it waits for: make it faster, or ask for the next result before this one is needed, and "
    "compute meanwhile."
)
FILE_STEP = (
    "Read ahead or write behind in another thread, in larger pieces; no fsync for each batch; cache what is read."
)
NETWORK_STEP = (
    "Ask ahead in another thread or task (asyncio.gather), for several items at a time, over a connection that stays "
    "open."
)
EXCHANGE_STEP = (
    "Exchange less: fewer and larger messages, arrays in shared memory (multiprocessing.shared_memory), what both need "
    "sent once."
)
AFFINITY_STEP = (
    "Find what binds it, mostly a library when it is loaded (OMP_PROC_BIND, GOMP_CPU_AFFINITY, KMP_AFFINITY), and give "
    "the CPUs back before threads are made: os.sched_setaffinity(0, cpus)."
)
UNWORKED_STEP = (
    "Find what ends the wait, for no thread of Python works on it: a sleep, or an answer that another thread waits for "
    "with the lock in its hand; or only a time-out, for a notification that came before the wait began."
)
RUNNABLE_STEP = (
    "Run fewer threads than there are CPUs: OMP_NUM_THREADS, torch.set_num_threads, fewer workers or processes (-np)."
)


def read_by_helper(f: Figures) -> Match | None:
    """Waiting for a thread of a library that reads values from the GPU, as JAX has them."""
    lock, count = f.waiting_ns(OsWaitKind.LOCK), f.a_batch(f.helpers_reads)
    if not lock or not f.helpers_reads:
        return None
    is_many = count >= MANY_WAITS
    evidence = (
        f"Its thread waits {percent(lock, f.wall)} of its host time, while threads of a library read {count:.1f} "
        f"values from the GPU a batch; the GPU is idle for {f.idle}."
    )
    return Match(
        Verdict.IMPLICIT_SYNCHRONIZATION if is_many else Verdict.WAITING_ON_STAGE,
        lock, f.wall, [evidence], READ_BACK_STEP if is_many else READ_STEP,
        verdict_share=TURNS_SHARE if is_many else NAMED_WAIT_SHARE, undisturbed_ns=f.undisturbed_ns,
        saves_ns=min(lock, f.gpu_idle) if is_many else None, where=f.line_in("lock"), where_reason=f.no_line,
    )  # fmt: skip


def locked_by_stage(f: Figures) -> Match | None:
    """Waiting for a lock or queue while another thread is at work in one stage."""
    lock, other = f.waiting_ns(OsWaitKind.LOCK), f.other_thread
    if (
        lock < WAITING_SHARE * f.undisturbed_ns
        or other is None
        or other.chance is not None
        or other.share < AT_WORK_SHARE
    ):
        return None
    evidence = (
        f"Its thread waits for a lock or a queue {percent(lock, f.wall)} of its host time; during "
        f"{100 * other.share:.0f} % of that another thread is at work in '{other.stage}'."
    )
    next_step = f"Make '{other.stage}' faster, or give it more threads: this stage only waits for it."
    return Match(
        Verdict.WAITING_ON_STAGE, lock, f.wall, [evidence], next_step, saves_ns=lock, where=f.line_in("lock"),
        where_reason=f.no_line,
    )  # fmt: skip


def gil_contention(f: Figures) -> Match | None:
    """Another thread holds the interpreter lock; seen in samples only."""
    waited = f.state_ns("gil")
    if f.host is None or not waited:
        return None
    holders = f.host.profile.gil_holders
    holder = max(holders, key=lambda each: each.self_ms) if holders else None
    named = f"; it is held, mostly by {place(holder)}" if holder else ""
    if holder is not None and holder.callee is not None:
        named += f", in {holder.callee}"
    evidence = f"It waits for the interpreter lock {percent(waited, f.wall)} of its host time{named}."
    return Match(
        Verdict.GIL_CONTENTION, waited, f.wall, [evidence], GIL_STEP,
        verdict_share=GIL_SHARE, undisturbed_ns=f.undisturbed_ns, saves_ns=waited, where=holder,
        where_reason="no sample shows the thread that holds it",
    )  # fmt: skip


def fewer_cpus(f: Figures) -> Match | None:
    """It, or those that it waits for, share fewer CPUs than the process was started with."""
    if f.host is None or f.host.cpus_before is None:
        return None
    waited = max(f.crowded_ns - f.throttled_ns, 0.0) + f.host.workers_crowded_share * f.work_ns("hand-over")
    if not waited:
        return None
    now, before = f.host.profile.cpus, f.host.cpus_before
    evidence = (
        f"It, or a thread that it waits for, is ready and finds no free CPU {percent(waited, f.wall)} of its host "
        f"time: the process may run on {now} of the {before} cores that it was started with."
    )
    reason = "which line bound the process to some CPUs is not in the samples"
    return Match(
        Verdict.CPU_CONTENTION, waited, f.wall, [evidence], AFFINITY_STEP, verdict_share=RUNNABLE_SHARE,
        undisturbed_ns=f.undisturbed_ns, saves_ns=waited, where_reason=reason,
    )  # fmt: skip


def data_loader(f: Figures) -> Match | None:
    """Blocked inside a data loader or a queue, where somebody may prepare what is next; or for a pool's result."""
    waited = min(f.work_ns("loader"), f.state_ns(*WAITING_STATES)) - f.workers_queued_ns
    if f.host is None or waited <= 0 or f.works_when_asked or f.work_ns("pool exchange"):
        return None
    if f.host.worker is None and f.work_ns("asked") > f.work_ns("loader") / 2:
        evidence = f"It waits for what it has asked a pool for {percent(waited, f.wall)} of its host time."
        return _wait(f, Verdict.WAITING_ON_STAGE, waited, [evidence], ASKED_STEP, f.line_of("asked"))
    evidence = f"It waits in a data loader or queue {percent(waited, f.wall)} of its host time."
    if f.host.worker is not None and f.host.worker.works_ahead:
        evidence = f"{evidence[:-1]}, while a worker is in {place(f.host.worker.line)}."
    return _wait(f, Verdict.DATA_LOADER_STARVATION, waited, [evidence], LOADER_STEP, f.line_of("loader"))


def connection_wait(f: Figures) -> Match | None:
    """Blocked until somebody gives a connection of a pool back."""
    waited = f.work_ns("connection pool")
    if not waited:
        return None
    evidence = f"It waits until a connection of a pool is free {percent(waited, f.wall)} of its host time."
    return _wait(f, Verdict.WAITING_ON_SYSTEM, waited, [evidence], CONNECTION_STEP, f.line_of("connection pool"))


def worker_wait(f: Figures) -> Match | None:
    """Blocked, in a queue or otherwise, until a thread or process has done what it was asked to only then, has taken
    something from a full queue, or has worked a queue off.
    """
    if f.host is None or f.host.worker is None:
        return None
    waited, line = f.work_ns("hand-over"), f.host.worker.line
    is_full = f.work_ns("full queue") > waited / 2
    is_drained = f.work_ns("drained queue") > waited / 2
    waited -= f.workers_queued_ns
    if f.work_ns("pool exchange") or not (f.works_when_asked or is_full or is_drained):
        return None
    if is_full:
        evidence = (
            f"It waits for room in a queue {percent(waited, f.wall)} of its host time: a worker is in {place(line)}."
        )
        step = DRAIN_STEP
    elif is_drained:
        evidence = (
            f"It waits until a queue is worked off {percent(waited, f.wall)} of its host time: a worker is in "
            f"{place(line)}."
        )
        step = JOIN_STEP
    else:
        evidence = (
            f"It waits for another thread or process {percent(waited, f.wall)} of its host time, while a worker is in "
            f"{place(line)}{', which does nothing before it is asked' if f.host.worker.works_ahead is False else ''}."
        )
        step = WORKER_STEP
    return _wait(f, Verdict.WAITING_ON_STAGE, waited, [evidence], step.format(call_of(line)), line)


def exchange(f: Figures) -> Match | None:
    """Waiting for what processes exchange, at a pipe or through a pool, rather than for what they do."""
    piped, pooled = f.work_ns("exchange"), f.work_ns("pool exchange") - f.workers_queued_ns
    waited = max(piped, pooled)
    if waited <= 0:
        return None
    whom, who = "at a pipe or local socket", "the process at the other end sends and receives"
    if pooled > piped:
        whom, who = "for processes of a pool", "what they are given, and give back, is packed, sent and unpacked"
    evidence = (
        f"It waits {whom} {percent(waited, f.wall)} of its host time, while {who}: what is exchanged takes the time, "
        "not what the other does."
    )
    line = f.line_of("pool exchange" if pooled > piped else "exchange")
    return _wait(f, Verdict.WAITING_ON_PROCESS, waited, [evidence], EXCHANGE_STEP, line)


def worker_start(f: Figures) -> Match | None:
    """Processes or threads are made and ended in range after range."""
    made = {kind: f.work_ns(kind) for kind in ("processes", "threads")}
    kind = max(made, key=made.__getitem__)
    if not made[kind]:
        return None
    lost = sum(made.values()) + f.work_ns("ends")
    evidence = f"Making and ending {kind}, in batch after batch, takes {percent(lost, f.wall)} of its host time."
    verdict = Verdict.WAITING_ON_PROCESS if kind == "processes" else Verdict.WAITING_ON_SYSTEM
    return _wait(f, verdict, lost, [evidence], POOL_STEP, f.line_of(kind))


def process_wait(f: Figures) -> Match | None:
    """Waiting for a child process to end, or, at a pipe or a local socket, for what another process does."""
    piped = max(f.state_ns("pipe") - f.work_ns("loader of processes") - f.work_ns("exchange"), 0.0)
    ends = max(f.waiting_ns(OsWaitKind.PROCESS) - f.state_ns("pipe"), 0.0)
    waited = piped + ends
    share = NAMED_WAIT_SHARE if piped > ends else WAITING_SHARE
    if waited < share / 2 * f.undisturbed_ns or not waited:
        return None
    what = "another process, at a pipe or local socket," if piped > ends else "another process to end"
    evidence = f"Its thread waits for {what} {percent(waited, f.wall)} of its host time."
    line = f.line_in("pipe" if piped > ends else "process")
    return _wait(f, Verdict.WAITING_ON_PROCESS, waited, [evidence, _parts(f)], PROCESS_STEP, line, share)


def file_wait(f: Figures) -> Match | None:
    """Blocked in reading, writing or synchronising files."""
    return _wait_for(f, OsWaitKind.FILE, Verdict.FILE_WAIT, "files", FILE_STEP)


def network_wait(f: Figures) -> Match | None:
    """Blocked in sockets of the network, also of this machine itself."""
    of_network, here = f.waiting_ns(OsWaitKind.SOCKET), f.state_ns("loopback")
    whom = "the network" if f.host is not None else "the network or another process"  # recorded calls have no names
    match = _wait_for(f, OsWaitKind.SOCKET, Verdict.NETWORK_WAIT, whom, NETWORK_STEP)
    if match is None or here < of_network / 2:
        return match
    whom = f"{match.evidence[0][:-1]}, {percent(here, of_network)} of that for this machine itself."
    return replace(match, evidence=[whom])


def _wait_for(f: Figures, kind: OsWaitKind, verdict: Verdict, what: str, next_step: str) -> Match | None:
    waited = f.waiting_ns(kind)
    if not waited:
        return None
    evidence = f"It waits for {what} {percent(waited, f.wall)} of its host time."
    return _wait(f, verdict, waited, [evidence], next_step, f.line_waiting(kind))


def _wait(
    f: Figures, verdict: Verdict, waited_ns: float, evidence: list[str], next_step: str, where: FunctionTime | None,
    share: float = NAMED_WAIT_SHARE,
) -> Match:  # fmt: skip
    """Waiting that has a name, all of which would be saved; `share` of the time that is left without other processes'
    makes it the verdict.
    """
    return Match(
        verdict, waited_ns, f.wall, evidence, next_step, verdict_share=share, undisturbed_ns=f.undisturbed_ns,
        saves_ns=waited_ns, where=where, where_reason=f.no_line,
    )  # fmt: skip


def blocked(f: Figures) -> Match | None:
    """Blocked in the operating system by what no trace shows: sleeps, locks whose holder is in no stage."""
    lock = f.waiting_ns(OsWaitKind.LOCK)
    seen = sum(f.waiting_ns(kind) for kind in OsWaitKind) + f.state_ns("other")
    whole = seen - f.workers_queued_ns
    if whole < BLOCKED_SHARE * f.undisturbed_ns or not whole:
        return None
    evidence = f"Its thread is blocked in the operating system {percent(seen, f.wall)} of its host time: {_parts(f)}"
    if f.workers_queued_ns >= REPORTED_SHARE * f.wall:
        evidence += (
            f" For {percent(f.workers_queued_ns, f.wall)} of it other processes have the CPUs of those it waits for."
        )
    missing = "which thread or process ends the wait, where it is a lock: none was in a stage of this trace meanwhile"
    next_step = "Wait less: no sleeps, read ahead in another thread, shorter critical sections."
    is_lock = lock >= WAITING_SHARE * f.undisturbed_ns
    if is_lock and f.host is not None and f.host.unworked_share >= UNWORKED_SHARE:
        evidence += " Most of the time no other thread that runs Python computes meanwhile."
        next_step = UNWORKED_STEP
    most = max(OsWaitKind, key=f.waiting_ns)
    return Match(
        Verdict.WAITING_ON_SYSTEM, whole, f.wall, [evidence], next_step, saves_ns=whole,
        where=f.line_waiting(most), where_reason=f.no_line, missing=[missing] if is_lock else [],
    )  # fmt: skip


def handover(f: Figures) -> Match | None:
    """Without the operating system's calls: ends that follow another thread's, batch for batch."""
    other = f.other_thread
    if f.blocked is not None or other is None or other.chance is None or f.outside < BLOCKED_SHARE * f.wall:
        return None
    outside = f"{percent(f.outside, f.wall)} of its host time is outside of CUDA calls, and " if f.uses_gpu else ""
    evidence = (
        f"{outside}{100 * other.share:.0f} % of the times it ends right after '{other.stage}' of another thread has "
        f"ended (by chance: {100 * other.chance:.0f} %), so it looks as if it waited for that."
    )
    next_step = f"Look at '{other.stage}'; trace the operating system's calls too (trace-os) to be sure."
    return Match(
        Verdict.WAITING_ON_STAGE, f.outside, f.wall, [evidence], next_step, where=f.line_in("lock"),
        where_reason=f.no_line, missing=[MISSING_OS],
    )  # fmt: skip


def not_computing(f: Figures) -> Match | None:
    """Waiting for something, since the process used too little CPU time to have computed."""
    if f.waiting_share is None or f.host is not None or f.blocked is not None:
        return None
    waited = f.waiting_share * f.wall - (f.wall - f.outside)  # in CUDA calls it may have waited, too
    if f.uses_gpu and not f.api_is_complete:
        waited -= f.wall - f.gpu_idle  # while the GPU is at work it may wait for that, in a call that was not recorded
    waited = min(waited, f.gpu_idle) if f.uses_gpu else waited
    waited -= f.throttled_ns + _stolen_most(f)
    if waited < max(BLOCKED_SHARE * f.undisturbed_ns, CERTAIN_SHARE * f.wall):
        return None
    evidence = f"It waits at least {percent(waited, f.wall)} of its host time"
    others, verdict = f.rest_of_process, Verdict.WAITING_ON_SYSTEM
    ran = 1.0 if not f.ready_share else 1 - (f.queued_share or 0.0) / f.ready_share
    if others is not None and others.meanwhile * f.wall >= AT_WORK_SHARE * waited:
        evidence += f", while other threads of its process use {others.meanwhile:.2g} CPUs"
        if others.otherwise < IDLE_SHARE * ran:
            verdict, evidence = Verdict.WAITING_ON_STAGE, f"{evidence}, and rest otherwise."
        else:
            evidence += ", and otherwise too: they may hold the interpreter lock, or work ahead."
    else:
        evidence += ": too little CPU time was used to have computed more."
    next_step = "--explain names the line that waits, and what for."
    return Match(verdict, waited, f.wall, [evidence], next_step, saves_ns=waited, missing=[MISSING_OS])


def _stolen_most(f: Figures) -> float:
    """What other machines may have taken of the time in which it would have computed, where CPU time is without it."""
    share = min(f.kept.stolen_share or 0.0, 0.99)
    return share / (1 - share) * (1 - (f.waiting_share or 0.0)) * f.wall


def cpu_contention(f: Figures) -> Match | None:
    """Ready to run, and the process's own threads have all CPUs. Other processes' are no fault of the pipeline."""
    waited = max(f.crowded_ns - f.throttled_ns, 0.0)
    if not waited or (f.host is not None and f.host.cpus_before is not None):
        return None  # `fewer_cpus`
    least = "at least " if f.host is None else ""
    evidence = (
        f"It is ready and finds no free CPU {least}{percent(waited, f.wall)} of its host time, while the process has "
        "more threads ready than CPUs."
    )
    reason = "what takes the CPUs is other threads, not a line of this stage"
    return Match(
        Verdict.CPU_CONTENTION, waited, f.wall, [evidence], RUNNABLE_STEP, verdict_share=RUNNABLE_SHARE,
        saves_ns=waited, where_reason=reason,
    )  # fmt: skip


def _parts(f: Figures) -> str:
    named = (
        f"{name} {percent(f.waiting_ns(kind), f.wall)}"
        for kind, name in WAITS_FOR.items()
        if f.waiting_ns(kind) >= REPORTED_SHARE * f.wall
    )
    return ", ".join(named) + "."
