"""The generator, with targets whose times are computed, not slept: exact also on a busy machine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

import pyarrow.parquet as pq
import pytest

from perfharness.load.generator.run import LoadRun
from perfharness.load.generator.workers import workers_for
from perfharness.load.profile import checked_profile
from perfharness.load.request import Answer, AnyTarget, LoadRequest
from perfharness.load.requests import RequestTable
from perfharness.load.result import load_result
from perfharness.load.windows import Done, WindowLog, read_lines
from perfharness.model.load import REQUESTS_NAME, WINDOWS_NAME, LoadResult, TargetRecord


class Target:
    is_async = False

    def __init__(self, serve: Callable[[LoadRequest], Answer]) -> None:
        self._serve = serve

    def open(self) -> None:
        """Nothing to do."""

    def call(self, request: LoadRequest) -> Answer:
        begun_ns = perf_counter_ns()
        answer = self._serve(request)
        answer.begun_ns = begun_ns
        return answer

    def close(self) -> None:
        """Nothing to do."""


class AsyncTarget(Target):
    is_async = True

    async def call_async(self, request: LoadRequest) -> Answer:
        await asyncio.sleep(0.001)
        return self.call(request)


def run(folder: Path, make: Callable[[], AnyTarget], **profile: Any) -> LoadResult:
    asked = checked_profile(profile)
    objective = asked.objective
    table = RequestTable()
    workers = workers_for(make, asked.concurrency)
    workers.open()
    log = WindowLog(folder, None if objective is None else round(objective.latency_ms * 1e6), table.add)
    made = LoadRun(asked, workers, log)
    made.run()
    table.write(folder)
    log.close(made.status, made.reason, requests_kept=table.kept)
    workers.close()
    return load_result(TargetRecord(kind="callable", name="test"), asked, [read_lines(folder / WINDOWS_NAME)])


def well(request: LoadRequest) -> Answer:
    del request
    return Answer()


@pytest.mark.parametrize("kind", [Target, AsyncTarget])
def test_every_request_is_sent_once_and_counted(tmp_path: Path, kind: type[Target]) -> None:
    seen: list[LoadRequest] = []

    def serve(request: LoadRequest) -> Answer:
        seen.append(request)
        return Answer(error="wrong-answer", message="planted") if request.id % 10 == 3 else Answer()

    mix = [{"name": "one"}, {"name": "eight", "items": 8}]
    phases = [
        {"name": "warm-up", "duration": "200ms", "rate": 50, "warmup": True},
        {"name": "steady", "duration": "1.5s", "rate": 40, "arrivals": "poisson"},
    ]
    found = run(tmp_path, lambda: kind(serve), phases=phases, mix=mix, concurrency=3, objective="10s")
    assert sorted(request.id for request in seen) == list(range(len(seen)))
    assert {request.items for request in seen} == {1, 8}
    warm, steady = found.phases
    assert (warm.is_warmup, warm.arrivals) == (True, 10)
    assert warm.asked_rate == pytest.approx(50)
    failed = [request for request in seen if request.id % 10 == 3]
    late = [request for request in failed if request.phase == "steady"]
    assert steady.arrivals == steady.sent == steady.completed == len(seen) - 10
    assert steady.errors == {"wrong-answer": len(late)}
    assert steady.ok == steady.within_objective == steady.latency.count == steady.completed - len(late)
    assert steady.items == sum(one.items for one in seen if one.phase == "steady" and one.id % 10 != 3)
    assert found.errors[0].first is not None
    assert (found.errors[0].count, found.errors[0].first.request) == (len(failed), 3)
    for name in ("arrivals", "completed", "ok", "items"):
        windows = [getattr(window, name) for window in found.windows if window.phase == "steady"]
        assert sum(windows) == getattr(steady, name)
    assert len(windows) == 2
    rows = pq.read_table(tmp_path / REQUESTS_NAME).to_pylist()
    assert [row["id"] for row in rows] == list(range(len(seen)))
    assert [row["id"] for row in rows if row["error"]] == [one.id for one in sorted(failed, key=lambda one: one.id)]
    by_id = {request.id: request for request in seen}
    assert all(by_id[row["id"]].intended_ns == row["intended_ns"] <= row["sent_ns"] <= row["done_ns"] for row in rows)


def test_a_stall_counts_for_all_that_were_due_and_a_closed_loop_hides_it(tmp_path: Path) -> None:
    """0.4 s without service at 100 requests a second: the k-th of the 40 due meanwhile waits 0.4 s - k/100."""

    def stalls(request: LoadRequest) -> Answer:
        if request.id == 20:
            sleep(0.4)
        return Answer()

    (tmp_path / "open").mkdir()
    (tmp_path / "closed").mkdir()
    opened = run(tmp_path / "open", lambda: Target(stalls), phases=[{"duration": "1s", "rate": 100}])
    rows = pq.read_table(tmp_path / "open" / REQUESTS_NAME).to_pylist()
    stall_end = rows[20]["done_ns"]
    for row in rows[20:60]:  # by hand, from the end of the stall: exact on any machine
        assert row["done_ns"] - row["intended_ns"] >= stall_end - row["intended_ns"]
    waits = sorted((row["done_ns"] - row["intended_ns"]) / 1e6 for row in rows)
    assert opened.phases[0].latency.p50.value == pytest.approx(waits[49], rel=0.002)
    assert opened.phases[0].latency.p90.value == pytest.approx(waits[89], rel=0.002)
    assert waits[89] >= 290  # the 11th longest of the waits of 0.4, 0.39, 0.38, ... s
    closed = run(tmp_path / "closed", lambda: Target(stalls), phases=[{"duration": "1s", "think": "5ms"}])
    assert closed.phases[0].latency.max.value is not None
    assert closed.phases[0].latency.max.value >= 400
    assert closed.phases[0].latency.p90.value is not None
    assert closed.phases[0].latency.p90.value < 100


def test_what_never_comes_is_slower_than_all(tmp_path: Path) -> None:
    release = threading.Event()

    def hangs(request: LoadRequest) -> Answer:
        if request.id == 30:
            release.wait(20)
        return Answer()

    found = run(tmp_path, lambda: Target(hangs), phases=[{"duration": "400ms", "rate": 100}], grace="100ms")
    release.set()
    (phase,) = found.phases
    assert (phase.arrivals, phase.completed, phase.errors) == (40, 30, {"unanswered": 10})
    assert phase.sent == 31
    assert phase.latency.p50.value is not None
    assert phase.latency.max.value is None
    assert phase.latency.mean.reason is not None


def test_too_many_errors_end_the_run(tmp_path: Path) -> None:
    def fails(request: LoadRequest) -> Answer:
        raise ConnectionRefusedError("planted")

    found = run(tmp_path, lambda: Target(fails), phases=[{"duration": "30s", "rate": 50}], max_error_rate=0.5)
    assert found.status == "stopped-by-errors"
    assert found.duration_s < 15
    assert {error.kind for error in found.errors} <= {"refused", "unanswered"}
    assert found.phases[0].arrivals == found.phases[0].completed + found.phases[0].errors.get("unanswered", 0)


def test_a_late_answer_is_a_timeout(tmp_path: Path) -> None:
    def slow(request: LoadRequest) -> Answer:
        sleep(0.06 if request.id == 2 else 0)
        return Answer()

    found = run(tmp_path, lambda: Target(slow), phases=[{"duration": "500ms", "rate": 10}], request_timeout_s=0.05)
    assert found.phases[0].errors["timeout"] >= 1
    assert found.errors[0].first is not None


def test_a_target_that_cannot_be_opened_says_why() -> None:
    class Broken(Target):
        def open(self) -> None:
            raise OSError("no model")

    with pytest.raises(OSError, match="no model"):
        workers_for(lambda: Broken(well), 2).open()


def test_a_kill_loses_the_last_window_only(tmp_path: Path) -> None:
    run(tmp_path, lambda: Target(well), phases=[{"duration": "2.2s", "rate": 50}])
    text = (tmp_path / WINDOWS_NAME).read_text()
    cut = text[: text.index('"index": 2')]
    (tmp_path / WINDOWS_NAME).write_text(cut)
    asked = checked_profile({"phases": [{"duration": "2.2s", "rate": 50}]})
    target = TargetRecord(kind="callable", name="test")
    found = load_result(target, asked, [read_lines(tmp_path / WINDOWS_NAME)])
    assert found.status == "killed"
    assert [window.arrivals for window in found.windows] == [50, 50]
    assert found.phases[0].duration_s == pytest.approx(2)
    assert found.phases[0].asked_rate == pytest.approx(50)


def test_of_many_requests_the_slowest_and_a_sample_stay(tmp_path: Path) -> None:
    table = RequestTable(most_rows=500, slowest=20)
    for first in range(0, 3000, 100):
        table.add("load", [Done(one, None, 1, 1, 1, 1, 1, 2 + one * 7 % 3000) for one in range(first, first + 100)])
    table.write(tmp_path)
    assert table.kept is not None
    rows = pq.read_table(tmp_path / REQUESTS_NAME).to_pylist()
    assert 480 <= len(rows) <= 500
    slowest = sorted(range(3000), key=lambda one: one * 7 % 3000)[-20:]
    assert set(slowest) <= {row["id"] for row in rows}
