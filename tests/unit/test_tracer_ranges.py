"""Range logs into columns, each case drawn as `op name@time`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.model import nsys_schema as schema
from perfharness.model.range_log import END, HAS_PAYLOAD, MARK, OP_BITS, POP, PUSH, START, RangeAttributes, RangeLog
from perfharness.tracer.ranges import NO_END, RangeEvents, decode

Row = tuple[str, int, int]


def log_of(*threads: list[tuple[int, str, int]], ids: tuple[int, ...] = ()) -> RangeLog:
    """A log with one buffer a thread (numbered from 1); each event is (op, name, time)."""
    log = RangeLog()
    for number, events in enumerate(threads, start=1):
        records: list[int] = []
        for op, name, time_ns in events:
            key = 0 if op in (POP, END) else log.key(RangeAttributes("d", name))
            range_id = int(name) if op in (START, END) else 0
            records += [key << OP_BITS | op, time_ns, 0, range_id]
        log.buffers.append((number, records))
    return log


def rows(log: RangeLog, events: RangeEvents) -> list[Row]:
    names = [log.attributes[key].message for key in events.key.tolist()]
    return sorted(zip(names, events.start.tolist(), events.end.tolist(), strict=True), key=lambda row: row[1:])


def test_nested_and_repeated_ranges() -> None:
    """a [1 ............ 8] a [9 10], inside: b [2 3] b [4 7], inside the second: c [5 6]."""
    log = log_of(
        [
            (PUSH, "a", 1),
            (PUSH, "b", 2),
            (POP, "", 3),
            (PUSH, "b", 4),
            (PUSH, "c", 5),
            (POP, "", 6),
            (POP, "", 7),
            (POP, "", 8),
            (PUSH, "a", 9),
            (POP, "", 10),
        ]
    )
    assert rows(log, decode(log)) == [("a", 1, 8), ("b", 2, 3), ("b", 4, 7), ("c", 5, 6), ("a", 9, 10)]


def test_each_thread_has_a_stack_of_its_own() -> None:
    log = log_of([(PUSH, "a", 1), (POP, "", 4)], [(PUSH, "b", 2), (POP, "", 3)])
    events = decode(log)
    assert rows(log, events) == [("a", 1, 4), ("b", 2, 3)]
    assert sorted(events.thread.tolist()) == [1, 2]


def test_a_range_that_is_never_closed_has_no_end() -> None:
    log = log_of([(PUSH, "a", 1), (PUSH, "b", 2), (POP, "", 3)])
    assert rows(log, decode(log)) == [("a", 1, NO_END), ("b", 2, 3)]


def test_a_pop_with_nothing_pushed_is_left_out() -> None:
    log = log_of([(POP, "", 1), (PUSH, "a", 2), (POP, "", 3), (POP, "", 4), (PUSH, "b", 5), (POP, "", 6)])
    assert rows(log, decode(log)) == [("a", 2, 3), ("b", 5, 6)]


def test_ranges_ended_on_another_thread_say_so() -> None:
    log = log_of([(START, "7", 1), (START, "8", 2), (END, "8", 5)], [(END, "7", 3), (END, "99", 4)])
    events = decode(log)
    assert rows(log, events) == [("7", 1, 3), ("8", 2, 5)]
    by_start = np.argsort(events.start)
    assert events.end_thread[by_start].tolist() == [2, NO_END]
    assert set(events.event_type.tolist()) == {schema.NVTX_START_END_RANGE}


def test_a_start_without_an_end_stays_open() -> None:
    log = log_of([(START, "1", 1)])
    assert rows(log, decode(log)) == [("1", 1, NO_END)]


def test_marks_and_payloads() -> None:
    log = RangeLog()
    key = log.key(RangeAttributes("d", "m")) << OP_BITS
    log.buffers.append((1, [key | MARK | HAS_PAYLOAD, 5, -3, 0, key | MARK, 6, 9, 0]))
    events = decode(log)
    assert events.event_type.tolist() == [schema.NVTX_MARK_EVENT] * 2
    assert events.has_payload.tolist() == [True, False]
    assert events.payload.tolist()[0] == -3


def test_a_payload_beyond_63_bits_keeps_its_bits() -> None:
    log = RangeLog()
    key = log.key(RangeAttributes("d", "m")) << OP_BITS
    log.buffers.append((1, [key | MARK | HAS_PAYLOAD, 5, 2**64 - 1, 0]))
    assert decode(log).payload.tolist() == [-1]


def test_each_domain_has_a_stack() -> None:
    """x [1 ... 3] and y [2 ... 4] cross, which one stack could not."""
    log = RangeLog()
    first, second = (log.key(RangeAttributes(domain, domain)) << OP_BITS for domain in ("x", "y"))
    log.buffers.append(
        (1, [first | PUSH, 1, 0, 0, second | PUSH, 2, 0, 0, first | POP, 3, 0, 0, second | POP, 4, 0, 0])
    )
    assert rows(log, decode(log)) == [("x", 1, 3), ("y", 2, 4)]


def test_a_log_with_nothing_in_it() -> None:
    assert len(decode(RangeLog()).start) == 0


def test_a_record_that_is_only_half_written_is_left_out() -> None:
    log = log_of([(PUSH, "a", 1), (POP, "", 2)])
    log.buffers[0][1].extend([PUSH, 3])
    assert rows(log, decode(log)) == [("a", 1, 2)]


@given(st.lists(st.booleans(), max_size=60))
def test_agrees_with_a_stack(pushes: list[bool]) -> None:
    events = [(PUSH if push else POP, f"r{index}", index + 1) for index, push in enumerate(pushes)]
    stack: list[tuple[str, int]] = []
    expected: list[Row] = []
    for op, name, time_ns in events:
        if op == PUSH:
            stack.append((name, time_ns))
        elif stack:
            expected.append((*stack.pop(), time_ns))
    expected += [(name, start, NO_END) for name, start in stack]
    log = log_of(events)
    assert rows(log, decode(log)) == sorted(expected, key=lambda row: row[1:])


def test_forked_children_start_with_empty_buffers() -> None:
    log = log_of([(PUSH, "a", 1)])
    log.forget_buffers()
    assert log.buffers == []
    log.buffer().extend((0, 1, 0, 0))
    assert len(log.buffers) == 1


@pytest.mark.parametrize("count", [0, 1, 7])
def test_keys_are_the_same_for_equal_attributes(count: int) -> None:
    log = RangeLog()
    keys = {log.key(RangeAttributes("d", "a")) for _ in range(count)}
    assert len(keys) == min(count, 1)
