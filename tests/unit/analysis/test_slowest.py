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
from perfharness.analysis.ranks.compare import calls_of_ranks
from perfharness.analysis.slowest.find import Requests, pool_loops, slowest_of_process
from perfharness.analysis.slowest.parts import batch_parts
from perfharness.analysis.slowest.ranks import waits_for_ranks, with_rank_waits
from perfharness.analysis.slowest.results import Line, Part, Reason, SlowLoop, SlowRequest
from perfharness.errors import ResultError
from perfharness.model import conventions
from perfharness.model import nsys_schema as schema
from perfharness.model.host_samples import HostEventKind, HostState
from perfharness.model.trace import Bool, CopyKind
from perfharness.runs.slowest import read_requests
from perfharness.trace import open_trace
from tests.support.made_ranks import RankBatch, Work, compute_and_reduce, made_rank
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


def slowest(
    made: Made, folder: Path, most: int = 1, requests: Requests | None = None, throttled: dict[str, Bool] | None = None
) -> SlowLoop:
    (found,) = slowest_of_process(made.analysis(folder), "p", most, requests, throttled)
    ((loop,), _) = pool_loops([found], most)
    return loop


def first(made: Made, folder: Path) -> SlowRequest:
    (request,) = slowest(made, folder).requests
    assert request.index == SLOW
    check_sum(request)
    return request


def check_sum(request: SlowRequest) -> None:
    assert request.difference_ms is not None
    assert request.small_ms is not None
    assert request.rest_ms is not None
    assert request.typical is not None
    assert request.difference_ms == pytest.approx(request.ms - request.typical.ms)
    parts = sum(part.ms for part in request.parts)
    assert parts + request.small_ms + request.rest_ms == pytest.approx(request.difference_ms)
    for part in request.parts:
        assert part.ms == pytest.approx(part.slow_ms - part.typical_ms)


def only(request: SlowRequest) -> Part:
    assert request.verdict == "explained"
    (part,) = request.parts
    return part


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
    made.stage("holder", at + 8, at + 19, tid=101)
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


NAP = Line(function="nap", file="/app/main.py", line=12)


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
    made.range("Holding GIL", int((at + 8.1) * MS), int((at + 16.2) * MS), domain="GIL Trace", tid=102)
    return 8.0


@pytest.mark.parametrize(
    ("plant", "reason", "ms", "figures"),
    [
        (longer_kernel, Reason.KERNEL_LONGER, 12.0, {"name": "gemm"}),
        (collection, Reason.COLLECTION, 15.0, {}),
        (lock, Reason.LOCK, 10.0, {"detail": "meanwhile thread 101 was in toy/holder"}),
        (file_read, Reason.FILE, 6.0, {}),
        (host_work, Reason.HOST, 9.0, {}),
        (allocation, Reason.ALLOCATE, 8.0, {"name": "cudaMalloc"}),
        (others_work, Reason.OTHER_WORK, 7.0, {}),
        (sampled_sleep, Reason.SLEEP, 20.0, {"evidence": "samples", "where": NAP}),
        (compiler, Reason.COMPILE, 20.0, {"evidence": "samples"}),
        (interpreter_lock, Reason.INTERPRETER_LOCK, 8.0, {"detail": "held by thread 102"}),
        (larger_copy, Reason.COPY_LARGER, 4.0, {"count": 1, "size_bytes": 5_000}),
        (
            extra_copy,
            Reason.MORE_COPIES,
            20.0,
            {
                "name": "copy host to device",
                "count": 2,
                "typical_count": 1.0,
                "size_bytes": 64_001_000,
                "typical_size_bytes": 1_000.0,
            },
        ),
    ],
)
def test_what_was_planted_is_found_with_its_length(
    tmp_path: Path, plant: Callable[[Made, float], float], reason: Reason, ms: float, figures: dict[str, object]
) -> None:
    request = first(Made(plant), tmp_path)
    part = only(request)
    assert request.rest_ms == pytest.approx(0.0, abs=0.1)
    assert (part.reason, part.stage) == (reason, "infer")
    assert part.ms == pytest.approx(ms, abs=0.6)
    assert {name: getattr(part, name) for name in figures} == figures


def embedded(plant: Callable[[Made, float], float], folder: Path) -> Part:
    """The only part, where the trace has no calls that only wait."""
    made = Made(plant)
    made.row(schema.TABLE_PERFHARNESS, name=schema.META_CUDA_TRACED, value="yes")
    names = {row["id"]: row["value"] for row in made.tables[schema.TABLE_STRINGS]}
    calls = made.tables[schema.TABLE_API]
    calls[:] = [call for call in calls if "Synchronize" not in names[call["nameId"]]]
    return only(first(made, folder))


def test_without_calls_that_wait_a_kernel_is_a_reason_where_it_took_longer(tmp_path: Path) -> None:
    part = embedded(longer_kernel, tmp_path)
    assert (part.reason, part.stage, part.name) == (Reason.KERNEL_LONGER, "infer", "gemm")
    assert part.ms == pytest.approx(12.0, abs=0.1)


def test_without_calls_that_wait_the_work_of_others_is_no_reason(tmp_path: Path) -> None:
    """Another thread's kernel runs while the host computes for 20 ms more."""

    def plant(made: Made, at: float) -> float:
        made.work(at, 0.0)
        made.launched(at, at + 7.6, at + 28, tid=101)
        return 20.0

    part = embedded(plant, tmp_path)
    assert (part.reason, part.stage) == (Reason.HOST, "infer")
    assert part.ms == pytest.approx(20.0, abs=0.1)


def test_two_causes_are_ranked(tmp_path: Path) -> None:
    def plant(made: Made, at: float) -> float:
        made.work(at, 12.0)
        made.os_call("pthread_mutex_lock", at + 20.2, at + 25.2)
        return 17.0

    request = first(Made(plant), tmp_path)
    assert [(part.reason, round(part.ms)) for part in request.parts] == [(Reason.KERNEL_LONGER, 12), (Reason.LOCK, 5)]


def test_nothing_planted_has_no_cause(tmp_path: Path) -> None:
    loop = slowest(Made(), tmp_path, most=5)
    assert [one.verdict for one in loop.requests] == ["usual"] * 5
    assert [one.parts for one in loop.requests] == [[]] * 5
    assert (loop.common, loop.unexplained, loop.measured_by) == ([], 0, "duration")


def test_throttled_batches_say_so(tmp_path: Path) -> None:
    made = Made(longer_kernel)
    analysis = made.analysis(tmp_path)
    touched = analysis.stages.start_ns >= int((EVERY * SLOW) * MS)
    touched &= analysis.stages.end_ns < int((EVERY * (SLOW + 1)) * MS)
    (found,) = slowest_of_process(analysis, "p", 1, None, {"hw_thermal": touched})
    (part,) = found.requests[0].parts
    assert (part.reason, part.detail) == (Reason.THROTTLED, "hw_thermal")
    (always,) = slowest_of_process(analysis, "p", 1, None, {"hw_thermal": np.ones_like(touched)})
    assert always.requests[0].parts[0].reason == Reason.KERNEL_LONGER


def marked(made: Made, kind: str, at: float, value_ms: float) -> None:
    made.mark(kind, int(at * MS), domain="perfharness", category="toy", payload=int(value_ms * MS))


class Read(Recorded):
    """Batches of 10 ms in `decode`, one of them 30 ms long; counters of the thread read at the ends of batches."""

    def __init__(self, collected_ms: float, ran_ms: float, mark: str = conventions.MARK_COLLECTING) -> None:
        super().__init__()
        ready = collected = 0.0
        for index in range(20):
            at, slow = 100.0 * index, index == 7
            length = 30.0 if slow else 10.0
            marked(self, conventions.MARK_READY_TIME, at + 0.01, ready)  # type: ignore[arg-type]
            if collected:
                marked(self, mark, at + 0.011, collected)  # type: ignore[arg-type]
            ready += ran_ms if slow else 10.0
            collected += collected_ms if slow else 0.0
            marked(self, conventions.MARK_READY_TIME, at + length - 0.02, ready)  # type: ignore[arg-type]
            if collected:
                marked(self, mark, at + length - 0.019, collected)  # type: ignore[arg-type]
            self.batch(index, at, at + length, items=None)
            self.stage("decode", at + 0.005, at + length - 0.01)


def slowest_read(made: Recorded, folder: Path) -> SlowRequest:
    (found,) = slowest_of_process(Analysis(open_trace(made.write(folder / "t.sqlite"))), "p", 1)
    check_sum(found.requests[0])
    return found.requests[0]


@pytest.mark.parametrize(
    ("mark", "collected_ms", "ran_ms", "reason", "ms", "evidence"),
    [
        (conventions.MARK_COLLECTING, 19.8, 29.97, Reason.COLLECTION, 19.8, "readings"),
        (conventions.MARK_COMPILING, 19.8, 29.97, Reason.COMPILE, 19.8, "readings"),
        (conventions.MARK_CROWDED, 19.8, 29.97, Reason.CROWDED, 19.8, "readings"),
        (conventions.MARK_COLLECTING, 0.0, 10.0, Reason.OFF_CPU, 20.0, "readings"),  # it waited; for what is not known
        (conventions.MARK_COLLECTING, 0.0, 29.97, Reason.HOST, 20.0, "trace"),
    ],
)
def test_what_the_recorders_counters_tell(
    tmp_path: Path, mark: str, collected_ms: float, ran_ms: float, reason: Reason, ms: float, evidence: str
) -> None:
    part = only(slowest_read(Read(collected_ms, ran_ms, mark), tmp_path))
    assert (part.reason, part.stage, part.evidence) == (reason, "decode", evidence)
    assert part.ms == pytest.approx(ms, abs=0.1)


def requests_of(made_batches: int, queued_ms: dict[int, float], base_ns: int = 0) -> Requests:
    """Requests that wait 1 ms for service, some longer; service is that of the batches of `Made`."""
    ids = np.arange(made_batches)
    begun = base_ns + (EVERY * ids + 10) * MS
    queued = np.asarray([queued_ms.get(one, 1.0) for one in ids.tolist()]) * MS
    count = len(ids)
    return Requests(
        id=ids, intended_ns=(begun - queued).astype(np.int64), begun_ns=begun, done_ns=begun + 10 * MS,
        late_ns=np.zeros(count, dtype=np.int64), items=np.full(count, 8),
        phase=["steady"] * count, input=[None] * count, error=[None] * count,
        is_warmup=np.zeros(count, dtype=np.bool_),
    )  # fmt: skip


def test_a_queue_is_a_part_of_the_latency(tmp_path: Path) -> None:
    loop = slowest(Made(), tmp_path, 1, requests_of(COUNT, {21: 40.0}))
    (request,) = loop.requests
    assert (loop.measured_by, request.index, request.phase) == ("latency", 21, "steady")
    check_sum(request)
    part = only(request)
    assert (part.reason, part.stage, part.detail) == (Reason.QUEUE, None, None)  # nothing was in service meanwhile
    assert (part.ms, request.queue_ms, request.ms) == pytest.approx((39.0, 40.0, 50.0))


def test_a_queue_names_the_request_that_was_in_service(tmp_path: Path) -> None:
    requests = requests_of(COUNT, {SLOW + 1: 95.0})
    requests.done_ns[SLOW] += 79 * MS

    def plant(made: Made, at: float) -> float:
        made.work(at, 0.0)
        return 79.0

    part = only(slowest(Made(plant), tmp_path, 1, requests).requests[0])
    # By hand: batch 37 ends 89 ms after its begin (and its noise), 11 ms before the next begins, which waits for 95.
    assert part.reason == Reason.QUEUE
    assert part.detail is not None
    assert part.detail.startswith("meanwhile request 37 was in service, for 84.")


def test_a_late_generator_is_no_queue(tmp_path: Path) -> None:
    requests = requests_of(COUNT, {21: 40.0})
    requests.late_ns[21] = 30 * MS
    (request,) = slowest(Made(), tmp_path, 1, requests).requests
    check_sum(request)
    assert request.queue_ms == 40.0
    assert [part.reason for part in request.parts] == [Reason.GENERATOR, Reason.QUEUE]
    assert [part.ms for part in request.parts] == pytest.approx([30.0, 9.0])


def test_a_file_of_requests(tmp_path: Path) -> None:
    """What is not known is null in the file; being late is by hand: 7 - max(1, 5) and 8 - 3."""
    columns = {
        "id": [0, 1, 2], "phase": ["warm", "load", "load"], "input": [None, "a", "b"], "items": [1, 1, 1],
        "error": [None, "timeout", None], "intended_ns": [1, 3, 9], "ready_ns": [5, None, None],
        "sent_ns": [7, 8, None], "begun_ns": [None, 10, None], "done_ns": [20, 30, None],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "requests.parquet")
    requests, unknown = read_requests(tmp_path / "requests.parquet", {"warm"})
    assert (requests.id.tolist(), requests.begun_ns.tolist(), requests.late_ns.tolist()) == ([0, 1], [-1, 10], [2, 5])
    assert (requests.is_warmup.tolist(), requests.error) == ([True, False], [None, "timeout"])
    assert len(unknown) == 1


def test_requests_that_were_answered_and_due_at_no_known_moment_are_not_said_to_have_no_answer(tmp_path: Path) -> None:
    """As of MLPerf's Server without its trace log."""
    columns = {"id": [0, 1, 2], "intended_ns": pa.array([None] * 3, pa.int64()), "done_ns": [20, 30, None]}
    pq.write_table(pa.table(columns), tmp_path / "requests.parquet")
    requests, unknown = read_requests(tmp_path / "requests.parquet")
    assert len(requests) == 0
    assert [text.split()[:3] for text in unknown] == [["1", "of", "3"], ["2", "of", "3"]]


@pytest.mark.parametrize("columns", [{"id": [1]}, {"id": ["x"], "intended_ns": [1], "done_ns": [2]}])
def test_a_file_that_is_none_of_requests_is_refused(tmp_path: Path, columns: dict[str, list[object]]) -> None:
    pq.write_table(pa.table(columns), tmp_path / "requests.parquet")
    with pytest.raises(ResultError):
        read_requests(tmp_path / "requests.parquet")


def test_a_request_without_a_batch_is_shown_and_not_compared(tmp_path: Path) -> None:
    requests = requests_of(COUNT + 1, {COUNT: 500.0})
    loop = slowest(Made(), tmp_path, 2, requests)
    first_of_them = loop.requests[0]
    assert (first_of_them.index, first_of_them.verdict) == (COUNT, "not-compared")
    assert first_of_them.reason is not None


def test_requests_of_a_warm_up_phase_do_not_count(tmp_path: Path) -> None:
    requests = requests_of(COUNT, {0: 900.0, 21: 40.0})
    requests.is_warmup[0] = True
    assert slowest(Made(), tmp_path, 1, requests).requests[0].index == 21


def test_warm_up_batches_and_few_others(tmp_path: Path) -> None:
    made = Recorded()
    for index, length in enumerate((90, 10, 12, 11, 80)):
        made.batch(index, 100 * index, 100 * index + length)
    analysis = Analysis(open_trace(made.write(tmp_path / "t.sqlite")), AnalysisOptions(1))
    (found,) = slowest_of_process(analysis, "p", 10)
    assert [(one.index, one.verdict) for one in found.requests] == [
        (2, "not-compared"), (3, "not-compared"), (1, "not-compared"),
    ]  # fmt: skip
    assert all(one.typical is None and one.difference_ms is None for one in found.requests)


def test_batches_are_compared_with_those_of_as_many_items(tmp_path: Path) -> None:
    made = Recorded()
    for index in range(40):
        large = index % 2
        made.batch(index, 100 * index, 100 * index + (50 if large else 10) + 0.001 * index, items=64 if large else 8)
    (found,) = slowest_of_process(Analysis(open_trace(made.write(tmp_path / "t.sqlite"))), "p", 1)
    (request,) = found.requests
    assert (request.index, request.verdict, request.items) == (39, "usual", 64)
    assert request.typical is not None
    assert (request.typical.batches, request.typical.of, request.typical.alike) == (19, 19, ["64 items"])


def test_what_several_have_in_common(tmp_path: Path) -> None:
    made = Recorded()
    for index in range(60):
        extra = 20.0 if index in (5, 25, 45) else 7.0 if index == 33 else 0.0
        stage = "infer" if index == 33 else "decode"
        at = 100.0 * index
        made.batch(index, at, at + 10 + extra)
        made.stage("decode", at, at + 4 + (extra if stage == "decode" else 0.0))
        begin = at + 4 + (extra if stage == "decode" else 0.0)
        made.stage("infer", begin, at + 10 + extra)
    (found,) = slowest_of_process(Analysis(open_trace(made.write(tmp_path / "t.sqlite"))), "p", 4)
    ((loop,), _) = pool_loops([found], 4)
    assert [one.index for one in loop.requests] == [5, 25, 45, 33]
    (common,) = loop.common
    assert (common.reason, common.stage, common.requests, common.of) == (Reason.HOST, "decode", 3, 4)
    assert common.median_ms == pytest.approx(20.0)


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


def test_a_rank_that_waited_for_another_says_for_which(tmp_path: Path) -> None:
    """Rank 1 computes 40 ms longer in batch 7 of 12; rank 0 waits for it in `all_reduce`."""
    offset_us = 250.0

    def work(rank: int) -> Work:
        def of_batch(batch: RankBatch) -> float:
            own = (100.0, 120.0 + (40_000.0 if batch.index == 7 else 0.0))
            return compute_and_reduce(own, rank)(batch)

        return of_batch

    ranks = [made_rank(tmp_path, rank, work(rank), offset_us=rank * offset_us, apart_us=50_000) for rank in (0, 1)]
    waits = waits_for_ranks([calls_of_ranks(ranks)])
    found = [
        loop
        for rank in (0, 1)
        for loop in slowest_of_process(Analysis(open_trace(tmp_path / f"rank_{rank}.sqlite")), f"rank_{rank}", 1)
    ]
    (loop,) = with_rank_waits(pool_loops(found, 2)[0], waits)
    by_process = {one.process: one for one in loop.requests}
    first, second = by_process["rank_0"], by_process["rank_1"]
    assert (first.index, second.index) == (7, 7)
    assert first.waited_for is not None
    # By hand: 40,120 - 100 us; in the others 120 - 100.
    assert (first.waited_for.rank, first.waited_for.ms, first.waited_for.typical_ms) == pytest.approx((1, 40.02, 0.02))
    assert second.waited_for is None
    assert [(part.stage, round(part.ms)) for part in second.parts] == [("compute", 40)]
    assert [round(part.ms) for part in first.parts] == [40]


@settings(max_examples=40)
@given(data=st.data())
def test_the_parts_of_batches_sum_to_their_durations_and_differences_to_theirs(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is nested, overlaps, or reaches over the ends of batches."""
    made = Recorded()
    moments = st.integers(0, 40)
    for index in range(7):
        at = 50 * index
        length = data.draw(st.integers(0, 40))
        made.batch(index, at, at + length)
        for _ in range(data.draw(st.integers(0, 3))):
            begin, end = sorted((data.draw(moments), data.draw(moments)))
            made.stage(data.draw(st.sampled_from("ab")), at + min(begin, length), at + min(end, length))
        for _ in range(data.draw(st.integers(0, 4))):
            begin, end = sorted((data.draw(moments), data.draw(moments)))
            name = data.draw(st.sampled_from(["cudaStreamSynchronize", "cudaMalloc", "cudaLaunchKernel"]))
            correlation = made.call(name, (at + begin) * MS, (at + end) * MS)
            if name == "cudaLaunchKernel":
                run = sorted((data.draw(st.integers(0, 90)), data.draw(st.integers(0, 90))))
                made.operation((at + run[0]) * MS, (at + run[1]) * MS, correlation)
    folder = tmp_path_factory.mktemp("h")
    analysis = Analysis(open_trace(made.write(folder / "t.sqlite")))
    stages = analysis.stages
    rows = np.flatnonzero(stages.is_batch)
    parts = batch_parts(analysis, rows)
    whole = parts.matrix(np.arange(len(rows)), np.arange(len(parts.keys))).sum(axis=1)
    assert whole.tolist() == (stages.end_ns - stages.start_ns)[rows].tolist()
    (found,) = slowest_of_process(analysis, "p", 7)
    for request in found.requests:
        check_sum(request)
