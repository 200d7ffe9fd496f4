from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis.timeline.grouping import count_by_code, group_rows, rows_by_code, sum_by_code, unique

VALUES = st.sampled_from([0, 1, -1, 7, 2**40, -(2**61), 2**61])


@given(st.lists(st.tuples(VALUES, VALUES, st.sampled_from([-128, -1, 0, 127])), max_size=30))
def test_groups_are_those_of_a_dictionary(rows: list[tuple[int, int, int]]) -> None:
    """The last column is as narrow as details of operations are held: no code may leave its 8 bits."""
    columns = [
        np.asarray([row[k] for row in rows], dtype=dtype) for k, dtype in enumerate((np.int64, np.int64, np.int8))
    ]
    for wanted in (slice(0, 3), slice(2, 3)):
        groups = group_rows(*columns[wanted])
        keys = [tuple(row)[wanted] for row in rows]
        numbers: dict[tuple[int, ...], int] = {}
        assert groups.code.tolist() == [numbers.setdefault(key, len(numbers)) for key in keys]
        assert groups.first.tolist() == [keys.index(key) for key in numbers]


@given(st.lists(st.sampled_from([-128, -1, 0, 5, 127]), max_size=12), st.booleans())
def test_unique_values_are_those_of_a_set(values: list[int], in_order: bool) -> None:
    values = sorted(values) if in_order else values
    assert unique(np.asarray(values, dtype=np.int8)).tolist() == sorted(set(values))


def test_sums_and_counts() -> None:
    code = np.asarray([0, 2, 0])
    assert sum_by_code(code, np.asarray([1.0, 2.0, 3.0]), 3).tolist() == [4.0, 0.0, 2.0]
    assert count_by_code(code, 3).tolist() == [2.0, 0.0, 1.0]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_rows_by_code_are_those_of_a_stable_sort(rows: list[tuple[int, bool]]) -> None:
    code = np.asarray([code for code, _ in rows], dtype=np.int64)
    wanted = np.asarray([wanted for _, wanted in rows], dtype=np.bool_)
    found, counts = rows_by_code(code, wanted)
    assert found.tolist() == sorted((row for row, (_, wanted) in enumerate(rows) if wanted), key=lambda r: rows[r][0])
    assert counts.tolist() == [
        sum(wanted and code == which for code, wanted in rows)
        for which in range(max((code for code, _ in rows), default=-1) + 1)
    ]
