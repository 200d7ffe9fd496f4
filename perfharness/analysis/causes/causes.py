"""The fourteen causes: each a function of the evidence, and a row of thresholds.

The verdict of a stage is the first cause of `CAUSES` that takes its threshold of the stage's time. The order says which
cause makes sense first: a wait in the middle of launches prevents a CUDA graph, a compiler hides the steady state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from perfharness.analysis.causes.cpu_supply import CpuSupply
from perfharness.analysis.causes.gpu import GpuTime
from perfharness.analysis.causes.host import WAITS, WAITS_FOR_THREADS, HostTime
from perfharness.analysis.causes.results import Cause, Code, Place
from perfharness.analysis.causes.steps import STEPS, WAIT_STEPS, cheaper
from perfharness.analysis.segments.compilers import COMPILERS
from perfharness.model.activity import Activity
from perfharness.model.diagnosis import GpuLimit

WORTH = 0.05
"""Of a stage's time: a further cause takes so much, and half of its threshold."""
WORKED = 0.5
"""Of a wait for another thread: with so much of it spent by a thread at work, it is a wait for that work."""
UNWORKED, MIN_UNWORKED = 0.2, 20
"""Of a wait of so many samples: with less, nobody works meanwhile."""
MANY_COPIES, MANY_WAITS, MANY_LAUNCHES = 10, 3, 20
"""Per batch."""
CLOSE_WAITS = 20
"""With at most so many launches to each wait, host and GPU take turns."""
CLOSE_SHARE, TURNS_SHARE = 0.1, 0.2
SMALL_COPY = 0.5
"""Of a copy's host time: with less of it on the GPU, its cost does not depend on its size."""
PAGEABLE = 0.5
"""Of the copies' time."""
PRICE_IN_CALLS = 10
"""An operation and what leads to it take at most so many launching calls."""
IDLE = 0.3
"""Of a stage's time: a GPU that is idle for less does not wait for launches."""
BUSY = 0.1
"""Of a stage's time: waits for a GPU that is idle for less lose nothing."""


@dataclass(frozen=True)
class Threshold:
    """The least share of a stage's time that makes a cause the verdict, and the programs that guard it."""

    least: float
    guards: tuple[str, ...]


THRESHOLDS = {
    Code.COMPILATION: Threshold(0.10, ("torch_recompiles", "session_each_request", "lazy_import")),
    Code.GPU_BOUND: Threshold(0.60, ("fp32_product", "cache_cat", "g04_kv_cat")),
    Code.SMALL_COPIES: Threshold(0.30, ("feature_dict", "anchor_tensors")),
    Code.COPY_BOUND: Threshold(0.40, ("copy_not_overlapped", "unpinned_copy")),
    Code.GARBAGE_COLLECTION: Threshold(0.15, ("gc_pauses", "collect_each_image")),
    Code.GIL_CONTENTION: Threshold(0.20, ("gil_contention", "metrics_export")),
    Code.CPU_CONTENTION: Threshold(0.20, ("oversubscription", "pinned_cpu", "c46_torch_np2")),
    Code.DATA_LOADER: Threshold(0.30, ("loader_starved", "loader_workers")),
    Code.WAITING: Threshold(0.30, ("fsync_records", "hub_round_trip", "lock_handover", "polling")),
    Code.ALLOCATOR_CHURN: Threshold(0.30, ("empty_cache", "cupy_without_pool")),
    Code.SYNCHRONIZATION: Threshold(0.30, ("value_per_map", "synchronize_per_layer")),
    Code.LAUNCH_BOUND: Threshold(0.50, ("small_transformer", "decode_loop")),
    Code.CPU_BOUND: Threshold(0.50, ("json_masks", "jpeg_on_cpu")),
}


OF_HOST = (
    Code.GARBAGE_COLLECTION,
    Code.GIL_CONTENTION,
    Code.CPU_CONTENTION,
    Code.DATA_LOADER,
    Code.WAITING,
    Code.CPU_BOUND,
)
"""Parts of the threads' time: of these the one that exceeds its threshold by most comes first."""


@dataclass(frozen=True)
class Evidence:
    """What is known of a stage. Shares are of its time; `wall_ms` is per batch and of the measured pass.

    `throttled`: while a CPU quota made the process stand still. `has_profile`: the samples are those of a profiling pass.
    """

    wall_ms: float
    host: HostTime
    gpu: GpuTime | None = None
    supply: CpuSupply = CpuSupply()
    throttled: float = 0.0
    has_profile: bool = False

    @property
    def others(self) -> float:
        """The share that other processes, none of this launch, take: they have the CPUs."""
        if self.supply.is_contended:
            return 0.0
        own = self.host.of(Activity.NO_CPU) * (1 - self.host.own_contention)
        return own + self.host.of(*WAITS_FOR_THREADS) * self.host.others.queued

    def saving(self, share: float) -> float:
        """Milliseconds per batch; beside GPU work no more than the GPU is idle for."""
        most = share if self.gpu is None or not self.gpu.is_used else min(share, self.gpu.idle)
        return most * self.wall_ms


def find_causes(evidence: Evidence) -> list[Cause]:
    """The causes of a stage: the verdict, then others by what they save. Never empty."""
    own = max(1 - evidence.others, 0.01)
    found = [cause for find in CAUSES if (cause := find(evidence)) is not None]
    enough = [one for one in found if one.share >= _least(one) * own]
    of_host = [one for one in enough if one.code in OF_HOST]
    most = max(of_host, key=lambda one: one.share / _least(one), default=None)
    verdict = next((one for one in enough if one is most or one.code not in OF_HOST), None) or unknown(evidence)
    rest = [
        one
        for one in found
        if one.code is not verdict.code and one.share >= max(WORTH, _least(one) / 2 * own)
    ]
    return [verdict, *sorted(rest, key=lambda one: -(one.saves_ms or 0.0))]


def _least(cause: Cause) -> float:
    return cause.least if cause.least is not None else THRESHOLDS[cause.code].least


def compilation(e: Evidence) -> Cause | None:
    """A compiler works, or modules are loaded, in measured batches."""
    host, gpu = e.host, e.gpu
    shares = {
        "compilers at work": host.of(Activity.COMPILE),
        "kernels that had not run before": 0.0 if gpu is None else gpu.recompiling,
    }
    reason = max(shares, key=lambda one: shares[one])
    share = shares[reason]
    place = host.places.get(Activity.COMPILE)
    compiler = None if host.compiler is None or place is None else COMPILERS[host.compiler]
    if compiler is not None:
        reason = compiler.name
    if not share:
        return None
    what = f"Compiling and loading take {_percent(share)} of its time ({reason})."
    step = STEPS["compilation"] if compiler is None else compiler.step
    return Cause(Code.COMPILATION, share, e.saving(share), what, step, place)


def gpu_bound(e: Evidence) -> Cause | None:
    """The GPU is at work on the stage most of the time, or for longer than the host."""
    gpu = e.gpu
    if gpu is None or not gpu.busy or gpu.copy_only >= gpu.busy / 2:
        return None
    share = gpu.busy / max(gpu.busy, 1.0)
    limit = gpu.limits.limit
    detail = "unknown" if limit is GpuLimit.CANNOT_TELL else limit.value
    what = " ".join([f"The GPU works on it {_percent(share)} of the time.", *gpu.limits.evidence])
    headroom = None if gpu.headroom is None else gpu.headroom * gpu.busy * e.wall_ms
    return Cause(Code.GPU_BOUND, share, headroom, what, STEPS[f"gpu {detail}"], e.host.places.get(Activity.LAUNCH), detail)


def small_copies(e: Evidence) -> Cause | None:
    """Many copies whose cost is that of a copy, not of its bytes."""
    made = None if e.gpu is None else e.gpu.made
    if made is None or made.copies < MANY_COPIES or made.copies_gpu >= SMALL_COPY * made.copying:
        return None
    what = f"{made.copies:.0f} small copies to the GPU per batch take {_percent(made.copying)} of its time."
    place = e.host.places.get(Activity.COPY)
    return Cause(Code.SMALL_COPIES, made.copying, e.saving(made.copying), what, STEPS["small copies"], place)


def copy_bound(e: Evidence) -> Cause | None:
    """Copies between host and GPU, or between GPUs, without a kernel beside them."""
    gpu = e.gpu
    if gpu is None:
        return None
    made, place = gpu.made, e.host.places.get(Activity.COPY)
    is_pageable = bool(made.copies) and made.pageable >= PAGEABLE * made.copies_gpu
    if is_pageable and made.copying >= max(gpu.copy_only, THRESHOLDS[Code.COPY_BOUND].least / 2):
        what = (
            f"{made.copies:.0f} copies per batch from pageable memory, for which the host waits, take "
            f"{_percent(made.copying)} of its time."
        )
        cause = Cause(Code.COPY_BOUND, made.copying, made.copying * e.wall_ms, what, STEPS["pageable copies"], place)
        return replace(cause, detail="pageable", least=PAGEABLE_COPIES)
    if not gpu.copy_only:
        return None
    share = gpu.copy_only / max(gpu.busy, 1.0)
    what = f"Copies without a kernel beside them take {_percent(share)} of its time."
    step = STEPS["pageable copies"] if is_pageable else STEPS["copies"]
    return Cause(Code.COPY_BOUND, share, gpu.copy_only * e.wall_ms, what, step, place)


PAGEABLE_COPIES = 0.30


def garbage_collection(e: Evidence) -> Cause | None:
    """Python's garbage collector runs inside the stage."""
    share = e.host.of(Activity.GC)
    what = f"The garbage collector runs {_percent(share)} of its time."
    return _of_host(e, Code.GARBAGE_COLLECTION, share, what, "gc", e.host.places.get(Activity.GC))


def gil_contention(e: Evidence) -> Cause | None:
    """Another thread holds the interpreter lock."""
    share, holder = e.host.of(Activity.GIL), e.host.lock_holder
    by = "" if holder is None else f", held mostly in {_at(holder)}"
    what = f"It waits {_percent(share)} of its time for the interpreter lock{by}."
    return _of_host(e, Code.GIL_CONTENTION, share, what, "gil", holder)


def cpu_contention(e: Evidence) -> Cause | None:
    """Ready to run without a CPU, for threads of the process, siblings or a quota have them."""
    no_cpu, supply = e.host.of(Activity.NO_CPU), e.supply
    own = no_cpu * e.host.own_contention + e.host.of(*WAITS_FOR_THREADS) * e.host.others.crowded
    if e.throttled >= max(own, WORTH):
        what = f"A CPU quota stops the process {_percent(e.throttled)} of its time."
        return _of_host(e, Code.CPU_CONTENTION, e.throttled, what, "quota", None, "quota")
    if supply.is_contended and no_cpu - own > own:
        what = (
            f"It is ready without a free CPU {_percent(no_cpu)} of its time: {supply.processes} processes of this launch "
            f"have {supply.threads or 0:.0f} threads on {supply.cpus} CPUs."
        )
        return _of_host(e, Code.CPU_CONTENTION, no_cpu, what, "siblings", None, "siblings")
    what = (
        f"It, or a thread that it waits for, is ready without a free CPU {_percent(own)} of its time: the process has "
        "more threads than CPUs."
    )
    return _of_host(e, Code.CPU_CONTENTION, own, what, "threads", None)


def data_loader(e: Evidence) -> Cause | None:
    """Waiting in a data loader for its workers."""
    what = f"It waits in a data loader {_percent(e.host.loading)} of its time{_working(e.host)}."
    return _of_host(e, Code.DATA_LOADER, e.host.loading, what, "data loader", e.host.loader)


def waiting(e: Evidence) -> Cause | None:
    """Blocked: in a lock, a sleep, a file, the network, for another process or stage, or for the GPU work of others."""
    host = e.host
    if e.gpu is not None and e.gpu.for_stages >= FOR_STAGES:
        whose = e.gpu.other_stage or "other stages"
        what = f"{_percent(e.gpu.for_stages)} of its time passes while the GPU does the work of {whose}."
        return Cause(Code.WAITING, e.gpu.for_stages, None, what, f"Look at {whose}.", None, "stage")
    without_cpu = host.others.crowded + host.others.queued
    if e.gpu is not None and e.gpu.shared >= SHARED:
        what = f"{_percent(e.gpu.shared)} of its time another process is at work on the same GPU."
        return Cause(Code.WAITING, e.gpu.shared, None, what, WAIT_STEPS["gpu"], None, "process")
    share = sum(map(host.blocked, WAITS)) - host.loading - host.of(*WAITS_FOR_THREADS) * without_cpu
    most = max(WAITS, key=host.blocked)
    detail = _waits_for(host, most)
    place = host.places.get(most)
    if most is Activity.OTHER and place is None and share < MOSTLY:
        return None  # no sample shows it
    what = f"It is blocked {_percent(share)} of its time, most of it {NAMES[detail]}{_working(host, most)}."
    return _of_host(e, Code.WAITING, share, what, WAIT_STEPS[detail], place, detail)


FOR_STAGES, SHARED = 0.40, 0.30
MOSTLY = 0.5
NAMES = {
    "lock": "in locks or queues",
    "sleep": "in sleeps",
    "file": "for files",
    "network": "for the network",
    "process": "for another process",
    "stage": "for another thread",
    "rank": "for other ranks",
    "other": "in the operating system",
}


def _waits_for(host: HostTime, most: Activity) -> str:
    if most is Activity.LOCK and host.others.working >= WORKED:
        return "stage"
    return most.value


def _working(host: HostTime, most: Activity = Activity.LOCK) -> str:
    """What others do meanwhile."""
    if most not in (Activity.LOCK, Activity.PROCESS):
        return ""
    if host.others.place is not None and host.others.working >= WORKED:
        return f", while another thread or process is in {_at(host.others.place)}"
    if host.samples >= MIN_UNWORKED and host.others.working < UNWORKED and most is Activity.LOCK:
        return "; no thread works meanwhile, so it ends by a time-out or a sleep"
    return ""


def allocator_churn(e: Evidence) -> Cause | None:
    """Memory of the GPU, or pinned memory, is allocated and freed in every batch."""
    if e.gpu is None or e.gpu.made.allocations < 1:
        return None
    made, share = e.gpu.made, e.gpu.made.allocating
    if share < made.reading + made.synchronizing:
        return None
    what = f"{made.allocations:.0f} calls per batch allocate or free memory and take {_percent(share)} of its time."
    place = e.host.places.get(Activity.ALLOC)
    return Cause(Code.ALLOCATOR_CHURN, share, share * e.wall_ms, what, STEPS["allocator"], place)


def synchronization(e: Evidence) -> Cause | None:
    """Waits for the GPU: values that are read back, and waits that the program asks for."""
    gpu = e.gpu
    if gpu is None or gpu.idle < BUSY:
        return None
    made = gpu.made
    count, share, least = made.read_backs + made.waits, made.reading + made.synchronizing, None
    if count >= MANY_WAITS:
        is_close = gpu.has_all_calls and 0 < made.launches <= CLOSE_WAITS * count
        share += made.turning if is_close else 0.0
        least = CLOSE_SHARE if is_close else TURNS_SHARE
    elif min(gpu.blocking_idle, share) < THRESHOLDS[Code.SYNCHRONIZATION].least:
        return None
    is_read = made.read_backs > 0 and made.reading >= made.synchronizing
    named = f"{made.read_backs:.0f} values read from the GPU" if is_read else f"{count:.0f} waits for the GPU"
    what = f"{named} per batch take {_percent(share)} of its time; the GPU is idle {_percent(gpu.idle)} of it."
    step = STEPS["read back" if is_read else "synchronize"]
    place = e.host.places.get(Activity.SYNC) or e.host.places.get(Activity.COPY)
    return Cause(Code.SYNCHRONIZATION, share, e.saving(share), what, step, place, least=least)


def launch_bound(e: Evidence) -> Cause | None:
    """The host cannot launch as fast as the GPU works."""
    gpu = e.gpu
    if gpu is None or not gpu.made.launches or gpu.idle < IDLE:
        return None
    made = gpu.made
    is_price = made.launching <= PRICE_IN_CALLS * made.launch_calls
    if made.issued_gpu >= made.launching or not (is_price or made.launches >= MANY_LAUNCHES):
        return None
    each_us = made.launching * e.wall_ms * 1e3 / made.launches
    what = (
        f"{made.launches:.0f} operations per batch take {_percent(made.launching)} of its time to launch, {each_us:.1f} "
        f"us each; the GPU is idle {_percent(gpu.idle)} of it."
    )
    saves = e.saving(made.launching - made.issued_gpu)
    return Cause(Code.LAUNCH_BOUND, made.launching, saves, what, STEPS["launches"], e.host.places.get(Activity.LAUNCH))


def cpu_bound(e: Evidence) -> Cause | None:
    """The stage's threads compute."""
    host = e.host
    launching = 0.0
    if e.gpu is not None and (launch := launch_bound(e)) is not None and launch.share >= _least(launch):
        launching = max(e.gpu.made.launching - e.gpu.made.launch_calls, 0.0)
    share = max(host.of(Activity.COMPUTE) - launching, 0.0)
    place, library = host.places.get(Activity.COMPUTE), host.library
    at = "" if place is None else f", {_percent(place.function_share)} in {_at(place)}"
    inside = "" if library is None else f", most of that in {library.name}'s {library.function}"
    what = f"It computes {_percent(share)} of its time{at}{inside} ({host.samples} samples)."
    step = cheaper(place.function if place else None, None if library is None else (library.name, library.function))
    return _of_host(e, Code.CPU_BOUND, share, what, step, place)


def unknown(e: Evidence) -> Cause:
    """No cause takes enough, or its time was not recorded."""
    missing = e.host.of(Activity.UNKNOWN)
    if missing >= WORKED:
        what = f"What {_percent(missing)} of its time is spent on was not recorded ({e.host.samples} samples)."
        return Cause(Code.UNKNOWN, missing, None, what, STEPS["more samples" if e.has_profile else "explain"])
    parts = sorted(e.host.activities.items(), key=lambda one: -one[1])[:3]
    named = ", ".join(f"{one.value} {_percent(share)}" for one, share in parts)
    return Cause(Code.UNKNOWN, 1.0, None, f"No cause takes most of its time: {named}.", STEPS["smaller stages"])


CAUSES: tuple[Callable[[Evidence], Cause | None], ...] = (
    compilation,
    gpu_bound,
    small_copies,
    copy_bound,
    garbage_collection,
    gil_contention,
    cpu_contention,
    data_loader,
    waiting,
    allocator_churn,
    synchronization,
    launch_bound,
    cpu_bound,
)


def _of_host(
    e: Evidence, code: Code, share: float, what: str, step: str, place: Place | None, detail: str | None = None
) -> Cause | None:
    if share <= 0:
        return None
    return Cause(code, share, e.saving(share), what, STEPS.get(step, step), place, detail)


def _at(place: Place) -> str:
    return f"{place.function} ({place.file}:{place.line})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
