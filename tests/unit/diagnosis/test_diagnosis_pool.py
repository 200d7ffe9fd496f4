"""What several processes' diagnoses say together."""

from __future__ import annotations

import json

import pytest

from perfharness.analysis.diagnosis import pool
from perfharness.model.diagnosis import (
    Diagnosis,
    GpuDuringStage,
    GpuWork,
    HostWork,
    StageCost,
    StageDiagnosis,
    StageVerdict,
    Verdict,
    WarmupDiagnosis,
    WarmupState,
)
from perfharness.model.pooled_diagnosis import PooledStage
from tests.schemas import valid
from tests.support.diagnosis_builder import gpu_work, host_work


def stage(
    name: str, verdict: Verdict, batches: int = 10, *, cpu_ms: float | None = 4.0, busy_ms: float = 2.0,
    items: int | None = None, saving: float | None = None, is_known: bool = True,
) -> StageDiagnosis:  # fmt: skip
    gpu: GpuWork | None = gpu_work(busy_ms=busy_ms, kernel_count=3.0) if is_known else None
    host: HostWork | None = host_work(blocking_ms=0.5) if is_known else None
    during: list[GpuDuringStage] = []
    said = StageVerdict(verdict, [f"{name} is {verdict.value}"], "next")
    cost = StageCost(10.0, 5.0, saving) if saving is not None else StageCost(None, None, None, "not known")
    return StageDiagnosis(("r", name), batches, items, cpu_ms, None, None, None, gpu, during, host, said, cost)


def warmup(state: WarmupState, steady_from: int | None) -> WarmupDiagnosis:
    return WarmupDiagnosis(("r", "batch"), 20, 2, steady_from, state, 1.0, 0.1, None)


def diagnosis(*stages: StageDiagnosis, loop: WarmupDiagnosis | None = None, missing: str | None = None) -> Diagnosis:
    return Diagnosis(list(stages), [loop] if loop else [], [missing] if missing else [], [])


def pooled_stages(*stages: StageDiagnosis) -> list[PooledStage]:
    """Of one stage in each process."""
    return pool({f"proc_{number}": diagnosis(one) for number, one in enumerate(stages)}).stages


def test_sums_weigh_each_process_by_its_batches() -> None:
    (pooled,) = pooled_stages(
        stage("a", Verdict.GPU_BOUND, 10, cpu_ms=4.0, busy_ms=2.0, items=40),
        stage("a", Verdict.GPU_BOUND, 30, cpu_ms=8.0, busy_ms=4.0, items=120),
    )
    assert (pooled.verdict, pooled.agreement, pooled.verdicts) == (Verdict.GPU_BOUND, 1.0, {"gpu-bound": 2})
    totals, mean = pooled.totals, pooled.per_batch
    assert (totals.batches, totals.items, totals.cpu_ms, totals.kernels, totals.blocking_ms) == pytest.approx(
        (40, 160, 10 * 4 + 30 * 8, 120, 20.0)
    )
    # a mean of means would be 6
    assert (mean.cpu_ms, mean.cpu_ms_per_item, mean.gpu_busy_ms) == pytest.approx((7.0, 280 / 160, (20 + 120) / 40))


def test_verdicts_that_differ_give_none_and_stand_side_by_side() -> None:
    (told,) = pooled_stages(
        stage("a", Verdict.GPU_BOUND, saving=0.5),
        stage("a", Verdict.CPU_BOUND, saving=0.2),
        stage("a", Verdict.GPU_BOUND),
    )
    assert (told.verdict, told.verdicts) == (None, {"gpu-bound": 2, "cpu-bound": 1})
    assert told.agreement == pytest.approx(2 / 3)
    assert told.saving_share == (0.2, 0.5)
    assert told.processes["proc_1"].evidence == ["a is cpu-bound"]


def test_a_process_that_cannot_tell_does_not_outvote_those_that_can() -> None:
    (told,) = pooled_stages(stage("a", Verdict.GPU_BOUND), stage("a", Verdict.CANNOT_TELL, is_known=False))
    assert (told.verdict, told.agreement) == (Verdict.GPU_BOUND, 0.5)
    assert told.totals.cpu_ms == pytest.approx(80.0)
    assert (told.totals.gpu_busy_ms, told.totals.kernels, told.per_batch.gpu_busy_ms) == (None, None, None)
    nothing = stage("a", Verdict.CANNOT_TELL, 0, cpu_ms=None, is_known=False)  # without a batch left it adds nothing
    (told,) = pooled_stages(stage("a", Verdict.GPU_BOUND), nothing)
    assert (told.totals.batches, told.per_batch.cpu_ms, told.per_batch.gpu_busy_ms) == (10, 4.0, 2.0)


def test_a_stage_that_only_some_processes_have_names_the_others() -> None:
    found = pooled_stages(stage("a", Verdict.GPU_BOUND), stage("b", Verdict.CPU_BOUND))
    assert [(one.path, one.absent_in) for one in found] == [(("r", "a"), ["proc_1"]), (("r", "b"), ["proc_0"])]


def test_the_warm_up_that_all_need_is_the_longest() -> None:
    loops = {"proc_0": diagnosis(loop=warmup("enough", 1)), "proc_1": diagnosis(loop=warmup("too-short", 7))}
    (told,) = pool(loops).warmup
    assert (told.states, told.needed) == ({"proc_0": "enough", "proc_1": "too-short"}, 7)


def test_the_pooled_diagnosis_fits_its_schema() -> None:
    pooled = pool(
        {
            "proc_0": diagnosis(stage("a", Verdict.GPU_BOUND, saving=0.5), loop=warmup("enough", 1)),
            "proc_1": diagnosis(stage("a", Verdict.CPU_BOUND, is_known=False), missing="GPU operations"),
        }
    )
    assert pooled.missing == {"proc_1": ["GPU operations"]}
    valid("benchmark_mean", json.loads(json.dumps(pooled.to_json())), "$defs/PooledDiagnosis")
