"""What limits a stage: rules over shares of its time, the first match is the verdict (docs/guides/diagnosis.md)."""

from __future__ import annotations

from dataclasses import dataclass

from perfharness.model.diagnosis import GpuLimit, GpuLimits, StageVerdict, Verdict
from perfharness.model.trace import OsWaitKind

FIRST_USE_SHARE = 0.10
"""Of the host time. First use is no part of the steady state at all, so a tenth is already a wrong answer."""
REPORTED_SHARE = 0.01
"""Of the host time: less than that is not worth a sentence."""
GPU_BOUND_SHARE = 0.60
"""Of the stage's span. Above it, everything but the GPU's work together could not make the stage 1.7 times faster."""
COPY_OF_GPU_SHARE = 0.50
"""Of the GPU's time. More than half of it is copies without a concurrent kernel."""
COPY_BOUND_SHARE = 0.40
"""Of the span, where the GPU is not at work all the time: pageable copies leave it idle between their pieces."""
SHARED_GPU_SHARE = 0.30
"""Of the span. Two processes that each use a GPU half of the time meet by chance in a quarter of it."""
WAITING_SHARE = 0.40
"""Of the span: waiting for another stage is the largest single part when nothing else reaches its own threshold."""
AT_WORK_SHARE = 0.50
"""Of the waiting. With less, most of it passes while no thread works in the stage that is named."""
SYNCHRONIZATION_SHARE = 0.30
"""Of the host time. Waiting overlaps with nothing on that thread, so a third of it is a third to gain."""
MANY_WAITS = 3
"""A batch. One wait hands the result over, and PyTorch's .cpu() makes two calls of it; more make host and GPU take
turns."""
LAUNCH_BOUND_SHARE = 0.50
"""Of the host time: most of it goes into issuing work."""
LAUNCH_PATH_NS = 25_000
"""Launches that follow each other within this are one stream of launching: PyTorch needs 5 to 15 us an operation."""
IDLE_SHARE = 0.30
"""Of the host time. A GPU that is idle less than this does not wait for the host's launches."""
CPU_BOUND_SHARE = 0.50
"""Of the host time: most of it is spent outside of CUDA."""


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
class Figures:
    """Sums over the stage's ranges, nanoseconds; counts per batch.

    `wall`: host time; `span`: from each range's start to the later of its end and that of its last operation;
    `gpu_busy`: own operations; `copy_only`: own transfers without a concurrent kernel; `gpu_idle`: no operation of the
    trace ran, in `wall`; `blocking`: in synchronising calls, and copies to the host that the next call waits
    for; `read_backs`: copies to the host a batch; `blocking_idle` of it with an idle GPU; `outside`: not in
    CUDA calls; `launch_path`: launching, and what lies between launches close together; `for_stages`: waiting, or
    queueing, while the GPU did the work of other stages; `shared`: own operations, or waits, while other processes were
    at work on the GPU; `blocked`: outside of CUDA calls in the operating system, None where that was not recorded;
    `first_use`: loading modules, and what batches before the steady state took more.
    """

    wall: float
    span: float
    gpu_busy: float
    copy_only: float
    pageable: float
    gpu_idle: float
    blocking: float
    blocking_idle: float
    blocking_calls: float
    read_backs: float
    allocate: float
    outside: float
    launch_path: float
    launches: float
    operation_time: float
    for_stages: float
    other_stage: str | None
    shared: float | None
    loading: float
    slow_start: float
    api_is_complete: bool
    limits: GpuLimits
    blocked: dict[OsWaitKind, int] | None
    other_thread: OtherThread | None
    gpu_shares: dict[str, float]
    uses_gpu: bool = True
    """Whether the process made any CUDA call, or a GPU any operation of it."""

    @property
    def idle(self) -> str:
        """How much of the host time the GPU is idle."""
        return _percent(self.gpu_idle, self.wall)

    @property
    def missing_calls(self) -> list[str]:
        """What the tracer does not record of the calls."""
        return [] if self.api_is_complete else [MISSING_CALLS]


def judge(f: Figures) -> StageVerdict:
    """The verdict of a stage whose numbers are all known but those that its tracer does not record."""
    shares = (
        f"GPU {_percent(f.gpu_busy, f.span)}, waiting {_percent(f.blocking, f.wall)}, "
        f"launching {_percent(f.launch_path, f.wall)}, outside of CUDA {_percent(f.outside, f.wall)}"
    )
    nothing = StageVerdict(
        Verdict.CANNOT_TELL,
        [f"No single cause reaches its threshold: {shares}."],
        "Look at the stages inside it; annotate smaller stages where there are none.",
        f.missing_calls,
    )
    return next((found for rule in RULES if (found := rule(f)) is not None), nothing)


def cannot_tell(missing: list[str], next_step: str) -> StageVerdict:
    """The verdict where the trace does not hold what a verdict needs."""
    return StageVerdict(Verdict.CANNOT_TELL, [], next_step, missing)


MISSING_CALLS = (
    "calls that start no GPU work (synchronise, allocate, load) are not recorded by the embedded tracer; they look "
    "like time outside of CUDA (--tracer nsys records them)"
)
MISSING_OS = (
    "whether the time outside of CUDA calls is computing or waiting (a lock, a sleep, a file): the operating system's "
    "calls were not recorded (`perfharness launch --trace-os` under nsys)"
)
TURNS_STEP = "Its GPUs take turns, and none is at work most of the time: give each a batch of its own meanwhile."
GPU_STEPS = {
    GpuLimit.COMPUTE: "Compute less or cheaper in its top kernels: smaller types (bf16, fp8), tensor cores.",
    GpuLimit.MEMORY: "Move fewer bytes: smaller types; fused kernels (torch.compile), which keep values in registers.",
    GpuLimit.UNDERFILLED: "Give the GPU more work: larger batches, or independent stages on streams of their own.",
    GpuLimit.CANNOT_TELL: "Look at its top kernels: smaller types, fused kernels, larger batches, less work.",
}
PIN_STEP = "Pin the host's memory (pin_memory) and copy with non_blocking=True on a stream of its own."
COPY_STEP = "Copy less, or copy the next batch on a stream of its own while this one is computed."
CPU_STEP = "Profile the Python code of the stage (py-spy), or do it in other threads while the GPU is at work."
CPU_ONLY_STEP = "Profile the Python code of the stage (py-spy), or spread it over threads or processes."
WAITS_FOR = {
    OsWaitKind.LOCK: "locks and queues",
    OsWaitKind.SLEEP: "sleeping",
    OsWaitKind.PROCESS: "other processes' ends",
    OsWaitKind.FILE: "files, pipes and sockets",
}


def _first_use(f: Figures) -> StageVerdict | None:
    if max(f.loading, f.slow_start) < FIRST_USE_SHARE * f.wall:
        return None
    parts = (
        (f.loading, "Loading modules and kernels takes {} of its host time."),
        (f.slow_start, "Batches before the steady state add {} to its host time."),
    )
    evidence = [text.format(_percent(part, f.wall)) for part, text in parts if part >= REPORTED_SHARE * f.wall]
    next_step = "Exclude more batches (-w), or run each shape once before the first batch."
    return StageVerdict(Verdict.FIRST_USE, evidence, next_step)


def _waiting_on_process(f: Figures) -> StageVerdict | None:
    if f.shared is None or f.shared < SHARED_GPU_SHARE * f.span:
        return None
    evidence = f"During {_percent(f.shared, f.span)} of its time another process was at work on the same GPU."
    next_step = "Run fewer processes on this GPU (-np), or share it with MPS; compare the throughput of both."
    return StageVerdict(Verdict.WAITING_ON_PROCESS, [evidence], next_step)


def _gpu(f: Figures) -> StageVerdict | None:
    several = []
    if len(f.gpu_shares) > 1:
        several = [
            ", ".join(f"{name} {_percent(busy, f.span)}" for name, busy in f.gpu_shares.items()) + " of the time."
        ]
    if f.gpu_busy >= GPU_BOUND_SHARE * f.span and f.copy_only < COPY_OF_GPU_SHARE * f.gpu_busy:
        take_turns = several and max(f.gpu_shares.values()) < GPU_BOUND_SHARE * f.span
        evidence = (
            f"The GPU is at work on it {_percent(f.gpu_busy, f.span)} of the time "
            f"({f.operation_time / 1e6:.3f} ms of operations in all batches)."
        )
        next_step = TURNS_STEP if take_turns else GPU_STEPS[f.limits.limit]
        evidences = [evidence, *several, *f.limits.evidence]
        return StageVerdict(Verdict.GPU_BOUND, evidences, next_step, f.limits.missing, f.limits.limit)
    if f.copy_only < COPY_BOUND_SHARE * f.span:
        return None
    evidences = [f"Copies without a concurrent kernel take {_percent(f.copy_only, f.span)} of its time.", *several]
    if f.pageable < 0.5 * f.copy_only:
        return StageVerdict(Verdict.COPY_BOUND, evidences, COPY_STEP)
    pageable = f"{_percent(f.pageable, f.copy_only)} of that are copies from or to pageable memory."
    return StageVerdict(Verdict.COPY_BOUND, [*evidences, pageable], PIN_STEP)


def _waiting_on_stage(f: Figures) -> StageVerdict | None:
    if f.for_stages < WAITING_SHARE * f.span:
        return None
    whose = f"'{f.other_stage}'" if f.other_stage else "other stages"
    evidence = f"{_percent(f.for_stages, f.span)} of its time passes while the GPU works on what {whose} started."
    return StageVerdict(Verdict.WAITING_ON_STAGE, [evidence], f"Look at {whose}: this stage only waits for it.")


def _blocked(f: Figures) -> StageVerdict | None:
    """Blocked in the operating system: by another thread's stage, by another process, or by what no trace shows."""
    if f.blocked is None:
        return None
    lock, whole, other = f.blocked[OsWaitKind.LOCK], sum(f.blocked.values()), f.other_thread
    if lock >= WAITING_SHARE * f.wall and other is not None and other.share >= AT_WORK_SHARE:
        evidence = (
            f"Its thread waits for a lock or a queue {_percent(lock, f.wall)} of its host time; during "
            f"{100 * other.share:.0f} % of that another thread is at work in '{other.stage}'."
        )
        next_step = f"Make '{other.stage}' faster, or give it more threads: this stage only waits for it."
        return StageVerdict(Verdict.WAITING_ON_STAGE, [evidence], next_step)
    if whole < CPU_BOUND_SHARE * f.wall:
        return None
    parts = ", ".join(
        f"{WAITS_FOR[kind]} {_percent(part, f.wall)}"
        for kind, part in f.blocked.items()
        if part >= REPORTED_SHARE * f.wall
    )
    evidence = f"Its thread is blocked in the operating system {_percent(whole, f.wall)} of its host time: {parts}."
    if f.blocked[OsWaitKind.PROCESS] >= WAITING_SHARE * f.wall:
        return StageVerdict(Verdict.WAITING_ON_PROCESS, [evidence], "Look at the process that it waits for.")
    missing = "which thread or process ends the wait, where it is a lock: none was in a stage of this trace meanwhile"
    next_step = "Wait less: no sleeps, read ahead in another thread, shorter critical sections."
    is_lock = lock >= WAITING_SHARE * f.wall
    return StageVerdict(Verdict.WAITING_ON_SYSTEM, [evidence], next_step, [missing] if is_lock else [])


def _handover(f: Figures) -> StageVerdict | None:
    """Without the operating system's calls: ends that follow another thread's, batch for batch."""
    other = f.other_thread
    if f.blocked is not None or other is None or other.chance is None or f.outside < CPU_BOUND_SHARE * f.wall:
        return None
    outside = f"{_percent(f.outside, f.wall)} of its host time is outside of CUDA calls, and " if f.uses_gpu else ""
    evidence = (
        f"{outside}{100 * other.share:.0f} % of the times it ends right after '{other.stage}' of another thread has "
        f"ended (by chance: {100 * other.chance:.0f} %), so it looks as if it waited for that."
    )
    next_step = f"Look at '{other.stage}'; trace the operating system's calls too (--trace-os) to be sure."
    return StageVerdict(Verdict.WAITING_ON_STAGE, [evidence], next_step, [MISSING_OS])


def _synchronization(f: Figures) -> StageVerdict | None:
    enough = SYNCHRONIZATION_SHARE * f.wall
    if f.allocate >= max(enough, f.blocking):
        evidence = f"Allocating and freeing, which synchronise, take {_percent(f.allocate, f.wall)} of its host time."
        next_step = "Keep buffers between batches, or use a caching allocator."
        return StageVerdict(Verdict.SYNCHRONIZATION_BOUND, [evidence], next_step)
    many = f.blocking >= enough and f.blocking_calls >= MANY_WAITS
    if not (many or f.blocking_idle >= enough or f.allocate >= enough):
        return None
    evidence = (
        f"{f.blocking_calls:.1f} blocking calls a batch, and the copies that they read back, take "
        f"{_percent(f.blocking, f.wall)} of its host time; the GPU is idle for {f.idle}."
    )
    next_step = "Keep values on the GPU (.item(), .cpu(), print of a tensor wait), and synchronise once a batch."
    return StageVerdict(Verdict.SYNCHRONIZATION_BOUND, [evidence], next_step)


def _hidden_waits(f: Figures) -> StageVerdict | None:
    """Copies to the host that an unrecorded wait may follow: other time that seems busy may be waiting."""
    if f.api_is_complete or f.read_backs < MANY_WAITS:
        return None
    evidence = (
        f"{f.read_backs:.1f} copies to the host a batch: if the host waits for each (.item(), .cpu()), it "
        f"is {Verdict.SYNCHRONIZATION_BOUND.value}; the GPU is idle for {f.idle}."
    )
    next_step = "Trace it with --tracer nsys, which records the waits."
    return StageVerdict(Verdict.CANNOT_TELL, [evidence], next_step, [MISSING_CALLS])


def _launch(f: Figures) -> StageVerdict | None:
    if f.launch_path < LAUNCH_BOUND_SHARE * f.wall or f.gpu_idle < IDLE_SHARE * f.wall:
        return None
    mean_us = f.operation_time / f.launches / 1e3 if f.launches else 0.0
    evidence = (
        f"Launching takes {_percent(f.launch_path, f.wall)} of its host time; the GPU is idle for {f.idle}, and an "
        f"operation takes it {mean_us:.1f} us on average."
    )
    next_step = "Launch less: a CUDA graph, torch.compile, fused kernels, or larger batches."
    return StageVerdict(Verdict.LAUNCH_BOUND, [evidence], next_step, f.missing_calls)


def _cpu(f: Figures) -> StageVerdict | None:
    if f.outside < CPU_BOUND_SHARE * f.wall:
        return None
    evidence = ["The process used no GPU, so all of its time is the CPU's."]
    if f.uses_gpu:
        outside = _percent(f.outside, f.wall)
        evidence = [f"{outside} of its host time is outside of CUDA calls; the GPU is idle for {f.idle} of it."]
    if f.uses_gpu and not f.api_is_complete and f.gpu_idle < CPU_BOUND_SHARE * f.wall:
        either = f"{evidence[0]} It may compute, or wait for the GPU."
        return StageVerdict(Verdict.CANNOT_TELL, [either], "Trace it with --tracer nsys.", [MISSING_CALLS])
    if f.blocked is not None:
        evidence.append(f"{_percent(sum(f.blocked.values()), f.wall)} is blocked in the operating system.")
    unknown = [] if f.blocked is not None else [MISSING_OS]
    if not f.uses_gpu:
        return StageVerdict(Verdict.CPU_BOUND, evidence, CPU_ONLY_STEP, unknown)
    return StageVerdict(Verdict.CPU_BOUND, evidence, CPU_STEP, [*f.missing_calls, *unknown])


RULES = (
    _first_use, _waiting_on_process, _gpu, _waiting_on_stage, _blocked, _synchronization, _hidden_waits, _launch,
    _handover, _cpu,
)  # fmt: skip
"""In order: what makes the other figures meaningless comes first, what only fills the rest of the time last."""


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
