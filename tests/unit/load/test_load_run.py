"""The generator, with targets whose times are computed, not slept: exact also on a busy machine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from perfharness.errors import ResultError
from perfharness.load.findings import load_findings
from perfharness.load.generator.errors import ErrorWatch
from perfharness.load.generator.run import LoadRun
from perfharness.load.generator.workers import workers_for
from perfharness.load.histogram import Histogram
from perfharness.load.profile import checked_profile
from perfharness.load.progress import LoadProgress
from perfharness.load.request import Answer, AnyTarget, LoadRequest
from perfharness.load.requests import RequestTable
from perfharness.load.result import load_result, times_of
from perfharness.load.windows import Done, WindowLog, read_lines
from perfharness.load.worker import is_running
from perfharness.model.load import (
    REQUESTS_NAME,
    WINDOWS_NAME,
    LoadResult,
    LoadTimes,
    LoadWindow,
    PhaseResult,
    TargetRecord,
)

MS = 1_000_000


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

    async def close_async(self) -> None:
        """Nothing to do."""


def run(folder: Path, make: Callable[[], AnyTarget], **profile: Any) -> LoadResult:
    asked = checked_profile(profile)
    objective = asked.objective
    table = RequestTable()
    workers = workers_for(make, asked.concurrency)
    workers.open()
    log = WindowLog(folder, None if objective is None else round(objective.latency_ms * 1e6), table.add)
    made = LoadRun(asked, workers, log, error_watch=ErrorWatch.of(asked))
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
        return Answer(error="wrong-answer", message="token=planted") if request.id % 10 == 3 else Answer()

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
    assert found.errors[0].first.message == "token=***"
    for name in ("arrivals", "completed", "ok", "items"):
        windows = [getattr(window, name) for window in found.windows if window.phase == "steady"]
        assert sum(windows) == getattr(steady, name)
    assert len(windows) == 2
    rows = pq.read_table(tmp_path / REQUESTS_NAME).to_pylist()
    assert [row["id"] for row in rows] == list(range(len(seen)))
    assert [row["id"] for row in rows if row["error"]] == [one.id for one in sorted(failed, key=lambda one: one.id)]
    by_id = {request.id: request for request in seen}
    assert all(by_id[row["id"]].intended_ns == row["intended_ns"] <= row["sent_ns"] <= row["done_ns"] for row in rows)


@pytest.mark.parametrize("kind", [Target, AsyncTarget])
def test_an_answer_has_come_when_its_target_says(tmp_path: Path, kind: type[Target]) -> None:
    """A target may have more to do before it returns; the next of a user is due when the answer had come."""
    said: list[int] = []

    def serve(request: LoadRequest) -> Answer:
        del request
        said.append(perf_counter_ns())
        sleep(0.02)
        return Answer(done_ns=said[-1])

    run(tmp_path, lambda: kind(serve), phases=[{"duration": "200ms"}], concurrency=1)
    rows = pq.read_table(tmp_path / REQUESTS_NAME).to_pylist()
    assert [row["done_ns"] for row in rows] == said
    assert [row["intended_ns"] for row in rows[1:]] == said[:-1]


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

    def takes_5_ms(request: LoadRequest) -> Answer:
        sleep(0.005)
        return stalls(request)

    closed = run(tmp_path / "closed", lambda: Target(takes_5_ms), phases=[{"duration": "1s"}])
    assert closed.phases[0].latency.max.value is not None
    assert closed.phases[0].latency.max.value >= 400
    rows = pq.read_table(tmp_path / "closed" / REQUESTS_NAME).to_pylist()
    assert all(row["intended_ns"] >= rows[20]["done_ns"] for row in rows[21:])


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

    found = run(
        tmp_path, lambda: Target(fails), phases=[{"duration": "30s", "rate": 50}], max_error_rate=0.5, error_window=1
    )
    assert found.status == "stopped-by-errors"
    assert {error.kind for error in found.errors} <= {"refused", "unanswered"}
    assert found.phases[0].arrivals == found.phases[0].completed + found.phases[0].errors.get("unanswered", 0)


def test_a_full_disk_ends_the_run_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window cannot be written: the rest of half a minute is not waited for, and what was written can be read."""
    written, logs = WindowLog.write, []

    def write(log: WindowLog, line: dict[str, Any]) -> None:
        if line["kind"] == "window":
            logs.append(log)
            with Path("/dev/full").open("wb") as full:
                os.dup2(full.fileno(), log._file.fileno())
        written(log, line)

    monkeypatch.setattr(WindowLog, "write", write)
    with pytest.raises(ResultError, match="No space left on device"):
        run(tmp_path, lambda: Target(well), phases=[{"duration": "60s", "rate": 20}])
    assert logs[0].stop.is_set()
    logs[0]._file.close()
    assert [line["kind"] for line in read_lines(tmp_path / WINDOWS_NAME)] == ["run", "phase"]


def test_more_errors_than_allowed_are_found_at_the_end(tmp_path: Path) -> None:
    """One in 20 fails, and in warm-up all; nothing is stopped, for nothing lasts as long as that."""

    def some(request: LoadRequest) -> Answer:
        if request.phase == "warm-up" or request.id % 20 == 0:
            raise ConnectionRefusedError("planted")
        return Answer()

    phases = [{"duration": "100ms", "rate": 200, "warmup": True}, {"duration": "200ms", "rate": 200}]
    for limit, is_over in ((0.04, True), (0.05, False)):
        (tmp_path / str(limit)).mkdir()
        found = run(tmp_path / str(limit), lambda: Target(some), phases=phases, max_error_rate=limit)
        assert found.status == "ok"
        assert ("load-errors-over-limit" in {one.code for one in found.findings}) == is_over


def test_a_late_answer_is_a_timeout(tmp_path: Path) -> None:
    def slow(request: LoadRequest) -> Answer:
        sleep(0.06 if request.id == 2 else 0)
        return Answer()

    found = run(tmp_path, lambda: Target(slow), phases=[{"duration": "500ms", "rate": 10}], request_timeout_s=0.05)
    (phase,) = found.phases
    assert phase.errors["timeout"] >= 1
    assert phase.latency.slower == phase.errors["timeout"]
    assert phase.latency.max.value is None
    assert phase.latency.count == 5 - phase.latency.slower


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


def test_progress_follows_the_file_as_it_grows(tmp_path: Path) -> None:
    asked = {"phases": [{"duration": "1.2s", "rate": 50}, {"name": "later", "duration": 7}]}
    profile = checked_profile(asked)
    (tmp_path / "whole").mkdir()
    run(tmp_path / "whole", lambda: Target(well), phases=asked["phases"][:1])
    lines = (tmp_path / "whole" / WINDOWS_NAME).read_text().splitlines(keepends=True)
    file = tmp_path / WINDOWS_NAME
    progress = LoadProgress(profile, [file])
    assert progress.poll() is None
    file.write_text("".join(lines[:3])[:-5])  # the window is not whole yet
    assert progress.poll() is None
    file.write_text("".join(lines[:4]))
    status = progress.poll()
    assert status is not None
    assert (status.phase, status.completed, status.failed, status.left_s) == ("phase 1", 60, 0, 7)


@pytest.mark.parametrize("make", [Target, AsyncTarget])
def test_a_target_that_cannot_be_closed_is_heard_of_when_all_are(make: type[Target]) -> None:
    """It had let the end of the run wait for ever."""
    closed: list[str] = []

    class Broken(make):  # type: ignore[misc, valid-type]
        def close(self) -> None:
            closed.append("tried")
            raise RuntimeError("planted")

    workers = workers_for(lambda: Broken(well), 3)
    workers.open()
    with pytest.raises(RuntimeError, match="planted"):
        workers.close()
    assert len(closed) == 3


def test_of_a_run_that_was_ended_the_rate_is_of_the_time_in_which_it_sent(tmp_path: Path) -> None:
    """Stopped after 0.2 s, with answers that are awaited for 0.3 s more."""
    profile = checked_profile({"phases": [{"duration": 5, "rate": 100}], "concurrency": 40})

    class Slow(Target):
        def call(self, request: LoadRequest) -> Answer:
            sleep(0.3)
            return Answer()

    workers = workers_for(lambda: Slow(well), profile.concurrency)
    workers.open()
    log = WindowLog(tmp_path)
    made = LoadRun(profile, workers, log)
    threading.Timer(0.2, made.interrupt).start()
    made.run()
    log.close(made.status)
    workers.close()
    lines = read_lines(tmp_path / WINDOWS_NAME)
    (phase,) = load_result(TargetRecord(kind="callable", name="test"), profile, [lines]).phases
    assert phase.duration_s == pytest.approx((log.stop.at_ns - lines[1]["start_ns"]) / 1e9)
    assert phase.asked_rate == pytest.approx(phase.arrivals / phase.duration_s)
    assert phase.arrivals - 100 * phase.duration_s == pytest.approx(0.5, abs=0.51)


@pytest.mark.parametrize(
    ("until_ms", "answered_ms", "lengths_ms"),
    [
        (2000.2, 1501, [1000, 1000]),  # 0.2 ms until the end was noticed, of which a chart showed 0 answers a second
        (2000.2, 2000.1, [1000, 1000, 0.2]),
        (2700, 1501, [1000, 1000, 700]),
    ],
)
def test_the_moment_after_the_last_window_is_none(
    until_ms: float, answered_ms: float, lengths_ms: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 0
    monkeypatch.setattr("perfharness.load.windows.perf_counter_ns", lambda: now_ns)
    log, due = WindowLog(tmp_path), np.array([500 * MS, 1500 * MS], np.int64)
    answered = [501 * MS, round(answered_ms * MS)]
    records = [
        Done(number, None, 1, int(at), int(at), int(at), int(at), done)
        for number, (at, done) in enumerate(zip(due, answered, strict=True))
    ]
    log.begin(0)
    log.begin_phase(0, "load", 0, 2000 * MS, due, loop="open")
    for record in records:
        log.add(record)
    now_ns = round(until_ms * MS)
    log.end_phase()
    log.close("ok")
    found = [line for line in read_lines(tmp_path / WINDOWS_NAME) if line["kind"] == "window"]
    assert [(line["end_ns"] - line["start_ns"]) / MS for line in found] == pytest.approx(lengths_ms)
    assert sum(line["completed"] for line in found) == 2


def steady(duration_s: int, answers: list[int], rate: int = 10, **phase: Any) -> LoadResult:
    """Requests at a rate; so many answers in each window, those in the grace period included."""
    latency = Histogram()
    latency.add(np.full(sum(answers), 10**9, np.int64))
    due = [rate] * duration_s + [0] * (len(answers) - duration_s)
    windows = [
        LoadWindow(index=at, phase="load", start_s=at, end_s=at + 1, arrivals=came, completed=count, ok=count, items=0)
        for at, (came, count) in enumerate(zip(due, answers, strict=True))
    ]
    none = LoadTimes()
    made = PhaseResult(
        name="load", loop="open", asked_rate=rate, achieved_rate=sum(answers) / len(answers), concurrency=100,
        start_s=0, duration_s=duration_s, arrivals=sum(due), sent=sum(due), completed=sum(answers), ok=sum(answers),
        items=0, latency=times_of(latency), queueing=none, service=none, lateness=none,
    )  # fmt: skip
    target = TargetRecord(kind="http", name="test")
    profile = {"phases": [{"duration": duration_s, "rate": rate, **phase}]}
    return LoadResult(
        target=target, profile=profile, status="ok", created="", duration_s=len(answers), phases=[made], windows=windows
    )


@pytest.mark.parametrize(
    ("result", "is_kept"),
    [
        (steady(10, [0, 0, *[10] * 8, 10, 10]), True),  # each request takes 2 s
        (steady(10, [0] * 4 + [10] * 6 + [10] * 4), True),  # 4 s
        (steady(10, [10] * 9 + [0, 10]), True),  # a stall at the end
        (steady(1, [18, 2], rate=20), True),  # two were on their way
        (steady(10, [8] * 12 + [4]), False),
        (steady(10, [0, 0, *[8] * 12, 4]), False),  # 2 s each, and at most 8 at a time
        (steady(20, [9] * 22 + [2]), False),
        (steady(10, [10] * 9 + [0, 10], **{"rate-to": 10}), False),
    ],
)  # fmt: skip
def test_answers_that_take_long_are_no_rate_that_is_not_achieved(result: LoadResult, is_kept: bool) -> None:
    assert ("rate-not-achieved" not in {one.code for one in load_findings(result)}) == is_kept


def late(rate: float, late_ms: float, share: float = 1.0) -> PhaseResult:
    """A phase of 1000 requests of 10 ms, some of which the generator sends late."""
    values = np.zeros(1000, np.int64)
    values[: round(1000 * share)] = round(late_ms * 1e6)
    histogram, latency = Histogram(), Histogram()
    histogram.add(values)
    latency.add(values + 10_000_000)
    none = LoadTimes()
    return PhaseResult(
        name="load", loop="open", asked_rate=100, achieved_rate=rate, concurrency=1, start_s=0, duration_s=10,
        arrivals=1000, sent=1000, completed=1000, ok=1000, items=1000, latency=times_of(latency), queueing=none,
        service=none, lateness=times_of(histogram),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("phase", "codes"),
    [
        (late(100, 0.9), set()),
        (late(100, 5), {"generator-limited"}),
        (late(100, 5, share=0.02), {"generator-limited"}),  # the p99
        (late(100, 5, share=0.005), set()),
        (late(96, 0.1), {"rate-not-achieved"}),
    ],
)
def test_who_is_slow(phase: PhaseResult, codes: set[str]) -> None:
    target = TargetRecord(kind="callable", name="test")
    result = LoadResult(target=target, profile={}, status="ok", created="", duration_s=10, phases=[phase], windows=[])
    assert {finding.code for finding in load_findings(result)} == codes


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


def test_nothing_answered_is_an_error(tmp_path: Path) -> None:
    release = threading.Event()

    def hangs(request: LoadRequest) -> Answer:
        release.wait()
        return Answer()

    found = run(tmp_path, lambda: Target(hangs), phases=[{"duration": "100ms", "rate": 50}], grace="10ms")
    release.set()
    assert found.phases[0].errors == {"unanswered": 5}
    assert "requests-all-failed" in {one.code for one in found.findings if one.severity == "error"}


def test_a_process_that_has_ended_is_told_from_one_that_runs() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_running(child.pid)
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(child.pid)  # nobody has waited for it
    child.wait()
    assert not is_running(child.pid)
