"""The slowest batches beside the typical one: planted differences on made traces, in ms by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.slowest import Requests, SlowLoop, SlowRequest, pool_loops, slowest_of_process
from perfharness.errors import ResultError
from perfharness.model import nsys_schema as schema
from perfharness.model.host_samples import HostEventKind, HostState
from perfharness.model.trace import CopyKind
from perfharness.runs.slowest import read_requests
from perfharness.trace import open_trace
from tests.support.probe_builder import ProbeBuilder
from tests.unit.recorded_traces import MS, Recorded

SLOW = 37
COUNT = 60
EVERY = 100
"""ms between the begins of batches."""


class Made(Recorded):
    """Batches 100 ms apart of `decode` (0 to 2 ms) and `infer` (2 to 9 ms), which waits for a copy and a kernel; each a
    little different. Times are ms; `extra` lengthens `infer` of one batch.
    """

    def __init__(self, plant: Callable[[Made, float], float] | None = None, count: int = COUNT, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self.probe = ProbeBuilder()
        noise = np.random.default_rng(3).normal(0.0, 0.02, (count, 2))
        for index in range(count):
            at = EVERY * index + 10.0
            extra = plant(self, at) if plant is not None and index == SLOW else 0.0
            self.one(index, at, extra, *np.abs(noise[index]).tolist())

    def one(self, index: int, at: float, extra: float, first: float, second: float) -> None:
        """A batch."""
        self.batch(index, at, at + 10 + extra + first + second, items=8)
        self.stage("decode", at, at + 2 + first)
        at += first
        self.stage("infer", at + 2, at + 9 + extra + second)
        if index != SLOW or extra == 0.0:
            self.work(at, 0.0, second)
        for time in (at + 2.5, at + 8.5 + extra):
            self.probe.sample(int(time * MS), ("infer@/app/main.py:7",))

    def work(self, at: float, longer: float, second: float = 0.0) -> None:
        """A copy of 1 ms and a kernel of 3 ms, both waited for."""
        self.copy(at + 3, at + 3.5, at + 4.5, 1_000)
        self.launched(at + 3.2, at + 4.5, at + 7.5 + longer)
        self.waited(at + 3.4, at + 8 + longer + second)

    def copy(self, call: float, start: float, end: float, size: int) -> None:
        correlation = self.call("cudaMemcpyAsync_v3020", int(call * MS), int((call + 0.1) * MS))
        self.operation(
            int(start * MS), int(end * MS), correlation, table=schema.TABLE_MEMCPY, bytes=size,
            copyKind=int(CopyKind.HOST_TO_DEVICE), srcKind=1, dstKind=2,
        )  # fmt: skip

    def launched(self, at: float, start: float, end: float, name: str = "gemm", tid: int = 100) -> None:
        """A kernel of a call of 0.1 ms."""
        self.kernel((int(at * MS), int((at + 0.1) * MS)), (int(start * MS), int(end * MS)), name=name, tid=tid)

    def waited(self, at: float, end: float) -> None:
        self.call("cudaStreamSynchronize_v3020", int(at * MS), int(end * MS))

    def os_call(self, name: str, start: float, end: float, tid: int = 100) -> None:
        self.row(
            "OSRT_API", start=int(start * MS), end=int(end * MS), globalTid=schema.global_tid(100, tid),
            nameId=self.string(name),
        )  # fmt: skip

    def analysis(self, folder: Path, warmup: int = 0) -> Analysis:
        probe = self.probe.build() if self.probe.has_samples else None
        return Analysis(open_trace(self.write(folder / "t.sqlite")), AnalysisOptions(warmup), host_probe=probe)


def slowest(analysis: Analysis, most: int = 1, requests: Requests | None = None) -> SlowLoop:
    (found,) = slowest_of_process(analysis, "p", most, requests)
    ((loop,), _) = pool_loops([found], most)
    for request in loop.requests:
        check_sum(request)
    return loop


def check_sum(request: SlowRequest) -> None:
    if request.typical is None:
        return
    assert request.difference_ms == pytest.approx(request.ms - request.typical.ms)
    sums = [*(part.ms for part in request.parts), request.small_ms or 0, request.rest_ms or 0]
    assert sum(sums) == pytest.approx(request.difference_ms, abs=1e-6)


def longer_kernel(made: Made, at: float) -> float:
    made.work(at, 12.0)
    return 12.0


def extra_copy(made: Made, at: float) -> float:
    made.copy(at + 3.1, at + 7.5, at + 27.5, 64_000_000)
    made.work(at, 20.0)
    return 20.0


def collection(made: Made, at: float) -> float:
    made.work(at, 0.0)
    made.probe.sample(int(at * MS))
    made.probe.event(HostEventKind.COLLECTION, int((at + 8.1) * MS), int((at + 23.1) * MS), 2)
    return 15.0


def lock(made: Made, at: float) -> float:
    made.work(at, 0.0)
    made.os_call("pthread_mutex_lock", at + 8.2, at + 18.2)
    return 10.0


def file_read(made: Made, at: float) -> float:
    made.work(at, 0.0)
    made.os_call("read", at + 8.2, at + 14.2)
    return 6.0


def host_work(made: Made, at: float) -> float:
    made.work(at, 0.0)
    return 9.0


def sampled_sleep(made: Made, at: float) -> float:
    made.work(at, 0.0)
    made.probe.samples(int((at + 8) * MS), int((at + 28) * MS), ("nap@/app/main.py:12",), state=HostState.SLEEP)
    return 20.0


def allocation(made: Made, at: float) -> float:
    made.work(at, 0.0)
    made.call("cudaMalloc_v3020", int((at + 8.1) * MS), int((at + 16.1) * MS))
    return 8.0


def others_work(made: Made, at: float) -> float:
    """Another thread's kernel was on the GPU before the batch's own."""
    made.launched(at + 1, at + 3.3, at + 10.5, name="x", tid=101)
    made.copy(at + 3, at + 10.5, at + 11.5, 1_000)
    made.launched(at + 3.2, at + 11.5, at + 14.5)
    made.waited(at + 3.4, at + 15)
    return 7.0


def larger_copy(made: Made, at: float) -> float:
    made.copy(at + 3, at + 3.5, at + 8.5, 5_000)
    made.launched(at + 3.2, at + 8.5, at + 11.5)
    made.waited(at + 3.4, at + 12)
    return 4.0


def compiler(made: Made, at: float) -> float:
    made.work(at, 0.0)
    stack = ("visit@/usr/lib/site-packages/torch/_dynamo/convert_frame.py:9", "run@/app/main.py:3")
    made.probe.samples(int((at + 8.5) * MS), int((at + 28.5) * MS), stack)
    return 20.0


def interpreter_lock(made: Made, at: float) -> float:
    made.work(at, 0.0)
    made.range("Waiting for GIL", int((at + 8.2) * MS), int((at + 16.2) * MS), domain="GIL Trace")
    return 8.0


@pytest.mark.parametrize(
    ("plant", "reason", "ms", "name"),
    [
        (longer_kernel, "sync", 12.0, "gemm"),
        (extra_copy, "sync", 20.0, "copy host to device"),
        (larger_copy, "sync", 4.0, "copy host to device"),
        (others_work, "sync", 7.0, "GPU work of others"),
        (collection, "gc", 15.0, None),
        (lock, "lock", 10.0, None),
        (interpreter_lock, "gil", 8.0, None),
        (file_read, "file", 6.0, None),
        (allocation, "alloc", 8.0, "cudaMalloc"),
        (host_work, "unknown", 9.0, None),
        (sampled_sleep, "sleep", 20.0, None),
        (compiler, "compile", 20.0, None),
    ],
)
def test_what_was_planted_is_found_with_its_length(
    tmp_path: Path, plant: Callable[[Made, float], float], reason: str, ms: float, name: str | None
) -> None:
    (request,) = slowest(Made(plant).analysis(tmp_path)).requests
    assert (request.index, request.verdict) == (SLOW, "explained")
    (part,) = request.parts
    assert (part.reason, part.stage, part.name) == (reason, "infer", name)
    assert part.ms == pytest.approx(ms, abs=0.6)
    assert request.rest_ms == pytest.approx(0.0, abs=0.1)
    if part.samples is not None:
        assert (part.samples, part.where and part.where.file) == (20, "/app/main.py")


def test_gpu_work_stands_beside_its_usual_count_time_and_size(tmp_path: Path) -> None:
    (request,) = slowest(Made(extra_copy).analysis(tmp_path)).requests
    copies = next(one for one in request.operations if one.name == "copy host to device")
    assert (copies.count, copies.typical_count, copies.gpu_ms, copies.typical_gpu_ms) == (2, 1.0, 21.0, 1.0)
    assert (copies.copied_bytes, copies.typical_copied_bytes) == (64_001_000, 1_000.0)


def test_without_calls_that_wait_nothing_is_invented(tmp_path: Path) -> None:
    """The embedded tracer does not record them in the measured pass: what the thread did is unknown."""

    def plant(made: Made, at: float) -> float:
        made.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_TRACED, value="yes")
        return longer_kernel(made, at)

    made = Made(plant)
    names = {row["id"]: row["value"] for row in made.tables[schema.TABLE_STRINGS]}
    calls = made.tables[schema.TABLE_API]
    calls[:] = [call for call in calls if "Synchronize" not in names[call["nameId"]]]
    (part,) = slowest(made.analysis(tmp_path)).requests[0].parts
    assert (part.reason, part.stage, part.name) == ("unknown", "infer", "gemm")
    assert part.ms == pytest.approx(12.0, abs=0.1)


def test_two_causes_are_ranked(tmp_path: Path) -> None:
    def plant(made: Made, at: float) -> float:
        made.work(at, 12.0)
        made.os_call("pthread_mutex_lock", at + 20.2, at + 25.2)
        return 17.0

    (request,) = slowest(Made(plant).analysis(tmp_path)).requests
    assert [(part.reason, round(part.ms)) for part in request.parts] == [("sync", 12), ("lock", 5)]


def test_nothing_planted_has_no_cause(tmp_path: Path) -> None:
    loop = slowest(Made().analysis(tmp_path), most=5)
    assert [(one.verdict, one.parts) for one in loop.requests] == [("usual", [])] * 5
    assert (loop.unexplained, loop.measured_by) == (0, "duration")


def test_a_throttled_batch_is_marked_where_most_are_not(tmp_path: Path) -> None:
    analysis = Made(longer_kernel).analysis(tmp_path)
    touched = analysis.stages.start_ns // (EVERY * MS) == SLOW
    throttled = {"hw_thermal": touched, "sw_power_cap": np.ones_like(touched)}
    (found,) = slowest_of_process(analysis, "p", 1, None, throttled)
    assert found.requests[0][0].throttled == ["hw_thermal"]


def requests_of(made_batches: int, queued_ms: dict[int, float]) -> Requests:
    """Requests that wait 1 ms for service, some longer; service is that of the batches of `Made`."""
    ids = np.arange(made_batches)
    begun = (EVERY * ids + 10) * MS
    queued = np.asarray([queued_ms.get(one, 1.0) for one in ids.tolist()]) * MS
    count = len(ids)
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
    loop = slowest(Made().analysis(tmp_path), 1, requests)
    (request,) = loop.requests
    assert (loop.measured_by, request.index, request.phase) == ("latency", 21, "steady")
    assert {part.reason: part.ms for part in request.parts} == pytest.approx(parts)
    assert [part.stage for part in request.parts] == [None] * len(parts)
    assert (request.queue_ms, request.ms) == pytest.approx((40.0, 50.0))


def test_a_request_without_a_batch_is_shown_and_not_compared(tmp_path: Path) -> None:
    request = slowest(Made().analysis(tmp_path), 2, requests_of(COUNT + 1, {COUNT: 500.0})).requests[0]
    assert (request.index, request.verdict, request.reason is None) == (COUNT, "not-compared", False)


def test_a_file_of_requests(tmp_path: Path) -> None:
    """What is not known is null in the file; being late is by hand: 7 - max(1, 5) and 8 - 3."""
    columns = {
        "id": [0, 1, 2, 3], "phase": ["warm", "load", "load", "load"], "input": [None, "a", "b", "c"],
        "items": [1] * 4, "error": [None, "timeout", None, None], "intended_ns": [1, 3, 9, None],
        "ready_ns": [5, None, None, None], "sent_ns": [7, 8, None, None], "begun_ns": [None, 10, None, None],
        "done_ns": [20, 30, None, 40],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "requests.parquet")
    requests, unknown = read_requests(tmp_path / "requests.parquet", {"warm"})
    assert (requests.id.tolist(), requests.begun_ns.tolist(), requests.late_ns.tolist()) == ([0, 1], [-1, 10], [2, 5])
    assert (requests.is_warmup.tolist(), requests.error) == ([True, False], [None, "timeout"])
    assert [text.split()[:3] for text in unknown] == [["1", "of", "4"]] * 2  # not answered; due at no known moment


@pytest.mark.parametrize("columns", [{"id": [1]}, {"id": ["x"], "intended_ns": [1], "done_ns": [2]}])
def test_a_file_that_is_none_of_requests_is_refused(tmp_path: Path, columns: dict[str, list[object]]) -> None:
    pq.write_table(pa.table(columns), tmp_path / "requests.parquet")
    with pytest.raises(ResultError):
        read_requests(tmp_path / "requests.parquet")


def test_warm_up_batches_and_few_others(tmp_path: Path) -> None:
    made = Recorded()
    for index, length in enumerate((90, 10, 12, 11, 80)):
        made.batch(index, 100 * index, 100 * index + length)
    analysis = Analysis(open_trace(made.write(tmp_path / "t.sqlite")), AnalysisOptions(1))
    found = slowest(analysis, 10).requests
    assert [(one.index, one.verdict) for one in found] == [(at, "not-compared") for at in (2, 3, 1)]
    assert all(one.typical is None and one.difference_ms is None for one in found)


def test_loops_of_several_processes_and_recorders(tmp_path: Path) -> None:
    """Two processes of a loop are one table; another recorder's loop is another."""
    found = []
    for number, length in enumerate((50.0, 70.0)):
        made = Recorded()
        made.declare("side")
        for index in range(12):
            made.batch(index, 100 * index, 100 * index + (length if index == 3 else 10))
        for index in range(8):
            made.batch(index, 100 * index, 100 * index + 1, recorder="side", tid=101)
        (tmp_path / str(number)).mkdir()
        analysis = Analysis(open_trace(made.write(tmp_path / str(number) / "t.sqlite")))
        found += slowest_of_process(analysis, f"p{number}", 2, timelines=True)
    loops, beside = pool_loops(found, 2)
    assert [(loop.loop, loop.processes, loop.batches) for loop in loops] == [
        ("toy/batch", 2, 24),
        ("side/batch", 2, 16),
    ]
    assert [(one.process, one.index, one.ms) for one in loops[0].requests] == [("p1", 3, 70.0), ("p0", 3, 50.0)]
    assert [[line.which for line in pair] for pair in beside] == [["worst", "typical"]] * 4
    (typical,) = {pair[1].cpu_ms for pair in beside[:2]}
    assert typical == 10.0


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_parts_sum_to_the_difference(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    made = Recorded()
    for index in range(7):
        at, length = 50 * index, data.draw(st.integers(1, 40))
        made.batch(index, at, at + length)
        for name in data.draw(st.lists(st.sampled_from("ab"), max_size=3)):
            begin, end = sorted((data.draw(st.integers(0, length)), data.draw(st.integers(0, length))))
            made.stage(name, at + begin, at + end)
            made.call("cudaStreamSynchronize", (at + begin) * MS, (at + end + 2) * MS)
    analysis = Analysis(open_trace(made.write(tmp_path_factory.mktemp("h") / "t.sqlite")))
    assert len(slowest(analysis, 7).requests) == 7
