"""What the embedded tracer's profiling pass knows that its measured pass does not: the same as nsys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from perfharness.analysis.diagnosis.rules.evidence import MISSING_CALLS
from perfharness.model import nsys_schema as schema
from perfharness.model.diagnosis import StageDiagnosis
from tests.support.made_batches import Batch, Content, diagnosed, host_of, stage_of

EMBEDDED = {schema.META_CUDA_TRACED: "yes", schema.META_CUDA_USED: "yes"}
ALL = {**EMBEDDED, schema.META_ALL_CALLS: "yes"}


def churn(batch: Batch) -> None:
    """Memory is taken and freed for each of three kernels."""
    for at in (0, 300, 600):
        batch.call("cudaMalloc_v3020", at + 5, at + 120)
        batch.kernel(at + 122, at + 130, at + 150)
        batch.call("cudaFree_v3020", at + 155, at + 290)


def waits(batch: Batch) -> None:
    """Nine times, the host waits for a short kernel."""
    for at in range(0, 900, 100):
        batch.kernel(at + 1, at + 6, at + 70)
        batch.call("cudaStreamSynchronize_v3020", at + 8, at + 80)


def events(batch: Batch) -> None:
    for at in range(0, 900, 90):
        batch.kernel(at + 1, at + 6, at + 60)
        batch.call("cudaEventRecord_v3020", at + 8, at + 10)
        batch.call("cudaEventSynchronize_v3020", at + 12, at + 62)


def found(path: Path, content: Content, meta: Mapping[str, str]) -> StageDiagnosis:
    path.mkdir()
    return stage_of(diagnosed(path, content, meta=meta))


@pytest.mark.parametrize("content", [churn, waits, events])
def test_all_calls_tell_what_nsys_s_trace_tells(tmp_path: Path, content: Content) -> None:
    by_nsys, by_embedded = found(tmp_path / "nsys", content, {}), found(tmp_path / "embedded", content, ALL)
    assert asdict(by_embedded) == asdict(by_nsys)
    assert None not in host_of(by_embedded).activity_ms.values()


@pytest.mark.parametrize(
    ("meta", "is_known"), [(EMBEDDED, False), ({**EMBEDDED, schema.META_ALL_CALLS: "no"}, False), (ALL, True)]
)
def test_without_them_what_they_would_tell_is_not_known(tmp_path: Path, meta: dict[str, str], is_known: bool) -> None:
    """A trace of launches alone: nothing else was called, or nothing else was recorded."""
    diagnosis = diagnosed(tmp_path, lambda batch: batch.kernel(10, 20, 500), meta=meta)
    activity = host_of(stage_of(diagnosis)).activity_ms
    expected = (0.0, 0.0) if is_known else (None, None)
    assert (activity["allocate"], activity["synchronize"]) == expected
    assert (MISSING_CALLS in diagnosis.missing) is not is_known
