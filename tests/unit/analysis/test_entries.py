"""Entries in columns against plain Python: their order, their means, their rounding and their bytes."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.stages.combine import mean_of_entries, mean_of_trees
from perfharness.analysis.stages.entries import number_column, preorder, rounded
from perfharness.model.result import EntryTable, NumberColumn, Tree
from perfharness.model.rounding import figure
from perfharness.runs.files.json_files import entry_rows

TIMES = st.floats(-1e17, 1e17) | st.floats(0, 1e-3) | st.floats(0, 1e6) | st.just(math.nan)
COUNTS = st.integers(0, 10**12).map(float) | st.just(math.nan)
NAMES = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(['"', "\\", "\n", "é", "batch"])
KEYS: dict[str, st.SearchStrategy[float]] = {
    "cpu_time": TIMES, "gpu_time": TIMES, "count": COUNTS, "total_items": COUNTS,
    "warmup": st.booleans().map(float), "throttled": st.booleans().map(float),
    "throttle_reasons": st.integers(0, 7).map(float),
}  # fmt: skip


@st.composite
def tables(draw: st.DrawFn, names: st.SearchStrategy[str] = NAMES) -> EntryTable:
    """Any tree, with any numbers in any entry."""
    shape = draw(st.lists(st.integers(0, 3), max_size=25))
    depth: list[int] = []
    for wanted in shape:
        depth.append(min(wanted, depth[-1] + 1) if depth else 0)
    backend_and_mode = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    keys: list[tuple[int, int]] = []
    taken: list[set[str]] = [set()]
    for level in depth:
        del taken[level + 1 :]
        name = draw(st.integers(0, len(backend_and_mode) - 1))
        index = draw(st.integers(-1, 12))
        while (text := backend_and_mode[name] if index < 0 else f"{backend_and_mode[name]}_{index}") in taken[
            level
        ] | set(KEYS):
            index += 1
        keys.append((name, index))
        taken[level].add(text)
        taken.append(set())
    numbers = []
    for key, values in KEYS.items():
        rows = [row for row in range(len(depth)) if draw(st.booleans())]
        column = np.asarray([draw(values) for _ in rows], dtype=np.float64)
        words = tuple(sorted(draw(st.permutations(["sw_power_cap", "sm_clock_low", "é\n", "x"]))[1:]))
        split = draw(st.integers(0, len(rows)))  # of one key there may be several columns
        numbers += [
            number_column(key, np.asarray(rows[part], dtype=np.int64), column[part], words)
            for part in (slice(0, split), slice(split, None))
        ]
    return EntryTable(
        backend_and_mode,
        np.asarray([name for name, _ in keys], dtype=np.int64),
        np.asarray([index for _, index in keys], dtype=np.int64),
        np.asarray(depth, dtype=np.int64),
        numbers,
    )


@given(tables())
def test_rows_are_the_entries_of_the_tree(table: EntryTable) -> None:
    """The Parquet rows of a long table put together again."""
    rows = entry_rows(table).to_pylist()
    tree: Tree = {}
    made: list[Tree] = []
    for row in rows:
        above = tree if row["parent"] is None else made[row["parent"]]
        made.append(above.setdefault(row["key"], {}))
    for number, row in enumerate(rows):
        made[number].update({key: row[key] for key in row if key not in ("parent", "depth", "key")})
    assert rows == [] or [row["depth"] for row in rows] == table.depth.tolist()
    assert without_nulls(tree) == without_nulls(table.to_tree())


def without_nulls(tree: Tree) -> Tree:
    return {
        key: without_nulls(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def test_a_tree_in_full() -> None:
    rows = np.arange(4)
    table = EntryTable(
        ["toy", "batch", "infer"], np.asarray([0, 1, 2, 1]), np.asarray([-1, 0, -1, 1]), np.asarray([0, 1, 2, 1]),
        [
            NumberColumn("cpu_time", rows[1:], np.asarray([10.0, 0.25, math.nan])),
            NumberColumn("count", rows[1:], np.asarray([1.0, 2.0, 1.0]), "whole"),
            NumberColumn("warmup", rows[[1, 3]], np.asarray([1.0, 0.0]), "all"),
        ],
    )  # fmt: skip
    assert table.to_tree() == {
        "toy": {
            "batch_0": {
                "cpu_time": 10.0, "count": 1, "warmup": True, "infer": {"cpu_time": 0.25, "count": 2},
            },
            "batch_1": {"cpu_time": None, "count": 1, "warmup": False},
        }
    }  # fmt: skip


def test_no_entries() -> None:
    none = np.empty(0, dtype=np.int64)
    table = EntryTable([], none, none, none, [])
    assert table.to_tree() == {}
    assert mean_of_entries([]).to_tree() == mean_of_entries([table, table]).to_tree() == {}


@given(st.lists(tables(st.sampled_from(["a", "b", "batch"])), min_size=1, max_size=3))
def test_the_mean_of_tables_is_that_of_trees(some: list[EntryTable]) -> None:
    mean = mean_of_entries(some).to_tree()
    expected = mean_of_trees([table.to_tree() for table in some])
    assert canonical(mean) == canonical(expected)
    assert ranges_of(mean) == ranges_of(expected), "in another order"


def canonical(tree: Tree) -> str:
    """With 1 and 1.0 distinguished, and keys sorted."""
    return json.dumps(tree, sort_keys=True)


def ranges_of(tree: Any) -> Any:
    return [(key, ranges_of(value)) for key, value in tree.items() if isinstance(value, dict)]


@given(st.lists(TIMES | st.integers(-(10**9), 10**9).map(lambda millionths: (millionths + 0.5) / 1e6), min_size=1))
def test_rounding_is_pythons(values: list[float]) -> None:
    found = rounded(np.asarray(values)).tolist()
    assert [repr(value) for value in found] == [
        repr(value if math.isnan(value) else figure(value) + 0.0) for value in values
    ]


@given(st.floats(1e-16, 1e9))
def test_rounding_keeps_six_digits(value: float) -> None:
    """Of times of an item, too, of which a batch has a million."""
    (found,) = rounded(np.asarray([value])).tolist()
    assert found == figure(value) == pytest.approx(value, rel=5.1e-6)
    assert figure(1234567e-6) == 1.234567
    assert figure(0.000021) == 0.000021


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=30))
def test_preorder_is_a_walk(drawn: list[tuple[int, int]]) -> None:
    parent = [above % row if row and above < 25 else -1 for row, (above, _) in enumerate(drawn)]
    rank = [value for _, value in drawn]
    expected: list[tuple[int, int]] = []

    def walk(above: int, depth: int) -> None:
        for row in sorted(
            (row for row in range(len(parent)) if parent[row] == above), key=lambda row: (rank[row], row)
        ):
            expected.append((row, depth))
            walk(row, depth + 1)

    walk(-1, 0)
    order, depth = preorder(np.asarray(parent, dtype=np.int64), np.asarray(rank, dtype=np.int64))
    assert list(zip(order.tolist(), depth.tolist(), strict=True)) == expected
