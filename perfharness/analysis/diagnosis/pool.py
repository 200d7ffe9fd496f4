"""The diagnoses of several processes into one: verdicts side by side, sums over all their batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from perfharness.model.diagnosis import Diagnosis, GpuWork, HostWork, Path, StageDiagnosis, Verdict, WarmupDiagnosis
from perfharness.model.pooled_diagnosis import (
    PooledDiagnosis,
    PooledStage,
    PooledWarmup,
    StageOfProcess,
    StagePerBatch,
    StageTotals,
)


def pool(diagnoses: dict[str, Diagnosis]) -> PooledDiagnosis:
    """The diagnoses of all processes pooled, by folder name."""
    by_path: dict[Path, dict[str, StageDiagnosis]] = {}
    loops: dict[Path, dict[str, list[WarmupDiagnosis]]] = {}
    for process, diagnosis in diagnoses.items():
        for stage in diagnosis.stages:
            by_path.setdefault(stage.path, {})[process] = stage
        for loop in diagnosis.warmup:
            loops.setdefault(loop.loop, {}).setdefault(process, []).append(loop)
    return PooledDiagnosis(
        processes=list(diagnoses),
        stages=[_pool_stage(path, stages, list(diagnoses)) for path, stages in by_path.items()],
        warmup=[_pool_warmup(path, judged) for path, judged in loops.items()],
        missing={process: diagnosis.missing for process, diagnosis in diagnoses.items() if diagnosis.missing},
    )


def _pool_stage(path: Path, stages: dict[str, StageDiagnosis], everyone: list[str]) -> PooledStage:
    verdicts = Counter(stage.verdict.verdict for stage in stages.values())
    known = [verdict for verdict in verdicts if verdict is not Verdict.CANNOT_TELL]
    # A process without a batch left has no figures, and adds nothing.
    counted = [stage for stage in stages.values() if stage.batches]
    items = [stage.items for stage in counted]
    totals = StageTotals(
        batches=sum(stage.batches for stage in counted),
        items=sum(item for item in items if item is not None) if None not in items else None,
        **{name: _sum((figure(stage), stage.batches) for stage in counted) for name, figure in TOTALS.items()},
    )
    per_batch = {name: _per(getattr(totals, name), totals.batches) for name in PER_BATCH}
    per_item = {f"{name}_per_item": _per(getattr(totals, name), totals.items) for name in PER_ITEM}
    savings = [stage.cost.saving_share for stage in stages.values() if stage.cost.saving_share is not None]
    return PooledStage(
        path=path,
        verdict=known[0] if len(known) == 1 else None,
        agreement=verdicts.most_common(1)[0][1] / len(stages),
        verdicts={verdict.value: count for verdict, count in verdicts.most_common()},
        totals=totals,
        per_batch=StagePerBatch(**per_batch, **per_item),
        saving_share=(min(savings), max(savings)) if savings else None,
        processes={process: _of_process(stage) for process, stage in stages.items()},
        absent_in=[process for process in everyone if process not in stages],
    )


def _of_gpu(figure: Callable[[GpuWork], float | None]) -> Callable[[StageDiagnosis], float | None]:
    return lambda stage: figure(stage.gpu) if stage.gpu else None


def _of_host(figure: Callable[[HostWork], float | None]) -> Callable[[StageDiagnosis], float | None]:
    return lambda stage: figure(stage.host) if stage.host else None


TOTALS: dict[str, Callable[[StageDiagnosis], float | None]] = {
    "cpu_ms": lambda stage: stage.cpu_ms,
    "gpu_busy_ms": _of_gpu(lambda gpu: gpu.busy_ms),
    "copy_ms": _of_gpu(lambda gpu: sum(copy.time_ms for copy in gpu.copies)),
    "blocking_ms": _of_host(lambda host: host.blocking_ms),
    "kernels": _of_gpu(lambda gpu: gpu.kernel_count),
    "copies": _of_gpu(lambda gpu: sum(copy.count for copy in gpu.copies)),
    "copied_bytes": _of_gpu(lambda gpu: _sum((copy.bytes, 1) for copy in gpu.copies)),
    "graph_launches": _of_gpu(lambda gpu: gpu.graph_launch_count),
    "memsets": _of_gpu(lambda gpu: gpu.memset_count),
    "blocking_calls": _of_host(lambda host: host.blocking_calls),
}
"""What `StageTotals` sums: means over the batches of each process, times their number."""
PER_BATCH = ("cpu_ms", "gpu_busy_ms", "copy_ms", "blocking_ms", "kernels")
PER_ITEM = ("cpu_ms", "gpu_busy_ms")


def _of_process(stage: StageDiagnosis) -> StageOfProcess:
    return StageOfProcess(
        verdict=stage.verdict.verdict,
        evidence=stage.verdict.evidence,
        next_step=stage.verdict.next_step,
        batches=stage.batches,
        cpu_ms=stage.cpu_ms,
        gpu_busy_ms=stage.gpu.busy_ms if stage.gpu else None,
        saving_share=stage.cost.saving_share,
        causes=stage.causes,
        explained=stage.explained,
    )


def _sum(terms: Iterable[tuple[float | None, int]]) -> float | None:
    """Sum of value times weight; None where one value is not known."""
    total = 0.0
    for value, weight in terms:
        if value is None:
            return None
        total += value * weight
    return total


def _per(total: float | None, count: int | None) -> float | None:
    return None if total is None or not count else total / count


SEVERITY = ("cannot-tell", "enough", "too-short", "never-steady")
"""Of several loops of one name in one process the worst counts."""


def _pool_warmup(path: Path, judged: dict[str, list[WarmupDiagnosis]]) -> PooledWarmup:
    every = [loop for loops in judged.values() for loop in loops]
    starts = [loop.steady_from for loop in every if loop.steady_from is not None]
    return PooledWarmup(
        loop=path,
        states={process: max((loop.state for loop in loops), key=SEVERITY.index) for process, loops in judged.items()},
        warmup_batches=every[0].warmup_batches,
        needed=max(starts) if starts else None,
    )
