"""The profiling pass laid onto the measured one: what is taken over, how it is scaled, and when it is not trusted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.diagnosis.passes import Pass, _ratio, lay_onto
from perfharness.analysis.diagnosis.rules.evidence import MISSING_CALLS
from perfharness.model.diagnosis import (
    Cause,
    Explained,
    GpuCounters,
    GpuDuringStage,
    GpuLimit,
    HostProfile,
    KernelGroup,
    KernelKind,
    Path,
    StageCost,
    StageDiagnosis,
    StageVerdict,
    Verdict,
)
from perfharness.model.result import Float64
from tests.support.diagnosis_builder import gpu_work
from tests.unit.diagnosis_results import BATCH, cause, diagnosis, function, stage

DECODE, INFER = (*BATCH, "decode"), (*BATCH, "infer")
STEADY = np.linspace(0.99, 1.01, 20)
"""Twenty batches with a spread of one per cent."""

PROFILE = HostProfile(
    samples=500, on_cpu_ms=4.0, state_ms={"running": 4.0, "file": 2.0, "gil": None}, top_functions=[function()],
    collections=3.0, collection_ms=0.5, recorder_ms=2.0, gil_holders=[function("hold", self_ms=1.0)], missing=[],
)  # fmt: skip


def a_pass(
    times: dict[Path, Float64], *, gpu_ms: dict[Path, Float64] | None = None, items: float = 2.0, **figures: object
) -> Pass:
    """Stages with one host time per batch each; `figures` are of every stage."""
    values = {}
    stages = []
    for path, each in times.items():
        busy = (gpu_ms or {}).get(path, np.zeros(len(each)))
        values[path] = {"cpu_time": each, "gpu_busy_time": busy, "items": np.full(len(each), items)}
        if path == BATCH:
            values[path]["total_items"] = values[path]["items"]
        name = "/".join(path[len(BATCH) :])
        made = stage(name, cpu_ms=float(each.mean()), batches=len(each), gpu=gpu_work(busy_ms=float(busy.mean())))
        stages.append(replace(made, cpu_ms_per_item=float(each.mean()) / items, **figures))  # type: ignore[arg-type]
    return Pass(diagnosis(*stages), values)


def times(decode: float, infer: float, spread: Float64 = STEADY) -> dict[Path, Float64]:
    return {BATCH: (decode + infer) * spread, DECODE: decode * spread, INFER: infer * spread}


def laid(measured: Pass, explaining: Pass) -> dict[str, StageDiagnosis]:
    return {one.path[-1]: one for one in lay_onto(measured, explaining).stages}


def trust(stages: dict[str, StageDiagnosis]) -> dict[str, bool]:
    return {name: one.explained.trusted for name, one in stages.items() if one.explained is not None}


def test_times_are_the_measured_ones_and_proportions_the_explained_ones() -> None:
    found = cause("file-wait", where=function(self_ms=3.0, cumulative_ms=3.9, error_ms=0.3), saves_ms=2.6, share=0.4)
    verdict = StageVerdict(Verdict.WAITING_ON_SYSTEM, ["40 %"], "read ahead")
    measured = a_pass(times(4.0, 6.0))
    explaining = a_pass(times(5.2, 7.8), profile=PROFILE, causes=[found], verdict=verdict)
    for name, one in laid(measured, explaining).items():
        before = next(stage for stage in measured.diagnosis.stages if stage.path[-1] == name)
        assert (one.cpu_ms, one.cost, one.gpu, one.batches) == (before.cpu_ms, before.cost, before.gpu, before.batches)
        assert one.explained is not None
        assert one.explained == Explained(one.explained.slowdown, trusted=True)
        assert one.explained.slowdown == pytest.approx(1.3)
        assert one.verdict == verdict
        assert one.causes[0].share == 0.4
        assert one.causes[0].saves_ms == pytest.approx(2.0)
        assert one.causes[0].where == function(
            self_ms=pytest.approx(3.0 / 1.3), cumulative_ms=pytest.approx(3.0), error_ms=pytest.approx(0.3 / 1.3)
        )
        assert one.profile is not None
        assert (one.profile.samples, one.profile.collections) == (500, 3.0)
        assert one.profile.state_ms == {"running": pytest.approx(4 / 1.3), "file": pytest.approx(2 / 1.3), "gil": None}
        assert one.profile.collection_ms == pytest.approx(0.5 / 1.3)
        assert one.profile.recorder_ms == pytest.approx(2.0 / 1.3)
        assert one.profile.gil_holders[0].self_ms == pytest.approx(1.0 / 1.3)


QUOTA = StageVerdict(Verdict.CPU_QUOTA, ["held up"], "raise it")
COMPUTES = StageVerdict(Verdict.CPU_BOUND, ["computes"], "profile it")
FILES = StageVerdict(Verdict.FILE_WAIT, ["reads"], "read ahead")


@pytest.mark.parametrize(
    ("measured", "explaining", "expected"),
    [
        ((QUOTA, "cpu-quota"), (FILES, "file-wait", "cpu-quota"), (Verdict.CPU_QUOTA, ["cpu-quota", "file-wait"])),
        ((COMPUTES, "cpu-bound"), (QUOTA, "cpu-quota", "cpu-bound"), (Verdict.CPU_BOUND, ["cpu-bound"])),
        (
            (COMPUTES, "cpu-bound"),
            (replace(QUOTA, steady=Verdict.FILE_WAIT), "cpu-quota", "gil-contention", "file-wait"),
            (Verdict.FILE_WAIT, ["file-wait", "gil-contention"]),
        ),
        (
            (QUOTA, "cpu-quota", "cpu-bound"),
            (replace(QUOTA, steady=Verdict.FILE_WAIT), "cpu-quota", "file-wait"),
            (Verdict.CPU_QUOTA, ["cpu-quota", "file-wait"]),
        ),
        (
            (COMPUTES, "cpu-bound"),
            (QUOTA, "cpu-quota", "file-wait"),
            (Verdict.CPU_BOUND, ["cpu-bound", "file-wait"]),
        ),
        ((COMPUTES, "cpu-bound", "cpu-steal"), (FILES, "file-wait"), (Verdict.FILE_WAIT, ["file-wait", "cpu-steal"])),
    ],
)
def test_what_the_machine_kept_is_of_the_measured_pass(
    measured: tuple[StageVerdict | str, ...], explaining: tuple[StageVerdict | str, ...],
    expected: tuple[Verdict, list[str]],
) -> None:  # fmt: skip
    first, second = (
        a_pass(times(4.0, 6.0), verdict=verdict, causes=[cause(str(code), try_this="do") for code in codes])
        for verdict, *codes in (measured, explaining)
    )
    for one in laid(first, second).values():
        assert (one.verdict.verdict, [each.code for each in one.causes]) == expected
        assert len(codes_of(one)) == len(set(codes_of(one)))


def codes_of(one: StageDiagnosis) -> list[str]:
    return [cause.code for cause in one.causes]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (times(4.0, 6.0), {"batch": True, "decode": True, "infer": True}),
        (times(7.6, 11.4), {"batch": True, "decode": True, "infer": True}),  # slower all over, and below twice
        (times(9.0, 13.0), {"batch": False, "decode": False, "infer": False}),
        (times(4.4, 6.6), {"batch": True, "decode": True, "infer": True}),
        (times(5.6, 6.0), {"batch": True, "decode": True, "infer": True}),
        (times(7.0, 6.0), {"batch": True, "decode": False, "infer": True}),  # 0.14 of the batch's time moved
        (times(7.9, 6.0), {"batch": False, "decode": False, "infer": True}),  # 0.17
        (times(1.5, 6.0), {"batch": False, "decode": False, "infer": True}),
        (times(4.0, 9.5), {"batch": True, "decode": True, "infer": False}),
        ({BATCH: 10 * STEADY, DECODE: 4 * STEADY}, {"batch": False, "decode": True, "infer": False}),
    ],
)
def test_what_changed_is_not_trusted(second: dict[Path, Float64], expected: dict[str, bool]) -> None:
    explaining = a_pass(second, profile=PROFILE, causes=[cause("file-wait")])
    found = laid(a_pass(times(4.0, 6.0), causes=[cause("cpu-bound")]), explaining)
    assert trust(found) == expected
    for one in found.values():
        assert one.explained is not None
        assert (one.explained.reason is None) == (one.profile is not None) == one.explained.trusted
        assert one.causes[0].code == ("file-wait" if one.explained.trusted else "cpu-bound")
        if not one.explained.trusted:
            assert one.explained.reason is not None
            assert one.explained.reason in (one.causes[0].where_reason or "")


def test_a_change_within_the_spread_of_batches_is_none() -> None:
    wild = np.array([0.1, 3.0, 0.2, 0.1, 5.0, 0.3])
    rest = np.full(6, 5.0)
    measured = a_pass({BATCH: wild + rest, DECODE: wild, INFER: rest})
    again = 1.8 * wild
    explaining = a_pass({BATCH: again + rest, DECODE: again, INFER: rest})
    assert trust(laid(measured, explaining)) == {"batch": True, "decode": True, "infer": True}
    steady = {BATCH: np.full(6, 6.45), DECODE: np.full(6, 1.45), INFER: rest}
    risen = {BATCH: np.full(6, 7.61), DECODE: np.full(6, 2.61), INFER: rest}
    assert not trust(laid(a_pass(steady), a_pass(risen)))["decode"]


def test_of_a_single_batch_the_size_of_a_change_decides() -> None:
    one = np.ones(1)
    assert trust(laid(a_pass(times(4.0, 6.0, one)), a_pass(times(4.4, 6.0, one))))["decode"]
    assert not trust(laid(a_pass(times(4.0, 6.0, one)), a_pass(times(7.0, 6.0, one))))["decode"]


@pytest.mark.parametrize(("gpu_ms", "kernels", "is_same"), [(1.1, 10.0, True), (1.5, 10.0, False), (1.0, 20.0, False)])
def test_gpu_work_per_item(gpu_ms: float, kernels: float, is_same: bool) -> None:
    def made(busy_ms: float, count: float) -> Pass:
        found = a_pass(times(4.0, 6.0), gpu_ms={INFER: busy_ms * STEADY})
        stages = [
            replace(one, gpu=gpu_work(busy_ms=busy_ms, kernel_count=count)) if one.path == INFER else one
            for one in found.diagnosis.stages
        ]
        return replace(found, diagnosis=replace(found.diagnosis, stages=stages))

    assert trust(laid(made(1.0, 10.0), made(gpu_ms, kernels)))["infer"] is is_same


def test_batches_of_other_sizes_are_compared_by_item() -> None:
    explaining = a_pass({path: 4 * each for path, each in times(4.0, 6.0).items()}, items=8.0)
    found = laid(a_pass(times(4.0, 6.0)), explaining)
    assert trust(found) == {"batch": True, "decode": True, "infer": True}
    assert found["batch"].explained == Explained(1.0, trusted=True)


@pytest.mark.parametrize("verdict", [Verdict.GPU_BOUND, Verdict.COPY_BOUND, Verdict.PAGEABLE_COPIES])
def test_a_gpu_that_was_busy_is_not_idle_for_a_slower_host(verdict: Verdict) -> None:
    busy = StageVerdict(verdict, ["95 %"], "a faster GPU")
    measured = a_pass(times(4.0, 6.0), verdict=busy, causes=[cause(verdict.value)])
    idle = StageVerdict(Verdict.LAUNCH_BOUND, ["60 %"], "launch less")
    found = laid(measured, a_pass(times(5.6, 8.4), verdict=idle, causes=[cause("launch-bound")], profile=PROFILE))
    assert [one.verdict for one in found.values()] == [busy] * 3
    assert [one.causes[0].code for one in found.values()] == [verdict.value] * 3
    assert found["infer"].profile is not None


def during(idle_ms: float) -> GpuDuringStage:
    """One GPU, so long idle while the host was in the stage."""
    return GpuDuringStage(0, 10.0, 10.0, idle_ms, 1.0, None, None, {})


def dispatch(what: str, share: float, saves_ms: float, **figures: object) -> Cause:
    return cause("dispatch-bound", what=what, share=share, saves_ms=saves_ms, **figures)


@pytest.mark.parametrize(("missing", "is_counted"), [([], True), ([MISSING_CALLS], False)])
def test_what_the_measured_pass_counts_itself_has_its_numbers(missing: list[str], is_counted: bool) -> None:
    """A decoder on an H100: 19.9 us an operation, and 32.7 us in the profiling pass."""
    fast, slow = (StageVerdict(Verdict.DISPATCH_BOUND, [what], "fewer") for what in ("19.9 us each", "32.7 us each"))
    own = dispatch("19.9 us each", 0.988, 49.76)
    found = dispatch("32.7 us each", 0.989, 82.9, where=function("step"), where_reason=None)
    measured = a_pass(times(30.5, 30.5), gpu_during=[during(50.48)], causes=[own], verdict=fast)
    explaining = a_pass(times(46.9, 46.9), gpu_during=[during(83.5)], causes=[found], verdict=slow)
    measured = replace(measured, diagnosis=replace(measured.diagnosis, missing=missing))
    one = laid(measured, explaining)["batch"]
    assert one.explained is not None
    assert one.explained.trusted
    (said,) = one.causes
    assert said.where is not None
    assert said.where.function == "step"
    if is_counted:
        assert (said.what, said.share, said.saves_ms) == (own.what, own.share, own.saves_ms)
    else:  # scaled, it would be more than the GPU was idle
        assert (said.share, said.saves_ms) == (found.share, 50.48)
        assert said.what == f"In the profiling pass: {found.what}"
    assert one.verdict.evidence == [said.what]


def test_what_limits_the_gpu_by_counters_of_either_pass() -> None:
    def made(busy_ms: float, limit: GpuLimit, basis: Literal["names", "counters"]) -> Pass:
        limits = replace(gpu_work().limits, limit=limit, basis=basis, work_ms=busy_ms, short_ms=busy_ms / 4)
        verdict = StageVerdict(Verdict.GPU_BOUND, [basis], "a faster GPU", limit=limit)
        work = gpu_work(busy_ms=busy_ms, limits=limits)
        return a_pass(times(4.0, 6.0), gpu_ms={INFER: busy_ms * STEADY}, gpu=work, verdict=verdict)

    names, counters = made(3.0, GpuLimit.MEMORY, "names"), made(3.3, GpuLimit.COMPUTE, "counters")
    found = laid(names, counters)["infer"]
    assert found.gpu is not None
    assert (found.verdict.limit, found.gpu.limits.limit) == (GpuLimit.COMPUTE, GpuLimit.COMPUTE)
    assert found.gpu.busy_ms == 3.0
    assert found.gpu.limits.work_ms == pytest.approx(3.0)
    assert found.gpu.limits.short_ms == pytest.approx(0.75)
    found = laid(counters, names)["infer"]
    assert found.gpu is not None
    assert (found.verdict.limit, found.gpu.limits.limit) == (GpuLimit.COMPUTE, GpuLimit.COMPUTE)


def test_kernels_have_the_counters_of_the_explaining_pass() -> None:
    kernel = KernelGroup(
        name="product", gpu=0, kind=KernelKind.MATRIX, grid=(8, 1, 1), block=(128, 1, 1), registers=32, shared_bytes=0,
        waves=None, occupancy=None, limiter=None, count=1.0, time_ms=3.0, mean_us=3000.0, share=1.0,
    )  # fmt: skip
    counted = replace(kernel, time_ms=3.6, counters=GpuCounters(0, [], tensor=0.9))
    limits = replace(gpu_work().limits, work_ms=3.0)

    def made(*kernels: KernelGroup) -> Pass:
        work = gpu_work(busy_ms=3.0, limits=limits, top_kernels=list(kernels))
        return a_pass(times(4.0, 6.0), gpu_ms={INFER: 3.0 * STEADY}, gpu=work)

    other = replace(kernel, grid=(9, 1, 1))
    found = laid(made(kernel, other), made(counted))["infer"]
    assert found.gpu is not None
    assert found.gpu.top_kernels == [replace(counted, time_ms=3.0), other]


def test_the_spread_of_a_ratio_against_the_bootstrap() -> None:
    random = np.random.default_rng(5)
    part = random.lognormal(0.0, 0.4, 60)
    whole = part + random.lognormal(0.5, 0.3, 60)
    values = {DECODE: {"cpu_time": part}, BATCH: {"cpu_time": whole}}
    found = _ratio(values, DECODE, "cpu_time", BATCH, "cpu_time")
    assert found is not None
    assert found.variance is not None
    assert found.value == pytest.approx(part.sum() / whole.sum())
    drawn = random.integers(0, 60, (4000, 60))
    resampled = np.log(part[drawn].sum(axis=1) / whole[drawn].sum(axis=1))
    assert math.sqrt(found.variance) == pytest.approx(resampled.std(), rel=0.1)


def test_chance_alone_is_rarely_called_a_change() -> None:
    random = np.random.default_rng(7)
    wrong = 0
    for _ in range(300):
        made = []
        for _ in range(2):
            decode, infer = random.lognormal(0.0, 0.9, 15), random.lognormal(0.0, 0.9, 15)
            made.append(a_pass({BATCH: decode + infer, DECODE: decode, INFER: infer}))
        wrong += not trust(laid(*made))["decode"]
    assert wrong <= 300 * 0.08  # 5 % of normal batches; these are skewed


host_times = st.lists(st.floats(0.001, 100.0), min_size=1, max_size=6).map(np.array)


@given(host_times, host_times, st.floats(0.0, 10.0), st.sampled_from([2.0, math.nan]))
def test_any_two_passes(first: Float64, second: Float64, gpu_ms: float, items: float) -> None:
    made = [
        a_pass({BATCH: 2 * each, INFER: each}, gpu_ms={INFER: gpu * np.ones(len(each))}, items=items, profile=PROFILE)
        for each, gpu in ((first, gpu_ms), (second, 1.0))
    ]
    for before, after in zip(made[0].diagnosis.stages, lay_onto(*made).stages, strict=True):
        assert after.cpu_ms == before.cpu_ms
        assert after.explained is not None
        assert (after.explained.reason is None) == after.explained.trusted


def test_a_cost_that_only_the_explaining_pass_knows_is_taken_at_the_speed_of_the_measured_one() -> None:
    times = {BATCH: 10.0 * STEADY, DECODE: 6.0 * STEADY}
    slower = {path: 1.2 * each for path, each in times.items()}
    known, unknown = StageCost(12.0, 6.0, 0.5), StageCost(None, None, None, "waits")
    found = lay_onto(a_pass(times, cost=unknown), a_pass(slower, cost=known)).stages[1].cost
    shares = (found.pipeline_ms, found.without_stage_ms, found.saving_share)
    assert shares == pytest.approx((10.0, 5.0, 0.5))
    kept = lay_onto(a_pass(times, cost=StageCost(10.0, 9.0, 0.1)), a_pass(slower, cost=known)).stages[1].cost
    assert kept.saving_share == 0.1


def crowded(one: Pass, queued_ms: dict[Path, float | None]) -> Pass:
    """A pass of which recorders read how long the threads waited for a CPU."""
    stages = [replace(each, queued_ms=queued_ms.get(each.path)) for each in one.diagnosis.stages]
    return replace(one, diagnosis=replace(one.diagnosis, stages=stages))


@pytest.mark.parametrize(
    ("second", "queued_ms", "expected"),
    [
        (times(12.0, 6.0), {BATCH: 8.0, DECODE: 8.0, INFER: 0.0}, (True, True, True)),  # 4 and 6 without it
        (times(12.0, 6.0), {BATCH: 8.0, DECODE: 8.0, INFER: None}, (False, True, True)),  # the batch: not all is known
        (times(12.0, 6.0), {BATCH: 8.0, DECODE: None, INFER: 0.0}, (False, False, True)),
        (times(12.0, 18.0), {BATCH: 20.0, DECODE: 8.0, INFER: 12.0}, (True, True, True)),
        (times(12.0, 6.0), {BATCH: 2.0, DECODE: 2.0, INFER: 0.0}, (False, False, True)),  # 10 for 4
        (times(40.0, 6.0), {BATCH: 36.0, DECODE: 36.0, INFER: 0.0}, (False, False, True)),  # a tenth of it is left
        (times(4.0, 6.0), {BATCH: 5.0, DECODE: 2.0, INFER: 3.0}, (True, True, True)),
    ],
)
def test_what_waited_for_a_cpu_only_has_not_changed(
    second: dict[Path, Float64], queued_ms: dict[Path, float | None], expected: tuple[bool, bool, bool]
) -> None:
    measured = crowded(a_pass(times(4.0, 6.0)), dict.fromkeys((BATCH, DECODE, INFER), 0.0))
    found = trust(laid(measured, crowded(a_pass(second), queued_ms)))
    assert (found["batch"], found["decode"], found["infer"]) == expected


@pytest.mark.parametrize("before_ms", [0.0, 5.0])
def test_shares_without_waiting_for_a_cpu_are_those_of_the_measured_pass(before_ms: float) -> None:
    """Of 4 ms a stage computes for 1 and reads a file for 3; the rest of both passes is waiting for a CPU."""
    waits = cause("file-wait", where=function(self_ms=3.0, cumulative_ms=3.0), saves_ms=3.0, share=3 / 12)
    computes = cause("cpu-bound", where=function(self_ms=9.0, cumulative_ms=9.0), saves_ms=9.0, share=1 / 12)
    states = {"running": 1.0, "file": 3.0, "runnable": 8.0, "gil": None}
    verdict = StageVerdict(Verdict.FILE_WAIT, ["25 %"], "read ahead")
    explaining = a_pass(
        times(12.0, 6.0), causes=[waits, computes], verdict=verdict, profile=replace(PROFILE, state_ms=states)
    )
    explaining = crowded(explaining, {BATCH: 8.0, DECODE: 8.0, INFER: 0.0})
    measured = crowded(a_pass(times(4.0 + before_ms, 6.0)), {BATCH: before_ms, DECODE: before_ms, INFER: 0.0})
    one, whole_ms = laid(measured, explaining)["decode"], 4.0 + before_ms
    assert one.explained is not None
    assert one.explained.trusted
    assert one.explained.slowdown == pytest.approx(12 / whole_ms)
    assert one.profile is not None
    expected = {"running": pytest.approx(1.0), "file": pytest.approx(3.0), "runnable": before_ms, "gil": None}
    assert one.profile.state_ms == expected
    first, second = one.causes
    assert (first.share, second.share) == pytest.approx((3 / whole_ms, 1 / whole_ms))
    assert (first.saves_ms, second.saves_ms) == pytest.approx((3.0, 9.0 * whole_ms / 12))
    assert first.where is not None
    assert second.where is not None
    assert (first.where.self_ms, second.where.self_ms) == pytest.approx((3.0, 9.0 * whole_ms / 12))
