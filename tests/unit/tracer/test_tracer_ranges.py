"""Range logs into columns, each case drawn as `op name@time`."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tracemalloc
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from perfharness.model import nsys_schema as schema
from perfharness.model import range_log
from perfharness.model.range_log import (
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
from perfharness.tracer import output
from perfharness.tracer.output import KILLED, NOT_FOLLOWED, complete_traces, log_paths
from perfharness.tracer.ranges import NO_END, LoggedRanges, Table, decode, read_end, read_log

Row = tuple[str, int, int]
FACTS = LogFacts(1, 0, "python", 0, 0)


def file_of(*chunks: tuple[int, list[tuple[int, int]]]) -> NDArray[np.int64]:
    """The records of a file: chunks of one thread each; the first page is its header."""
    rows = [(0, 0)] * (FIRST_CHUNK_BYTES // RECORD_BYTES)
    for thread, records in chunks:
        rows += [((len(records) + 1) * RECORD_BYTES << OP_BITS | CHUNK, thread), *records]
    return np.array(rows, dtype=np.int64)


def log_of(*threads: list[tuple[int, str, int]], cut: int = 1 << 30) -> LoggedRanges:
    """A log with one thread an argument (numbered from 1); each event is (op, name, time), and a chunk ends after
    `cut` records of each thread."""
    attributes = [RangeAttributes(None, "nothing")]
    columns: list[list[tuple[int, int]]] = []
    for events in threads:
        records: list[tuple[int, int]] = []
        for op, name, time_ns in events:
            if op in (START, END):
                records.append((ID, int(name)))
            if op not in (POP, END):
                attributes.append(RangeAttributes("d", name))
            key = 0 if op == END else len(attributes) - 1
            records.append((key << OP_BITS | op, time_ns))
        columns.append(records)
    if any(op == POP for events in threads for op, _, _ in events):
        attributes[0] = RangeAttributes("d", "")
    longest = max((len(records) for records in columns), default=0)
    chunks = [
        (number, records[begin : begin + cut])
        for begin in range(0, longest, cut)
        for number, records in enumerate(columns, start=1)
        if records[begin : begin + cut]
    ]
    return LoggedRanges(FACTS, attributes, 0, file_of(*chunks))


def of_records(*records: tuple[int, int], attributes: list[RangeAttributes]) -> LoggedRanges:
    return LoggedRanges(FACTS, attributes, 0, file_of((1, list(records))))


def rows(log: LoggedRanges, events: Table) -> list[Row]:
    names = [log.attributes[key].message for key in events["key"].tolist()]
    return sorted(zip(names, events["start"].tolist(), events["end"].tolist(), strict=True), key=lambda row: row[1:])


A, B = (PUSH, "a"), (PUSH, "b")


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        # a [1 ............ 8] a [9 10], inside: b [2 3] b [4 7], inside the second: c [5 6].
        (
            [[(*A, 1), (*B, 2), (POP, "", 3), (*B, 4), (PUSH, "c", 5), *((POP, "", at) for at in (6, 7, 8)),
              (*A, 9), (POP, "", 10)]],
            [("a", 1, 8), ("b", 2, 3), ("b", 4, 7), ("c", 5, 6), ("a", 9, 10)],
        ),
        # Each thread has a stack of its own.
        ([[(*A, 1), (POP, "", 4)], [(*B, 2), (POP, "", 3)]], [("a", 1, 4), ("b", 2, 3)]),
        # Never closed, and never begun.
        ([[(*A, 1), (*B, 2), (POP, "", 3)]], [("a", 1, NO_END), ("b", 2, 3)]),
        (
            [[(POP, "", 1), (*A, 2), (POP, "", 3), (POP, "", 4), (*B, 5), (POP, "", 6)]],
            [("a", 2, 3), ("b", 5, 6)],
        ),
        ([[(START, "1", 1)]], [("1", 1, NO_END)]),
        ([[]], []),
    ],
)  # fmt: skip
def test_pushes_and_pops(threads: list[list[tuple[int, str, int]]], expected: list[Row]) -> None:
    log = log_of(*threads)
    assert rows(log, decode(log)) == expected


def test_ranges_ended_on_another_thread_say_so() -> None:
    log = log_of([(START, "7", 1), (START, "8", 2), (END, "8", 5)], [(END, "7", 3), (END, "99", 4)])
    events = decode(log)
    assert rows(log, events) == [("7", 1, 3), ("8", 2, 5)]
    by_start = np.argsort(events["start"])
    assert events["end_thread"][by_start].tolist() == [2, NO_END]
    assert set(events["event_type"].tolist()) == {schema.NVTX_START_END_RANGE}


def test_marks_and_payloads() -> None:
    key = 1 << OP_BITS
    attributes = [RangeAttributes(None, ""), RangeAttributes("d", "m")]
    log = of_records((VALUE, -3), (key | MARK | HAS_PAYLOAD, 5), (key | MARK, 6), attributes=attributes)
    events = decode(log)
    assert events["event_type"].tolist() == [schema.NVTX_MARK_EVENT] * 2
    assert events["has_payload"].tolist() == [True, False]
    assert events["payload"].tolist()[0] == -3


def test_each_domain_has_a_stack() -> None:
    """x [1 ... 3] and y [2 ... 4] cross, which one stack could not."""
    attributes = [RangeAttributes(None, ""), RangeAttributes("x", "x"), RangeAttributes("y", "y")]
    first, second = 1 << OP_BITS, 2 << OP_BITS
    records = [(first | PUSH, 1), (second | PUSH, 2), (first | POP, 3), (second | POP, 4)]
    log = of_records(*records, attributes=attributes)
    assert rows(log, decode(log)) == [("x", 1, 3), ("y", 2, 4)]


def test_a_record_that_is_only_half_written_is_left_out() -> None:
    """The process was killed between the two numbers of a record, or before the event behind a payload."""
    attributes = [RangeAttributes("d", "a")]
    for last in [(1 << OP_BITS | PUSH, 0), (VALUE, 7), (ID, 7)]:
        log = of_records((PUSH, 1), (POP, 2), last, attributes=attributes)
        assert rows(log, decode(log)) == [("a", 1, 2)]


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
    log = log_of(events, cut=cut)
    assert rows(log, decode(log)) == sorted(expected, key=lambda row: row[1:])


@given(st.permutations(range(6)), st.integers(1, 9), st.data())
def test_starts_and_ends_of_two_threads_in_any_blocks(order: list[int], cut: int, data: st.DataObject) -> None:
    threads: list[list[tuple[int, str, int]]] = [[], []]
    for number in range(6):
        threads[data.draw(st.integers(0, 1))].append((START, str(number), 1 + number))
    for place, number in enumerate(order):
        threads[data.draw(st.integers(0, 1))].append((END, str(number), 100 + place))
    log = log_of(*threads, cut=cut)
    assert rows(log, decode(log)) == sorted(
        ((str(number), 1 + number, 100 + place) for place, number in enumerate(order)), key=lambda row: row[1:]
    )


def read_only_log(folder: Path) -> LoggedRanges:
    (path,) = folder.glob(f"{range_log.LOG_PREFIX}*{range_log.LOG_SUFFIX}")
    return read_log(path)


def test_what_was_recorded_is_in_the_file_and_not_in_memory(tmp_path: Path) -> None:
    """200,000 events take 3.2 MB in the file; the process holds one region of it."""
    log = RangeLog(str(tmp_path))
    writer, head = log.writer(), log.key(RangeAttributes("d", "a")) << OP_BITS
    pop = writer.popper(head | POP)
    tracemalloc.start()
    for _ in range(100_000):
        writer.event(head)
        pop()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    events = decode(read_only_log(tmp_path))
    assert len(events["start"]) == 100_000
    assert (events["end"] >= events["start"]).all()


def test_payloads_and_numbers_across_chunks(tmp_path: Path) -> None:
    log = RangeLog(str(tmp_path))
    writer, head = log.writer(), log.key(RangeAttributes("d", "a")) << OP_BITS
    values = [2**64 - 1, -(2**63), 2**63, *range(2000)]
    for value in values:
        writer.end(writer.start_with_value(head | START | HAS_PAYLOAD, value))
    events = decode(read_only_log(tmp_path))
    order = np.argsort(events["start"], kind="stable")
    assert events["payload"][order].tolist() == [-1, -(2**63), -(2**63), *range(2000)]
    assert (events["end"] != NO_END).all()


def test_distinct_names_are_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_log, "KEYS_REMEMBERED", 10)
    log = RangeLog(str(tmp_path))
    for number in [*range(100), *range(100)]:
        log.writer().event(log.key(RangeAttributes("d", f"r{number}")) << OP_BITS | MARK)
    assert len(log._keys) <= 10
    read = read_only_log(tmp_path)
    names = [read.attributes[key].message for key in decode(read)["key"].tolist()]
    assert names == [f"r{number}" for number in [*range(100), *range(100)]]


@pytest.mark.parametrize("pops", [5000, 0])
def test_a_deep_trace_stays_small(tmp_path: Path, pops: int) -> None:
    """Of 5000 names, one in the other, each stands in the trace once, whether they are closed or not."""
    log = RangeLog(str(tmp_path))
    keys = [log.key(RangeAttributes("d", f"r{number}")) << OP_BITS for number in range(5000)]
    for head in keys:
        log.writer().event(head)
    for _ in range(pops):
        log.writer().event(keys[0] | POP)
    (trace,) = complete_traces(tmp_path)
    assert trace.stat().st_size < 2_000_000
    with closing(sqlite3.connect(trace)) as connection:
        found = connection.execute(f"SELECT count(*), count(end) FROM {schema.TABLE_NVTX} WHERE eventType = 59")
        assert found.fetchone() == (5000, pops)


def test_a_forked_child_writes_a_log_of_its_own(tmp_path: Path) -> None:
    """The parent's keys and a range open at the fork mean the same in the child."""
    log = RangeLog(str(tmp_path))
    range_log.install(log)
    try:
        writer = log.writer()
        outer, inner = (log.key(RangeAttributes("d", name)) << OP_BITS for name in ("outer", "inner"))
        writer.event(outer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            writer.event(inner)
            writer.event(inner | POP)
            new = log.key(RangeAttributes("d", "new")) << OP_BITS
            log.writer().event(new | MARK)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        log.key(RangeAttributes("d", "of the parent"))
        writer.event(outer | POP)
    finally:
        range_log.install(None)
    logs = [read_log(path) for path in tmp_path.glob(f"*{range_log.LOG_SUFFIX}")]
    found = {entry.facts.pid: [name for name, _, _ in rows(entry, decode(entry))] for entry in logs}
    assert found == {os.getpid(): ["outer"], child: ["inner", "new"]}


def test_a_log_that_the_script_removed_is_there_again_at_the_end(tmp_path: Path) -> None:
    """As with `rmtree(output_dir)`: what stays open can be read. The note of the end is in it."""
    log = RangeLog(str(tmp_path / "out" / "process"))
    for name in ("a", "b"):
        log.writer().event(log.key(RangeAttributes("d", name)) << OP_BITS | MARK)
    shutil.rmtree(tmp_path / "out")
    log.restore()
    log.note_end(cuda_used=False, gpu_reason="none")
    read = read_only_log(tmp_path / "out" / "process")
    assert [name for name, _, _ in rows(read, decode(read))] == ["a", "b"]
    (path,) = log_paths(tmp_path / "out" / "process")
    assert read_end(path).gpu_reason == "none"


def test_a_log_that_cannot_be_read_now_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever completes the traces next takes it in."""
    log = RangeLog(str(tmp_path))
    log.writer().event(log.key(RangeAttributes("d", "a")) << OP_BITS | MARK)

    def no_descriptor_left(path: Path) -> LoggedRanges:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(output, "read_log", no_descriptor_left)
        with pytest.raises(OSError, match="Too many"):
            complete_traces(tmp_path)
        assert len(log_paths(tmp_path)) == 1
    (trace,) = complete_traces(tmp_path)
    with closing(sqlite3.connect(trace)) as connection:
        assert connection.execute(f"SELECT count(*) FROM {schema.TABLE_NVTX} WHERE eventType = 34").fetchone() == (1,)


def test_events_without_room_on_the_disk_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first region holds what came before; nothing is raised, and what comes later is counted, not its payloads."""
    log = RangeLog(str(tmp_path))
    writer, head = log.writer(), log.key(RangeAttributes("d", "a")) << OP_BITS
    writer.event(head)

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    room = range_log.REGION_BYTES // RECORD_BYTES
    for _ in range(room):
        writer.event_with_value(head | MARK | HAS_PAYLOAD, 3)
    read = read_only_log(tmp_path)
    kept = len(decode(read)["start"])
    assert 0.2 * room < kept < room
    assert read.lost_events == room + 1 - kept


@pytest.mark.parametrize(
    "names",
    [
        b"",
        b"[1]\n",
        b'{"pid": "x", "parent_pid": 1, "executable": "p", "started_ns": 1, "started_unix_ns": 1}\n',
        b'{"pid": 1, "parent_pid": 1, "executable": "p", "started_ns": 1, "started_unix_ns": 1}\n[1, 2, 3, 4, 5, 6]\n',
        b'{"pid": 1, "parent_pid": 1, "executable": "p", "started_ns": 1, "started_unix_ns": 1}\n[]\n',
    ],
)
def test_a_log_that_was_tampered_with_is_refused(tmp_path: Path, names: bytes) -> None:
    path = tmp_path / ".ranges_1_1.log"
    path.write_bytes(range_log.HEADER.pack(range_log.MAGIC, 0))
    path.with_suffix(range_log.NAMES_SUFFIX).write_bytes(names)
    with pytest.raises(ValueError):  # noqa: PT011 - the type is the point
        read_log(path)


@pytest.mark.parametrize(("gpu_present", "reason"), [(None, NOT_FOLLOWED), (True, KILLED)])
def test_a_process_that_could_not_be_followed_was_not_killed(
    tmp_path: Path, gpu_present: bool | None, reason: str
) -> None:
    """Its recorder made the log, and nobody looked for a GPU."""
    log = RangeLog(str(tmp_path), gpu_present=gpu_present)
    log.writer().event(log.key(RangeAttributes(None, "a")) << OP_BITS | PUSH)
    (trace,) = complete_traces(tmp_path)
    with closing(sqlite3.connect(trace)) as connection:
        query = f"SELECT value FROM {schema.TABLE_PERFHARNESS} WHERE name = ?"
        assert connection.execute(query, [schema.META_CUDA_UNTRACED_REASON]).fetchall() == [(reason,)]
