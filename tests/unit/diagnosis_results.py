"""Made diagnoses: stages with causes, for tests of what is advised and printed."""

from __future__ import annotations

from typing import Any

from perfharness.model.diagnosis import (
    Cause,
    Diagnosis,
    FunctionTime,
    GpuCounters,
    HostProfile,
    StageCost,
    StageDiagnosis,
    StageVerdict,
    Verdict,
    WarmupDiagnosis,
)

BATCH = ("rec", "pipeline", "batch")


def function(name: str = "resize", file: str = "/work/app/pipeline.py", line: int = 42, **figures: Any) -> FunctionTime:
    """A function of a stage."""
    values = {"self_ms": 6.0, "cumulative_ms": 7.0, "error_ms": 0.5, **figures}
    return FunctionTime(name, file, line, **values)


def cause(code: str = "cpu-bound", **figures: Any) -> Cause:
    """A cause without a line, which nothing bounds."""
    values = {
        "what": f"what {code} is", "share": 1.0, "where": None, "where_reason": "one pass", "try_this": f"mend {code}",
        "saves_ms": None, **figures,
    }  # fmt: skip
    return Cause(code, **values)


def stage(name: str, *causes: Cause, cpu_ms: float | None = 10.0, **figures: Any) -> StageDiagnosis:
    """A stage of a batch, by the names below it (`decode/resize`; empty: the batch itself), without work on a GPU."""
    values: dict[str, Any] = {
        "path": (*BATCH, *filter(None, name.split("/"))), "batches": 10, "items": None, "cpu_ms": cpu_ms,
        "cpu_ms_per_item": None, "gpu_busy_ms_per_item": None, "kernels_per_item": None, "gpu": None, "gpu_during": [],
        "host": None, "verdict": StageVerdict(Verdict.CPU_BOUND, [], "the next step"),
        "cost": StageCost(None, None, None, "not replayed"), "causes": list(causes), **figures,
    }  # fmt: skip
    return StageDiagnosis(**values)


def diagnosis(*stages: StageDiagnosis, **more: Any) -> Diagnosis:
    """Of a process with one loop of batches."""
    loop = WarmupDiagnosis(BATCH, 12, 1, 0, "enough", 20.0, 1.0, None)
    return Diagnosis(list(stages), [loop], [], [], **more)


def profile(*functions: FunctionTime, **figures: Any) -> HostProfile:
    """What sampled threads did: by default they ran all the time."""
    values: dict[str, Any] = {
        "samples": 1000, "on_cpu_ms": 10.0, "state_ms": {"running": 10.0}, "collections": 0.0, "collection_ms": 0.0,
        "gil_holders": [], "missing": [], **figures,
    }  # fmt: skip
    return HostProfile(top_functions=list(functions), **values)


def counters(gpu: int = 0, **shares: Any) -> GpuCounters:
    """Counters of a GPU: those that are not given are not known."""
    return GpuCounters(gpu, [], **{"seconds": 0.5, **shares})
