"""What a recorder writes, counts and refuses: one table of programs, with the range log and without a tool."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from perfharness import PerfRecorder
from perfharness.errors import RecorderError
from perfharness.model import conventions
from perfharness.tracer.range_log import RangeLog
from tests.support.fresh_python import run
from tests.support.recorder_programs import PROGRAMS
from tests.unit.recorder_events import busy, drawn, events, readings, recording

BLUE = 0x0000FF
COUNTS = ("ranges", "batches", "items", "deleted_ranges", "failed_batches")


def counts(perf: PerfRecorder) -> tuple[int, ...]:
    found = perf.counts()
    return tuple(found[name] for name in COUNTS)


@pytest.mark.parametrize("sink", ["log", "silent"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, sink: str) -> None:
    program = PROGRAMS[name]
    with recording() if sink == "log" else nullcontext() as log:
        perf = PerfRecorder("rec")
        program.run(perf)
        if log is not None:
            assert drawn(log).removeprefix("!recorder").strip() == program.events
        if log is not None or not any(word in name for word in ("function", "steps", "generator_is", "coroutines")):
            assert counts(perf) == program.counts  # without a tool an annotated function is returned as it is
        perf.finalize()
        assert perf.counts()["open_ranges"] == []


def test_what_an_event_carries(perf: PerfRecorder, log: RangeLog) -> None:
    """Its domain, its category after the recorder's name, a payload, a colour, and a time that grows."""
    perf.push_range("batch", domain="mine", category="io", batch_idx=7)
    perf.pop_range(domain="mine", total_items=3, delete_range=True)
    other = PerfRecorder("other", domain="elsewhere")
    for color in ("#0a0B0c", "red", -1):
        with other.range("stage", color, category=0):
            pass
    written = events(log)
    assert [(e.op, e.message, e.domain, e.category, e.payload, e.color) for e in written if e.op != "pop"] == [
        ("mark", "perfharness.recorder", "perfharness", "rec", None, BLUE),
        ("mark", "perfharness.recorder", "mine", "rec", None, BLUE),
        ("push", "batch", "mine", "rec/io", 7, BLUE),
        ("mark", "perfharness.items", "mine", "rec/io", 3, BLUE),
        ("mark", "perfharness.delete", "mine", "rec/io", None, BLUE),
        ("mark", "perfharness.recorder", "elsewhere", "other", None, BLUE),
        ("push", "stage", "elsewhere", "other/0", None, 0x0A0B0C),
        ("push", "stage", "elsewhere", "other/0", None, 0xFF0000),
        ("push", "stage", "elsewhere", "other/0", None, 2**32 - 1),
    ]
    times = [e.time_ns for e in written]
    assert times == sorted(times)


# ---- what is refused ----

Push = tuple[str, dict[str, Any]]
STAGE: Push = ("stage", {})
BATCH: Push = ("batch", {"batch_idx": 2})
MINE: Push = ("a", {"domain": "mine"})
REFUSED: list[tuple[list[Push], str, dict[str, Any], str]] = [
    ([], "pop_range", {}, "'rec'"),
    ([], "pop_range", {"total_items": 1}, "'rec'"),
    ([STAGE], "pop_range", {"total_items": 3}, "'stage'"),
    ([STAGE], "pop_range", {"shared": True}, "'stage'"),
    ([BATCH, STAGE], "pop_range", {"total_items": 3}, "'batch_2'"),
    *(([BATCH], "pop_range", {"total_items": items}, "'batch_2'") for items in (-1, 1.5, "3", True, [1], 1 << 63)),
    *(
        ([], "push_range", {"message": "batch", "batch_idx": index}, "'batch'")
        for index in (1.0, "1", int, True, 1 << 63, -(1 << 63) - 1)
    ),
    *(
        ([], "push_range", {"message": message, "batch_idx": index}, "range")
        for message in (None, "", 3, ("a",), ["a"])
        for index in (None, 1)
    ),
    ([], "push_range", {"message": "a", "category": "gpu#1"}, "gpu#1"),
    ([], "push_range", {"message": "a", "color": "no such"}, "'no such'"),
    ([], "batches", {"iterable": [1], "items": -1}, "total_items"),
    ([], "__new__", {"cls": PerfRecorder, "name": "a#12"}, "a#12"),
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
    before = perf.counts(), drawn(log)
    with pytest.raises(RecorderError, match=problem):
        getattr(perf, call)(**arguments)
    assert (perf.counts(), drawn(log)) == before
    for _, options in reversed(pushed):
        perf.pop_range(domain=options.get("domain"))
    perf.finalize()


def test_a_pop_in_a_block_is_refused(perf: PerfRecorder, log: RangeLog) -> None:
    with perf.range("stage"), pytest.raises(RecorderError, match="'stage'"):
        perf.pop_range()
    with perf.batch(5), pytest.raises(RecorderError, match="'batch_5'"):
        perf.pop_range(total_items=1)
    assert drawn(log) == "!recorder stage() batch=5()"


def test_a_block_that_ends_on_another_thread(perf: PerfRecorder) -> None:
    stage = perf.range("stage")
    stage.__enter__()
    caught: list[str] = []

    def end() -> None:
        try:
            stage.__exit__(None, None, None)
        except RecorderError as error:
            caught.append(str(error))

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert "'stage'" in caught[0]
    stage.__exit__(None, None, None)
    perf.finalize()


@pytest.mark.parametrize("is_daemon", [False, True])
def test_what_a_thread_left_open(perf: PerfRecorder, is_daemon: bool) -> None:
    """It is named; of a daemon, which has no chance to close it, the recorder is finalized all the same."""
    stop, started = threading.Event(), threading.Event()

    def hold() -> None:
        with perf.range("forever"):
            started.set()
            stop.wait(60)

    thread = threading.Thread(target=hold, daemon=is_daemon)
    thread.start()
    started.wait(60)
    with nullcontext() if is_daemon else pytest.raises(RecorderError, match="forever"):
        perf.finalize()
    assert perf.counts()["open_ranges"] == ["forever"]
    assert perf.is_finalized is is_daemon
    stop.set()
    thread.join()


def test_domains_of_other_recorders_are_not_shared(perf: PerfRecorder, log: RangeLog) -> None:
    """Neither the one that it was given instead, nor one named by a range."""
    second, third = PerfRecorder("b"), PerfRecorder("c", domain="perfharness:b")
    with third.range("own"), third.range("named", domain="perfharness"), perf.range("mine"), second.range("b"):
        pass
    domains = {event.message: event.domain for event in events(log) if event.op == "push"}
    assert len(set(domains.values())) == 4
    assert domains["mine"] == "perfharness"


# ---- what it costs ----


def test_any_number_of_names(perf: PerfRecorder, log: RangeLog) -> None:
    """20,000 names in two batches, and 2,500 open at once: every range is counted and recorded."""
    with perf.range("p"):
        for index in range(2):
            with perf.batch(index, total_items=3):
                for number in range(10_000):
                    with perf.range(f"r{number}"):
                        pass
    for number in range(2_500):
        perf.push_range(f"r{number}")
    with pytest.raises(RecorderError) as caught:
        perf.finalize()
    assert len(str(caught.value)) < 1000
    for _ in range(2_500):
        perf.pop_range()
    perf.finalize()
    assert counts(perf) == (22_503, 2, 6, 0, 0)
    assert sum(event.op == "push" for event in events(log)) == 22_503


def test_batches_take_no_memory(perf: PerfRecorder) -> None:
    def record(first: int, count: int) -> None:
        for index in range(first, first + count):
            perf.push_range("batch", batch_idx=index)
            with perf.range("stage"):
                pass
            perf.pop_range(total_items=1)

    record(0, 100)
    tracemalloc.start()
    record(100, 5000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 10_000


def test_a_function_is_returned_as_it_is_where_nothing_records() -> None:
    def function() -> None: ...

    assert PerfRecorder("rec").annotate("stage")(function) is function


def test_a_function_called_at_the_end_of_every_range() -> None:
    """Metrics of a service: without a tool, and whatever the way to annotate."""
    ended: list[tuple[Any, ...]] = []
    perf = PerfRecorder("rec")
    with perf.range("before"):
        perf.call_at_end(lambda node, ns, items, deleted: ended.append((node.label, ns >= 0, items, deleted)))
    perf.push_range("batch", batch_idx=4)
    perf.push_range("stage")
    perf.pop_range()
    perf.pop_range(total_items=2, delete_range=True)
    with perf.range("block"):
        pass
    perf.annotate("function")(lambda: None)()
    assert ended[-4:-2] == [("stage", True, None, False), ("batch_4", True, 2, True)]
    assert ended[-2:] == [("block", True, None, False), ("function", True, None, False)]


# ---- marks of CPU time ----


@pytest.mark.slow
def test_readings_are_taken_outside_of_batches_and_stages(perf: PerfRecorder, log: RangeLog) -> None:
    """Before and after a batch, after its direct stages, and never within 5 ms of another one."""
    for index in range(3):
        with perf.batch(index, total_items=1):
            with perf.range("long"):
                busy(0.006)
                with perf.range("inside"):
                    busy(0.006)
            with perf.range("short"):
                pass
    shown = [e for e in events(log, clock_marks=True) if e.op != "mark" or e.message == conventions.MARK_READY_TIME]
    depth, marked = [], []
    for event in shown:
        if event.op == "push":
            depth.append(event.message)
        elif event.op == "pop":
            depth.pop()
        else:
            marked.append(list(depth))
    assert [] in marked
    assert ["batch"] in marked
    assert all(open_ranges in ([], ["batch"]) for open_ranges in marked)
    times = [event.time_ns for event in shown if event.op == "mark"]
    assert all(later - earlier >= 4_900_000 for earlier, later in itertools.pairwise(times))
    ready = readings(log, conventions.MARK_READY_TIME)
    assert ready == sorted(ready)
    assert ready[-1] - ready[0] >= 30_000_000


# ---- where it writes ----


OUTSIDE = """
from perfharness import PerfRecorder
perf, other = PerfRecorder("rec"), PerfRecorder("other")
with perf.range("a"), perf.batch(0, total_items=1):
    pass
print(perf.counts()["ranges"], perf.output.listening)
"""


@pytest.mark.parametrize(
    ("before", "env", "warnings"),
    [
        ("", {}, 0),
        ("", {"NVTX_DISABLE": "1"}, 0),
        ("import sys; sys.modules['nvtx'] = None\n", {}, 1),
        ("import nvtx; del nvtx.nvtx.get_domain\n", {}, 1),
    ],
)
def test_outside_a_launch_everything_works_and_leaves_no_files(
    tmp_path: Path, before: str, env: dict[str, str], warnings: int
) -> None:
    done = run(f"{before}import os; os.chdir({str(tmp_path)!r})\n{OUTSIDE}", **env)
    assert done.stderr.count("RuntimeWarning") == warnings, done.stderr
    assert done.stdout.split()[0] == "2"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("with_log", [False, True])
def test_a_recorder_imports_no_library(tmp_path: Path, with_log: bool) -> None:
    heavy = ["numpy", "torch", "pyarrow", "rich", "pydantic", "perfharness_launcher", "nvtx"]
    code = "import sys; from perfharness import PerfRecorder, get_default_arg_parser\n"
    env = {"PERFHARNESS_OUTPUT_DIR": str(tmp_path), "PERFHARNESS_TRACER": "embedded"}
    if with_log:
        code += "perf = PerfRecorder('rec')\nwith perf.batch(0, total_items=1): pass\nperf.finalize()\n"
    else:
        heavy.append("asyncio")
    done = run(f"{code}print([name for name in {heavy} if name in sys.modules])", **(env if with_log else {}))
    assert done.stdout == "[]\n", done.stderr
