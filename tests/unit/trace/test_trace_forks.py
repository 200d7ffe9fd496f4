"""Ids of domains and categories in forked processes, whose definitions stand under another pid."""

from __future__ import annotations

import pytest

from perfharness.model import nsys_schema as schema
from perfharness.model.trace import Trace, pid_of
from tests.support.trace_builder import TraceBuilder
from tests.unit.trace.conftest import Read

DOMAIN, CATEGORY, RANGE = schema.NVTX_DOMAIN_CREATE, schema.NVTX_CATEGORY_EVENT, schema.NVTX_PUSH_POP_RANGE

Event = tuple[int, int, int | None, int, str | None]
"""pid, domain id, category id, time; the name that is defined, or None: a range."""

FIRST: list[Event] = [(1, 1, None, 0, "first"), (1, 1, 1, 0, "a")]
SECOND: list[Event] = [(5, 1, None, 0, "second"), (5, 1, 1, 0, "b")]
FAMILIES: list[Event] = [*FIRST, *SECOND, *((pid, 1, 1, 10 * pid, None) for pid in (1, 2, 5, 6, 7))]
"""1 and 5 define the same ids; 2 is a child of 1, 6 of 5, 7 of 6."""


def built(events: list[Event]) -> TraceBuilder:
    builder = TraceBuilder()
    for pid, domain, category, at, name in events:
        kind = RANGE if name is None else DOMAIN if category is None else CATEGORY
        end, text = (at + 5, None) if name is None else (None, name)
        text_id = builder.string("stage") if name is None else None
        builder.row(
            schema.TABLE_NVTX,
            start=at,
            end=end,
            eventType=kind,
            text=text,
            textId=text_id,
            domainId=domain,
            category=category,
            globalTid=schema.global_tid(pid, pid),
        )
    return builder


def names(trace: Trace) -> list[tuple[int, str | None, str | None]]:
    """Pid, domain and category of each range, in order of start."""
    known = [*trace.names, None]  # of the code -1
    ranges = trace.ranges
    return [
        (int(pid_of(ranges.thread[row])), known[ranges.domain[row]], known[ranges.category[row]])
        for row in ranges.start_ns.argsort(kind="stable")
    ]


@pytest.mark.parametrize(
    ("events", "parents", "expected"),
    [
        pytest.param(
            FAMILIES,
            {2: 1, 6: 5, 7: 6},
            [(1, "first", "a"), (2, "first", "a"), (5, "second", "b"), (6, "second", "b"), (7, "second", "b")],
            id="the process tree decides",
        ),
        pytest.param(
            FAMILIES,
            {6: 5},
            [
                (1, "first", "a"),
                (2, "domain 1 of process 2", None),
                (5, "second", "b"),
                (6, "second", "b"),
                (7, "domain 1 of process 7", None),
            ],
            id="nothing is guessed without it",
        ),
        pytest.param(
            [*FIRST, (2, 1, 1, 20, None)], {}, [(2, "first", "a")], id="the only definition counts without it"
        ),
        pytest.param(
            [
                (1, 1, None, 0, "perfharness"),
                (2, 1, None, 20, None),
                (2, 2, None, 21, "w2"),
                (2, 2, None, 22, None),
                (3, 1, None, 30, None),
                (3, 2, None, 31, "w3"),
                (3, 2, None, 32, None),
                (4, 2, None, 40, None),
            ],
            {2: 1, 3: 1, 4: 3},
            [(2, "perfharness", None), (2, "w2", None), (3, "perfharness", None), (3, "w3", None), (4, "w3", None)],
            id="children define ids of their own",
        ),
        pytest.param(
            [
                (1, 1, None, 0, "first"),
                (1, 1, None, 5, None),
                (2, 1, None, 10, None),
                (2, 1, None, 20, "second"),
                (2, 1, None, 30, None),
            ],
            {},
            [(1, "first", None), (2, "first", None), (2, "second", None)],
            id="nsys 2023.4 gives an inherited number a second meaning",
        ),
        pytest.param(
            [(1, 0, None, 0, None), (1, 3, None, 10, None)],
            {},
            [(1, None, None), (1, "domain 3 of process 1", None)],
            id="a domain that nobody defined is not the default one",
        ),
        pytest.param(
            [(1, 0, 4, 0, "x"), (1, 0, 4, 1, None), (2, 0, 4, 10, None)],
            {},
            [(1, None, "x"), (2, None, None)],
            id="a category of a process that was not forked needs no name",
        ),
        pytest.param(
            [*FIRST, (2, 1, None, 0, "second"), (2, 1, 1, 0, "b"), (1, 1, 1, 5, None), (2, 1, 1, 6, None)],
            {2: 1},
            [(1, "first", "a"), (2, "second", "b")],
            id="ids belong to their process",
        ),
    ],
)
def test_ids_of_forked_processes(
    read: Read,
    events: list[Event],
    parents: dict[int, int],
    expected: list[tuple[int, str | None, str | None]],
) -> None:
    assert names(read(built(events), parents=parents)) == expected
