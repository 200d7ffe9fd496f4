"""Rules about what the host does to give the GPU work: copies, waits, allocations, launches."""

from __future__ import annotations

from perfharness.analysis.diagnosis.rules.evidence import MISSING_CALLS, Figures, Match, percent
from perfharness.analysis.diagnosis.rules.gpu import PAGEABLE_SHARE, PIN_STEP
from perfharness.model.diagnosis import Verdict

MANY_COPIES = 10
"""A batch. A handful of tensors is what a batch consists of; ten or more could have been one."""
SMALL_COPY_SHARE = 0.50
"""Of the host time for copies. With less of it on the GPU, most of a copy's cost does not depend on its size."""
COPYING_SHARE = 0.30
"""Of the host time. Issuing copies overlaps with nothing on that thread, so a third of it is a third to gain."""
SYNCHRONIZATION_SHARE = 0.30
"""Of the host time, of waits with an idle GPU. They overlap with nothing on that thread: a third to gain."""
TURNS_SHARE = 0.20
"""Of the host time, of many waits."""
CLOSE_TURNS_SHARE, CLOSE = 0.10, 20
"""The same, with what leads to them, of waits with at most so many launches to each. As long as they are there, no CUDA
graph can hold what lies between them and the host cannot run ahead, so they go first, before the launching that they
expose."""
MANY_WAITS = 3
"""A batch. One wait hands the result over; more make host and GPU take turns."""
ALLOCATION_SHARE = 0.30
"""Of the host time. As waiting, which freeing does too."""
LAUNCH_BOUND_SHARE = 0.50
"""Of the host time: most of it goes into the launching calls themselves."""
DISPATCH_BOUND_SHARE = 0.50
"""Of the host time: most of it goes into what leads to launches."""
MANY_OPERATIONS = 20
"""A batch. With fewer, what lies between launches may be the program's own work rather than the price of an
operation."""
PRICE_IN_CALLS = 10
"""As long as an operation and what leads to it take at most so many launching calls, it is the price of an operation,
also of few: PyTorch needs 3 to 10."""
IDLE_SHARE = 0.30
"""Of the host time. A GPU that is idle less than this does not wait for the host's launches."""
MOST_KEPT_IDLE = 0.10
"""Of the host time. Waits for a GPU that is idle less than this are waits for its work: nothing is lost by them."""

DISPATCH_STEP = (
    "Issue fewer operations: replay a CUDA graph (torch.compile(mode='reduce-overhead'), torch.cuda.graph), fuse them "
    "(torch.compile, jax.jit), or take larger batches."
)
SMALL_COPIES_STEP = "Copy once: put the parts into one pinned buffer, or make them on the GPU."
READ_BACK_STEP = (
    "Keep values on the GPU and read them once a batch: .item(), .cpu(), .tolist(), print, if on a tensor, nonzero() "
    "and boolean masks wait for the GPU."
)
SYNCHRONIZE_STEP = "Wait once a batch, where the result is needed; order work by streams and events instead."
ALLOCATOR_STEP = "Keep buffers between batches, or use a caching allocator (PyTorch's, CuPy's pool, cudaMallocAsync)."


def small_copies(f: Figures) -> Match | None:
    """Many copies whose cost is that of a copy, not of its bytes."""
    made = f.issuing
    if f.a_batch(made.copies) < MANY_COPIES or made.copies_gpu_ns >= SMALL_COPY_SHARE * made.copying_ns:
        return None
    size = "" if made.copied_bytes is None else f" of {made.copied_bytes / made.copies / 1e3:.1f} kB on average"
    evidence = (
        f"{f.a_batch(made.copies):.0f} copies to the GPU a batch{size} take {percent(made.copying_ns, f.wall)} of its "
        f"host time; each costs the host {made.copying_ns / made.copies / 1e3:.1f} us, and the GPU "
        f"{made.copies_gpu_ns / made.copies / 1e3:.1f} us."
    )
    return Match(
        Verdict.SMALL_COPIES, made.copying_ns, f.wall, [evidence], SMALL_COPIES_STEP,
        verdict_share=COPYING_SHARE,
        saves_ns=min(made.copying_ns, f.gpu_idle), where=f.line_during("copies"), where_reason=f.no_line,
    )  # fmt: skip


def pageable_copies(f: Figures) -> Match | None:
    """Copies from pageable memory, for which the host waits."""
    made = f.issuing
    is_small = f.a_batch(made.copies) >= MANY_COPIES and made.copies_gpu_ns < SMALL_COPY_SHARE * made.copying_ns
    if is_small or not made.copies or made.pageable_ns < PAGEABLE_SHARE * made.copies_gpu_ns:
        return None
    evidence = (
        f"{f.a_batch(made.copies):.1f} copies a batch from pageable memory, for which the host waits, take "
        f"{percent(made.copying_ns, f.wall)} of its host time."
    )
    return Match(
        Verdict.PAGEABLE_COPIES, made.copying_ns, f.wall, [evidence], PIN_STEP,
        verdict_share=COPYING_SHARE,
        saves_ns=made.copying_ns, where=f.line_during("copies"), where_reason=f.no_line,
    )  # fmt: skip


def allocator_churn(f: Figures) -> Match | None:
    """Memory of a GPU that is allocated and freed in every batch."""
    made = f.issuing
    if f.a_batch(made.allocations) < 1:
        return None
    evidence = (
        f"{f.a_batch(made.allocations):.1f} calls a batch that allocate or free memory, which synchronise, take "
        f"{percent(made.allocating_ns, f.wall)} of its host time."
    )
    waits = made.reading_ns + made.synchronizing_ns
    return Match(
        Verdict.ALLOCATOR_CHURN, made.allocating_ns, f.wall, [evidence], ALLOCATOR_STEP,
        verdict_share=ALLOCATION_SHARE, may_be_verdict=made.allocating_ns >= waits, saves_ns=made.allocating_ns,
        where=f.line_during("allocations"), where_reason=f.no_line,
    )  # fmt: skip


def synchronization(f: Figures) -> Match | None:
    """Waits for the GPU: those that reading a value brings with it, and those that the program asks for."""
    made = f.issuing
    turns = made.read_backs + made.waits
    count, waits, share = f.a_batch(turns), made.reading_ns + made.synchronizing_ns, SYNCHRONIZATION_SHARE
    if f.gpu_idle < MOST_KEPT_IDLE * f.wall:
        return None
    if count >= MANY_WAITS:
        is_close = f.api_is_complete and 0 < made.launches <= CLOSE * turns
        waits += made.turning_ns if is_close else 0.0
        share = CLOSE_TURNS_SHARE if is_close else TURNS_SHARE
    elif min(f.blocking_idle, waits) < share * f.wall:  # copies to the GPU block too, and have a rule of their own
        return None
    is_implicit = made.read_backs > 0 and made.reading_ns >= made.synchronizing_ns
    if is_implicit:
        verdict, next_step, line = Verdict.IMPLICIT_SYNCHRONIZATION, READ_BACK_STEP, f.line_during("read-backs")
        size = "" if made.read_back_bytes is None else f" of {made.read_back_bytes / made.read_backs:.0f} bytes"
        what = f"{f.a_batch(made.read_backs):.1f} values{size} read from the GPU a batch, for which the host waits,"
    else:
        verdict, next_step, line = (
            Verdict.SYNCHRONIZATION_BOUND,
            SYNCHRONIZE_STEP,
            f.line_during("waits") or f.line_during("read-backs"),
        )
        what = f"{count:.1f} waits for the GPU a batch"
    evidence = f"{what} take {percent(waits, f.wall)} of its host time; the GPU is idle for {f.idle}."
    return Match(
        verdict, waits, f.wall, [evidence], next_step, verdict_share=share,
        saves_ns=min(waits, f.gpu_idle), where=line, where_reason=f.no_line,
    )  # fmt: skip


def hidden_waits(f: Figures) -> Match | None:
    """Copies to the host that an unrecorded wait may follow: other time that seems busy may be waiting."""
    read_backs = f.a_batch(f.issuing.read_backs)
    if f.api_is_complete or read_backs < MANY_WAITS:
        return None
    evidence = (
        f"{read_backs:.1f} copies to the host a batch: if the host waits for each (.item(), .cpu()), it "
        f"is {Verdict.IMPLICIT_SYNCHRONIZATION.value}; the GPU is idle for {f.idle}."
    )
    next_step = "Trace it with --tracer nsys, which records the waits."
    return Match(Verdict.CANNOT_TELL, 0.0, f.wall, [evidence], next_step, missing=[MISSING_CALLS])


def launching(f: Figures) -> Match | None:
    """The host cannot give the GPU its work as fast as the GPU does it: in the calls, or in what leads to them."""
    made = f.issuing
    if not made.launches or f.gpu_idle < IDLE_SHARE * f.wall or made.issued_gpu_ns >= made.launching_ns:
        return None
    is_launch = made.launch_calls_ns >= LAUNCH_BOUND_SHARE * f.wall
    is_price = made.launching_ns <= PRICE_IN_CALLS * made.launch_calls_ns
    if not is_price and f.a_batch(made.launches) < MANY_OPERATIONS:
        return None
    host_us, call_us, gpu_us = (
        part / made.launches / 1e3 for part in (made.launching_ns, made.launch_calls_ns, made.issued_gpu_ns)
    )
    evidence = (
        f"{f.a_batch(made.launches):.0f} operations a batch take {percent(made.launching_ns, f.wall)} of its host "
        f"time: {host_us:.1f} us each to launch ({call_us:.1f} us in the call), {gpu_us:.1f} us on the GPU, which is "
        f"idle for {f.idle}."
    )
    saves = min(made.launching_ns - made.issued_gpu_ns, f.gpu_idle)
    return Match(
        Verdict.LAUNCH_BOUND if is_launch else Verdict.DISPATCH_BOUND, made.launching_ns, f.wall, [evidence],
        DISPATCH_STEP, verdict_share=DISPATCH_BOUND_SHARE, saves_ns=saves, where=f.line_during("launches"),
        where_reason=f.no_line, missing=f.missing_calls,
    )  # fmt: skip
