"""Requests of a load beside the trace of the server that served them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from perfharness.load.record import rows_of
from perfharness.load.traced import with_begun
from tests.support.load_lines import MS, S, answered

DUE = [S + number * S // 10 for number in range(4)]


@pytest.mark.parametrize(
    ("waits_ms", "count", "code"),
    [
        ([1, 2, 3, 4], 4, None),
        ([1, 2], 2, "requests-not-joined"),  # one of two processes of the server has no trace
        ([], 0, "requests-not-joined"),
        ([-5, 2, 3, 4], 0, "requests-not-joined"),  # served before it was sent
    ],
)
def test_service_begins_as_the_trace_says(waits_ms: list[int], count: int, code: str | None) -> None:
    requests = [answered(number, due, 10)._replace(begun_ns=0) for number, due in enumerate(DUE)]
    begun = {number: DUE[number] + wait * MS for number, wait in enumerate(waits_ms)}
    table, findings = with_begun(pa.Table.from_batches([rows_of("load", requests)]), begun, 0)
    assert [one.code for one in findings] == ([] if code is None else [code])
    found = [one for one in table["begun_ns"].to_pylist() if one is not None]
    assert found == list(begun.values())[:count]
