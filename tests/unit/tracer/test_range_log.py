"""The range log: what is written, what survives, and what a reader makes of it."""

from __future__ import annotations

import errno
import os
import sqlite3
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from perfharness.model import nsys_schema as schema
from perfharness.tracer import range_log
from perfharness.tracer.log_reader import NO_END, LoggedRanges, decode, read_log
from perfharness.tracer.output import KILLED, NOT_FOLLOWED, complete_traces, log_paths
from perfharness.tracer.range_log import (
    CHUNK,
    END,
    FIRST_CHUNK_BYTES,
    HAS_PAYLOAD,
    ID,
    MARK,
    OP_BITS,
    POP,
    PUSH,
    RECORD_BYTES,
    START,
    VALUE,
    LogFacts,
    RangeAttributes,
    RangeLog,
)

Event = tuple[int, str, int]
Row = tuple[str, int, int]
FACTS = LogFacts(1, 0, "python", 0, 0)


def file_of(*chunks: tuple[int, list[tuple[int, int]]]) -> NDArray[np.int64]:
    """The records of a file: chunks of one thread each; the first page is its header."""
    rows = [(0, 0)] * (FIRST_CHUNK_BYTES // RECORD_BYTES)
    for thread, records in chunks:
        rows += [((len(records) + 1) * RECORD_BYTES << OP_BITS | CHUNK, thread), *records]
    return np.array(rows, dtype=np.int64)


def log_of(*threads: list[Event], cut: int = 1 << 30) -> LoggedRanges:
    """A log with one thread per argument (numbered from 1); each event is (op, name, time). The domain of a range is
    the letter before a colon in its name. A chunk ends after `cut` records of each thread."""
    attributes = [RangeAttributes("", "")]
    columns: list[list[tuple[int, int]]] = []
    for events in threads:
        records: list[tuple[int, int]] = []
        for op, name, time_ns in events:
            if op in (START, END):
                records.append((ID, int(name)))
            domain = name.rpartition(":")[0]
            attributes.append(RangeAttributes(domain, name.rpartition(":")[2]))
            records.append(((0 if op == END else len(attributes) - 1) << OP_BITS | op, time_ns))
        columns.append(records)
    longest = max((len(records) for records in columns), default=0)
    chunks = [
        (number, records[begin : begin + cut])
        for begin in range(0, longest, cut)
        for number, records in enumerate(columns, start=1)
        if records[begin : begin + cut]
    ]
    return LoggedRanges(FACTS, attributes, 0, file_of(*chunks))


def rows(log: LoggedRanges) -> list[Row]:
    events, _ = decode(log)
    names = [log.attributes[key].message for key in events["key"].tolist()]
    return sorted(zip(names, events["start"].tolist(), events["end"].tolist(), strict=True), key=lambda row: row[1:])


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        # a [1 ............ 8] a [9 10], inside: b [2 3] b [4 7], inside the second: c [5 6].
        (["a1 b2 )3 b4 c5 )6 )7 )8 a9 )10"], "a 1 8, b 2 3, b 4 7, c 5 6, a 9 10"),
        # Each thread has a stack of its own, and so has each domain.
        (["a1 )4", "b2 )3"], "a 1 4, b 2 3"),
        (["x:a1 y:b2 x:)3 y:)4"], "a 1 3, b 2 4"),
        # Never closed, and never begun.
        (["a1 b2 )3"], "a 1 -1, b 2 3"),
        ([")1 a2 )3 )4 b5 )6"], "a 2 3, b 5 6"),
        ([""], ""),
    ],
)
def test_pushes_and_pops(drawn: list[str], expected: str) -> None:
    threads = []
    for line in drawn:
        events = []
        for word in line.split():
            name, time_ns = word.rstrip("0123456789"), int(word.lstrip("abcxy:)"))
            events.append((POP if ")" in name else PUSH, name.replace(")", ""), time_ns))
        threads.append(events)
    found = ", ".join(f"{name} {start} {end}" for name, start, end in rows(log_of(*threads)))
    assert found == expected


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 70))
def test_agrees_with_a_stack(pushes: list[bool], cut: int) -> None:
    events = [(PUSH if push else POP, f"r{index}", index + 1) for index, push in enumerate(pushes)]
    stack: list[tuple[str, int]] = []
    expected: list[Row] = []
    for op, name, time_ns in events:
        if op == PUSH:
            stack.append((name, time_ns))
        elif stack:
            expected.append((*stack.pop(), time_ns))
    expected += [(name, start, NO_END) for name, start in stack]
    assert rows(log_of(events, cut=cut)) == sorted(expected, key=lambda row: row[1:])


@given(st.permutations(range(6)), st.integers(1, 9), st.data())
def test_starts_and_ends_of_two_threads_in_any_blocks(order: list[int], cut: int, data: st.DataObject) -> None:
    threads: list[list[Event]] = [[], []]
    begun, ended = {}, {}
    for number in range(6):
        begun[number] = data.draw(st.integers(0, 1))
        threads[begun[number]].append((START, str(number + 1), 1 + number))
    for place, number in enumerate(order):
        ended[number] = data.draw(st.integers(0, 1))
        threads[ended[number]].append((END, str(number + 1), 100 + place))
    table, unusable = decode(log_of(*threads, cut=cut))
    found = {
        start - 1: (end, None if end_thread == NO_END else end_thread - 1)
        for start, end, end_thread in zip(
            *(table[name].tolist() for name in ("start", "end", "end_thread")), strict=True
        )
    }
    assert found == {
        number: (100 + place, None if begun[number] == ended[number] else ended[number])
        for place, number in enumerate(order)
    }
    assert unusable == 0


@pytest.mark.parametrize(
    ("records", "expected", "unusable"),
    [
        ([(1 << OP_BITS | PUSH, 0)], [], 0),  # killed before the time was written
        ([(VALUE, 7)], [], 0),  # killed before the event
        ([(ID, 7)], [], 0),
        ([(VALUE, -3), (1 << OP_BITS | MARK | HAS_PAYLOAD, 5)], [(5, -3)], 0),
        ([(1 << OP_BITS | MARK | HAS_PAYLOAD, 5)], [(5, None)], 0),  # a signal handler wrote in between
        ([(1 << OP_BITS | START, 5), (END, 6)], [], 2),
    ],
)
def test_records_out_of_order(
    records: list[tuple[int, int]], expected: list[tuple[int, int | None]], unusable: int
) -> None:
    attributes = [RangeAttributes("d", "a"), RangeAttributes("d", "m")]
    table, lost = decode(LoggedRanges(FACTS, attributes, 0, file_of((1, [(PUSH, 1), (POP, 2), *records]))))
    columns = (table[name].tolist() for name in ("start", "payload", "has_payload"))
    found = [(start, payload if has else None) for start, payload, has in zip(*columns, strict=True)]
    assert found == [(1, None), *expected]
    assert lost == unusable


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RangeLog]:
    made = RangeLog(str(tmp_path))
    range_log.install(made)
    yield made
    range_log.install(None)


def read_only_log(folder: Path) -> LoggedRanges:
    (path,) = log_paths(folder)
    return read_log(path)


def test_what_was_recorded_is_in_the_file_and_not_in_memory(log: RangeLog) -> None:
    """200,000 events take 3.2 MB in the file; the process holds one region of it."""
    writer, head = log.writer(), log.key(RangeAttributes("d", "a")) << OP_BITS
    pop = writer.popper(head | POP)
    tracemalloc.start()
    for _ in range(100_000):
        writer.event(head)
        pop()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    events, _ = decode(read_only_log(Path(log.folder)))
    assert len(events["start"]) == 100_000
    assert (events["end"] >= events["start"]).all()


def test_payloads_and_numbers_across_chunks(log: RangeLog) -> None:
    writer, head = log.writer(), log.key(RangeAttributes("d", "a")) << OP_BITS
    for value in [2**64 - 1, -(2**63), 2**63, *range(2000)]:
        writer.end(writer.start_with_value(head | START | HAS_PAYLOAD, value))
    events, _ = decode(read_only_log(Path(log.folder)))
    order = np.argsort(events["start"], kind="stable")
    assert events["payload"][order].tolist() == [-1, -(2**63), -(2**63), *range(2000)]
    assert (events["end"] != NO_END).all()


def test_a_forked_child_writes_a_log_of_its_own(log: RangeLog) -> None:
    """The parent's keys, and a range that is open at the fork, mean the same in the child."""
    writer = log.writer()
    outer, inner = (log.key(RangeAttributes("d", name)) << OP_BITS for name in ("outer", "inner"))
    writer.event(outer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        writer.event(inner)
        writer.event(inner | POP)
        log.writer().event(log.key(RangeAttributes("d", "new")) << OP_BITS | MARK)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    log.key(RangeAttributes("d", "of the parent"))
    writer.event(outer | POP)
    logs = [read_log(path) for path in log_paths(Path(log.folder))]
    found = {entry.facts.pid: [name for name, _, _ in rows(entry)] for entry in logs}
    assert found == {os.getpid(): ["outer"], child: ["inner", "new"]}


def test_a_program_may_close_all_descriptors(log: RangeLog, tmp_path: Path) -> None:
    """In a child, as a daemon. The numbers are then those of its own files."""
    head = log.key(RangeAttributes("d", "a")) << OP_BITS
    log.writer().event(head)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        log.writer().event(head)
        os.closerange(3, 100)
        files = [os.open(tmp_path / f"own_{number}", os.O_CREAT | os.O_RDWR) for number in range(8)]
        for _ in range(range_log.REGION_BYTES // RECORD_BYTES):
            log.writer().event(log.key(RangeAttributes("d", "new")) << OP_BITS | MARK)
        os._exit(sum(os.fstat(file).st_size for file in files))
    assert os.waitpid(child, 0)[1] == 0
    (of_child,) = [one for one in map(read_log, log_paths(Path(log.folder))) if one.facts.pid == child]
    assert len(rows(of_child)) == 1 + range_log.REGION_BYTES // RECORD_BYTES


def test_events_without_room_on_the_disk_are_counted(log: RangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first region holds what came before; nothing is raised, and what comes later is counted, not its payloads."""
    writer, head = log.writer(), log.key(RangeAttributes("d", "a")) << OP_BITS
    writer.event(head)

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    room = range_log.REGION_BYTES // RECORD_BYTES
    for _ in range(room):
        writer.event_with_value(head | MARK | HAS_PAYLOAD, 3)
    read = read_only_log(Path(log.folder))
    kept = len(decode(read)[0]["start"])
    assert 0.2 * room < kept < room
    assert read.lost_events == room + 1 - kept


OF_PROCESS = b'{"pid": 1, "parent_pid": 1, "executable": "p", "started_ns": 1, "started_unix_ns": 1}\n'


@pytest.mark.parametrize(
    "names",
    [b"", b"[1]\n", OF_PROCESS.replace(b"1", b'"x"', 1), OF_PROCESS + b"[1, 2, 3, 4, 5]\n", OF_PROCESS + b"[]\n"],
)
def test_a_log_that_was_tampered_with_is_refused(tmp_path: Path, names: bytes) -> None:
    path = tmp_path / ".ranges_1_1.log"
    path.write_bytes(range_log.HEADER.pack(range_log.MAGIC, 0))
    path.with_suffix(range_log.NAMES_SUFFIX).write_bytes(names)
    with pytest.raises(ValueError):  # noqa: PT011 - the type is the point
        read_log(path)


@pytest.mark.parametrize("pops", [5000, 0])
def test_a_deep_trace_stays_small(log: RangeLog, pops: int) -> None:
    """Of 5000 names, one in the other, each is in the trace once, whether they are closed or not."""
    keys = [log.key(RangeAttributes("d", f"r{number}")) << OP_BITS for number in range(5000)]
    for head in keys:
        log.writer().event(head)
    for _ in range(pops):
        log.writer().event(keys[0] | POP)
    (trace,) = complete_traces(Path(log.folder))
    assert trace.stat().st_size < 2_000_000
    with closing(sqlite3.connect(trace)) as connection:
        found = connection.execute(f"SELECT count(*), count(end) FROM {schema.TABLE_NVTX} WHERE eventType = 59")
        assert found.fetchone() == (5000, pops)


@pytest.mark.parametrize(
    ("gpu_present", "end", "used", "reason"),
    [
        (None, None, "yes", NOT_FOLLOWED),
        (True, None, "yes", KILLED),
        (True, False, "no", "said"),
        (False, None, "no", KILLED),
    ],
)
def test_what_a_trace_says_of_the_gpu(
    tmp_path: Path, gpu_present: bool | None, end: bool | None, used: str, reason: str
) -> None:
    """It was not followed (nobody looked for a GPU), killed, or ended well."""
    made = RangeLog(str(tmp_path), gpu_present=gpu_present)
    made.writer().event(made.key(RangeAttributes(None, "a")) << OP_BITS | PUSH)
    if end is not None:
        made.note_end(cuda_used=end, gpu_reason="said")
    (trace,) = complete_traces(tmp_path)
    with closing(sqlite3.connect(trace)) as connection:
        meta = dict(connection.execute(f"SELECT name, value FROM {schema.TABLE_PERFHARNESS}"))
    assert (meta[schema.META_CUDA_USED], meta[schema.META_CUDA_UNTRACED_REASON]) == (used, reason)
