"""What a stage costs the whole, on pipelines whose answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.diagnosis import diagnose
from perfharness.model.diagnosis import StageCost
from perfharness.testing.trace_builder import TraceBuilder
from perfharness.trace import open_trace

US = 1000
BATCH = 1000 * US
BATCHES = 4
SYNCHRONIZE = "cudaStreamSynchronize_v3020"


def costs(builder: TraceBuilder, path: Path) -> dict[str, StageCost]:
    trace = open_trace(builder.write(path / "t.sqlite"))
    diagnosis = diagnose(Analysis(trace))
    return {stage.path[-1]: stage.cost for stage in diagnosis.stages}


def without(cost: StageCost) -> float:
    assert cost.without_stage_ms is not None, cost.reason
    return cost.without_stage_ms


def stage(builder: TraceBuilder, begin: int, name: str, first: int, last: int) -> None:
    builder.range(name, begin + first * US, begin + last * US)


def test_stages_on_the_host_add_up(tmp_path: Path) -> None:
    # |aaa|bbbbbbb|
    builder = TraceBuilder()
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        builder.range(f"batch_{index}", begin, begin + BATCH)
        stage(builder, begin, "a", 0, 300)
        stage(builder, begin, "b", 300, 1000)
    found = costs(builder, tmp_path)
    assert found["a"].pipeline_ms == pytest.approx(1.0)
    assert without(found["a"]) == pytest.approx(0.7)
    assert without(found["b"]) == pytest.approx(0.3)
    assert without(found["batch"]) == pytest.approx(0.0)


def test_host_work_hidden_behind_the_gpu_costs_nothing(tmp_path: Path) -> None:
    # host |a|bbbbbbbbb|ssss|     a starts the kernel, b computes beside it, s waits for it
    # GPU   .AAAAAAAAAAAAA.
    builder = TraceBuilder()
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        builder.range(f"batch_{index}", begin, begin + BATCH)
        stage(builder, begin, "a", 0, 20)
        builder.kernel((begin + 10 * US, begin + 15 * US), (begin + 20 * US, begin + 990 * US))
        stage(builder, begin, "b", 20, 700)
        stage(builder, begin, "s", 700, 1000)
        builder.call(SYNCHRONIZE, begin + 710 * US, begin + 995 * US)
    found = costs(builder, tmp_path)
    assert without(found["b"]) == pytest.approx(1.0)  # the kernel takes as long as before
    assert without(found["a"]) == pytest.approx(0.710, abs=0.03)  # b remains, and the empty wait
    assert without(found["s"]) == pytest.approx(0.98, abs=0.02)  # the wait for a stays


def test_gpu_work_hidden_behind_the_host_costs_only_its_launch(tmp_path: Path) -> None:
    # host |a|bbbbbbbbbbbbbbb|s|
    # GPU   .AAAA.
    builder = TraceBuilder()
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        builder.range(f"batch_{index}", begin, begin + BATCH)
        stage(builder, begin, "a", 0, 20)
        builder.kernel((begin + 10 * US, begin + 15 * US), (begin + 20 * US, begin + 300 * US))
        stage(builder, begin, "b", 20, 950)
        stage(builder, begin, "s", 950, 1000)
        builder.call(SYNCHRONIZE, begin + 960 * US, begin + 964 * US)
    found = costs(builder, tmp_path)
    assert without(found["a"]) == pytest.approx(0.980)
    # Without b the wait, which was empty, is for the kernel.
    assert without(found["b"]) == pytest.approx(0.340, abs=0.01)


def test_a_queue_on_one_stream_shortens_by_what_is_taken_out(tmp_path: Path) -> None:
    # host |a|b|ssssssss|
    # GPU   AAAAAABBB
    builder = TraceBuilder()
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        builder.range(f"batch_{index}", begin, begin + BATCH)
        stage(builder, begin, "a", 0, 20)
        builder.kernel((begin + 10 * US, begin + 15 * US), (begin + 20 * US, begin + 620 * US))
        stage(builder, begin, "b", 20, 40)
        builder.kernel((begin + 30 * US, begin + 35 * US), (begin + 621 * US, begin + 980 * US))
        stage(builder, begin, "s", 40, 1000)
        builder.call(SYNCHRONIZE, begin + 50 * US, begin + 985 * US)
    found = costs(builder, tmp_path)
    assert without(found["a"]) == pytest.approx(0.4, abs=0.02)
    assert without(found["b"]) == pytest.approx(0.64, abs=0.02)


def test_streams_run_beside_each_other(tmp_path: Path) -> None:
    # stream 7 AAAAAAAA
    # stream 8 BBBBB         taking b out saves nothing but its launch
    builder = TraceBuilder()
    for index in range(BATCHES):
        begin = (index + 1) * BATCH
        builder.range(f"batch_{index}", begin, begin + BATCH)
        stage(builder, begin, "a", 0, 20)
        builder.kernel((begin + 10 * US, begin + 15 * US), (begin + 20 * US, begin + 980 * US), stream=7)
        stage(builder, begin, "b", 20, 40)
        builder.kernel((begin + 30 * US, begin + 35 * US), (begin + 40 * US, begin + 500 * US), stream=8)
        stage(builder, begin, "s", 40, 1000)
        builder.call("cudaDeviceSynchronize_v3020", begin + 50 * US, begin + 985 * US)
    found = costs(builder, tmp_path)
    assert without(found["b"]) == pytest.approx(1.0, abs=0.001)
    assert without(found["a"]) == pytest.approx(0.5, abs=0.02)


def test_loops_over_several_threads_are_not_played(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for index in range(BATCHES):
        builder.range(f"batch_{index}", index * BATCH, (index + 1) * BATCH, tid=100 + index % 2)
    cost = costs(builder, tmp_path)["batch"]
    assert cost.pipeline_ms is None
    assert cost.reason is not None
    assert "several threads" in cost.reason
