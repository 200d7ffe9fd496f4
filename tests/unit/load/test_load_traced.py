"""Requests of a load beside the trace of the server that served them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfharness.load import traced
from perfharness.load.profile import checked_profile
from perfharness.load.requests import RequestTable
from perfharness.load.result import load_result
from perfharness.load.windows import NEVER_NS, Done
from perfharness.model.load import LoadResult, TargetRecord
from tests.support.load_lines import MS, S, began, ended, window

FOLDER = "proc_0_gpu_0"


def served(folder: Path, begun: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> LoadResult:
    """Requests 0 to 3, each of 10 ms, of which the trace of the server has some."""
    at = [S + number * S // 10 for number in range(4)]
    table = RequestTable()
    table.add("load", [Done(number, None, 1, one, one, one, NEVER_NS, one + 10 * MS) for number, one in enumerate(at)])
    (folder / FOLDER).mkdir()
    table.write(folder / FOLDER)
    lines = [*began(1, S), window(0, [10 * MS] * 4, S), ended()]
    profile = checked_profile({"phases": [{"name": "load", "duration": 1, "rate": 4}]})
    result = load_result(TargetRecord(kind="http", name="made"), profile, [lines])
    monkeypatch.setattr(traced, "_begun", lambda run: ({one: at[one] + wait for one, wait in begun.items()}, 0))
    return traced.with_service(result, folder, FOLDER)


@pytest.mark.parametrize(
    ("begun", "count", "code"),
    [
        ({0: MS, 1: 2 * MS, 2: 3 * MS, 3: 4 * MS}, 4, None),
        ({0: MS, 1: 2 * MS}, 2, "requests-partly-traced"),  # one of two processes of the server has no trace
        ({}, 0, "requests-not-traced"),
    ],
)
def test_queueing_and_service_are_of_the_requests_that_the_trace_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: dict[int, int], count: int, code: str | None
) -> None:
    result = served(tmp_path, begun, monkeypatch)
    (phase,) = result.phases
    assert (phase.queueing.count, phase.service.count) == (count, count)
    assert [one.code for one in result.findings] == ([] if code is None else [code])
    if begun:
        waits = np.array(sorted(begun.values())) / MS
        assert phase.queueing.mean.value == pytest.approx(waits.mean())
        assert phase.service.mean.value == pytest.approx(10 - waits.mean())
