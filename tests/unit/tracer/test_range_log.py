"""The range log: what is written, what survives, and the trace that is made of it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import sqlite3
import threading
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perfharness.model import nsys_schema as schema
from perfharness.model.trace import Trace, pid_of, tid_of
from perfharness.trace import open_trace
from perfharness.trace.processes import find_processes
from perfharness.tracer import range_log
from perfharness.tracer.output import complete_traces
from perfharness.tracer.range_log import HAS_PAYLOAD, MARK, OP_BITS, POP, PUSH, START, RangeAttributes, RangeLog


class Clock:
    """Counts its readings, and remembers the last of each thread."""

    def __init__(self) -> None:
        self._count = itertools.count(1)  # the first event of a chunk reads it twice
        self._local = threading.local()

    def __call__(self) -> int:
        self._local.last = next(self._count)
        return self.last

    @property
    def last(self) -> int:
        return int(self._local.last)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[RangeLog]:
    made = RangeLog(str(tmp_path), clock)
    range_log.install(made)
    yield made
    range_log.install(None)


def head(log: RangeLog, name: str, op: int) -> int:
    """The head of an event; the domain of a range is what is before a colon in its name."""
    domain, _, message = name.rpartition(":")
    return log.key(RangeAttributes(domain or None, message)) << OP_BITS | op


def trace_of(log: RangeLog) -> Trace:
    (path,) = complete_traces(Path(log.folder))
    return open_trace(path)


def rows(trace: Trace) -> list[tuple[str, int, int | None]]:
    """Name, start and end of each range; None: it is open."""
    origin, ranges = trace.meta.monotonic_origin_ns or 0, trace.ranges
    columns = (ranges.name, ranges.start_ns + origin, ranges.end_ns + origin, ranges.is_open)
    found = zip(*(column.tolist() for column in columns), strict=True)
    return sorted((trace.names[name], start, None if is_open else end) for name, start, end, is_open in found)


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        # a [2 ........... 9] a [10 11], inside: b [3 4] b [5 8], inside the second: c [6 7].
        ("a b ) b c ) ) ) a )", "a 2-9, a 10-11, b 3-4, b 5-8, c 6-7"),
        # Each domain has a stack.
        ("x:a y:b x:) y:)", "a 2-4, b 3-5"),
        # Never closed, and never begun.
        ("a b )", "a 2-None, b 3-4"),
        (") a ) ) b )", "a 3-4, b 6-7"),
    ],
)
def test_pushes_and_pops(log: RangeLog, drawn: str, expected: str) -> None:
    for word in drawn.split():
        log.writer().event(head(log, word, POP if ")" in word else PUSH))
    assert ", ".join(f"{name} {start}-{end}" for name, start, end in rows(trace_of(log))) == expected


def test_threads_agree_with_stacks(log: RangeLog, clock: Clock) -> None:
    """Three threads at the same time, over many chunks; they end each other's starts, whose ids have payloads."""
    expected: list[tuple[str, int, int | None]] = []
    started: list[tuple[int, str, int]] = []
    values: dict[int, int] = {}

    def work(number: int) -> None:
        chance, writer = random.Random(number), log.writer()
        stacks: dict[str, list[tuple[str, int]]] = {"": [], "d": []}
        for _ in range(3000):
            domain = chance.choice(["", "d"])
            name = f"r{chance.randrange(50)}"
            full, stack, choice = f"{domain}:{name}", stacks[domain], chance.random()
            if choice < 0.4:
                writer.event(head(log, full, PUSH))
                stack.append((name, clock.last))
            elif choice < 0.8:
                writer.event(head(log, f"{domain}:", POP))
                if stack:
                    expected.append((*stack.pop(), clock.last))
            elif choice < 0.9:
                value = chance.randrange(-(1 << 63), 1 << 63)
                range_id = writer.start_with_value(head(log, full, START | HAS_PAYLOAD), value)
                values[clock.last] = value
                started.append((range_id, name, clock.last))
            else:
                with contextlib.suppress(IndexError):
                    range_id, name, start = started.pop()
                    writer.end(range_id)
                    expected.append((name, start, clock.last))
        expected.extend((name, start, None) for stack in stacks.values() for name, start in stack)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected += [(name, start, None) for _, name, start in started]
    trace = trace_of(log)
    assert rows(trace) == sorted(expected)
    ranges, origin = trace.ranges, trace.meta.monotonic_origin_ns or 0
    paid = ranges.has_payload
    found = zip((ranges.start_ns[paid] + origin).tolist(), ranges.payload[paid].tolist(), strict=True)
    assert dict(found) == values
    assert set(tid_of(ranges.thread).tolist()) == {thread.native_id for thread in threads}
    assert ranges.crosses_threads.any()


@pytest.mark.parametrize(
    ("cut_off", "expected", "lost"),
    [
        # Killed before it wrote the last word, or record: a [2 b [3 ]4 ]5, the number of a start, its start 6.
        (0, [("a", 2, 5), ("b", 3, 4), ("s", 6, None)], 0),
        (8, [("a", 2, 5), ("b", 3, 4)], 0),
        (32, [("a", 2, 5), ("b", 3, 4)], 0),
        (40, [("a", 2, None), ("b", 3, 4)], 0),
        (56, [("a", 2, None), ("b", 3, None)], 0),
        (72, [("a", 2, None)], 0),
        # The number of the start alone is missing: the disk was full for a moment.
        (-1, [("a", 2, 5), ("b", 3, 4)], 1),
    ],
)
def test_the_last_records_of_a_killed_process(
    log: RangeLog, cut_off: int, expected: list[tuple[str, int, int | None]], lost: int
) -> None:
    for op, name in ((PUSH, "a"), (PUSH, "b"), (POP, ""), (POP, "")):
        log.writer().event(head(log, name, op))
    log.writer().start(head(log, "s", START))
    path = Path(log.folder, log.file_name)
    content = bytearray(path.read_bytes())
    end = range_log.FIRST_CHUNK_BYTES + 7 * range_log.RECORD_BYTES
    begin, end = (end - 32, end - 16) if cut_off < 0 else (end - cut_off, end)
    content[begin:end] = bytes(end - begin)
    path.write_bytes(content)
    trace = trace_of(log)
    assert rows(trace) == expected
    assert [finding.code for finding in trace.meta.findings] == ["trace-incomplete"] * lost


def test_what_was_recorded_is_in_the_file_and_not_in_memory(log: RangeLog) -> None:
    """200,000 events take 3.2 MB in the file; the process holds one region of it."""
    writer, push = log.writer(), head(log, "a", PUSH)
    pop = writer.popper(head(log, "", POP))
    tracemalloc.start()
    for _ in range(100_000):
        writer.event(push)
        pop()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    found = rows(trace_of(log))
    assert len(found) == 100_000
    assert all(end is not None and end > start for _, start, end in found)


def test_a_forked_child_writes_a_log_of_its_own(log: RangeLog) -> None:
    """The parent's keys, and a range that is open at the fork, mean the same in the child."""
    writer = log.writer()
    outer, inner = head(log, "outer", PUSH), head(log, "inner", PUSH)
    writer.event(outer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        writer.event(inner)
        writer.event(inner | POP)
        log.writer().event(head(log, "new", PUSH))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    head(log, "of the parent", PUSH)
    writer.event(outer | POP)
    paths = complete_traces(Path(log.folder))
    facts = {one.pid: one.facts for path in paths for one in find_processes(path)}
    parents = {pid: one and one.parent_pid for pid, one in facts.items()}
    assert parents == {os.getpid(): os.getppid(), child: os.getpid()}
    traces = [open_trace(path) for path in paths]
    found = {int(pid_of(trace.ranges.thread)[0]): [name for name, *_ in rows(trace)] for trace in traces}
    assert found == {os.getpid(): ["outer"], child: ["inner", "new"]}


def test_a_log_that_comes_later_goes_into_the_trace(log: RangeLog, clock: Clock) -> None:
    for name, known in (("a", ["a"]), ("b", ["a", "b"])):
        one = RangeLog(log.folder, clock)
        one.writer().event(head(one, name, PUSH))
        (path,) = complete_traces(Path(log.folder), os.getpid())
        assert [name for name, *_ in rows(open_trace(path))] == known


def test_events_without_room_on_the_disk_are_counted(log: RangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first region holds what came before; nothing is raised, and what comes later is counted, not its payloads."""
    writer = log.writer()
    writer.event(head(log, "a", PUSH))

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    room = range_log.REGION_BYTES // range_log.RECORD_BYTES
    for _ in range(room):
        writer.event_with_value(head(log, "a", MARK | HAS_PAYLOAD), 3)
    trace = trace_of(log)
    kept = len(trace.ranges) + len(trace.marks)
    assert 0.2 * room < kept < room
    (finding,) = trace.meta.findings
    assert finding.code == "trace-incomplete"
    assert finding.message.startswith(f"{room + 1 - kept} ")


OF_PROCESS = b'{"pid": 1, "parent_pid": 1, "executable": "p", "started_ns": 1, "started_unix_ns": 1}\n'


@pytest.mark.parametrize(
    "names",
    [b"", b"[1]\n", OF_PROCESS.replace(b"1", b'"x"', 1), OF_PROCESS + b"[1, 2, 3, 4, 5]\n", OF_PROCESS + b"[]\n"],
)
def test_a_log_without_its_names_is_no_trace(tmp_path: Path, names: bytes) -> None:
    path = tmp_path / ".ranges_1_1.log"
    path.write_bytes(range_log.HEADER.pack(range_log.MAGIC, 0))
    path.with_suffix(range_log.NAMES_SUFFIX).write_bytes(names)
    assert complete_traces(tmp_path) == []
    assert path.exists()


def test_a_deep_trace_stays_small(log: RangeLog) -> None:
    """Of 5000 names, one in the other, each is in the trace once."""
    for number in range(5000):
        log.writer().event(head(log, f"r{number}", PUSH))
    (trace,) = complete_traces(Path(log.folder))
    assert trace.stat().st_size < 2_000_000
    with closing(sqlite3.connect(trace)) as connection:
        found = connection.execute(f"SELECT count(*), count(end) FROM {schema.TABLE_NVTX} WHERE eventType = 59")
        assert found.fetchone() == (5000, 0)


@pytest.mark.parametrize(
    ("gpu_present", "end", "coverage", "reason"),
    [
        (None, None, "untraced", "could not follow"),
        (True, None, "untraced", "ended before"),
        (True, True, "untraced", "said"),
        (True, False, "no_gpu_work", "did not use CUDA"),
        (False, None, "no_gpu_work", "did not use CUDA"),
    ],
)
def test_what_a_trace_says_of_the_gpu(
    tmp_path: Path, gpu_present: bool | None, end: bool | None, coverage: str, reason: str
) -> None:
    """It was not followed (nobody looked for a GPU), killed, or ended well."""
    made = RangeLog(str(tmp_path), gpu_present=gpu_present)
    made.writer().event(head(made, "a", PUSH))
    if end is not None:
        made.note_end(cuda_used=end, gpu_reason="said")
    meta = trace_of(made).meta
    assert meta.gpu_coverage == coverage
    assert reason in meta.gpu_coverage_reason
