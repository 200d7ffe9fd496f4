from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.keys import count_by_code, group_pairs, group_rows, sum_by_code

VALUES = st.sampled_from([0, 1, -1, 7, 2**40, -(2**61), 2**61])


@given(st.lists(st.tuples(VALUES, VALUES, VALUES), max_size=30))
def test_groups_are_those_of_a_dictionary(rows: list[tuple[int, int, int]]) -> None:
    columns = [np.asarray([row[k] for row in rows], dtype=np.int64) for k in range(3)]
    groups = group_rows(*columns)
    numbers: dict[tuple[int, int, int], int] = {}
    assert groups.code.tolist() == [numbers.setdefault(row, len(numbers)) for row in rows]
    assert groups.first.tolist() == [rows.index(row) for row in numbers]


def test_sums_and_counts() -> None:
    code = np.asarray([0, 2, 0])
    assert sum_by_code(code, np.asarray([1.0, 2.0, 3.0]), 3).tolist() == [4.0, 0.0, 2.0]
    assert count_by_code(code, 3).tolist() == [2.0, 0.0, 1.0]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=40), st.booleans())
def test_pairs_are_grouped_as_rows_are(pairs: list[tuple[int, int]], rising: bool) -> None:
    """Whether the second column rises where the first is equal, which is the quick way, or not."""
    if rising:
        so_far = [pairs[: at + 1] for at in range(len(pairs))]
        pairs = [(seen[-1][0], max(other for small, other in seen if small == seen[-1][0])) for seen in so_far]
    small = np.asarray([pair[0] for pair in pairs], dtype=np.int64)
    other = np.asarray([pair[1] for pair in pairs], dtype=np.int64)
    expected, found = group_rows(small, other), group_pairs(small, other)
    assert found.code.tolist() == expected.code.tolist()
    assert found.first.tolist() == expected.first.tolist()
