"""Made-up results of a suite, for tests of what is done with results."""

from __future__ import annotations

from typing import Any, TypeVar

from perfharness.model.bench import (
    AccuracyRecord,
    BenchCase,
    CaseResult,
    CaseStatus,
    EqualityRecord,
    Estimate,
    LatencyStats,
    MachineRecord,
    MemoryUse,
    Precision,
)
from perfharness.model.bench_suite import BenchSuiteResult, Constraints

T = TypeVar("T")


def known(value: T | None) -> T:
    assert value is not None
    return value


def estimate(value: float, spread: float = 0.02) -> Estimate:
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread))


def made_up(
    backend: str,
    batch_size: int = 1,
    *,
    mode: str = "plain",
    precision: Precision = "fp32",
    model: str = "net",
    device: str = "cuda",
    gpu: str | None = None,
    rate: float | None = 100.0,
    spread: float = 0.02,
    latency_ms: float | None = None,
    memory_bytes: int | None = None,
    power_w: float | None = None,
    energy_j: float | None = None,
    cosine: float | None = None,
    equal: bool | None = True,
    top1: float | None = None,
    status: CaseStatus = "ok",
    reason: str | None = None,
    **more: Any,
) -> CaseResult:
    """A case; the latency is the batch over the rate unless it is given."""
    case = BenchCase(
        case_id=f"{model}-{backend}-{mode}-{precision}-b{batch_size}", model=model, backend=backend, mode=mode,
        precision=precision, device=device, batch_size=batch_size, gpu=gpu,  # type: ignore[arg-type]
    )  # fmt: skip
    if status != "ok":
        return CaseResult(case=case, status=status, reason=reason, **more)
    if top1 is not None:
        more["accuracy"] = AccuracyRecord(against="labels", samples=1000, metrics={"top1": top1})
    if cosine is not None:
        why = None if equal else "output y differs by up to 7 times the tolerance"
        more["equality"] = EqualityRecord(
            reference="torch/plain/fp32", equal=equal, absolute_tolerance=1e-3, relative_tolerance=1e-3, cosine=cosine,
            reason=why,
        )  # fmt: skip
    ms = latency_ms if latency_ms is not None else 1e3 * batch_size / (rate or 1)
    mean, p90, p95, p99 = (estimate(ms * factor, spread) for factor in (1, 1.05, 1.1, 1.3))
    return CaseResult(
        case=case,
        status="ok",
        items_per_second=None if rate is None else estimate(rate, spread),
        latency=LatencyStats(
            iterations=1000, warmup_iterations=50, mean=mean, std=ms / 20, median=mean, p50=ms, p90=p90, p95=p95,
            p99=p99, min=ms * 0.9, max=ms * 2,
        ),
        memory=MemoryUse(device_peak_bytes=memory_bytes, host_peak_bytes=memory_bytes),
        power_mean_w=power_w,
        energy_per_item_j=None if energy_j is None else estimate(energy_j),
        **more,
    )  # fmt: skip


def suite_of(*cases: CaseResult, hostname: str = "rack1", **more: Any) -> BenchSuiteResult:
    defaults: dict[str, Any] = {
        "created": "2026-11-21T12:00:00+00:00",
        "baseline": "torch/plain/fp32",
        "machine": MachineRecord(hostname=hostname, cpu="EPYC 9654", gpus=["NVIDIA H200"]),
    }
    return BenchSuiteResult(cases=list(cases), **{**defaults, **more})


def whole_suite() -> BenchSuiteResult:
    """Four backends over seven batch sizes, with everything that may be missing."""
    cases: list[CaseResult] = []
    speeds: list[tuple[str, str, Precision, float, float, float, bool]] = [
        ("torch", "eager", "fp32", 210, 4200, 1.0, True),
        ("torch", "compile", "fp16", 520, 15_500, 0.99993, True),
        ("onnxruntime", "CUDAExecutionProvider", "fp32", 300, 5100, 0.9999999, True),
        ("tensorrt", "engine", "fp16", 900, 26_000, 0.99989, True),
        ("tensorrt", "engine", "int8", 1000, 41_000, 0.981, False),
    ]
    for backend, mode, precision, first, most, cosine, equal in speeds:
        for size in (1, 2, 4, 8, 16, 32, 64):
            rate = most * size / (size + most / first - 1)
            memory = int(0.6e9 + size * (0.11e9 if precision == "fp32" else 0.05e9))
            if backend == "torch" and mode == "eager" and size == 64:
                reason = "a batch of 64 takes 8.6 GB, the memory limit has 7.5 GB; a smaller batch or a larger limit"
                cases.append(
                    made_up(backend, size, mode=mode, precision=precision, status="memory-limit", reason=reason)
                )
                continue
            power = 140 + 480 * rate / 41_000 + (60 if precision == "fp32" else 0)
            cases.append(
                made_up(
                    backend, size, mode=mode, precision=precision, rate=rate, spread=0.04, memory_bytes=memory,
                    power_w=None if backend == "onnxruntime" else power, energy_j=power / rate,
                    cosine=cosine, equal=equal,
                    reasons={"power_mean_w": "the sampler saw no GPU"} if backend == "onnxruntime" else {},
                )
            )  # fmt: skip
    reason = "keras is not installed; pip install 'perfharness-nvtx[keras]'"
    cases += [made_up("keras", size, status="unavailable", reason=reason) for size in (1, 2, 4, 8, 16, 32, 64)]
    return suite_of(
        *cases,
        baseline="torch/eager/fp32",
        constraints=Constraints(max_latency_ms=4, memory_limit_bytes=7_500_000_000, max_accuracy_loss=0.001),
    )
