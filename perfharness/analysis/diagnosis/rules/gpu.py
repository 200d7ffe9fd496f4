"""Rules about work that is no part of the steady state, about the GPU's own work, and about waiting for it."""

from __future__ import annotations

from perfharness.analysis.diagnosis.rules.evidence import Figures, Match, percent
from perfharness.model.diagnosis import GpuLimit, Verdict

FIRST_USE_SHARE = 0.10
"""Of the host time. First use is no part of the steady state at all, so a tenth is already a wrong answer."""
SLOW_START_SHARE = 0.33
"""Of the host time, of batches that were slower for reasons that the trace does not show. With less, what limits the
steady state takes twice as much; that the cut is too short is a finding of its own."""
RECOMPILATION_SHARE = 0.10
"""Of the host time. It is work that was done before, so a tenth is a tenth to gain; as with first use."""
REPORTED_SHARE = 0.01
"""Of the host time: less than that is not worth a sentence."""
GPU_BOUND_SHARE = 0.60
"""Of the stage's span. Above it, everything but the GPU's work together could not make the stage 1.7 times faster."""
COPY_OF_GPU_SHARE = 0.50
"""Of the GPU's time. More than half of it is copies without a concurrent kernel."""
COPY_BOUND_SHARE = 0.40
"""Of the span, where the GPU is not at work all the time: pageable copies leave it idle between their pieces."""
PAGEABLE_SHARE = 0.50
"""Of the time of copies: most of it is spent on pageable memory."""
SHARED_GPU_SHARE = 0.30
"""Of the span. Two processes that each use a GPU half of the time meet by chance in a quarter of it."""
WAITING_SHARE = 0.40
"""Of the span: waiting for another stage is the largest single part when nothing else reaches its own threshold."""

GPU_STEPS = {
    GpuLimit.COMPUTE: "Compute less or cheaper in its top kernels: smaller types (bf16, fp8), tensor cores.",
    GpuLimit.MEMORY: "Move fewer bytes: smaller types; fused kernels (torch.compile), which keep values in registers.",
    GpuLimit.UNDERFILLED: "Give the GPU more work: larger batches, or independent stages on streams of their own.",
    GpuLimit.COMMUNICATION: (
        "Exchange less between the GPUs: smaller types, fewer and larger collectives, or exchange while it computes; a "
        "rank that comes late makes the others wait in them."
    ),
    GpuLimit.CANNOT_TELL: "Look at its top kernels: smaller types, fused kernels, larger batches, less work.",
}
TURNS_STEP = "Its GPUs take turns, and none is at work most of the time: give each a batch of its own meanwhile."
PIN_STEP = "Pin the host's memory (pin_memory) and copy with non_blocking=True on a stream of its own."
COPY_STEP = "Copy less, or copy the next batch on a stream of its own while this one is computed."
COMPILE_STEP = (
    "Compile once: pad to few shapes, or mark them dynamic (torch.compile(dynamic=True), jax.jit with static shapes); "
    "keep compiled functions and patterns between batches."
)


def recompilation(f: Figures) -> Match | None:
    """Modules are loaded, kernels appear or a compiler runs in batch after batch."""
    compiling, found = None if f.host is None else f.host.compiling, f.recompiling
    lost = max(f.compiling_ns, found.lost_ns if found else 0.0)
    if not lost:
        return None
    evidence = []
    if compiling is not None:
        share = percent(f.compiling_ns, f.wall)
        evidence.append(f"A compiler ({compiling.name}) is at work {share} of its host time, in the steady state.")
    if found:
        evidence.append(
            f"{found.sign} in {found.batches} batches, in the second half of the loop too, and take "
            f"{percent(found.lost_ns, f.wall)} of its host time."
        )
    return Match(
        Verdict.RECOMPILATION, lost, f.wall, evidence, COMPILE_STEP if compiling is None else compiling.step,
        verdict_share=RECOMPILATION_SHARE, saves_ns=lost, where=None if compiling is None else compiling.line,
        where_reason=f.no_line,
    )  # fmt: skip


def first_use(f: Figures) -> Match | None:
    """Modules loaded, or batches that took more, before the steady state."""
    if f.loading < FIRST_USE_SHARE * f.wall and f.slow_start < SLOW_START_SHARE * f.undisturbed_ns:
        return None
    lost, where = max(f.loading, f.slow_start), None if f.host is None else f.host.beginning
    parts = (
        (f.loading, "Loading modules and kernels takes {} of its host time."),
        (f.slow_start, "Batches before the steady state add {} to its host time."),
    )
    evidence = [text.format(percent(part, f.wall)) for part, text in parts if part >= REPORTED_SHARE * f.wall]
    next_step = "Exclude more batches (-w), or run each shape once before the first batch."
    reason = "it is over once the loop is in its steady state"
    return Match(Verdict.FIRST_USE, lost, f.wall, evidence, next_step, saves_ns=lost, where=where, where_reason=reason)


def shared_gpu(f: Figures) -> Match | None:
    """Another process is at work on the GPU."""
    if f.shared is None or f.shared < SHARED_GPU_SHARE * f.span:
        return None
    evidence = f"During {percent(f.shared, f.span)} of its time another process was at work on the same GPU."
    next_step = "Run fewer processes on this GPU (-np), or share it with MPS; compare the throughput of both."
    reason = "the other process is not in this trace"
    return Match(Verdict.WAITING_ON_PROCESS, f.shared, f.span, [evidence], next_step, where_reason=reason)


def gpu_bound(f: Figures) -> Match | None:
    """The GPU is at work on the stage most of the time."""
    if f.gpu_busy < GPU_BOUND_SHARE * f.span or f.copy_only >= COPY_OF_GPU_SHARE * f.gpu_busy:
        return None
    several = _each_gpu(f)
    take_turns = several and max(f.gpu_shares.values()) < GPU_BOUND_SHARE * f.span
    evidence = (
        f"The GPU is at work on it {percent(f.gpu_busy, f.span)} of the time "
        f"({f.operation_time / 1e6:.3f} ms of operations in all batches)."
    )
    return Match(
        Verdict.GPU_BOUND, f.gpu_busy, f.span, [evidence, *several, *f.limits.evidence],
        TURNS_STEP if take_turns else GPU_STEPS[f.limits.limit], where=f.line_during("launches"),
        where_reason=f.no_line, missing=f.limits.missing, limit=f.limits.limit,
    )  # fmt: skip


def copy_bound(f: Figures) -> Match | None:
    """Transfers from or to the host, or between GPUs, with nothing beside them."""
    if f.copy_only < COPY_BOUND_SHARE * f.span:
        return None
    evidences = [f"Copies without a concurrent kernel take {percent(f.copy_only, f.span)} of its time.", *_each_gpu(f)]
    verdict, next_step = Verdict.COPY_BOUND, COPY_STEP
    if f.pageable >= PAGEABLE_SHARE * f.copy_only:
        evidences.append(f"{percent(f.pageable, f.copy_only)} of that are copies from or to pageable memory.")
        verdict, next_step = Verdict.PAGEABLE_COPIES, PIN_STEP
    return Match(
        verdict, f.copy_only, f.span, evidences, next_step, saves_ns=f.copy_only,
        where=f.line_during("copies") or f.line_during("read-backs"), where_reason=f.no_line,
    )  # fmt: skip


def waiting_on_gpu_work(f: Figures) -> Match | None:
    """The GPU works on what other stages started."""
    if f.for_stages < WAITING_SHARE * f.span:
        return None
    whose = f"'{f.other_stage}'" if f.other_stage else "other stages"
    evidence = f"{percent(f.for_stages, f.span)} of its time passes while the GPU works on what {whose} started."
    next_step = f"Look at {whose}: this stage only waits for it."
    reason = f"the work is that of {whose}"
    return Match(Verdict.WAITING_ON_STAGE, f.for_stages, f.span, [evidence], next_step, where_reason=reason)


def _each_gpu(f: Figures) -> list[str]:
    if len(f.gpu_shares) < 2:
        return []
    return [", ".join(f"{name} {percent(busy, f.span)}" for name, busy in f.gpu_shares.items()) + " of the time."]
