"""Traces of equal batches of 1 ms for tests of the diagnosis; what is in them is in microseconds of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.diagnosis import ALONE, OtherProcesses, diagnose
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import Diagnosis, GpuWork, HostWork, StageDiagnosis
from perfharness.model.trace import CopyKind
from perfharness.testing.trace_builder import H200, TraceBuilder
from perfharness.trace import open_trace

US = 1000
BATCH = 1000 * US
MAIN, WORKER = 100, 101
SYNCHRONIZE, DEVICE_SYNCHRONIZE = "cudaStreamSynchronize_v3020", "cudaDeviceSynchronize_v3020"


@dataclass(frozen=True)
class Batch:
    """One batch of a trace being made; times in us from its begin."""

    builder: TraceBuilder
    begin: int

    def at(self, us: float) -> int:
        return self.begin + int(us * US)

    def range(self, name: str, first: float, last: float, **more: Any) -> None:
        self.builder.range(name, self.at(first), self.at(last), **more)

    def kernel(self, call: float, first: float, last: float, **more: Any) -> None:
        self.builder.kernel((self.at(call), self.at(call + 4)), (self.at(first), self.at(last)), **more)

    def launch(self, call: tuple[float, float], run: tuple[float, float]) -> None:
        """A kernel whose call takes what it says."""
        self.builder.kernel((self.at(call[0]), self.at(call[1])), (self.at(run[0]), self.at(run[1])))

    def call(self, name: str, first: float, last: float) -> int:
        return self.builder.call(name, self.at(first), self.at(last))

    def operation(
        self, table: str, name: str, call: tuple[float, float], run: tuple[float, float], **more: Any
    ) -> None:
        self.builder.operation(self.at(run[0]), self.at(run[1]), self.call(name, *call), table=table, **more)

    def copy(
        self, call: tuple[float, float], run: tuple[float, float], *, kind: int = CopyKind.HOST_TO_DEVICE,
        pageable: bool = True, size: int = 1_000_000, **more: Any,
    ) -> None:  # fmt: skip
        host = 0 if pageable else 1
        columns = {
            "bytes": size, "copyKind": kind, "srcKind": host if kind == CopyKind.HOST_TO_DEVICE else 2,
            "dstKind": host if kind == CopyKind.DEVICE_TO_HOST else 2,
        }  # fmt: skip
        self.operation(schema.TABLE_MEMCPY, "cudaMemcpyAsync_v3020", call, run, **(columns | more))

    def os_call(self, name: str, first: float, last: float, tid: int = MAIN) -> None:
        self.builder.row(
            "OSRT_API", start=self.at(first), end=self.at(last), globalTid=schema.global_tid(100, tid),
            nameId=self.builder.string(name),
        )  # fmt: skip


Content = Callable[[Batch], None]
STAGE = {"stage": (0.0, 1000.0)}


def diagnosed(
    path: Path, content: Content, stages: Mapping[str, tuple[float, float]] = STAGE, *, warmup: int = 0,
    batches: int = 12, others: OtherProcesses = ALONE, gpus: int = 0, meta: Mapping[str, str] | None = None,
    batch: tuple[float, float] = (0.0, 1000.0), apart: int = 1,
) -> Diagnosis:  # fmt: skip
    """Diagnose batches of the same stages and content.

    Args:
        gpus: so many H200s, `u-0` and on; 0: one that the trace says nothing of.
        meta: statements of the embedded tracer.
        batch: where each batch's own range begins and ends.
        apart: of the batches' begins, ms.
    """
    builder = TraceBuilder(gpu=not gpus)
    for number in range(gpus):
        builder.row("TARGET_INFO_GPU", **({"id": number} | H200 | {"uuid": f"u-{number}"}))
    for name, value in (meta or {}).items():
        builder.row(schema.TABLE_PERFHARNESS, name=name, value=value)
    for index in range(batches):
        each = Batch(builder, apart * (index + 1) * BATCH)
        each.range(f"batch_{index}", *batch)
        for name, (first, last) in stages.items():
            each.range(name, first, last)
        content(each)
    return diagnose(Analysis(open_trace(builder.write(path / "t.sqlite")), AnalysisOptions(warmup)), others)


def nothing(batch: Batch) -> None:
    """Only the ranges."""


def stage_of(diagnosis: Diagnosis, name: str = "stage") -> StageDiagnosis:
    return next(stage for stage in diagnosis.stages if stage.path[-1] == name)


def gpu_of(stage: StageDiagnosis) -> GpuWork:
    assert stage.gpu is not None
    return stage.gpu


def host_of(stage: StageDiagnosis) -> HostWork:
    assert stage.host is not None
    return stage.host
