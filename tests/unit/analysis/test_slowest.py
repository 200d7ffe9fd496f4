"""The slowest batches beside the typical one: planted differences on made traces, in ms by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.slowest import Requests, SlowLoop, pool_loops, slowest_of_process
from perfharness.errors import ResultError
from perfharness.model import nsys_schema as schema
from perfharness.runs.slowest import read_requests
from tests.support.trace_builder import MS, WORDS, Recorded

SLOW, COUNT = 37, 60


def work(longer: float = 0, kernel: str = "4.5..", copy: str = "3.5..4.5 size=1000") -> str:
    """A copy of 1 ms and a kernel of 3 ms, both waited for."""
    kernel += str(float(kernel.rstrip(".")) + 3 + longer)
    sync = f"cudaStreamSynchronize_v3020 3.4..{float(kernel.split('..')[1]) + 0.5}"
    return f"copy 3..3.1 -> {copy} pageable=0; launch 3.2..3.3 -> {kernel} name=gemm; {sync}"


def made(extra: float = 0, text: str = "") -> Recorded:
    """Batches 100 ms apart of `decode` (0 to 2 ms) and `infer` (2 to 9 ms), which waits for a copy and a kernel; each a
    little different. In one of them `infer` is longer, and does what the text says.
    """
    builder = Recorded()
    noise = np.abs(np.random.default_rng(3).normal(0.0, 0.02, (COUNT, 2)))
    for index, (first, second) in enumerate(noise.tolist()):
        more, at = extra if index == SLOW else 0.0, 100 * index + 10.0
        builder.batch(index, at, at + 10 + more + first + second, items=8)
        builder.add(f"decode 0..{2 + first}; infer {2 + first}..{9 + first + more + second}", at)
        builder.add(f"running@work 2..3; running@work {8 + more}..{9 + more}", at)
        builder.add(text if more else work(), at, words=WORDS | {"gemm": "gemm", "x": "x"})
    return builder


def slowest(analysis: Analysis, most: int = 1, requests: Requests | None = None) -> SlowLoop:
    """The loop of a process; parts sum to the difference."""
    (found,) = slowest_of_process(analysis, "p", most, requests)
    ((loop,), _) = pool_loops([found], most)
    for request in loop.requests:
        if request.typical is not None:
            assert request.difference_ms == pytest.approx(request.ms - request.typical.ms)
            sums = [*(part.ms for part in request.parts), request.small_ms or 0, request.rest_ms or 0]
            assert sum(sums) == pytest.approx(request.difference_ms, abs=1e-6)
    return loop


EXTRA_COPY = f"copy 3.1..3.2 -> 7.5..27.5 size=64000000 pageable=0; {work(20)}"
PLANTED: dict[str, tuple[float, str, str, str | None]] = {
    # name: (how much longer `infer` is, what happens in it, reason and name of the part)
    "a longer kernel": (12, work(12), "sync", "gemm"),
    "an extra copy": (20, EXTRA_COPY, "sync", "copy host to device"),
    "a larger copy": (4, work(0, "8.5..", "3.5..8.5 size=5000"), "sync", "copy host to device"),
    # another thread's kernel was on the GPU before the batch's own
    "work of others": (
        7,
        f"launch 1..1.1 -> 3.3..10.5 name=x tid=101; {work(0, '11.5..', '10.5..11.5 size=1000')}",
        "sync",
        "GPU work of others",
    ),
    "collector": (15, f"{work()}; collects 8.1..23.1", "gc", None),
    "lock": (10, f"{work()}; os:pthread_mutex_lock 8.2..18.2", "lock", None),
    "file": (6, f"{work()}; os:read 8.2..14.2", "file", None),
    "allocation": (8, f"{work()}; cudaMalloc 8.1..16.1", "alloc", "cudaMalloc"),
    "host work": (9, work(), "unknown", None),
    "sampled sleep": (20, f"{work()}; sleep@wait 8..28", "sleep", None),
    "compiler": (20, f"{work()}; running@compiler 8.5..28.5", "compile", None),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_found_with_its_length(name: str, tmp_path: Path) -> None:
    extra, text, reason, what = PLANTED[name]
    (request,) = slowest(made(extra, text).analysis(tmp_path)).requests
    assert (request.index, request.verdict) == (SLOW, "explained")
    (part,) = request.parts
    assert (part.reason, part.stage, part.name) == (reason, "infer", what)
    assert part.ms == pytest.approx(extra, abs=0.6)
    assert request.rest_ms == pytest.approx(0.0, abs=0.1)
    (took,) = ((one.slow_ms, one.typical_ms) for one in request.stages if one.stage == "infer")
    assert took == pytest.approx((7 + extra, 7), abs=0.1)
    if part.samples is not None:
        assert (part.samples, part.where and part.where.file) == (20, "/app/main.py")
    if text == EXTRA_COPY:
        copies = next(one for one in request.operations if one.name == what)
        assert (copies.count, copies.typical_count, copies.gpu_ms, copies.typical_gpu_ms) == (2, 1.0, 21.0, 1.0)
        assert (copies.copied_bytes, copies.typical_copied_bytes) == (64_001_000, 1_000.0)


def test_two_causes_are_ranked(tmp_path: Path) -> None:
    text = f"{work(12)}; os:pthread_mutex_lock 20.2..25.2"
    (request,) = slowest(made(17, text).analysis(tmp_path)).requests
    assert [(part.reason, round(part.ms)) for part in request.parts] == [("sync", 12), ("lock", 5)]


def test_without_calls_that_wait_nothing_is_invented(tmp_path: Path) -> None:
    """The embedded tracer does not record them in the measured pass: what the thread did is unknown."""
    builder = made(12, work(12))
    builder.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_TRACED, value="yes")
    waits = builder.string("cudaStreamSynchronize_v3020")
    builder.tables[schema.TABLE_API] = [row for row in builder.tables[schema.TABLE_API] if row["nameId"] != waits]
    (part,) = slowest(builder.analysis(tmp_path)).requests[0].parts
    assert (part.reason, part.stage, part.name) == ("unknown", "infer", "gemm")
    assert part.ms == pytest.approx(12.0, abs=0.1)


def test_nothing_planted_has_no_cause(tmp_path: Path) -> None:
    loop = slowest(made().analysis(tmp_path), most=5)
    assert [(one.verdict, one.parts) for one in loop.requests] == [("usual", [])] * 5
    assert (loop.unexplained, loop.measured_by) == (0, "duration")


def test_a_throttled_batch_is_marked_where_most_are_not(tmp_path: Path) -> None:
    analysis = made(12, work(12)).analysis(tmp_path)
    touched = analysis.stages.start_ns // (100 * MS) == SLOW
    throttled = {"hw_thermal": touched, "sw_power_cap": np.ones_like(touched)}
    (found,) = slowest_of_process(analysis, "p", 1, None, throttled)
    assert found.requests[0][0].throttled == ["hw_thermal"]


def requests_of(count: int, queued_ms: dict[int, float]) -> Requests:
    """Requests that wait 1 ms for service, some longer; service is that of the batches of `made`."""
    ids = np.arange(count)
    begun = (100 * ids + 10) * MS
    queued = np.asarray([queued_ms.get(one, 1.0) for one in ids.tolist()]) * MS
    return Requests(
        id=ids, intended_ns=(begun - queued).astype(np.int64), begun_ns=begun, done_ns=begun + 10 * MS,
        late_ns=np.zeros(count, dtype=np.int64), items=np.full(count, 8),
        phase=["steady"] * count, input=[None] * count, error=[None] * count,
        is_warmup=np.zeros(count, dtype=np.bool_),
    )  # fmt: skip


@pytest.mark.parametrize(("late_ms", "parts"), [(0.0, {"queue": 39.0}), (30.0, {"generator-late": 30.0, "queue": 9.0})])
def test_a_queue_is_a_part_of_the_latency_and_a_late_generator_is_none(
    tmp_path: Path, late_ms: float, parts: dict[str, float]
) -> None:
    requests = requests_of(COUNT, {21: 40.0, 0: 900.0})
    requests.is_warmup[0] = True
    requests.late_ns[21] = int(late_ms * MS)
    loop = slowest(made().analysis(tmp_path), 1, requests)
    (request,) = loop.requests
    assert (loop.measured_by, request.index, request.phase) == ("latency", 21, "steady")
    assert {part.reason: part.ms for part in request.parts} == pytest.approx(parts)
    assert [part.stage for part in request.parts] == [None] * len(parts)
    assert (request.queue_ms, request.ms) == pytest.approx((40.0, 50.0))


def test_a_request_without_a_batch_is_shown_and_not_compared(tmp_path: Path) -> None:
    request = slowest(made().analysis(tmp_path), 2, requests_of(COUNT + 1, {COUNT: 500.0})).requests[0]
    assert (request.index, request.verdict, request.reason is None) == (COUNT, "not-compared", False)


def test_a_file_of_requests(tmp_path: Path) -> None:
    """What is not known is null in the file; being late is by hand: 7 - max(1, 5) and 8 - 3."""
    path = tmp_path / "requests.parquet"
    columns = {
        "id": [0, 1, 2, 3], "phase": ["warm", "load", "load", "load"], "input": [None, "a", "b", "c"],
        "items": [1] * 4, "error": [None, "timeout", None, None], "intended_ns": [1, 3, 9, None],
        "ready_ns": [5, None, None, None], "sent_ns": [7, 8, None, None], "begun_ns": [None, 10, None, None],
        "done_ns": [20, 30, None, 40],
    }  # fmt: skip
    pq.write_table(pa.table(columns), path)
    requests, unknown = read_requests(path, {"warm"})
    assert (requests.id.tolist(), requests.begun_ns.tolist(), requests.late_ns.tolist()) == ([0, 1], [-1, 10], [2, 5])
    assert (requests.is_warmup.tolist(), requests.error) == ([True, False], [None, "timeout"])
    assert [text.split()[:3] for text in unknown] == [["1", "of", "4"]] * 2  # not answered; due at no known moment
    for wrong in ({"id": [1]}, {"id": ["x"], "intended_ns": [1], "done_ns": [2]}):
        pq.write_table(pa.table(wrong), path)
        with pytest.raises(ResultError):
            read_requests(path)


def test_warm_up_batches_and_few_others(tmp_path: Path) -> None:
    builder = Recorded()
    for index, length in enumerate((90, 10, 12, 11, 80)):
        builder.batch(index, 100 * index, 100 * index + length)
    found = slowest(builder.analysis(tmp_path, 1), 10).requests
    assert [(one.index, one.verdict) for one in found] == [(at, "not-compared") for at in (2, 3, 1)]
    assert all(one.typical is None and one.difference_ms is None for one in found)


def test_loops_of_several_processes_and_recorders(tmp_path: Path) -> None:
    """Two processes of a loop are one table; another recorder's loop is another."""
    found = []
    for number, length in enumerate((50.0, 70.0)):
        builder = Recorded()
        builder.declare("side")
        for index in range(12):
            builder.batch(index, 100 * index, 100 * index + (length if index == 3 else 10))
        for index in range(8):
            builder.batch(index, 100 * index, 100 * index + 1, recorder="side", tid=101)
        (tmp_path / str(number)).mkdir()
        found += slowest_of_process(builder.analysis(tmp_path / str(number)), f"p{number}", 2, timelines=True)
    loops, beside = pool_loops(found, 2)
    assert [(one.loop, one.processes, one.batches) for one in loops] == [("toy/batch", 2, 24), ("side/batch", 2, 16)]
    assert [(one.process, one.index, one.ms) for one in loops[0].requests] == [("p1", 3, 70.0), ("p0", 3, 50.0)]
    assert [[line.which for line in pair] for pair in beside] == [["worst", "typical"]] * 4
    assert {pair[1].cpu_ms for pair in beside[:2]} == {10.0}


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_parts_sum_to_the_difference(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    builder = Recorded()
    for at in range(0, 350, 50):
        length = data.draw(st.integers(1, 40))
        builder.batch(at // 50, at, at + length)
        for name in data.draw(st.lists(st.sampled_from("ab"), max_size=3)):
            begin, end = sorted((data.draw(st.integers(0, length)), data.draw(st.integers(0, length))))
            builder.add(f"{name} {begin}..{end}; cudaStreamSynchronize {begin}..{end + 2}", at)
    assert len(slowest(builder.analysis(tmp_path_factory.mktemp("h")), 7).requests) == 7
