"""What a recorder writes for each way to annotate, and what it refuses."""

# ruff: noqa: PT012, SIM117, PERF203 - what is tested here is how blocks end, so they stand whole inside pytest.raises

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfharness import PerfRecorder
from perfharness.errors import RecorderError
from perfharness.model.conventions import MARK_CLOCK, MARK_COLLECTING, MARK_COMPILING, MARK_QUEUED, MARK_READY_TIME
from perfharness.recorder import collecting, compiling, core, crowding
from perfharness.recorder.recorder import SCOPES_KEPT
from perfharness.recorder.stacks import NODES_KEPT
from perfharness.recorder.thread_times import thread_times_ns
from perfharness.tracer import range_log
from perfharness.tracer.range_log import RangeLog
from tests.unit.recorder_events import drawn, events


def counts(perf: PerfRecorder) -> tuple[int, int, int, int]:
    totals = perf._core.registry.totals()
    return totals.ranges, totals.batches, totals.items, totals.deleted_ranges


# ---- the events ----


def test_what_an_event_carries(perf: PerfRecorder, log: RangeLog) -> None:
    """Its domain, its category after the recorder's name, a payload, and a time that grows."""
    perf.push_range("batch", domain="mine", category="io", batch_idx=7)
    perf.pop_range(domain="mine", total_items=3, delete_range=True)
    other = PerfRecorder("other", domain="elsewhere")
    for category in (0, None):
        other.push_range("stage", category=category)
        other.pop_range()
    written = events(log)
    assert [(e.op, e.message, e.domain, e.category, e.payload) for e in written if e.op != "pop"] == [
        ("mark", "perfharness.recorder", "perfharness", "rec", None),
        ("mark", "perfharness.recorder", "mine", "rec", None),
        ("push", "batch", "mine", "rec/io", 7),
        ("mark", "perfharness.items", "mine", "rec/io", 3),
        ("mark", "perfharness.delete", "mine", "rec/io", None),
        ("mark", "perfharness.recorder", "elsewhere", "other", None),
        ("push", "stage", "elsewhere", "other/0", None),
        ("push", "stage", "elsewhere", "other", None),
    ]
    times = [e.time_ns for e in written]
    assert times == sorted(times)
    assert (counts(perf), counts(other)) == ((1, 0, 0, 1), (2, 0, 0, 0))


@pytest.mark.parametrize(
    ("color", "argb"), [(None, 0x0000FF), ("red", 0xFF0000), ("#0a0B0c", 0x0A0B0C), (0x80112233, 0x80112233)]
)
def test_colours(perf: PerfRecorder, log: RangeLog, color: Any, argb: int) -> None:
    perf.push_range("stage", color)
    perf.pop_range()
    assert events(log)[1].color == argb


# ---- counting ----


def test_numpy_like_integers_are_counts(perf: PerfRecorder, log: RangeLog) -> None:
    class Scalar:
        def __index__(self) -> int:
            return 6

    perf.push_range("batch", batch_idx=Scalar())  # type: ignore[arg-type]
    perf.pop_range(total_items=Scalar())  # type: ignore[arg-type]
    assert drawn(log) == "!recorder batch=6(!items=6)"


# ---- what is refused ----


Push = tuple[str, dict[str, Any]]
STAGE: Push = ("stage", {})
BATCH: Push = ("batch", {"batch_idx": 2})
MINE: Push = ("a", {"domain": "mine"})
REFUSED: list[tuple[list[Push], str, dict[str, Any], str]] = [
    ([], "pop_range", {}, "'rec'"),
    ([], "pop_range", {"total_items": 1}, "'rec'"),
    ([STAGE], "pop_range", {"total_items": 3}, "'stage'"),
    ([BATCH, STAGE], "pop_range", {"total_items": 3}, "'batch_2'"),
    *(
        ([BATCH], "pop_range", {"total_items": items}, "batch 'batch_2': total_items must be")
        for items in (-1, 1.5, "3", True, [1], 1 << 63)
    ),
    *(
        ([], "push_range", {"message": "batch", "batch_idx": index}, "batch 'batch': batch_idx")
        for index in (1.0, "1", int, True, 1 << 63, -(1 << 63) - 1)
    ),
    *(
        ([], "push_range", {"message": message, "batch_idx": index}, "range")
        for message in (None, "", 3, ("a",), ["a"])
        for index in (None, 1)
    ),
    ([], "push_range", {"message": "a", "category": "gpu#1"}, "gpu#1"),
    ([], "push_range", {"message": "a", "color": "no such"}, "'no such'"),
    ([MINE], "pop_range", {}, "'mine'.*'perfharness'"),
    ([STAGE], "pop_range", {"domain": "mine"}, "'perfharness'.*'mine'"),
    ([BATCH], "finalize", {}, "batch_2"),
]


@pytest.mark.parametrize(("pushed", "call", "arguments", "problem"), REFUSED)
def test_what_is_refused_changes_nothing(
    perf: PerfRecorder, log: RangeLog, pushed: list[Push], call: str, arguments: dict[str, Any], problem: str
) -> None:
    for message, options in pushed:
        perf.push_range(message, **options)
    before = perf._core.open_ranges(), drawn(log), counts(perf)
    with pytest.raises(RecorderError, match=problem):
        getattr(perf, call)(**arguments)
    assert (perf._core.open_ranges(), drawn(log), counts(perf)) == before
    for _, options in reversed(pushed):
        perf.pop_range(domain=options.get("domain"))
    perf.finalize()
    perf.finalize()


def test_names_and_indices_that_may_be_used(perf: PerfRecorder, log: RangeLog) -> None:
    with pytest.raises(RecorderError, match="a#12"):
        PerfRecorder("a#12")
    indices = [0, -3, 1 << 62, -(1 << 63), (1 << 63) - 1]
    for index in indices:
        with perf.batch(index, message="a#1", category="gpu#one"):
            pass
    assert [event.payload for event in events(log) if event.op == "push"] == indices


# ---- with ----


def test_ready_time_is_marked_in_batches_every_5_ms(
    perf: PerfRecorder, log: RangeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_us = 0
    monkeypatch.setattr(core, "monotonic_ns", lambda: 1_000_000_000 + now_us * 1000)
    monkeypatch.setattr(core, "thread_times_ns", lambda: (now_us * 3, now_us * 4))
    monkeypatch.setattr(collecting, "spent_ns", lambda: now_us * 2)
    monkeypatch.setattr(compiling, "spent_ns", lambda: now_us * 6)
    for form, begin_us, end_us in (
        ("call", 0, 4999),
        ("with", 5000, 5500),
        ("call", 9999, 10000),
        ("with", 12500, 90000),
    ):
        now_us = begin_us
        if form == "with":
            with perf.batch(0, total_items=1), perf.range("stage"):
                now_us = end_us
        else:
            perf.push_range("batch", batch_idx=0)
            now_us = end_us
            perf.pop_range(total_items=1)
    every = [event for event in events(log, clock_marks=True) if event.message != MARK_CLOCK]
    collected = [event.payload for event in every if event.message == MARK_COLLECTING]
    assert collected == [2 * each for each in (5000, 10000, 90000)]  # none before the first collection
    compiled = [event.payload for event in every if event.message == MARK_COMPILING]
    assert compiled == [6 * each for each in (5000, 10000, 90000)]
    marked = [event.payload for event in every if event.message == MARK_READY_TIME]
    assert marked == [7 * each for each in (0, 5000, 10000, 90000)]
    assert [event.op for event in every if event.op != "mark" or event.message == MARK_READY_TIME] == [
        "push", "mark", "pop",  # at its begin
        "push", "mark", "push", "pop", "pop",
        "push", "mark", "pop",  # at its end
        "push", "push", "mark", "pop", "pop",  # at the end of the stage, so that the batch's comes too early
    ]  # fmt: skip
    waited = [event.payload for event in every if event.message == MARK_QUEUED]
    assert waited == [4 * each for each in (5000, 10000, 90000)]  # none before the first wait


@pytest.mark.parametrize(("slow_readings", "marked"), [(0, 1), (1, 2), (2, 3), (3, 4), (9, 4)])
def test_a_reading_that_took_long_is_done_again(
    slow_readings: int, marked: int, perf: PerfRecorder, log: RangeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading says how many there were; the slow ones lose their CPU for 1 ms."""
    now_us = readings = 0

    def read() -> tuple[int, int]:
        nonlocal now_us, readings
        readings += 1
        now_us += 1000 if readings <= slow_readings else 10
        return readings, 0

    monkeypatch.setattr(core, "monotonic_ns", lambda: 1_000_000_000 + now_us * 1000)
    monkeypatch.setattr(core, "thread_times_ns", read)
    with perf.batch(0, total_items=1):
        pass
    (ready,) = (event.payload for event in events(log, clock_marks=True) if event.message == MARK_READY_TIME)
    assert ready == marked


@pytest.mark.parametrize("form", ["with", "call"])
def test_ready_time_is_marked_at_the_end_of_stages_that_are_long_enough_now_and_then(
    perf: PerfRecorder, log: RangeLog, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    now_us, too_short = 0, core.LOOKS
    monkeypatch.setattr(core, "monotonic_ns", lambda: 1_000_000_000 + now_us * 1000)
    monkeypatch.setattr(core, "thread_times_ns", lambda: (now_us, 0))

    def run(name: str, length_us: int, *inside: str) -> None:
        nonlocal now_us
        if form == "call":
            perf.push_range(name)
        with contextlib.nullcontext() if form == "call" else perf.range(name):
            for each in inside:
                run(each, 0)
            now_us += length_us
        if form == "call":
            perf.pop_range()

    run("outside", 7000)
    with perf.batch(0, total_items=1):
        for _ in range(2):
            run("long", 6000, *["short"] * (too_short - 1))
        run("long", 4999)
        run("late", 1)
        run("long", 5000, "short")
    with perf.batch(1, total_items=1):
        run("long", 0, "short")
        now_us += 8000
        run("long", 0, "short")
    every = [event for event in events(log, clock_marks=True) if event.message != MARK_CLOCK]
    at = [event.payload for event in every if event.message == MARK_READY_TIME]
    assert at == [7000, 13000, 19000, 24000, 29000, 37000]
    last = [event.op for event in every if event.op != "mark" or event.message == MARK_READY_TIME][-6:]
    assert last == ["push", "push", "pop", "mark", "pop", "pop"]  # `short` has come too early `LOOKS` times in a row


def test_the_time_of_collections_is_counted_on_the_thread_that_they_run_on() -> None:
    collecting.follow()
    collecting.follow()
    assert sum(each is collecting._on_collection for each in gc.callbacks) == 1
    kept = [[each] for each in range(200_000)]
    before, began_ns = collecting.spent_ns(), time.monotonic_ns()
    gc.collect()
    elapsed_ns = time.monotonic_ns() - began_ns
    here = collecting.spent_ns() - before
    assert 0 < here <= elapsed_ns
    elsewhere = threading.Thread(target=gc.collect)
    before = collecting.spent_ns()
    gc.disable()
    try:
        elsewhere.start()
        elsewhere.join()
        assert collecting.spent_ns() == before
    finally:
        gc.enable()
    assert len(kept) == 200_000


def test_the_time_of_compilations_is_counted_on_the_thread_that_they_run_on() -> None:
    torch: Any = pytest.importorskip("torch")
    taken_ns: list[int] = []

    def compiler(graph: Any, _: Any) -> Any:
        began_ns = time.monotonic_ns()
        while time.monotonic_ns() < began_ns + 20_000_000:
            pass
        taken_ns.append(time.monotonic_ns() - began_ns)
        return graph.forward

    def compile_once() -> None:
        torch.compile(lambda x: x + 1, backend=compiler, dynamic=False)(torch.ones(2 + len(taken_ns)))

    compile_once()  # PyTorch's compiler is imported by now
    torch.compiler.reset()
    compiling.follow()
    compiling.follow()
    before, began_ns = compiling.spent_ns(), time.monotonic_ns()
    compile_once()
    elapsed_ns, here = time.monotonic_ns() - began_ns, compiling.spent_ns()
    assert taken_ns[-1] <= here - before <= elapsed_ns
    elsewhere = threading.Thread(target=compile_once)
    elsewhere.start()
    elsewhere.join()
    assert (len(taken_ns), compiling.spent_ns()) == (3, here)
    torch.compiler.reset()


def test_where_the_system_does_not_count_ready_time_it_is_asked_once(
    perf: PerfRecorder, log: RangeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(core, "thread_times_ns", lambda: asked.append(1))
    monkeypatch.setattr(core, "monotonic_ns", itertools.count(0, 10_000_000).__next__)
    for index in range(4):
        perf.push_range("batch", batch_idx=index)
        perf.pop_range()
    assert len(asked) == 1


def test_the_ready_time_of_a_thread_is_that_of_the_system() -> None:
    times, before = thread_times_ns(), time.thread_time_ns()
    assert times is not None  # Linux counts it
    while time.thread_time_ns() < before + 20_000_000:
        pass
    time.sleep(0.05)
    later, used = thread_times_ns(), time.thread_time_ns()
    assert later is not None
    with Path("/proc/thread-self/schedstat").open() as file:
        delay = int(file.read().split()[1])
    assert used - before <= sum(later) - sum(times) + 1_000_000
    assert later[0] <= time.thread_time_ns()
    assert later[1] <= delay


@pytest.mark.parametrize(
    ("used_us", "crowded_us"),
    [
        ([1600, 3200], [0, 300, 700]),  # of 1000 us each, on two CPUs
        ([1599, 3199], [0, 0, 400]),  # 1600 us in the second one
        ([0, 0], [0, 0, 0]),  # others have the CPUs
    ],
)
def test_waiting_for_a_cpu_counts_while_the_process_has_almost_all(
    used_us: list[int], crowded_us: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowding, "sched_getaffinity", lambda pid: {3, 5})
    readings = iter([0, *used_us])
    monkeypatch.setattr(crowding, "process_time_ns", lambda: next(readings) * 1000)
    counted = crowding.Crowding()
    found = [counted.read(now_us * 1000, queued_us * 1000) for now_us, queued_us in ((9, 50), (1009, 350), (2009, 750))]
    assert found == [each * 1000 for each in crowded_us]


def test_with_range_is_reentrant_and_shared(perf: PerfRecorder, log: RangeLog) -> None:
    stage = perf.range("stage")
    with stage, stage, perf.range("stage"):
        pass
    with stage:
        pass
    assert perf.range("stage") is stage
    assert drawn(log) == "!recorder stage(stage(stage())) stage()"


def test_with_batch_takes_its_items_inside(perf: PerfRecorder, log: RangeLog) -> None:
    with perf.batch(0) as batch:
        batch.total_items = 9
    with perf.batch(1):
        pass
    with perf.batch(2, total_items=1) as batch:
        batch.delete_range = True
    assert drawn(log) == "!recorder batch=0(!items=9) batch=1() batch=2(!items=1 !delete)"
    assert counts(perf) == (3, 2, 9, 1)


def test_exception_closes_the_ranges_and_deletes_the_batch(perf: PerfRecorder, log: RangeLog) -> None:
    with pytest.raises(ValueError, match="mine"), perf.range("pipeline"), perf.batch(0, total_items=8):
        perf.push_range("left behind")
        with perf.range("stage"):
            raise ValueError("mine")
    assert drawn(log) == "!recorder pipeline(batch=0(left behind(stage()) !items=8 !delete))"
    assert counts(perf) == (4, 0, 0, 1)
    perf.finalize()


def test_range_left_open_in_a_block_is_closed_and_named(perf: PerfRecorder, log: RangeLog) -> None:
    with pytest.raises(RecorderError, match=r"'pipeline'.*deep, batch_1"):
        with perf.range("pipeline"):
            perf.push_range("batch", batch_idx=1)
            perf.push_range("deep")
    assert drawn(log) == "!recorder pipeline(batch=1(deep()))"


def test_pop_of_a_range_that_a_block_will_close(perf: PerfRecorder, log: RangeLog) -> None:
    with perf.range("stage"), pytest.raises(RecorderError, match="'stage'"):
        perf.pop_range()
    with perf.batch(5), pytest.raises(RecorderError, match="'batch_5'"):
        perf.pop_range(total_items=1)
    assert drawn(log) == "!recorder stage() batch=5()"


def test_bad_items_of_a_block(perf: PerfRecorder, log: RangeLog) -> None:
    with pytest.raises(RecorderError, match="'batch_0'"):
        with perf.batch(0, total_items=-1):
            pytest.fail("nothing may be opened")
    with pytest.raises(RecorderError, match="'batch_1'"):
        with perf.batch(1) as batch:
            batch.total_items = 2.5  # type: ignore[assignment]
    with pytest.raises(KeyError):  # the exception under way matters more than the items
        with perf.batch(2) as batch:
            batch.total_items = -1
            raise KeyError
    assert drawn(log) == "!recorder batch=1(!delete) batch=2(!delete)"


def test_block_that_ends_on_another_thread(perf: PerfRecorder) -> None:
    stage = perf.range("stage")
    stage.__enter__()
    caught: list[RecorderError] = []

    def end() -> None:
        with pytest.raises(RecorderError, match="'stage'") as raised:
            stage.__exit__(None, None, None)
        caught.append(raised.value)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert caught
    stage.__exit__(None, None, None)
    perf.finalize()


# ---- loops ----


@pytest.mark.parametrize(
    ("items", "drawn_items"), [(len, (2, 3)), (7, (7, 7)), (lambda text: len(text) * 10, (20, 30)), (0, (0, 0))]
)
def test_batches_counts_items(perf: PerfRecorder, log: RangeLog, items: Any, drawn_items: tuple[int, int]) -> None:
    seen = []
    for i, text in perf.batches(["ab", "abc"], items=items):
        seen.append((i, text))
        with perf.range("stage"):
            pass
    assert seen == [(0, "ab"), (1, "abc")]
    first, second = drawn_items
    assert drawn(log) == f"!recorder batch=0(stage() !items={first}) batch=1(stage() !items={second})"


def test_break_and_exception_close_the_batch(perf: PerfRecorder, log: RangeLog) -> None:
    perf.push_range("pipeline")
    for i, _ in perf.batches("abc", items=1):
        if i == 1:
            break
    perf.pop_range()

    with pytest.raises(ValueError, match="mine"):
        for _ in perf.batches("abc", items=1):
            perf.push_range("left behind")
            raise ValueError("mine")
    assert drawn(log) == ("!recorder pipeline(batch=0(!items=1) batch=1(!items=1)) batch=0(left behind() !items=1)")
    perf.finalize()


def test_time_of_the_loader_is_not_the_batchs(perf: PerfRecorder, log: RangeLog) -> None:
    def loader() -> Iterator[int]:
        for i in range(2):
            with perf.range("load"):
                loaded = i
            yield loaded

    for _ in perf.batches(loader(), start=5, message="chunk"):
        pass
    for _ in perf.batches([]):
        pytest.fail("there is none")
    assert drawn(log) == "!recorder load() chunk=5() load() chunk=6()"


def test_bad_items_of_batches(perf: PerfRecorder, log: RangeLog) -> None:
    with pytest.raises(RecorderError, match="total_items"):
        perf.batches([1], items=-1)
    with pytest.raises(TypeError, match="mine"):
        for _ in perf.batches([1], items=lambda _: (_ for _ in ()).throw(TypeError("mine"))):
            pytest.fail("nothing may be opened")
    assert drawn(log) == "!recorder"


# ---- decorators ----


def test_annotate_keeps_the_function(perf: PerfRecorder, log: RangeLog) -> None:
    @perf.annotate("stage", color="red", category="io")
    def double(x: int, *, plus: int = 0) -> int:
        """Doubles."""
        return 2 * x + plus

    @perf.annotate()
    def named() -> None: ...

    assert (double(2, plus=1), double.__name__, double.__doc__) == (5, "double", "Doubles.")
    named()
    assert drawn(log) == "!recorder stage() named()"
    assert events(log)[1].category == "rec/io"
    with pytest.raises(TypeError):
        double()  # type: ignore[call-arg]
    perf.finalize()


def test_annotated_generator_has_a_range_per_step(perf: PerfRecorder, log: RangeLog) -> None:
    @perf.annotate("load")
    def load() -> Iterator[int]:
        yield 1
        yield 2

    for _ in load():
        with perf.range("use"):
            pass
    # The step that finds the end gives no item: it is deleted, so there are as many ranges as items.
    assert drawn(log) == "!recorder load() use() load() use() load(!delete)"


def test_annotated_generator_passes_on_what_is_sent_thrown_and_returned(perf: PerfRecorder) -> None:
    closed = []

    @perf.annotate("talk")
    def talk() -> Any:
        heard: list[Any] = []
        try:
            while True:
                try:
                    heard.append((yield len(heard)))
                except KeyError as error:
                    heard.append(error)
                    return heard
        finally:
            closed.append(True)

    conversation = talk()
    assert next(conversation) == 0
    assert conversation.send("a") == 1
    problem = KeyError("b")
    with pytest.raises(StopIteration) as ended:
        conversation.throw(problem)
    assert ended.value.value == ["a", problem]
    abandoned = talk()
    next(abandoned)
    abandoned.close()
    assert closed == [True, True]
    perf.finalize()


# ---- threads ----


def test_counts_of_ended_threads_are_kept_and_their_stacks_are_not(perf: PerfRecorder) -> None:
    refused = []

    def work() -> None:
        with pytest.raises(RecorderError) as caught:
            perf.pop_range()  # on the main thread there is one
        refused.append(caught.value)
        with perf.batch(0, total_items=2):
            pass

    with perf.range("main"):
        for _ in range(20):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert len(refused) == 20
    assert counts(perf) == (21, 20, 40, 0)
    assert perf._core.registry.threads == 21
    assert len(perf._core.registry.alive()) <= 2


def test_what_a_thread_left_open_is_named(perf: PerfRecorder) -> None:
    thread = threading.Thread(target=perf.push_range, args=("forgotten",))
    thread.start()
    thread.join()
    with perf.range("x"):
        pass
    with pytest.raises(RecorderError, match="forgotten"):
        perf.finalize()


# ---- CvCudaPerf ----


def test_keywords_and_order_of_cvcuda(log: RangeLog) -> None:
    arguments = {"batch_size": 4}
    perf = PerfRecorder("sample", default_args=arguments)
    perf.push_range("pipeline")
    perf.push_range("batch", "blue", None, None, 3)
    perf.push_range(message="stage", color="green", domain=None, category="c", batch_idx=None)
    perf.pop_range(None, None, False)
    perf.pop_range(None, 2)
    perf.push_range("batch", batch_idx=4)
    perf.pop_range(total_items=0)  # how CV-CUDA's samples end the last batch, in which the decoder found no frame
    perf.push_range("batch", batch_idx=5)
    perf.pop_range()
    perf.pop_range()
    perf.finalize()
    assert drawn(log) == "!recorder pipeline(batch=3(stage() !items=2) batch=4(!items=0) batch=5())"
    assert counts(perf) == (5, 3, 2, 0)
    assert perf._core.name == "sample"


def test_names_that_utf8_or_nvtx_cannot_hold_are_escaped(perf: PerfRecorder, log: RangeLog) -> None:
    with perf.range("caf\udce9.jpg", category="c\ud800"), perf.batch(0, message="a\0b", domain="d\udc80"):
        pass
    found = [(event.message, event.category, event.domain) for event in events(log) if event.op == "push"]
    assert found == [
        ("caf\\udce9.jpg", "rec/c\\ud800", "perfharness"), ("a\\x00b", "rec", "d\\udc80")
    ]  # fmt: skip
    assert PerfRecorder("r\udce9", domain="e\0")._core.domain == "e\\x00"


def test_two_objects_of_one_name_are_one_recorder(perf: PerfRecorder, log: RangeLog) -> None:
    """Their ranges share NVTX's stack, so each pops the innermost; the last of them finalizes."""
    other = PerfRecorder("rec", domain="elsewhere")
    perf.push_range("outer")
    other.push_range("inner")
    perf.pop_range()
    perf.finalize()  # the other one may still be at work
    other.pop_range()
    assert drawn(log) == "!recorder outer(inner())"
    assert {event.domain for event in events(log) if event.op == "push"} == {"perfharness"}
    other.push_range("left")
    with pytest.raises(RecorderError):
        other.finalize()
    other.pop_range()
    other.finalize()
    assert perf._core.users == 0
    assert perf._core.registry.totals().ranges == 3


def test_a_domain_of_another_recorder_is_not_shared(perf: PerfRecorder, log: RangeLog) -> None:
    """Neither the one that it was given instead, nor one named by a range."""
    second, third = PerfRecorder("b"), PerfRecorder("c", domain="perfharness:b")
    with third.range("own"), third.range("named", domain="perfharness"), perf.range("mine"), second.range("b"):
        pass
    domains = {event.message: event.domain for event in events(log) if event.op == "push"}
    assert len(set(domains.values())) == 4
    assert domains["mine"] == "perfharness"


def test_distinct_names_are_not_kept_and_stay_counted(perf: PerfRecorder, log: RangeLog) -> None:
    """20,000 names in two batches: some thousand are prepared at a time, and every range is counted and recorded."""
    with perf.range("p"):
        for index in range(2):
            with perf.batch(index, total_items=3):
                for number in range(10_000):
                    with perf.range(f"r{number}"):
                        pass
    stack = perf._core.local.stack
    assert sum(1 for _ in stack.root.walk()) <= NODES_KEPT + 3
    assert len(perf._scopes) <= SCOPES_KEPT
    totals = perf._core.registry.totals()
    assert (totals.ranges, totals.batches, totals.items) == (20_003, 2, 6)
    assert sum(event.op == "push" for event in events(log)) == 20_003


def test_batches_take_no_memory(tmp_path: Path) -> None:
    range_log.install(RangeLog(str(tmp_path)))
    try:
        perf = PerfRecorder("rec")

        def record(first: int, count: int) -> None:
            for index in range(first, first + count):
                perf.push_range("batch", batch_idx=index)
                perf.push_range("stage")
                perf.pop_range()
                perf.pop_range(total_items=1)

        perf.push_range("pipeline")
        record(0, 100)
        tracemalloc.start()
        record(100, 5000)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        perf.pop_range()
    finally:
        range_log.install(None)
    assert kept < 10_000


@pytest.mark.parametrize("name", ["r", "r{}"])
def test_ranges_nest_to_any_depth(perf: PerfRecorder, name: str) -> None:
    for number in range(2_500):
        perf.push_range(name.format(number))
    with pytest.raises(RecorderError) as caught:
        perf.finalize()
    assert len(str(caught.value)) < 1000
    for _ in range(2_500):
        perf.pop_range()
    perf.finalize()
    assert perf._core.registry.totals().ranges == 2_500
