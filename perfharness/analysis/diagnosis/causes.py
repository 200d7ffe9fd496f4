"""The fourteen causes: each a function of the evidence, and a row of thresholds.

The verdict is the first cause that reaches its threshold share of the stage's time. A cause comes before those that it
makes meaningless (a compiler hides the steady state) or whose remedy it prevents (a wait between launches prevents a
CUDA graph). Parts of the threads' time are ordered by how far they exceed their thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from perfharness.analysis.diagnosis.cpu_supply import CpuSupply
from perfharness.analysis.diagnosis.gpu.stage import GpuTime
from perfharness.analysis.diagnosis.host import MIN_SAMPLES, WAITS, WAITS_FOR_THREADS, HostTime
from perfharness.analysis.diagnosis.steps import STEPS, WAIT_STEPS, cheaper
from perfharness.model.activity import DOING, Activity
from perfharness.model.diagnosis import Cause, Code, CopyGroup, FunctionShare, GpuLimit, KernelGroup, KernelKind, Place


@dataclass(frozen=True)
class Threshold:
    """Least share of a stage's time to become the verdict, and the test programs that guard it."""

    least: float
    guards: tuple[str, ...]


THRESHOLDS = {
    "compilation": Threshold(0.10, ("torch_recompiles", "session_each_request", "lazy_import")),
    "gpu-bound": Threshold(0.60, ("fp32_product", "cache_cat")),
    "small-copies": Threshold(0.30, ("feature_dict", "anchor_tensors")),
    "copy-bound": Threshold(0.40, ("copy_not_overlapped",)),
    "copy-bound, pageable": Threshold(0.30, ("unpinned_copy", "offload_each_step")),
    "garbage-collection": Threshold(0.15, ("gc_pauses", "collect_each_image")),
    "gil-contention": Threshold(0.20, ("gil_contention", "metrics_export")),
    "cpu-contention": Threshold(0.20, ("oversubscription", "pinned_cpu", "cpu_quota")),
    "data-loader": Threshold(0.30, ("loader_starved", "loader_workers")),
    "waiting": Threshold(0.30, ("fsync_records", "hub_round_trip", "lock_handover", "polling")),
    "waiting, not sampled": Threshold(0.50, ("semaphore_of_one",)),
    "waiting, GPU work of other stages": Threshold(0.40, ("jax_new_function",)),
    "waiting, shared GPU": Threshold(0.30, ("shared_gpu",)),
    "allocator-churn": Threshold(0.30, ("empty_cache", "cupy_without_pool")),
    "synchronization": Threshold(0.30, ()),
    "synchronization, many waits": Threshold(0.20, ("value_per_map", "boolean_mask")),
    "synchronization, many waits close together": Threshold(0.08, ("synchronize_per_layer", "nonzero_per_image")),
    "launch-bound": Threshold(0.50, ("small_transformer", "decode_loop")),
    "launch-bound, waits not recorded": Threshold(0.60, ("synchronize_per_layer", "growing_lengths")),
    "cpu-bound": Threshold(0.50, ("json_masks", "jpeg_on_cpu")),
}
"""Shares of a stage's time, less the time taken by other processes."""
WORTH = 0.05
"""Share of a stage's time: a further cause needs this much, and half of its threshold."""
MANY_COPIES, MANY_WAITS, MANY_LAUNCHES = 10, 3, 20
"""Per batch."""
CLOSE_WAITS = 20
"""Launches per wait up to which host and GPU take turns."""
SMALL_COPY = 0.5
"""Share of a copy's host time: with less of it on the GPU, the cost does not depend on the size."""
PAGEABLE = 0.5
"""Share of the copies' time."""
PRICE_IN_CALLS = 10
"""An operation and its preparation take at most this many launching calls."""
UNRECORDED_CALL_MS = 1.0
"""Longest unrecorded CUDA call (an allocation, a wait) per launch of a stage."""
IDLE_FOR_LAUNCHES, IDLE_FOR_WAITS = 0.3, 0.1
"""Shares of a stage's time: if the GPU is idle for less, launching and waiting cost nothing."""
WORKED, UNWORKED, MIN_UNWORKED = 0.5, 0.8, 20
"""Shares of a wait for another thread: a thread works (a wait for that work), or none does (least samples)."""
UNRECORDED = 0.5
"""Share of a stage's time."""


@dataclass(frozen=True)
class Evidence:
    """Evidence of one pass about a stage. Shares are of its time; `wall_ms` is per batch.

    `throttled`: share of time stopped by a CPU quota. `cpu_load`: share of the CPUs in use (None if unknown).
    `has_inner`: there are stages inside it. `has_profile`: samples are from a profiling pass.
    """

    batches: int
    wall_ms: float
    host: HostTime
    gpu: GpuTime | None
    supply: CpuSupply
    throttled: float
    cpu_load: float | None
    has_inner: bool
    functions: list[FunctionShare]
    kernels: list[KernelGroup]
    copies: list[CopyGroup]
    has_profile: bool = False

    @property
    def read_by_helpers(self) -> float:
        """Share of waits for a library's thread that reads values from the GPU."""
        is_read = self.gpu is not None and self.gpu.helpers_reads >= MANY_WAITS
        return self.host.of(Activity.LOCK) if is_read else 0.0

    @property
    def others(self) -> float:
        """Share taken by processes outside this launch that occupy the CPUs."""
        if self.supply.is_contended:
            return 0.0
        own = self.host.of(Activity.NO_CPU) * (1 - self.host.own_contention)
        return own + self.host.of(*WAITS_FOR_THREADS) * self.host.others.queued


def find_causes(evidence: Evidence) -> list[Cause]:
    """The causes of a stage: the verdict, then others by what they save. Never empty."""
    own = max(1 - evidence.others, 0.01)
    parts = sorted(_found(PARTS, evidence), key=lambda one: -one.share / one.least)
    if any(one.code is Code.CPU_CONTENTION and one.share >= one.least * own for one in parts):
        parts.sort(key=lambda one: one.detail == "stage")  # what delays the work comes before the wait for it
    named = [one for one in parts[:1] if one.code is not Code.CPU_BOUND]
    every = [*_found(FIRST, evidence), *named, *_found(CALLS, evidence), *parts]
    verdict = next((one for one in every if one.share >= one.least * own), None) or unknown(evidence)
    further = [one for one in every if one.share >= max(WORTH, one.least / 2 * own)]
    by_code = {one.code: one for one in reversed(further) if one.code is not verdict.code}
    return [verdict, *sorted(by_code.values(), key=lambda one: -(one.saves_ms or 0.0))]


def _found(causes: tuple[Callable[[Evidence], Cause | None], ...], evidence: Evidence) -> Iterator[Cause]:
    yield from (cause for find in causes if (cause := find(evidence)) is not None and cause.share > 0)


def _cause(
    e: Evidence,
    code: Code,
    share: float,
    what: str,
    step: str,
    place: Place | None = None,
    detail: str | None = None,
    variant: str = "",
) -> Cause:
    """A cause that saves its share, at most the GPU's idle time. `variant`: suffix of its row in THRESHOLDS."""
    most = share if e.gpu is None else min(share, e.gpu.idle)
    least = THRESHOLDS[f"{code.value}{variant}"].least
    return Cause(code, share, most * e.wall_ms, what, STEPS.get(step, step), least, place, detail)


def compilation(e: Evidence) -> Cause | None:
    """A compiler runs, modules load, or CUDA graphs are captured in measured batches."""
    place = e.host.places.get(Activity.COMPILE)
    compiler = e.host.compiler if place is not None else None
    by, step = ("", "compilation") if compiler is None else (f" ({compiler.name})", compiler.step)
    share = e.host.of(Activity.COMPILE)
    if e.gpu is not None:
        new = e.gpu.recompiling, " (kernels loaded or run for the first time)", "compilation"
        captures = e.gpu.capturing, " (CUDA graphs captured)", "capture"
        share, by, step = max((share, by, step), new, captures)
        if step == "capture":
            place = e.host.capturing
        share /= max(e.gpu.busy, 1.0)
    what = f"Compiling and loading take {_percent(share)} of its time{by}."
    return _cause(e, Code.COMPILATION, share, what, step, place)


def shared_gpu(e: Evidence) -> Cause | None:
    """Another process of the run uses the GPU."""
    if e.gpu is None:
        return None
    share = min(e.gpu.shared / max(e.gpu.busy, 1.0), 1.0)
    what = f"Another process uses the same GPU {_percent(share)} of its time."
    cause = _cause(e, Code.WAITING, share, what, WAIT_STEPS["gpu"], None, "process", ", shared GPU")
    return replace(cause, saves_ms=None)


def gpu_bound(e: Evidence) -> Cause | None:
    """The GPU works on the stage most of the time, or longer than the host."""
    gpu = e.gpu
    if gpu is None or not gpu.busy or gpu.copy_only >= gpu.busy / 2:
        return None
    share = gpu.busy / max(gpu.busy, 1.0)
    limit = "unknown" if gpu.limits.limit is GpuLimit.CANNOT_TELL else gpu.limits.limit.value
    what = " ".join([f"The GPU works on it {_percent(share)} of the time.", *gpu.limits.evidence])
    fp32 = gpu.limits.by_name_ms.get(KernelKind.FP32.value, 0.0) >= gpu.limits.work_ms / 2
    step = "gpu compute, fp32" if fp32 and limit == "compute" else f"gpu {limit}"
    cause = _cause(e, Code.GPU_BOUND, share, what, step, e.host.places.get(Activity.LAUNCH), limit)
    return replace(cause, saves_ms=None if gpu.headroom is None else gpu.headroom * gpu.busy * e.wall_ms)


def small_copies(e: Evidence) -> Cause | None:
    """Many copies whose cost does not depend on their size."""
    gpu = e.gpu
    if gpu is None or gpu.copies < MANY_COPIES or gpu.copies_gpu >= SMALL_COPY * gpu.copying:
        return None
    what = f"{gpu.copies:.0f} small copies to the GPU per batch take {_percent(gpu.copying)} of its time."
    return _cause(e, Code.SMALL_COPIES, gpu.copying, what, "small copies", e.host.places.get(Activity.COPY))


def copy_bound(e: Evidence) -> Cause | None:
    """Copies between host and GPU, or between GPUs, while no kernel runs."""
    gpu, place = e.gpu, e.host.places.get(Activity.COPY)
    if gpu is None:
        return None
    is_pageable = bool(gpu.copies) and gpu.pageable >= PAGEABLE * gpu.copies_gpu
    step, detail = ("pageable copies", "pageable") if is_pageable else ("copies", None)
    if is_pageable and gpu.copying > gpu.copy_only:
        copies = _count(gpu.copies, "copy", "copies")
        what = f"{copies} per batch from pageable memory take {_percent(gpu.copying)} of its time."
        cause = _cause(e, Code.COPY_BOUND, gpu.copying, what, step, place, detail, ", pageable")
        return replace(cause, saves_ms=gpu.copying * e.wall_ms)
    share = gpu.copy_only / max(gpu.busy, 1.0)
    what = f"Copies while no kernel runs take {_percent(share)} of its time."
    cause = _cause(e, Code.COPY_BOUND, share, what, step, place, detail)
    return replace(cause, saves_ms=gpu.copy_only * e.wall_ms)


def work_of_others(e: Evidence) -> Cause | None:
    """Waiting while the GPU works for other stages."""
    if e.gpu is None:
        return None
    whose = e.gpu.other_stage or "other stages"
    what = f"Waits {_percent(e.gpu.for_stages)} of its time while the GPU does the work of {whose}."
    variant = ", GPU work of other stages"
    cause = _cause(e, Code.WAITING, e.gpu.for_stages, what, f"Look at {whose}.", None, "stage", variant)
    return replace(cause, saves_ms=None)


def garbage_collection(e: Evidence) -> Cause | None:
    """Python's garbage collector runs inside the stage."""
    share = e.host.of(Activity.GC)
    what = f"The garbage collector runs {_percent(share)} of its time."
    return _cause(e, Code.GARBAGE_COLLECTION, share, what, "gc", e.host.places.get(Activity.GC))


def gil_contention(e: Evidence) -> Cause | None:
    """Another thread holds the interpreter lock."""
    share, holder = e.host.of(Activity.GIL), e.host.lock_holder
    by = "" if holder is None else f", held mostly in {_at(holder)}"
    what = f"Waiting for the interpreter lock {_percent(share)} of its time{by}."
    return _cause(e, Code.GIL_CONTENTION, share, what, "gil", holder)


def cpu_contention(e: Evidence) -> Cause | None:
    """Ready without a CPU: threads of the process or its siblings occupy them, or a quota stops the process."""
    no_cpu, supply = e.host.of(Activity.NO_CPU), e.supply
    own = no_cpu * e.host.own_contention + e.host.of(*WAITS_FOR_THREADS) * e.host.others.crowded
    if e.throttled >= max(own, WORTH):
        what = f"A CPU quota stops the process {_percent(e.throttled)} of its time."
        return _cause(e, Code.CPU_CONTENTION, e.throttled, what, "quota", None, "quota")
    if supply.is_contended and no_cpu > 2 * own:
        what = (
            f"Waiting for a CPU {_percent(no_cpu)} of its time: {supply.processes} processes of this launch have "
            f"{supply.threads:.0f} threads on {supply.cpus} CPUs."
        )
        return _cause(e, Code.CPU_CONTENTION, no_cpu, what, "siblings", None, "siblings")
    what = f"Waiting for a CPU {_percent(own)} of its time: the process has more threads than CPUs."
    return _cause(e, Code.CPU_CONTENTION, own, what, "threads")


def data_loader(e: Evidence) -> Cause | None:
    """Waiting in a data loader for its workers."""
    what = f"Waiting in a data loader {_percent(e.host.loading)} of its time{_meanwhile(e.host, Activity.LOCK)}."
    return _cause(e, Code.DATA_LOADER, e.host.loading, what, "data loader", e.host.loader)


def waiting(e: Evidence) -> Cause | None:
    """Blocked: in a lock, a sleep, a file or the network, or for another process or thread."""
    host = e.host
    without_cpu = host.of(*WAITS_FOR_THREADS) * (host.others.crowded + host.others.queued)
    blocked = sum(map(host.blocked, WAITS)) - host.loading
    share = blocked - without_cpu - e.read_by_helpers
    most = max(WAITS, key=host.blocked)
    is_work = most is Activity.LOCK and max(host.others.working, host.others.asked) >= WORKED
    detail, place = "stage" if is_work else most.value, host.places.get(most)
    variant = ", not sampled" if most is Activity.OTHER and place is None else ""
    if variant and share < THRESHOLDS["waiting, not sampled"].least:
        return None
    reason = f"; cause not recorded{_number(host)}"
    if most is not Activity.OTHER:
        reason = f", mostly {WAITS_FOR[detail]}{_meanwhile(host, most)}"
    what = f"Blocked {_percent(blocked)} of its time{reason}."
    step = _closer(e) if most is Activity.OTHER and place is None else WAIT_STEPS[detail]
    return _cause(e, Code.WAITING, share, what, step, place, detail, variant)


WAITS_FOR = {
    "lock": "in locks or queues",
    "sleep": "in sleeps",
    "file": "for files",
    "network": "for the network",
    "process": "for another process",
    "stage": "for another thread",
}


def _meanwhile(host: HostTime, kind: Activity) -> str:
    """Activity of other threads during these waits."""
    if kind in WAITS_FOR_THREADS and host.others.place is not None and host.others.working >= WORKED:
        return f", while another thread or process is in {_at(host.others.place)}"
    idle = 1 - max(host.others.working, host.others.asked)
    if kind is Activity.LOCK and host.samples >= MIN_UNWORKED and idle >= UNWORKED:
        return "; no Python thread works meanwhile, so a time-out or a sleep may end it"
    return ""


def allocator_churn(e: Evidence) -> Cause | None:
    """GPU memory or pinned memory is allocated and freed in every batch."""
    gpu = e.gpu
    if gpu is None or gpu.allocations < 1 or gpu.allocating < gpu.reading + gpu.synchronizing:
        return None
    share = gpu.allocating
    calls = _count(gpu.allocations, "call", "calls")
    what = f"{calls} per batch to allocate or free memory take {_percent(share)} of its time."
    cause = _cause(e, Code.ALLOCATOR_CHURN, share, what, "allocator", e.host.places.get(Activity.ALLOC))
    return replace(cause, saves_ms=share * e.wall_ms)


def synchronization(e: Evidence) -> Cause | None:
    """Waits for the GPU: reads of values, and explicit synchronisation."""
    gpu, variant = e.gpu, ""
    if gpu is None or gpu.idle < IDLE_FOR_WAITS:
        return None
    reads = gpu.read_backs + gpu.helpers_reads
    count, share = reads + gpu.waits, gpu.reading + gpu.synchronizing + e.read_by_helpers
    if count >= MANY_WAITS:
        is_close = 0 < gpu.launches <= CLOSE_WAITS * count
        share += gpu.turning if is_close else 0.0
        variant = ", many waits close together" if is_close else ", many waits"
    elif min(gpu.blocking_idle, share) < THRESHOLDS["synchronization"].least:
        return None
    is_read = reads > 0 and share - gpu.synchronizing >= gpu.synchronizing
    named = f"{reads:.0f} values read from the GPU" if is_read else f"{count:.0f} waits for the GPU"
    what = f"{named} per batch take {_percent(share)} of its time; the GPU is idle {_percent(gpu.idle)} of it."
    kinds = (Activity.LOCK,) if e.read_by_helpers > gpu.synchronizing else (Activity.SYNC, Activity.COPY)
    place = next((e.host.places[one] for one in kinds if one in e.host.places), None)
    step = "read back" if is_read else "synchronize"
    return _cause(e, Code.SYNCHRONIZATION, share, what, step, place, variant=variant)


def launch_bound(e: Evidence) -> Cause | None:
    """The host cannot launch as fast as the GPU works."""
    gpu = e.gpu
    if gpu is None or not gpu.launches or gpu.idle < IDLE_FOR_LAUNCHES:
        return None
    is_price = gpu.launching <= PRICE_IN_CALLS * gpu.launch_calls
    if gpu.issued_gpu >= gpu.launching or not (is_price or gpu.launches >= MANY_LAUNCHES):
        return None
    share, variant = gpu.launching, ""
    if not gpu.has_all_calls:  # the time between launches while the GPU works may be waits
        share, variant = gpu.launching - gpu.issued_gpu, ", waits not recorded"
        if share < THRESHOLDS["launch-bound, waits not recorded"].least:
            return None
    each_us = gpu.launching * e.wall_ms * 1e3 / gpu.launches
    what = (
        f"Launching {gpu.launches:.0f} operations per batch takes {_percent(gpu.launching)} of its time, "
        f"{each_us:.1f} us each; the GPU is idle {_percent(gpu.idle)} of it."
    )
    place = e.host.places.get(Activity.LAUNCH)
    cause = _cause(e, Code.LAUNCH_BOUND, share, what, "launches", place, variant=variant)
    return replace(cause, saves_ms=min(gpu.launching - gpu.issued_gpu, gpu.idle) * e.wall_ms)


def cpu_bound(e: Evidence) -> Cause | None:
    """The stage's threads compute, outside unrecorded CUDA calls."""
    host, gpu = e.host, e.gpu
    share = host.of(Activity.COMPUTE)
    if gpu is not None and launch_bound(e) is not None and gpu.launching >= THRESHOLDS["launch-bound"].least:
        share -= gpu.launching - gpu.launch_calls  # preparation of launches
    if gpu is not None and not gpu.has_all_calls and share * e.wall_ms <= UNRECORDED_CALL_MS * gpu.launches:
        return None
    place, library = host.places.get(Activity.COMPUTE), host.library
    inside = "" if library is None else f", most of that in {library.function} of {library.name}"
    load = f", with {_percent(e.cpu_load)} of the CPUs in use" if library and e.cpu_load is not None else ""
    what = f"Computing {_percent(share)} of its time{inside}{_besides(e)}{load}{_number(host)}."
    step = _closer(e) if place is None else cheaper(place, library, e.cpu_load)
    return _cause(e, Code.CPU_BOUND, share, what, step, place)


def _besides(e: Evidence) -> str:
    """Activities of a stage besides computing."""
    rest = {one: share for one, share in e.host.activities.items() if one is not Activity.COMPUTE and share >= WORTH}
    has_others = e.host.samples >= MIN_SAMPLES and e.others >= e.host.of(Activity.NO_CPU) / 2
    others = {Activity.NO_CPU: " occupied by other programs"} if has_others else {}
    parts = sorted(rest.items(), key=lambda one: -one[1])
    return "".join(f", {_percent(share)} {DOING[one]}{others.get(one, '')}" for one, share in parts)


def unknown(e: Evidence) -> Cause:
    """No cause takes enough time, or the time was not recorded."""
    place = e.host.places.get(Activity.COMPUTE)
    missing = e.host.of(Activity.UNKNOWN)
    if e.gpu is not None and not e.gpu.has_all_calls:
        missing += e.host.of(Activity.COMPUTE)  # includes CUDA calls
    if missing >= UNRECORDED:
        at = "" if place is None else f", mostly in {_at(place)}"
        what = f"{_percent(missing)} of its time is not explained by the recording{at}{_number(e.host)}."
        return Cause(Code.UNKNOWN, missing, None, what, _closer(e), UNRECORDED, place)
    parts = sorted(e.host.activities.items(), key=lambda one: -one[1])[:3]
    named = ", ".join(f"{_percent(share)} {DOING[one]}" for one, share in parts)
    step = _closer(e) if parts[0][0] is Activity.UNKNOWN else _inside(e)
    return Cause(Code.UNKNOWN, 1.0, None, f"No cause takes most of its time: {named}.", step, 1.0)


def _closer(e: Evidence) -> str:
    """How to see more of a stage: more samples, or smaller stages."""
    if not e.has_profile:
        return STEPS["explain"]
    return STEPS["more samples"] if e.host.samples < MIN_SAMPLES else _inside(e)


def _inside(e: Evidence) -> str:
    return STEPS["inner stages" if e.has_inner else "smaller stages"]


def _number(host: HostTime) -> str:
    """Number of samples, with a note if they are too few to name functions and waits."""
    few = ", too few for details" if host.samples < MIN_SAMPLES else ""
    return f" ({_count(host.samples, 'sample', 'samples')}{few})"


FIRST = (compilation, shared_gpu, gpu_bound, small_copies, copy_bound, work_of_others)
PARTS = (garbage_collection, gil_contention, cpu_contention, data_loader, waiting, cpu_bound)
"""Parts of the threads' time."""
CALLS = (allocator_churn, synchronization, launch_bound)
"""Before `cpu_bound`, which includes preparing calls."""


def _count(number: float, one: str, several: str) -> str:
    return f"{number:.0f} {one if round(number) == 1 else several}"


def _at(place: Place) -> str:
    return f"{place.function} ({place.file.rpartition('/')[2]}:{place.line})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
