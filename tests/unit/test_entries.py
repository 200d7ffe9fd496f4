"""Entries in columns against plain Python: their order, their means, their rounding and their bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.combine import mean_of_trees
from perfharness.analysis.entries import number_column, preorder, rounded
from perfharness.analysis.mean_entries import mean_of_entries
from perfharness.model.result import EntryTable, NumberColumn, Tree
from perfharness.report import entries_json
from perfharness.report.entries_json import number_texts, write_entries

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
    spelled = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    keys: list[tuple[int, int]] = []
    taken: list[set[str]] = [set()]
    for level in depth:
        del taken[level + 1 :]
        name = draw(st.integers(0, len(spelled) - 1))
        index = draw(st.integers(-1, 12))
        while (text := spelled[name] if index < 0 else f"{spelled[name]}_{index}") in taken[level] | set(KEYS):
            index += 1
        keys.append((name, index))
        taken[level].add(text)
        taken.append(set())
    numbers = []
    for key, values in KEYS.items():
        rows = [row for row in range(len(depth)) if draw(st.booleans())]
        column = np.asarray([draw(values) for _ in rows], dtype=np.float64)
        words = tuple(sorted(draw(st.permutations(["sw_power_cap", "sm_clock_low", "é\n", "x"]))[1:]))
        numbers.append(number_column(key, np.asarray(rows, dtype=np.int64), column, words))
    return EntryTable(
        spelled,
        np.asarray([name for name, _ in keys], dtype=np.int64),
        np.asarray([index for _, index in keys], dtype=np.int64),
        np.asarray(depth, dtype=np.int64),
        numbers,
    )


def written(table: EntryTable, level: int = 0) -> str:
    return b"".join(write_entries(table, level)).decode()


@given(tables(), st.integers(1, 4))
def test_the_bytes_are_those_of_json(table: EntryTable, rows_a_piece: int) -> None:
    """In pieces of any size."""
    expected = json.dumps(table.to_tree(), indent=2, ensure_ascii=False)
    assert written(table) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries_json, "ROWS_A_PIECE", rows_a_piece)
        assert written(table) == expected
    assert json.loads(f'{{"data": {written(table, 1)}}}') == json.loads(f'{{"data": {expected}}}')


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
    assert written(table) == json.dumps(table.to_tree(), indent=2)


def test_no_entries() -> None:
    none = np.empty(0, dtype=np.int64)
    table = EntryTable([], none, none, none, [])
    assert (written(table), table.to_tree()) == ("{}", {})
    assert written(mean_of_entries([])) == written(mean_of_entries([table, table])) == "{}"


@given(st.lists(tables(st.sampled_from(["a", "b", "batch"])), min_size=1, max_size=3))
def test_the_mean_of_tables_is_that_of_trees(some: list[EntryTable]) -> None:
    mean = mean_of_entries(some).to_tree()
    expected = mean_of_trees([table.to_tree() for table in some])
    assert canonical(mean) == canonical(expected)
    assert ranges_of(mean) == ranges_of(expected), "in another order"


def canonical(tree: Tree) -> str:
    """With 1 and 1.0 told apart, and keys sorted."""
    return json.dumps(tree, sort_keys=True)


def ranges_of(tree: Any) -> Any:
    return [(key, ranges_of(value)) for key, value in tree.items() if isinstance(value, dict)]


@given(st.lists(TIMES | st.integers(-(10**9), 10**9).map(lambda millionths: (millionths + 0.5) / 1e6), min_size=1))
def test_rounding_is_pythons(values: list[float]) -> None:
    found = rounded(np.asarray(values)).tolist()
    assert [repr(value) for value in found] == [
        repr(value if math.isnan(value) else round(value, 6) + 0.0) for value in values
    ]


@pytest.mark.parametrize("kind", ["number", "whole"])
def test_numbers_as_json_has_them(kind: Any) -> None:
    values = [
        0.0, 1e-6, 5e-5, 9.9e-5, 1e-4, 0.1, 0.123456, 1.0, 12.5, 123456.789012, 1e9 - 1e-6, 1e9, 1e15, 1e16, 1e22,
        2.0**60, -1.0, -0.25, math.nan,
    ]  # fmt: skip
    as_json: Callable[[float], Any] = lambda value: (  # noqa: E731
        None if math.isnan(value) else int(value) if kind == "whole" and value.is_integer() else value
    )
    column = NumberColumn("x", np.arange(len(values)), np.asarray(values), kind)
    assert number_texts(column, column.values).to_pylist() == [json.dumps(as_json(value)) for value in values]


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
