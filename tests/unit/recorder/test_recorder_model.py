"""Random well-nested programs of push, pop, batch and delete on several threads, against the simplest model of them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perfharness import PerfRecorder
from perfharness.model.conventions import MARK_DELETE, MARK_ITEMS, MARK_RECORDER
from tests.unit.recorder_events import Event, events, recording


@dataclass
class Range:
    """A range of a program, and how it is to be written down."""

    name: str
    index: int | None  # of a batch
    items: int | None
    deleted: bool
    domain: str | None
    form: str  # "call" or "with"
    children: list[Range] = field(default_factory=list)


def ranges(children: st.SearchStrategy[list[Range]]) -> st.SearchStrategy[list[Range]]:
    shared: dict[str, Any] = {"name": st.sampled_from("ab"), "deleted": st.booleans(), "children": children}
    none, domains = st.none(), st.sampled_from([None, "other"])
    plain = st.builds(Range, index=none, items=none, domain=domains, form=st.just("call"), **shared)
    items = st.none() | st.integers(0, 9) | st.integers(1 << 40, 1 << 41)
    forms = st.sampled_from(["call", "with"])
    batch = st.builds(Range, index=st.integers(-3, 1 << 40), items=items, domain=none, form=forms, **shared)
    return st.lists(plain | batch, max_size=4)


no_ranges: st.SearchStrategy[list[Range]] = st.just([])
programs = st.recursive(no_ranges, ranges, max_leaves=12)


def run(perf: PerfRecorder, program: list[Range]) -> None:
    for step in program:
        if step.form == "with":
            assert step.index is not None
            with perf.batch(step.index, message=step.name) as batch:
                run(perf, step.children)
                batch.total_items = step.items
                batch.delete_range = step.deleted
        else:
            perf.push_range(step.name, domain=step.domain, batch_idx=step.index)
            run(perf, step.children)
            perf.pop_range(step.domain, step.items, step.deleted)


def expected_events(program: list[Range]) -> list[tuple[Any, ...]]:
    """(op, message, payload) as they must stand in the log."""
    result: list[tuple[Any, ...]] = []
    for step in program:
        result.append(("push", step.name, step.index))
        result += expected_events(step.children)
        if step.items is not None:
            result.append(("mark", MARK_ITEMS, step.items))
        if step.deleted:
            result.append(("mark", MARK_DELETE, None))
        result.append(("pop", None, None))
    return result


def expected_counts(program: list[Range]) -> tuple[int, int, int, int]:
    """Ranges, batches, items, deleted ranges."""
    ranges = batches = items = deleted = 0
    for step in program:
        below = expected_counts(step.children)
        ranges += 1 + below[0]
        batches += (step.index is not None) + below[1]
        items += (step.items or 0) + below[2]
        deleted += step.deleted + below[3]
    return ranges, batches, items, deleted


def written(event: Event) -> tuple[str, str | None, int | None]:
    return event.op, event.message, event.payload


@given(st.lists(programs, min_size=1, max_size=3))
def test_threads(programs_of_threads: list[list[Range]]) -> None:
    with recording() as log:
        perf = PerfRecorder("rec")
        ids: list[int] = [0] * len(programs_of_threads)

        def work(i: int) -> None:
            ids[i] = threading.get_native_id()
            start.wait()
            run(perf, programs_of_threads[i])
            start.wait()  # no id is used again while another thread may still start

        start = threading.Barrier(len(programs_of_threads), timeout=60)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(ids))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        perf.finalize()
    for i, program in enumerate(programs_of_threads):
        announcements = [e for e in events(log, ids[i]) if e.message == MARK_RECORDER]
        rest = [written(e) for e in events(log, ids[i]) if e not in announcements]
        assert rest == expected_events(program)
    assert_counts(perf, programs_of_threads)


@given(st.lists(programs, min_size=1, max_size=4))
def test_tasks(programs_of_tasks: list[list[Range]]) -> None:
    async def run_slowly(perf: PerfRecorder, program: list[Range]) -> None:
        for step in program:
            perf.push_range(step.name, domain=step.domain, batch_idx=step.index)
            await asyncio.sleep(0)
            await run_slowly(perf, step.children)
            perf.pop_range(step.domain, step.items, step.deleted)
            await asyncio.sleep(0)

    async def main(perf: PerfRecorder) -> None:
        await asyncio.gather(*(run_slowly(perf, program) for program in programs_of_tasks))

    with recording() as log:
        perf = PerfRecorder("rec")
        asyncio.run(main(perf))
        perf.finalize()
    assert_counts(perf, programs_of_tasks)
    assert_lanes_nest(events(log), [expected_events(program) for program in programs_of_tasks])


def assert_lanes_nest(log: list[Event], programs: list[list[tuple[Any, ...]]]) -> None:
    """Ranges of one lane nest by time, and all that is in the programs is there, no more and no less."""
    lane_of: dict[int | None, str] = {}
    stacks: dict[str, list[int | None]] = {}
    for event in log:
        if event.op == "start":
            lane = lane_of[event.range_id] = str(event.category).rpartition("#")[2]
            stacks.setdefault(lane, []).append(event.range_id)
        elif event.op == "end":
            assert stacks[lane_of[event.range_id]].pop() == event.range_id
    assert not any(stacks.values())
    found = sorted(
        (("push" if e.op == "start" else "mark", e.message, e.payload) for e in log if e.op in ("start", "mark")),
        key=repr,
    )
    for domain in {e.domain for e in log if e.message == MARK_RECORDER}:
        assert domain in ("perfharness", "other")
        found.remove(("mark", MARK_RECORDER, None))
    assert found == sorted((e for program in programs for e in program if e[0] != "pop"), key=repr)


def assert_counts(perf: PerfRecorder, programs: list[list[Range]]) -> None:
    totals = perf.counts()
    sums = [sum(column) for column in zip(*map(expected_counts, programs), strict=True)]
    assert [totals[name] for name in ("ranges", "batches", "items", "deleted_ranges")] == sums
