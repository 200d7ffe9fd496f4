"""The measured and the profiling pass laid onto each other, stage by stage: totals of the first, causes of the second.

A stage's causes are taken over where the profiling pass did the same in the same proportions; where only the
proportions changed, as far as the size of the change allows (`bounds.py`). Compared are, per stage:
its host time, alone and against the rest of its batch; how its time is divided among the stages directly inside it; the
GPU's busy time and the number of GPU operations, per item. Where recorders read in both passes how long threads waited
for a free CPU, what differs by that only has not changed: shares are of the time without it, and put together with
that of the measured pass. A ratio has changed where the two passes differ by more than
the spread between batches allows, and by more than a limit: their logarithms differ by more than Welch's t of 95 %,
with the variance of each by the delta method (Cochran, Sampling Techniques, 1977, section 6.3). Where a pass has a
single batch there is no spread, and the size of the difference decides alone, as it does for counts of operations.

The limits leave room for what two launches of one program differ by without any change: host times of a launch were
seen to differ by up to 1.85 times, most of it in all stages alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.diagnosis.bounds import with_bounds
from perfharness.analysis.diagnosis.rules.evidence import MISSING_CALLS
from perfharness.analysis.diagnosis.rules.machine import OF_MACHINE
from perfharness.analysis.statistics import student_t
from perfharness.model.diagnosis import (
    Cause,
    Diagnosis,
    Explained,
    GpuLimits,
    GpuWork,
    HostProfile,
    KernelGroup,
    Path,
    StageCost,
    StageDiagnosis,
    StageVerdict,
    Verdict,
)
from perfharness.model.result import Float64, path_text

MAX_SLOWDOWN = 2.0
"""Of a stage's host time: beyond it, most of what was recorded was no part of the measured pass."""

MAX_CHANGE = 1.5
"""Of a stage's host time, and of its proportion to the rest of its batch: both."""

MAX_MOVED_SHARE = 0.15
"""Of a stage's host time: what may have moved from some of the stages inside it to others."""

MAX_GPU_CHANGE = 1.25
"""Of the GPU's busy time, and of operations, per item: they hardly differ from launch to launch."""

CONSIDERABLE_SHARE = 0.1
"""Of a batch: where all but the stage takes less, there is no rest to compare with."""

CROWDED_SHARE = 0.2
"""Of a stage's host time in the profiling pass, without a free CPU: then that may be why it changed, where it was not
read how much of it the stage had in the measured pass."""

MIN_OWN_SHARE = 0.2
"""Of a stage's host time, without its waiting for a CPU: what is read of less says little of its proportions."""

COMPUTED = frozenset({
    Verdict.CPU_BOUND, Verdict.CPU_CONTENTION, Verdict.RECOMPILATION, Verdict.FIRST_USE,
})  # fmt: skip
"""Causes whose lines hold waiting for a CPU, too: a thread that computes is ready when it has none."""

ITEMS = "items"
"""Key of the items of a batch among the values of what is in it."""

COMPARED = frozenset({"cpu_time", "gpu_busy_time", "total_items", ITEMS})
"""Keys of the values that are compared, or that mark batches."""

KEPT = frozenset({Verdict.GPU_BOUND, Verdict.COPY_BOUND, Verdict.PAGEABLE_COPIES, Verdict.WAITING_ON_PROCESS})
"""Verdicts that the measured pass alone decides: a slower host makes a busy GPU look idle, and what was in the way in
the one pass is perhaps not in the other."""

OF_TIMELINE = frozenset(verdict.value for verdict in KEPT)
OF_CALLS = frozenset(
    verdict.value
    for verdict in (
        Verdict.SMALL_COPIES, Verdict.ALLOCATOR_CHURN, Verdict.IMPLICIT_SYNCHRONIZATION,
        Verdict.SYNCHRONIZATION_BOUND, Verdict.LAUNCH_BOUND, Verdict.DISPATCH_BOUND,
    )
)  # fmt: skip
"""Causes whose numbers the measured pass has itself, from the GPU's operations, and from all calls where it records
these: those of the profiling pass, with a slower host, say less of it. That has their lines."""

OF_MEASURED = frozenset({Verdict.FIRST_USE.value, Verdict.RECOMPILATION.value})
"""Causes that stay, as further ones, where the profiling pass lacks them: it found things compiled and loaded."""

NO_STAGE = "the profiling pass has no such stage, or no batch of it without the warm-up"
NO_BATCH = "no batch is left without the warm-up"


@dataclass(frozen=True)
class Pass:
    """One pass of a process.

    `values`: per path and key one value per batch without the warm-up, as `ProcessResult.values_minus_warmup` has them.
    """

    diagnosis: Diagnosis
    values: Mapping[Path, Mapping[str, Float64]]


def lay_onto(measured: Pass, explaining: Pass) -> Diagnosis:
    """The diagnosis of the measured pass with what the profiling pass adds to its stages."""
    found = {stage.path: stage for stage in explaining.diagnosis.stages}
    paths = [stage.path for stage in measured.diagnosis.stages]
    whole, own = (_Comparison(_values(measured, own=own), _values(explaining, own=own), paths) for own in (False, True))
    counted = OF_TIMELINE if MISSING_CALLS in measured.diagnosis.missing else OF_TIMELINE | OF_CALLS
    stages = [_explain(stage, found.get(stage.path), whole, own, counted) for stage in measured.diagnosis.stages]
    is_known = MISSING_CALLS not in explaining.diagnosis.missing
    is_known = is_known and all(stage.explained is not None and stage.explained.trusted for stage in stages)
    missing = [one for one in measured.diagnosis.missing if one != MISSING_CALLS or not is_known]
    return replace(measured.diagnosis, stages=stages, missing=missing)


def _own_share(stage: StageDiagnosis) -> float | None:
    """Of the host time, all but its waiting for a CPU; None where that was not read, or hardly anything is left."""
    if stage.queued_ms is None or not stage.cpu_ms:
        return None
    share = 1 - stage.queued_ms / stage.cpu_ms
    return share if share >= MIN_OWN_SHARE else None


def _values(one: Pass, *, own: bool) -> dict[Path, Mapping[str, Float64]]:
    """Those of a pass; `own`: host times without waiting for a CPU, of the stages of which that is known."""
    if not own:
        return dict(one.values)
    shares = {stage.path: _own_share(stage) for stage in one.diagnosis.stages}
    return {
        path: {**columns, "cpu_time": columns["cpu_time"] * share}
        for path, columns in one.values.items()
        if (share := shares.get(path)) is not None
    }


def _explain(
    stage: StageDiagnosis,
    found: StageDiagnosis | None,
    whole: _Comparison,
    own: _Comparison,
    counted: frozenset[str],
) -> StageDiagnosis:
    if stage.cpu_ms is None or found is None or not found.cpu_ms:
        missing = NO_BATCH if stage.cpu_ms is None else NO_STAGE
        return _unexplained(stage, Explained(None, trusted=False, reason=missing))
    slowdown, own_slowdown = _slowdown(stage, found), None
    before, after = _own_share(stage), _own_share(found)
    if slowdown is not None and before is not None and after is not None:
        own_slowdown = slowdown * after / before
    reason = next(whole.changes(stage, found, slowdown), None)
    if reason is not None and own_slowdown is not None and own.knows_as_much_as(whole, stage.path):
        reason = next(own.changes(stage, found, own_slowdown), None) and reason
    if reason is not None and (ready := _ready_share(found)) >= CROWDED_SHARE:
        reason += f"; there its threads were ready without a free CPU {ready:.0%} of the time"
    explained = Explained(slowdown, trusted=reason is None, reason=reason)
    if reason is not None:
        is_same_work = next(whole.changes_of_work(stage, found), None) is None
        bounded = with_bounds(stage, found, slowdown) if slowdown is not None and is_same_work else stage
        return _unexplained(bounded, explained)
    scale = _Scale.between(stage, found)
    gpu = _gpu(stage.gpu, found.gpu)
    known = {one.gpu for one in stage.counters}
    verdict, causes = _as_counted(stage, *_judged(stage, found, scale), counted)
    return replace(
        stage,
        verdict=verdict,
        causes=causes,
        profile=None if found.profile is None else _profile(found.profile, scale, stage.queued_ms),
        counters=[*stage.counters, *(one for one in found.counters if one.gpu not in known)],
        gpu=gpu,
        cost=stage.cost if stage.cost.saving_share is not None else _cost(found.cost, scale.whole),
        explained=explained,
    )


@dataclass(frozen=True)
class _Scale:
    """From times of the profiling pass to those of the measured one.

    `whole`: of what holds waiting for a CPU; `own`: of what does not, where both passes read that, else the same.
    """

    whole: float
    own: float
    measured_ms: float
    """Host time of the stage in the measured pass."""
    idle_ms: tuple[float, float] | None
    """Of a GPU while the host was in the stage, in the measured and in the profiling pass; None: it used none."""

    @classmethod
    def between(cls, stage: StageDiagnosis, found: StageDiagnosis) -> _Scale:
        """Of a stage with host times."""
        whole = (stage.cpu_ms or 0.0) / (found.cpu_ms or 1.0)
        before, after = _own_share(stage), _own_share(found)
        own = whole if before is None or after is None else whole * before / after
        idle = _idle_ms(stage), _idle_ms(found)
        return cls(whole, own, stage.cpu_ms or 0.0, None if idle[0] is None or idle[1] is None else (idle[0], idle[1]))

    def of_cause(self, code: str) -> float:
        """Of the times of a cause."""
        return self.whole if Verdict(code) in COMPUTED else self.own

    def saving(self, cause: Cause) -> float | None:
        """What a cause saves: no more than the stage takes of the host, and for the GPU what it was; what is no more
        than the time without GPU work there is no more than that here.
        """
        if cause.saves_ms is None:
            return None
        most = max(self.measured_ms, cause.saves_ms * self.whole)
        if self.idle_ms is not None and cause.saves_ms <= self.idle_ms[1]:
            most = min(most, self.idle_ms[0])
        return min(cause.saves_ms * self.of_cause(cause.code), most)

    def share(self, share: float) -> float:
        """Of the profiling pass's host time as that of the measured one's."""
        return min(share * self.own / self.whole, 1.0)


def _idle_ms(stage: StageDiagnosis) -> float | None:
    """How long no GPU was at work at most, while the host was in the stage."""
    return min((one.idle_ms for one in stage.gpu_during), default=None)


def _slowdown(stage: StageDiagnosis, found: StageDiagnosis) -> float | None:
    """Host time in the profiling pass by that in the measured one: per item where both count them."""
    measured, explaining = stage.cpu_ms_per_item, found.cpu_ms_per_item
    if measured is None or explaining is None:
        measured, explaining = stage.cpu_ms, found.cpu_ms
    return explaining / measured if measured and explaining is not None else None


def _ready_share(stage: StageDiagnosis) -> float:
    """Of the host time, ready to run without a free CPU; 0 where that is not known."""
    states = {} if stage.profile is None else stage.profile.state_ms
    known = sum(time or 0.0 for time in states.values())
    return (states.get("runnable") or 0.0) / known if known else 0.0


def _judged(stage: StageDiagnosis, found: StageDiagnosis, scale: _Scale) -> tuple[StageVerdict, list[Cause]]:
    """The verdict and the causes of a stage whose profiling pass is trusted."""
    machine = _kept_cpu(stage, found)
    codes = {cause.code for cause in machine}
    if stage.verdict.verdict in codes:
        first = [cause for cause in machine if cause.code == stage.verdict.verdict]
        others = [cause for cause in machine if cause not in first]
        causes = [*first, *(_cause(cause, scale) for cause in found.causes if not _is_of_one_pass(cause, stage))]
        return stage.verdict, [*causes, *others, *_only_measured(stage, causes)]
    if _keeps_verdict(stage, found):
        return stage.verdict, stage.causes
    verdict, causes = _otherwise(stage, found, scale)
    return verdict, [*causes, *(one for one in machine if one not in causes), *_only_measured(stage, causes)]


def _as_counted(
    stage: StageDiagnosis, verdict: StageVerdict, causes: list[Cause], counted: frozenset[str]
) -> tuple[StageVerdict, list[Cause]]:
    """With the numbers of the measured pass of what that has counted itself, and without further causes of that kind
    which it has not.
    """
    measured = {cause.code: cause for cause in stage.causes if cause.code in counted}
    kept = [one for one in causes if one.code not in counted or one.code in {*measured, verdict.verdict.value}]
    found = [one if one in stage.causes else _with_numbers(one, measured.get(one.code)) for one in kept]
    texts = {before.what: after.what for before, after in zip(kept, found, strict=True)}
    return replace(verdict, evidence=[texts.get(one, one) for one in verdict.evidence]), found


def _with_numbers(cause: Cause, measured: Cause | None) -> Cause:
    if measured is not None:
        return replace(cause, what=measured.what, share=measured.share, saves_ms=measured.saves_ms)
    if cause.code in OF_CALLS:  # its text has times
        return replace(cause, what=f"In the profiling pass: {cause.what}")
    return cause


def _kept_cpu(stage: StageDiagnosis, found: StageDiagnosis) -> list[Cause]:
    """What the machine kept from the measured pass; not a quota where samples show that it holds nothing up here, for
    its threads run, or wait for what needs no CPU.
    """
    quota = Verdict.CPU_QUOTA.value
    has_quota = found.profile is None or any(cause.code == quota for cause in found.causes)
    return [cause for cause in stage.causes if cause.code in OF_MACHINE and (has_quota or cause.code != quota)]


def _only_measured(stage: StageDiagnosis, causes: list[Cause]) -> list[Cause]:
    codes = {cause.code for cause in causes}
    return [cause for cause in stage.causes if cause.code in OF_MEASURED and cause.code not in codes]


def _is_of_one_pass(cause: Cause, stage: StageDiagnosis) -> bool:
    """Whether a cause of the profiling pass is none of the measured one: what the machine kept, and a slow beginning
    that the measured pass has not.
    """
    first_use = Verdict.FIRST_USE.value
    if cause.code == first_use:
        return stage.verdict.verdict is not Verdict.FIRST_USE and all(one.code != first_use for one in stage.causes)
    return cause.code in OF_MACHINE


def _keeps_verdict(stage: StageDiagnosis, found: StageDiagnosis) -> bool:
    if stage.verdict.verdict not in KEPT:
        return False
    return found.verdict.verdict is not stage.verdict.verdict or (_has_counters(stage) and not _has_counters(found))


def _otherwise(stage: StageDiagnosis, found: StageDiagnosis, scale: _Scale) -> tuple[StageVerdict, list[Cause]]:
    """What the profiling pass says without what is of that pass alone; the measured verdict where nothing is left that
    has a name.
    """
    causes = [_cause(cause, scale) for cause in found.causes if not _is_of_one_pass(cause, stage)]
    if len(causes) == len(found.causes):
        return found.verdict, causes
    verdict = found.verdict
    if any(cause.code == verdict.verdict for cause in causes):
        return verdict, causes
    otherwise = next((cause for cause in causes if verdict.steady and cause.code == verdict.steady.value), None)
    if otherwise is None:
        return _with_lines(stage, causes)
    others = [cause for cause in causes if cause is not otherwise]
    return StageVerdict(Verdict(otherwise.code), [otherwise.what], otherwise.try_this, verdict.missing), [
        otherwise, *others,
    ]  # fmt: skip


def _with_lines(stage: StageDiagnosis, found: list[Cause]) -> tuple[StageVerdict, list[Cause]]:
    """The measured verdict and causes, those that the profiling pass has as well as it has them."""
    by_code = {cause.code: cause for cause in found}
    own = [by_code.pop(cause.code, cause) for cause in stage.causes]
    verdict = stage.verdict
    if own and own[0].code == verdict.verdict:
        verdict = replace(verdict, next_step=own[0].try_this)
    return verdict, [*own, *by_code.values()]


def _has_counters(stage: StageDiagnosis) -> bool:
    return stage.gpu is not None and stage.gpu.limits.basis == "counters"


def _unexplained(stage: StageDiagnosis, explained: Explained) -> StageDiagnosis:
    """The stage as the measured pass has it; why its causes have no line is another reason now."""
    why = f"the profiling pass is not used for this stage: {explained.reason}"
    causes = [
        replace(cause, where_reason=cause.where_reason if cause.where else why, try_this=_again(cause.try_this))
        for cause in stage.causes
    ]
    verdict = replace(stage.verdict, next_step=_again(stage.verdict.next_step))
    return replace(stage, verdict=verdict, causes=causes, explained=explained)


def _again(step: str) -> str:
    """What to do next, after a profiling pass that is not used."""
    return step.replace("--explain names", "another launch with --explain names")


def _cost(cost: StageCost, scale: float) -> StageCost:
    """That of the profiling pass, in which waits are known, at the speed of the measured one."""
    return replace(
        cost, pipeline_ms=_times(cost.pipeline_ms, scale), without_stage_ms=_times(cost.without_stage_ms, scale)
    )


def _cause(cause: Cause, scale: _Scale) -> Cause:
    return replace(
        cause,
        share=cause.share if cause.code == Verdict.CPU_CONTENTION else scale.share(cause.share),
        where=None if cause.where is None else cause.where.scaled(scale.of_cause(cause.code)),
        saves_ms=scale.saving(cause),
    )


def _profile(profile: HostProfile, scale: _Scale, queued_ms: float | None) -> HostProfile:
    """Of the profiling pass as that of the measured one, whose threads waited `queued_ms` for a CPU."""
    states = {state: _times(time, scale.own) for state, time in profile.state_ms.items()}
    if queued_ms is not None and states.get("runnable") is not None:
        states["runnable"] = queued_ms
    return replace(
        profile,
        on_cpu_ms=_times(profile.on_cpu_ms, scale.own),
        state_ms=states,
        top_functions=[function.scaled(scale.whole) for function in profile.top_functions],
        collection_ms=_times(profile.collection_ms, scale.whole),
        recorder_ms=_times(profile.recorder_ms, scale.whole),
        gil_holders=[function.scaled(scale.whole) for function in profile.gil_holders],
        longest=None if profile.longest is None else profile.longest.scaled(scale.whole),
    )


def _gpu(measured: GpuWork | None, explaining: GpuWork | None) -> GpuWork | None:
    """The GPU's work as measured; what limits it, and its kernels, by the counters that the profiling pass has."""
    if measured is None or explaining is None or not explaining.limits.work_ms:
        return measured
    counted = {_launched(kernel): kernel for kernel in explaining.top_kernels if kernel.counters is not None}
    kernels = [_with_counters(kernel, counted.get(_launched(kernel))) for kernel in measured.top_kernels]
    measured = replace(measured, top_kernels=kernels)
    if explaining.limits.basis != "counters":
        return measured
    return replace(measured, limits=_limits(explaining.limits, measured.limits.work_ms / explaining.limits.work_ms))


def _launched(kernel: KernelGroup) -> tuple[object, ...]:
    """What makes two passes' launches the same: the kernel, its shape and its GPU."""
    return kernel.name, kernel.gpu, kernel.grid, kernel.block


def _with_counters(kernel: KernelGroup, found: KernelGroup | None) -> KernelGroup:
    if kernel.counters is not None or found is None:
        return kernel
    return replace(kernel, counters=found.counters, roofline=found.roofline)


def _limits(limits: GpuLimits, scale: float) -> GpuLimits:
    return replace(
        limits,
        work_ms=limits.work_ms * scale,
        by_name_ms={name: time * scale for name, time in limits.by_name_ms.items()},
        underfilled_ms=_times(limits.underfilled_ms, scale),
        short_ms=limits.short_ms * scale,
        tail_ms=_times(limits.tail_ms, scale),
        at_peak_ms=_times(limits.at_peak_ms, scale),
    )


def _times(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


@dataclass(frozen=True)
class _Ratio:
    """A ratio of totals over batches; `variance` is that of its logarithm, None where there is no spread."""

    value: float
    variance: float | None
    count: int


class _Comparison:
    """What changed from the measured to the profiling pass."""

    def __init__(
        self, measured: Mapping[Path, Mapping[str, Float64]], explaining: Mapping[Path, Mapping[str, Float64]],
        paths: list[Path],
    ) -> None:  # fmt: skip
        self._values = (measured, explaining)
        self._paths = paths

    def knows_as_much_as(self, other: _Comparison, path: Path) -> bool:
        """Whether what a stage is compared by is known, too: itself, its batch, and the stages inside it."""
        needed = [path, other._batch_around(path), *(inner for inner in self._paths if inner[:-1] == path)]
        return all(
            one in mine for mine, theirs in zip(self._values, other._values, strict=True) for one in needed
            if one is not None and one in theirs
        )  # fmt: skip

    def changes(self, stage: StageDiagnosis, found: StageDiagnosis, slowdown: float | None) -> Iterator[str]:
        """Reasons not to trust the profiling pass for a stage, a sentence each without an end."""
        path = stage.path
        before, after = self._per_item(path, "cpu_time")
        if slowdown is None or _has_changed(before, after, MAX_SLOWDOWN, (1.0, slowdown)):
            yield f"its host time was {slowdown or 0:.2g} times that of the measured pass"
        if _has_changed(before, after, MAX_CHANGE) and (odds := self._against_rest(path)) is not None:
            yield f"against the rest of its batch it took {odds:.2g} times as long as in the measured pass"
        moved = self._moved(path)
        if moved is not None:
            inner, shares = moved
            yield (
                f"of its time {path_text(inner[-1:])} took {shares[1].value:.0%}, and {shares[0].value:.0%} in the "
                "measured pass"
            )
        yield from self.changes_of_work(stage, found)

    def changes_of_work(self, stage: StageDiagnosis, found: StageDiagnosis) -> Iterator[str]:
        """Reasons to take it for another stage: the GPU did something else."""
        busy = self._per_item(stage.path, "gpu_busy_time")
        if _has_changed(*busy, MAX_GPU_CHANGE, (_busy(stage), _busy(found))):
            yield "the GPU was busy with it for another time per item than in the measured pass"
        counts = _operations(stage), _operations(found)
        if _has_changed(None, None, MAX_GPU_CHANGE, counts):
            yield f"it started {counts[1]:.4g} GPU operations, and {counts[0]:.4g} in the measured pass"

    def _against_rest(self, path: Path) -> float | None:
        """How its proportion to the rest of its batch changed; None where it did not, or there is no rest."""
        batch = self._batch_around(path)
        before, after = (None, None) if batch is None else self._shares(path, batch)
        if before is None or after is None or min(before.value, after.value) > 1 - CONSIDERABLE_SHARE:
            return None
        odds = _odds(before), _odds(after)
        return odds[1].value / odds[0].value if _has_changed(*odds, MAX_CHANGE) else None

    def _moved(self, path: Path) -> tuple[Path, tuple[_Ratio, _Ratio]] | None:
        """The stage inside whose share changed most, with its shares; None where little moved, or by chance."""
        shares = {}
        for inner in self._paths:
            before, after = self._shares(inner, path) if inner[:-1] == path else (None, None)
            if before is not None and path in self._values[1]:
                shares[inner] = before, after or _Ratio(0.0, None, 0)
        changes = {inner: after.value - before.value for inner, (before, after) in shares.items()}
        moved = (
            sum(map(abs, changes.values())) + abs(sum(changes.values()))
        ) / 2  # to and from what no stage takes, too
        if moved <= MAX_MOVED_SHARE or not any(_has_changed(*both, 1.0) for both in shares.values()):
            return None
        most = max(changes, key=lambda inner: abs(changes[inner]))
        return most, shares[most]

    def _shares(self, part: Path, whole: Path) -> tuple[_Ratio | None, _Ratio | None]:
        """The share of a stage in one around it, in both passes."""
        before, after = (_ratio(values, part, "cpu_time", whole, "cpu_time") for values in self._values)
        return before, after

    def _per_item(self, path: Path, key: str) -> tuple[_Ratio | None, _Ratio | None]:
        """A time by the items of its batches; by the batches where one pass did not count items."""
        counted = all(
            ITEMS in one and not np.isnan(one[ITEMS]).any() for one in (v.get(path, {}) for v in self._values)
        )
        measured, explaining = (_ratio(values, path, key, path, ITEMS if counted else None) for values in self._values)
        return measured, explaining

    def _batch_around(self, path: Path) -> Path | None:
        """The nearest batch around a stage; None of an outermost one."""
        above = (path[:length] for length in range(len(path) - 1, 0, -1))
        return next((one for one in above if "total_items" in self._values[0].get(one, {})), None)


def _odds(share: _Ratio) -> _Ratio:
    """A share against what is left; of a share of 1, as against a thousandth."""
    rest = max(1 - share.value, 1e-3)
    return _Ratio(share.value / rest, None if share.variance is None else share.variance / rest**2, share.count)


def _busy(stage: StageDiagnosis) -> float | None:
    return None if stage.gpu is None else stage.gpu.busy_ms


def _operations(stage: StageDiagnosis) -> float | None:
    """GPU operations per item where items are counted, else a batch."""
    gpu = stage.gpu
    if gpu is None:
        return None
    count = gpu.kernel_count + sum(copy.count for copy in gpu.copies) + gpu.memset_count + gpu.graph_launch_count
    return count * stage.batches / stage.items if stage.items else count


def _ratio(
    values: Mapping[Path, Mapping[str, Float64]], part: Path, part_key: str, whole: Path, whole_key: str | None
) -> _Ratio | None:
    """Total of the one by total of the other (None: number of batches), with its spread; None: not known."""
    parts = values.get(part, {}).get(part_key)
    wholes = None if parts is None else np.ones(len(parts))
    if whole_key is not None:
        wholes = values.get(whole, {}).get(whole_key)
    if parts is None or wholes is None or not len(parts) or not len(wholes):
        return None
    total, of_total = float(parts.sum()), float(wholes.sum())
    if math.isnan(total) or math.isnan(of_total) or of_total <= 0:
        return None
    if total <= 0 or min(len(parts), len(wholes)) < 2:
        return _Ratio(total / of_total, None, len(parts))
    part_spread, whole_spread = parts / parts.mean(), wholes / wholes.mean()
    if len(parts) == len(wholes):
        variance = float(np.var(part_spread - whole_spread, ddof=1)) / len(parts)
    else:  # in some of the batches only: which of them is not known here
        variance = float(np.var(part_spread, ddof=1)) / len(parts) + float(np.var(whole_spread, ddof=1)) / len(wholes)
    return _Ratio(total / of_total, variance, min(len(parts), len(wholes)))


def _has_changed(
    before: _Ratio | None,
    after: _Ratio | None,
    most: float,
    otherwise: tuple[float | None, float | None] = (None, None),
) -> bool:
    """Whether a ratio differs by more than `most` times, and by more than chance.

    Args:
        otherwise: the two values, where there is no ratio with a spread.
    """
    first, second = otherwise if before is None or after is None else (before.value, after.value)
    if first is None or second is None or (first <= 0 and second <= 0):
        return False
    if first <= 0 or second <= 0:
        return True
    difference = abs(math.log(second / first))
    if difference <= math.log(most):
        return False
    if before is None or after is None or before.variance is None or after.variance is None:
        return True
    error = math.sqrt(before.variance + after.variance)
    return error == 0 or difference > student_t(_freedom(before, after)) * error


def _freedom(before: _Ratio, after: _Ratio) -> int:
    """Degrees of freedom of a difference, after Welch and Satterthwaite."""
    first, second = before.variance or 0.0, after.variance or 0.0
    below = first**2 / (before.count - 1) + second**2 / (after.count - 1)
    return int((first + second) ** 2 / below) if below else 1
