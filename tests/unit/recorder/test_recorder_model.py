"""Random well-nested programs of push, pop, batch and delete on several threads, against the simplest model of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perfharness import PerfRecorder
from perfharness.model.conventions import MARK_DELETE, MARK_ITEMS, MARK_RECORDER
from tests.unit.recorder_events import Event, events, recording

Written = tuple[str, str | None, int | None]
"""What happens, message and payload."""


@dataclass
class Range:
    """A range of a program, a batch where it has an index."""

    name: str
    index: int | None
    items: int | None
    deleted: bool
    domain: str | None
    children: list[Range] = field(default_factory=list)


def ranges(children: st.SearchStrategy[list[Range]]) -> st.SearchStrategy[list[Range]]:
    shared: dict[str, Any] = {"name": st.sampled_from("ab"), "deleted": st.booleans(), "children": children}
    none, domains = st.none(), st.sampled_from([None, "other"])
    items = none | st.integers(0, 9) | st.integers(1 << 40, 1 << 41)
    plain = st.builds(Range, index=none, items=none, domain=domains, **shared)
    batch = st.builds(Range, index=st.integers(-3, 1 << 40), items=items, domain=none, **shared)
    return st.lists(plain | batch, max_size=4)


no_ranges: st.SearchStrategy[list[Range]] = st.just([])
programs = st.recursive(no_ranges, ranges, max_leaves=12)


def run(perf: PerfRecorder, program: list[Range], *, in_blocks: bool) -> None:
    for step in program:
        if in_blocks and step.index is not None:
            with perf.batch(step.index, message=step.name) as batch:
                run(perf, step.children, in_blocks=False)
                batch.total_items, batch.delete_range = step.items, step.deleted
        else:
            perf.push_range(step.name, domain=step.domain, batch_idx=step.index)
            run(perf, step.children, in_blocks=True)
            perf.pop_range(step.domain, step.items, step.deleted)


def expected(program: list[Range]) -> Iterator[Written]:
    """What must stand in the log."""
    for step in program:
        yield "push", step.name, step.index
        yield from expected(step.children)
        if step.items is not None:
            yield "mark", MARK_ITEMS, step.items
        if step.deleted:
            yield "mark", MARK_DELETE, None
        yield "pop", None, None


def assert_counts(perf: PerfRecorder, everything: list[list[Range]]) -> None:
    written = [event for program in everything for event in expected(program)]
    counts = [
        sum(op == "push" for op, _, _ in written),
        sum(op == "push" and index is not None for op, _, index in written),
        sum(items or 0 for _, name, items in written if name == MARK_ITEMS),
        sum(name == MARK_DELETE for _, name, _ in written),
    ]
    totals = perf.counts()
    assert [totals[name] for name in ("ranges", "batches", "items", "deleted_ranges")] == counts


@given(st.lists(programs, min_size=1, max_size=3))
def test_threads(everything: list[list[Range]]) -> None:
    with recording() as log:
        perf = PerfRecorder("rec")
        ids: list[int] = [0] * len(everything)

        def work(number: int) -> None:
            ids[number] = threading.get_native_id()
            together.wait()
            run(perf, everything[number], in_blocks=bool(number % 2))
            together.wait()  # no id is used again while another thread may still start

        together = threading.Barrier(len(everything), timeout=60)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(ids))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        perf.finalize()
    for number, program in enumerate(everything):
        found = [(e.op, e.message, e.payload) for e in events(log, ids[number]) if e.message != MARK_RECORDER]
        assert found == list(expected(program))
    assert_counts(perf, everything)


@given(st.lists(programs, min_size=1, max_size=4))
def test_tasks(everything: list[list[Range]]) -> None:
    async def run_slowly(perf: PerfRecorder, program: list[Range]) -> None:
        for step in program:
            perf.push_range(step.name, domain=step.domain, batch_idx=step.index)
            await asyncio.sleep(0)
            await run_slowly(perf, step.children)
            perf.pop_range(step.domain, step.items, step.deleted)
            await asyncio.sleep(0)

    async def main(perf: PerfRecorder) -> None:
        await asyncio.gather(*(run_slowly(perf, program) for program in everything))

    with recording() as log:
        perf = PerfRecorder("rec")
        asyncio.run(main(perf))
        perf.finalize()
    assert_counts(perf, everything)
    written = [event for event in events(log) if event.message != MARK_RECORDER]
    assert_nested_by_category(written)
    found = [("push" if e.op == "start" else e.op, e.message, e.payload) for e in written if e.op != "end"]
    wanted = [event for program in everything for event in expected(program) if event[0] != "pop"]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


def assert_nested_by_category(written: list[Event]) -> None:
    """The ranges of one task nest by time."""
    task_of: dict[int | None, str] = {}
    stacks: dict[str, list[int | None]] = {}
    for event in written:
        if event.op == "start":
            task = task_of[event.range_id] = str(event.category).rpartition("#")[2]
            stacks.setdefault(task, []).append(event.range_id)
        elif event.op == "end":
            assert stacks[task_of[event.range_id]].pop() == event.range_id
    assert not any(stacks.values())
