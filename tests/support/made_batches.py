"""Traces of equal batches of 1 ms, to see what the diagnosis says; what is in them is in microseconds of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import Pass, diagnose, find_evidence
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import Diagnosis, StageDiagnosis
from tests.support.probe_builder import ProbeBuilder
from tests.support.trace_builder import H200, US, WORDS, TraceBuilder

BATCH = 1000 * US
SAMPLE = 50 * US
UTC_NS = 1_700_000_000_000_000_000
"""Of the trace's begin."""


@dataclass(frozen=True)
class Batch:
    """One batch of a trace being made; times in us from its begin."""

    builder: TraceBuilder
    begin_us: int
    index: int

    def add(self, text: str, words: Mapping[str, Any] = WORDS, at: float = 0) -> None:
        """What `TraceBuilder.add` reads."""
        self.builder.add(text, self.begin_us + at, unit=US, words=words)

    def read(self, names: Sequence[str], period: int, values: Mapping[int, Sequence[int]], *, gpu: int = 0) -> None:
        """Readings of a GPU's counters over the batch, by the end of the period; 0 where there is no value."""
        metrics = self.builder.gpu_metric_names(names, gpu=gpu)
        for end in range(period, 1000 + period, period):
            at, reading = (self.begin_us + end - period) * US, values.get(end, [0] * len(names))
            self.builder.gpu_metric_reading(at, reading, type_id=metrics)


Content = str | Callable[[Batch], None]
STAGE = "stage 0..1000"


def diagnosed(path: Path, content: Content, stages: str = STAGE, **more: Any) -> Diagnosis:
    """Diagnose batches of the same stages and content.

    Args:
        more: of `made_analysis`; `measured`: the pass of which this is the profiling pass; others are of `Pass`.
    """
    of_pass = {name: more.pop(name) for name in ("others", "supply", "quota") if name in more}
    measured = more.pop("measured", None)
    evidence = find_evidence(Pass(made_analysis(path, content, stages, **more), **of_pass))
    return diagnose(evidence) if measured is None else diagnose(find_evidence(Pass(measured)), evidence)


def made_analysis(
    path: Path,
    content: Content,
    stages: str = STAGE,
    *,
    warmup: int = 0,
    batches: int = 12,
    gpus: int = 0,
    gpu: Mapping[str, Any] = H200,
    meta: Mapping[str, str] | None = None,
    batch: str = "0..1000",
    apart: int = 1,
    words: Mapping[str, Any] = WORDS,
) -> Analysis:
    """The analysis of batches of the same stages and content.

    Args:
        gpus: so many, `u-0` and on; 0: one that the trace says nothing of.
        gpu: what the trace says of each.
        meta: statements of the embedded tracer.
        batch: where each batch's own range begins and ends.
        apart: of the batches' begins, ms.
    """
    builder = TraceBuilder(gpu=not gpus)
    builder.probe = ProbeBuilder(SAMPLE)
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC_NS)
    for number in range(gpus):
        builder.row("TARGET_INFO_GPU", **({"id": number} | dict(gpu) | {"uuid": f"u-{number}"}))
    for name, value in (meta or {}).items():
        builder.row(schema.TABLE_PERFHARNESS, name=name, value=value)
    for index in range(batches):
        each = Batch(builder, apart * (index + 1) * 1000, index)
        each.add(f"batch_{index} {batch}; {stages}")
        if isinstance(content, str):
            each.add(content, words)
        else:
            content(each)
    return builder.analysis(path, warmup)


def stage_of(diagnosis: Diagnosis, name: str = "stage") -> StageDiagnosis:
    """The first stage of that name."""
    return next(stage for stage in diagnosis.stages if stage.path[-1] == name)


def near(value: float | None) -> Any:
    """What equals the value, but for rounding; for comparisons beside other types."""
    return None if value is None else pytest.approx(value)
