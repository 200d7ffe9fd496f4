"""The generator, with targets whose times are computed, not slept: exact also on a busy machine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from perfharness.errors import ResultError
from perfharness.load.callables import CallableTarget, Inputs
from perfharness.load.generator import LoadRun, send_load
from perfharness.load.profile import checked_profile
from perfharness.load.record import SCHEMA
from perfharness.load.request import Answer, LoadRequest
from perfharness.load.stress import read_load
from perfharness.load.worker import WorkerSpec
from perfharness.model.load import REQUESTS_NAME, STREAM_NAME, WINDOWS_NAME, LoadResult
from perfharness.recorder import PerfRecorder
from tests.support.load_lines import START, S, answered, made_load

RECORDER = PerfRecorder("load")
Serve = Callable[[LoadRequest], Any]


def run(folder: Path, serve: Serve, opened: Callable[[LoadRun], None] = lambda _: None, **profile: Any) -> LoadResult:
    """The result of a load on a function, sent from this process."""
    asked = checked_profile(profile)
    send_load(asked, lambda: CallableTarget(serve, RECORDER, Inputs(())), folder, opened=opened)
    return read_load(folder.parent, WorkerSpec(kind="callable", target="test", profile=asked), [folder.name])


def threads(serve: Serve) -> Serve:
    return serve


def tasks(serve: Serve) -> Serve:
    async def later(request: LoadRequest) -> Answer:
        await asyncio.sleep(0.001)
        answer: Answer = serve(request)
        return answer

    return later


def well(request: LoadRequest) -> Answer:
    del request
    return Answer()


@pytest.mark.parametrize("kind", [threads, tasks])
def test_every_request_is_sent_once_and_counted(tmp_path: Path, kind: Callable[[Serve], Serve]) -> None:
    seen: list[LoadRequest] = []

    def serve(request: LoadRequest) -> Answer:
        seen.append(request)
        return Answer(error="wrong-answer", message="token=planted") if request.id % 10 == 3 else Answer()

    mix = [{"name": "one"}, {"name": "eight", "items": 8}]
    phases = [
        {"name": "warm-up", "duration": "200ms", "rate": 50, "warmup": True},
        {"name": "steady", "duration": "1.5s", "rate": 40, "arrivals": "poisson"},
    ]
    found = run(tmp_path, kind(serve), phases=phases, mix=mix, concurrency=3, objective="10s")
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


@pytest.mark.parametrize("kind", [threads, tasks])
def test_an_answer_has_come_when_its_target_says(tmp_path: Path, kind: Callable[[Serve], Serve]) -> None:
    """A target may have more to do before it returns; the next of a user is due when the answer had come."""
    said: list[int] = []

    def serve(request: LoadRequest) -> Answer:
        del request
        said.append(perf_counter_ns())
        sleep(0.02)
        return Answer(done_ns=said[-1])

    run(tmp_path, kind(serve), phases=[{"duration": "200ms"}], concurrency=1)
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
    opened = run(tmp_path / "open", stalls, phases=[{"duration": "1s", "rate": 100}])
    assert opened.phases[0].items == opened.phases[0].ok
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

    closed = run(tmp_path / "closed", takes_5_ms, phases=[{"duration": "1s"}])
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

    found = run(tmp_path, hangs, phases=[{"duration": "400ms", "rate": 100}], grace="100ms")
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

    found = run(tmp_path, fails, phases=[{"duration": "30s", "rate": 50}], max_error_rate=0.5, error_window=1)
    assert found.status == "stopped-by-errors"
    assert {error.kind for error in found.errors} <= {"refused", "unanswered"}
    assert found.phases[0].arrivals == found.phases[0].completed + found.phases[0].errors.get("unanswered", 0)


def test_a_full_disk_ends_the_run_in_a_sentence(tmp_path: Path) -> None:
    """The rest of a minute is not waited for, and what was written can be read."""
    (tmp_path / WINDOWS_NAME).symlink_to("/dev/full")
    begun_ns = perf_counter_ns()
    with pytest.raises(ResultError, match="No space left on device"):
        run(tmp_path, well, phases=[{"duration": "60s", "rate": 20}])
    assert perf_counter_ns() - begun_ns < 30 * S


def test_more_errors_than_allowed_are_found_at_the_end(tmp_path: Path) -> None:
    """One in 20 fails, and in warm-up all; nothing is stopped, for nothing lasts as long as that."""

    def some(request: LoadRequest) -> Answer:
        if request.phase == "warm-up" or request.id % 20 == 0:
            raise ConnectionRefusedError("planted")
        return Answer()

    phases = [{"duration": "100ms", "rate": 200, "warmup": True}, {"duration": "200ms", "rate": 200}]
    for limit, is_over in ((0.04, True), (0.05, False)):
        (tmp_path / str(limit)).mkdir()
        found = run(tmp_path / str(limit), some, phases=phases, max_error_rate=limit)
        assert found.status == "ok"
        assert ("load-errors" in {one.code for one in found.findings}) == is_over


def test_a_late_answer_is_a_timeout(tmp_path: Path) -> None:
    def slow(request: LoadRequest) -> Answer:
        sleep(0.06 if request.id == 2 else 0)
        return Answer()

    found = run(tmp_path, slow, phases=[{"duration": "500ms", "rate": 10}], request_timeout_s=0.05)
    (phase,) = found.phases
    assert phase.errors["timeout"] >= 1
    assert phase.latency.slower == phase.errors["timeout"]
    assert phase.latency.max.value is None
    assert phase.latency.count == 5 - phase.latency.slower


def test_a_kill_loses_the_last_window_only(tmp_path: Path) -> None:
    phases = [{"duration": "2.2s", "rate": 50}]
    run(tmp_path, well, phases=phases)
    lines = (tmp_path / WINDOWS_NAME).read_text()
    (tmp_path / WINDOWS_NAME).write_text(lines[: lines.index('"index": 2')])
    with (tmp_path / STREAM_NAME).open("wb") as file, pa.ipc.new_stream(file, SCHEMA) as stream:
        stream.write_table(pq.read_table(tmp_path / REQUESTS_NAME, schema=SCHEMA).slice(0, 100))
    profile = checked_profile({"phases": phases})
    found = read_load(tmp_path.parent, WorkerSpec(kind="callable", target="t", profile=profile), [tmp_path.name])
    assert found.status == "killed"
    assert [window.arrivals for window in found.windows] == [50, 50]
    assert found.phases[0].duration_s == pytest.approx(2)
    assert found.phases[0].asked_rate == pytest.approx(50)


def test_of_a_run_that_was_ended_the_rate_is_of_the_time_in_which_it_sent(tmp_path: Path) -> None:
    """Stopped after 0.2 s, with answers that are awaited for 0.3 s more."""

    def slow(request: LoadRequest) -> Answer:
        sleep(0.3)
        return Answer()

    def opened(made: LoadRun) -> None:
        threading.Timer(0.2, made.interrupt).start()

    found = run(tmp_path, slow, opened, phases=[{"duration": 5, "rate": 100}], concurrency=40)
    (phase,) = found.phases
    assert 0 < phase.duration_s < 5
    assert phase.asked_rate == pytest.approx(phase.arrivals / phase.duration_s)
    assert phase.arrivals - 100 * phase.duration_s == pytest.approx(0.5, abs=0.51)


def steady(folder: Path, seconds: int, answers: list[int], rate: int = 10, **phase: Any) -> LoadResult:
    """Requests at a rate; so many answers in each second, those in the grace period included."""
    profile = {"phases": [{"name": "load", "duration": seconds, "rate": rate, **phase}]}
    done = [START + second * S + S // 2 for second, count in enumerate(answers) for _ in range(count)]
    due = [START + number * S // rate for number in range(seconds * rate)]
    requests = [answered(number, at, (end - at) / 1e6) for number, (at, end) in enumerate(zip(due, done, strict=True))]
    return made_load(folder, profile, [requests], workers=100, grace_s=len(answers) - seconds)


@pytest.mark.parametrize(
    ("seconds", "answers", "more", "is_kept"),
    [
        (10, [0, 0, *[10] * 8, 10, 10], {}, True),  # each request takes 2 s
        (10, [0] * 4 + [10] * 6 + [10] * 4, {}, True),  # 4 s
        (10, [10] * 9 + [0, 10], {}, True),  # a stall at the end
        (1, [18, 2], {"rate": 20}, True),  # two were on their way
        (10, [8] * 12 + [4], {}, False),
        (10, [0, 0, *[8] * 12, 4], {}, False),  # 2 s each, and at most 8 at a time
        (20, [9] * 22 + [2], {}, False),
    ],
)
def test_answers_that_take_long_are_no_rate_that_is_not_achieved(
    tmp_path: Path, seconds: int, answers: list[int], more: dict[str, Any], is_kept: bool
) -> None:
    found = steady(tmp_path, seconds, answers, **more).findings
    assert ("rate-not-achieved" not in {one.code for one in found}) == is_kept


@pytest.mark.parametrize(
    ("late_ms", "share", "is_limited"),
    [(0.9, 1.0, False), (5, 1.0, True), (5, 0.02, True), (5, 0.005, False)],  # the third by its p99
)
def test_who_is_slow(tmp_path: Path, late_ms: float, share: float, is_limited: bool) -> None:
    """2000 requests of 10 ms, some of which the generator sends late."""
    late = [late_ms if number < 2000 * share else 0.0 for number in range(2000)]
    requests = [
        answered(number, START + number * S // 200, 10 + ms, late_ms=ms, wait_ms=ms) for number, ms in enumerate(late)
    ]
    result = made_load(tmp_path, {"phases": [{"duration": 10, "rate": 200}]}, [requests])
    assert result.generator_limited == is_limited
    assert {finding.code for finding in result.findings} == ({"generator-limited"} if is_limited else set())
