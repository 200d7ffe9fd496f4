"""Traces of equal batches of 1 ms, to see what the diagnosis says; what is in them is in microseconds of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.diagnosis import Pass, diagnose, find_evidence
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import Diagnosis, StageDiagnosis
from perfharness.model.host_samples import HostEventKind, HostState
from perfharness.model.trace import CopyKind
from perfharness.trace import open_trace
from tests.support.probe_builder import ProbeBuilder
from tests.support.trace_builder import H200, TraceBuilder

US = 1000
BATCH = 1000 * US
SAMPLE = 50 * US
UTC_NS = 1_700_000_000_000_000_000
"""Of the trace's begin."""
MAIN, WORKER = 100, 101
SYNCHRONIZE, DEVICE_SYNCHRONIZE = "cudaStreamSynchronize_v3020", "cudaDeviceSynchronize_v3020"


@dataclass(frozen=True)
class Batch:
    """One batch of a trace being made; times in us from its begin."""

    builder: TraceBuilder
    begin: int
    index: int = 0
    probe: ProbeBuilder = field(default_factory=ProbeBuilder)

    def at(self, us: float) -> int:
        """Nanoseconds of the trace."""
        return self.begin + int(us * US)

    def range(self, name: str, first: float, last: float, **more: Any) -> None:
        """A range of the main thread."""
        self.builder.range(name, self.at(first), self.at(last), **more)

    def kernel(self, call: float, first: float, last: float, **more: Any) -> None:
        """A launch of 4 us at `call`, and when its kernel ran."""
        self.builder.kernel((self.at(call), self.at(call + 4)), (self.at(first), self.at(last)), **more)

    def launch(self, call: tuple[float, float], run: tuple[float, float]) -> None:
        """A kernel whose call takes what it says."""
        self.builder.kernel((self.at(call[0]), self.at(call[1])), (self.at(run[0]), self.at(run[1])))

    def call(self, name: str, first: float, last: float, tid: int = MAIN) -> int:
        """A CUDA call; its correlation id."""
        return self.builder.call(name, self.at(first), self.at(last), tid=tid)

    def operation(
        self, table: str, name: str, call: tuple[float, float], run: tuple[float, float], tid: int = MAIN, **more: Any
    ) -> None:
        """An operation of a table, and the call that started it."""
        self.builder.operation(self.at(run[0]), self.at(run[1]), self.call(name, *call, tid), table=table, **more)

    def copy(
        self, call: tuple[float, float], run: tuple[float, float], *, kind: int = CopyKind.HOST_TO_DEVICE,
        pageable: bool = True, size: int = 1_000_000, **more: Any,
    ) -> None:  # fmt: skip
        """A copy from or to the host."""
        host = 0 if pageable else 1
        columns = {
            "bytes": size, "copyKind": kind, "srcKind": host if kind == CopyKind.HOST_TO_DEVICE else 2,
            "dstKind": host if kind == CopyKind.DEVICE_TO_HOST else 2,
        }  # fmt: skip
        self.operation(schema.TABLE_MEMCPY, "cudaMemcpyAsync_v3020", call, run, **(columns | more))

    def os_call(self, name: str, first: float, last: float, tid: int = MAIN) -> None:
        """A call of the operating system, as nsys records them."""
        self.builder.row(
            "OSRT_API", start=self.at(first), end=self.at(last), globalTid=schema.global_tid(100, tid),
            nameId=self.builder.string(name),
        )  # fmt: skip

    def sampled(
        self, first: float, last: float, *stack: str, state: HostState = HostState.RUNNING, holder: int | None = None
    ) -> None:
        """What samples of the main thread show: its Python stack, the innermost frame first (`function@file:line`)."""
        self.probe.samples(self.at(first), self.at(last), stack, state=state, gil_holder=holder)

    def event(self, kind: HostEventKind, first: float, last: float, detail: int = 0, tid: int = MAIN) -> None:
        """An interval that the probe records; of a collection, `detail` is the generation."""
        self.probe.event(kind, self.at(first), self.at(last), detail, tid=tid)


Content = Callable[[Batch], None]
STAGE = {"stage": (0.0, 1000.0)}


def diagnosed(
    path: Path, content: Content, stages: Mapping[str, tuple[float, float]] = STAGE, **more: Any
) -> Diagnosis:
    """Diagnose batches of the same stages and content.

    Args:
        more: of `made_analysis`.
    """
    return diagnose(find_evidence(Pass(made_analysis(path, content, stages, **more))))


def made_analysis(
    path: Path,
    content: Content,
    stages: Mapping[str, tuple[float, float]] = STAGE,
    *,
    warmup: int = 0,
    batches: int = 12,
    gpus: int = 0,
    gpu: Mapping[str, Any] = H200,
    meta: Mapping[str, str] | None = None,
    batch: tuple[float, float] = (0.0, 1000.0),
    apart: int = 1,
    probe: ProbeBuilder | None = None,
) -> Analysis:
    """The analysis of batches of the same stages and content.

    Args:
        gpus: so many, `u-0` and on; 0: one that the trace says nothing of.
        gpu: what the trace says of each.
        meta: statements of the embedded tracer.
        batch: where each batch's own range begins and ends.
        apart: of the batches' begins, ms.
        probe: what was sampled; what the content samples is added.
    """
    builder = TraceBuilder(gpu=not gpus)
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC_NS)
    for number in range(gpus):
        builder.row("TARGET_INFO_GPU", **({"id": number} | dict(gpu) | {"uuid": f"u-{number}"}))
    for name, value in (meta or {}).items():
        builder.row(schema.TABLE_PERFHARNESS, name=name, value=value)
    probe = ProbeBuilder(SAMPLE) if probe is None else probe
    for index in range(batches):
        each = Batch(builder, apart * (index + 1) * BATCH, index, probe)
        each.range(f"batch_{index}", *batch)
        for name, (first, last) in stages.items():
            each.range(name, first, last)
        content(each)
    trace = open_trace(builder.write(path / "t.sqlite"))
    host_probe = probe.build() if probe.has_samples else None
    return Analysis(trace, AnalysisOptions(warmup), host_probe=host_probe)


def stage_of(diagnosis: Diagnosis, name: str = "stage") -> StageDiagnosis:
    """The first stage of that name."""
    return next(stage for stage in diagnosis.stages if stage.path[-1] == name)


def near(value: float | None) -> Any:
    """What equals the value, but for rounding; for comparisons beside other types."""
    return None if value is None else pytest.approx(value)
