"""Ids that a forked child inherits: NVTX_EVENTS holds their definitions under another pid only."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfharness.model import nsys_schema as schema
from perfharness.model.trace import Trace, pid_of
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder

DOMAIN, CATEGORY = schema.NVTX_DOMAIN_CREATE, schema.NVTX_CATEGORY_EVENT


class Forked(TraceBuilder):
    """A trace whose ids are written as they come, defined or not."""

    def define(self, pid: int, domain: int, name: str, at: int = 0, *, category: int | None = None) -> None:
        kind = DOMAIN if category is None else CATEGORY
        self.row(
            schema.TABLE_NVTX, start=at, eventType=kind, text=name, domainId=domain, category=category,
            globalTid=schema.global_tid(pid, pid),
        )  # fmt: skip

    def use(self, pid: int, domain: int, start: int, *, category: int | None = None) -> None:
        self.row(
            schema.TABLE_NVTX, start=start, end=start + 5, eventType=schema.NVTX_PUSH_POP_RANGE, domainId=domain,
            category=category, globalTid=schema.global_tid(pid, pid), textId=self.string("stage"),
        )  # fmt: skip


def names(trace: Trace) -> list[tuple[int, str | None, str | None]]:
    """Pid, domain and category of each range, in order of start."""
    ranges = trace.ranges

    def name(code: int) -> str | None:
        return trace.names[code] if code >= 0 else None

    return [
        (int(pid_of(ranges.thread[row])), name(ranges.domain[row]), name(ranges.category[row]))
        for row in ranges.start_ns.argsort(kind="stable")
    ]


def codes(trace: Trace) -> list[str]:
    return [finding.code for finding in trace.meta.findings]


def two_families() -> Forked:
    """1 and 5 define the same ids; 2 and 6 are their children, 7 a child of 6."""
    builder = Forked()
    for pid, domain, category in ((1, "first", "a"), (5, "second", "b")):
        builder.define(pid, 1, domain)
        builder.define(pid, 1, category, category=1)
    for pid in (1, 2, 5, 6, 7):
        builder.use(pid, 1, 10 * pid, category=1)
    return builder


def test_the_process_tree_decides_where_an_id_was_defined_twice(tmp_path: Path) -> None:
    path = two_families().write(tmp_path / "t.sqlite")
    trace = open_trace(path, parents={2: 1, 6: 5, 7: 6})
    assert names(trace) == [
        (1, "first", "a"), (2, "first", "a"), (5, "second", "b"), (6, "second", "b"), (7, "second", "b"),
    ]  # fmt: skip
    assert codes(trace) == []


def test_nothing_is_guessed_without_the_process_tree(tmp_path: Path) -> None:
    """Their ranges are in no named domain, and the finding counts them."""
    trace = open_trace(two_families().write(tmp_path / "t.sqlite"), parents={6: 5})
    assert [(pid, domain) for pid, domain, _ in names(trace) if pid in (1, 5, 6)] == [
        (1, "first"), (5, "second"), (6, "second"),
    ]  # fmt: skip
    assert not {domain for pid, domain, _ in names(trace) if pid in (2, 7)} & {"first", "second", None}
    assert codes(trace) == ["inherited-ids-unclear"]


def test_children_that_define_ids_of_their_own(tmp_path: Path) -> None:
    """One id, and another name in each child; a grandchild goes on with that of its parent."""
    builder = Forked()
    builder.define(1, 1, "perfharness")
    for pid, name in ((2, "w2"), (3, "w3")):
        builder.use(pid, 1, 10 * pid)
        builder.define(pid, 2, name, 10 * pid + 1)
        builder.use(pid, 2, 10 * pid + 2)
    builder.use(4, 2, 100)
    trace = open_trace(builder.write(tmp_path / "t.sqlite"), parents={2: 1, 3: 1, 4: 3})
    assert [(pid, domain) for pid, domain, _ in names(trace)] == [
        (2, "perfharness"), (2, "w2"), (3, "perfharness"), (3, "w3"), (4, "w3"),
    ]  # fmt: skip
    assert codes(trace) == []


def test_a_child_that_gives_an_inherited_number_a_second_meaning(tmp_path: Path) -> None:
    """As nsys 2023.4 numbers them: before its own definition it is the parent's; later it may be either."""
    builder = Forked()
    builder.define(1, 1, "first")
    builder.use(1, 1, 5)
    builder.use(2, 1, 10)
    builder.define(2, 1, "second", 20)
    builder.use(2, 1, 30)
    trace = open_trace(builder.write(tmp_path / "t.sqlite"))
    assert [domain for _, domain, _ in names(trace)] == ["first", "first", "second"]
    assert codes(trace) == ["inherited-ids-unclear"]


def test_a_domain_that_nobody_defined_is_not_the_default_one(tmp_path: Path) -> None:
    builder = Forked()
    builder.use(1, 0, 0)
    builder.use(1, 3, 10)
    assert [domain is None for _, domain, _ in names(open_trace(builder.write(tmp_path / "t.sqlite")))] == [True, False]


def test_categories_without_a_name_stay_so_in_a_process_that_was_not_forked(tmp_path: Path) -> None:
    """Categories need no name; another process's name for the number is not theirs."""
    builder = Forked()
    builder.define(1, 0, "x", category=4)
    builder.use(1, 0, 0, category=4)
    builder.use(2, 0, 10, category=4)
    assert names(open_trace(builder.write(tmp_path / "t.sqlite"))) == [(1, None, "x"), (2, None, None)]


@settings(max_examples=40)
@given(st.data())
def test_any_tree_of_forks_is_resolved(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Every process defines some ids, all different, and uses those that it or an ancestor defined."""
    count = data.draw(st.integers(1, 7))
    parent = {pid: data.draw(st.integers(1, pid - 1)) for pid in range(2, count + 1)}
    builder, expected = Forked(), []
    known: dict[int, dict[int, str]] = {}
    builder.range("root", 0, 1)
    for pid in range(1, count + 1):
        inherited = dict(known[parent[pid]]) if pid > 1 else {}
        first = len(inherited) + 1
        for number in range(first, first + data.draw(st.integers(0, 2))):
            builder.define(pid, number, f"{number} of {pid}")
            inherited[number] = f"{number} of {pid}"
        known[pid] = inherited
        for number, name in inherited.items():
            builder.use(pid, number, 1000 * pid + number)
            expected.append((pid, name, None))
    path = tmp_path_factory.mktemp("t") / "t.sqlite"
    trace = open_trace(builder.write(path), parents=parent)
    assert names(trace)[1:] == expected
    assert codes(trace) == []
