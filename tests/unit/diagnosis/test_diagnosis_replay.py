"""What a stage costs the whole, on pipelines whose answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import diagnose
from perfharness.model import nsys_schema as schema
from perfharness.model.trace import CopyKind
from perfharness.trace import open_trace
from tests.support.made_batches import (
    BATCH,
    DEVICE_SYNCHRONIZE,
    SYNCHRONIZE,
    Batch,
    Content,
    diagnosed,
    nothing,
    stage_of,
)
from tests.support.trace_builder import TraceBuilder

EMBEDDED = {schema.META_CUDA_TRACED: "yes"}
Bounds = tuple[float, float]


def hidden_host(batch: Batch) -> None:
    batch.kernel(10, 20, 990)
    batch.call(SYNCHRONIZE, 710, 995)


def hidden_gpu(batch: Batch) -> None:
    batch.kernel(10, 20, 300)
    batch.call(SYNCHRONIZE, 960, 964)


def one_stream(batch: Batch) -> None:
    batch.kernel(10, 20, 620)
    batch.kernel(30, 621, 980)
    batch.call(SYNCHRONIZE, 50, 985)


def two_streams(batch: Batch) -> None:
    batch.kernel(10, 20, 980, stream=7)
    batch.kernel(30, 40, 500, stream=8)
    batch.call(DEVICE_SYNCHRONIZE, 50, 985)


def read_back(batch: Batch) -> None:
    """Two kernels and a copy, each 6 us after the one before, as on an H200; they queue."""
    batch.kernel(10, 20, 500)
    batch.kernel(14, 506, 700)
    batch.copy((25, 30), (706, 710), kind=CopyKind.DEVICE_TO_HOST, pageable=False, size=4)


def read_and_wait(batch: Batch) -> None:
    read_back(batch)
    batch.call(SYNCHRONIZE, 30, 715)


QUEUES = {"a": (0.0, 12.0), "b": (12.0, 24.0), "s": (24.0, 1000.0)}

CASES: dict[str, tuple[dict[str, Bounds], Content, dict[str, tuple[float, float]]]] = {
    # |aaa|bbbbbbb|
    "stages on the host add up": (
        {"a": (0, 300), "b": (300, 1000)}, nothing, {"a": (0.7, 1e-6), "b": (0.3, 1e-6), "batch": (0.0, 1e-6)},
    ),
    # host |a|bbbbbbbbb|ssss|     a starts the kernel, b computes beside it, s waits for it
    # GPU   .AAAAAAAAAAAAA.       without b it takes as long; without a b and the empty wait remain; the wait stays
    "host work hidden behind the GPU costs nothing": (
        {"a": (0, 20), "b": (20, 700), "s": (700, 1000)}, hidden_host,
        {"b": (1.0, 1e-6), "a": (0.710, 0.03), "s": (0.98, 0.02)},
    ),
    # host |a|bbbbbbbbbbbbbbb|s|
    # GPU   .AAAA.                without b the wait, which was empty, is for the kernel
    "GPU work hidden behind the host costs only its launch": (
        {"a": (0, 20), "b": (20, 950), "s": (950, 1000)}, hidden_gpu, {"a": (0.980, 1e-6), "b": (0.340, 0.01)},
    ),
    # host |a|b|ssssssss|
    # GPU   AAAAAABBB
    "a queue on one stream shortens by what is taken out": (
        {"a": (0, 20), "b": (20, 40), "s": (40, 1000)}, one_stream, {"a": (0.4, 0.02), "b": (0.64, 0.02)},
    ),
    # host |a|b|sssss
    # GPU   AAA BBB C             what queues begins a gap after what is before it, whatever that is
    "what queues does not wait by itself": (QUEUES, read_and_wait, {"a": (0.506, 0.01), "b": (0.8, 0.01)}),
    # stream 7 AAAAAAAA
    # stream 8 BBBBB              taking b out saves nothing but its launch
    "streams run beside each other": (
        {"a": (0, 20), "b": (20, 40), "s": (40, 1000)}, two_streams, {"b": (1.0, 0.001), "a": (0.5, 0.02)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_batch_takes_without_a_stage(name: str, tmp_path: Path) -> None:
    stages, content, expected = CASES[name]
    found = diagnosed(tmp_path, content, stages, batches=4)
    for stage, (without_ms, within) in expected.items():
        cost = stage_of(found, stage).cost
        assert cost.without_stage_ms == pytest.approx(without_ms, abs=within), cost
        assert cost.pipeline_ms == pytest.approx(1.0)


def test_a_copy_that_the_host_waits_for_is_a_wait_that_was_not_recorded(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, read_back, QUEUES, batches=4, meta=EMBEDDED)
    assert stage_of(found, "a").cost.without_stage_ms == pytest.approx(0.506, abs=0.01)
    assert stage_of(found, "b").cost.without_stage_ms == pytest.approx(0.8, abs=0.01)


def test_where_the_host_may_wait_or_compute_the_cost_is_not_known(tmp_path: Path) -> None:
    """Without `a` 0.99 ms if it computes, 0.3 if it waits for the kernel; without `b` nothing is left but `a`."""
    stages = {"a": (0.0, 20.0), "b": (20.0, 1000.0)}
    found = diagnosed(tmp_path, lambda batch: batch.kernel(10, 20, 700), stages, batches=4, meta=EMBEDDED)
    cost = stage_of(found, "a").cost
    assert (cost.without_stage_ms, cost.saving_share) == (None, None)
    assert "70 %" in (cost.reason or "")
    assert stage_of(found, "batch").cost.saving_share == pytest.approx(1.0)


def test_loops_over_several_threads_are_not_played(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for index in range(4):
        builder.range(f"batch_{index}", index * BATCH, (index + 1) * BATCH, tid=100 + index % 2)
    (stage,) = diagnose(Analysis(open_trace(builder.write(tmp_path / "t.sqlite")))).stages
    assert stage.cost.pipeline_ms is None
    assert stage.cost.reason
