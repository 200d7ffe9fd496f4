"""Columns that are worked on a part at a time give what they give as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.analysis import keys
from perfharness.analysis.growing import GrowingColumn
from perfharness.analysis.keys import rows_by_code
from perfharness.analysis.range_table import build_range_table
from perfharness.analysis.stages import find_stages
from perfharness.analysis.tabulate import tabulate
from perfharness.trace import open_stream

TRACES = Path(__file__).parent.parent / "golden" / "traces"


@contextmanager
def parts_of_rows(count: int) -> Iterator[None]:
    """So many rows are looked at at a time."""
    with mock.patch.object(keys, "PART", count):
        yield


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30), st.integers(1, 7))
def test_rows_by_code_are_those_of_a_stable_sort(rows: list[tuple[int, bool]], part: int) -> None:
    code = np.asarray([code for code, _ in rows], dtype=np.int64)
    wanted = np.asarray([wanted for _, wanted in rows], dtype=np.bool_)
    with parts_of_rows(part):
        found, counts = rows_by_code(code, wanted)
    assert found.tolist() == sorted((row for row, (_, wanted) in enumerate(rows) if wanted), key=lambda r: rows[r][0])
    assert counts.tolist() == [
        sum(wanted and code == which for code, wanted in rows)
        for which in range(max((code for code, _ in rows), default=-1) + 1)
    ]


@given(st.lists(st.lists(st.integers(-9, 9), max_size=9), max_size=9))
def test_a_growing_column_is_its_parts_in_order(parts: list[list[int]]) -> None:
    with mock.patch("perfharness.analysis.growing.FIRST_ROWS", 2):
        column = GrowingColumn(np.dtype(np.int32))
        for part in parts:
            column.add(np.asarray(part, dtype=np.int32))
    assert column.values().tolist() == [value for part in parts for value in part]


@pytest.mark.parametrize("trace", ["pipeline", "threads", "recorder_nsys_2023_4"])
def test_results_are_the_same_in_parts(trace: str) -> None:
    with parts_of_rows(7):
        in_parts = result_of(TRACES / f"{trace}.sqlite")
    assert in_parts == result_of(TRACES / f"{trace}.sqlite")


def result_of(path: Path) -> dict[str, Any]:
    """What a trace gives, as plain values."""
    events = open_stream(path)
    table = build_range_table(events)
    result = tabulate(events, table, find_stages(events, nesting=table.nesting), warmup_batches=1)
    return {
        "operations": table.projection.operation_count.tolist(),
        "data": result.data,
        "mean": result.mean_data,
        "stats": result.stats_minus_warmup,
        "loops": [(loop.path, loop.start_ns.tolist(), loop.warmup.tolist()) for loop in result.loops],
        "findings": [finding.to_json() for finding in result.findings],
    }
