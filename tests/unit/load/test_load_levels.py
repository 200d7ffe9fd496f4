"""Requests in flight and in the queue, all processes together: a made run by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from perfharness.load.judge import judge_load
from perfharness.load.profile import checked_profile
from perfharness.load.reported import report_of
from perfharness.load.requests import RequestTable
from perfharness.load.result import NOT_ANSWERED, NOT_KNOWN, NOT_SENT, load_result
from perfharness.load.windows import NEVER_NS, Done
from perfharness.model.load import LoadResult, TargetRecord
from perfharness.render.charts.load import over_time_picture
from tests.support.load_lines import MS, S, began, ended, window
from tests.unit.charts import lines

START = 100 * S
"""Of the load: 0 on the monotonic clock is no moment of a request."""


def made(
    folder: Path, processes: int = 2, *, knows: bool = True, keep_all: bool = True, loop: str = "open"
) -> LoadResult:
    """Each of the processes has 3 requests a second, due at 0, 0.1 and 0.2 s, served one after the other for 0.3 s
    each; the last of all is never answered.
    """
    asked = {"rate": 3 * processes} if loop == "open" else {}
    profile = checked_profile({"phases": [{"name": "load", "duration": 2, **asked}]})
    lines: dict[str, list[dict[str, Any]]] = {}
    for process in range(processes):
        name = f"proc_{process}_gpu_0"
        mine = began(2, START)
        table = RequestTable(most_rows=10**6 if keep_all else 2, slowest=1)
        for second in range(2):
            due = [START + second * S + number * S // 10 for number in range(3)]
            begun = [START + second * S + number * 3 * S // 10 for number in range(3)]
            done = [one + 3 * S // 10 for one in begun]
            rows = [
                Done(3 * second + number, None, 1, due[number], due[number], begun[number],
                     begun[number] if knows else NEVER_NS, done[number], None)
                for number in range(3)
            ]  # fmt: skip
            if (process, second) == (processes - 1, 1):
                rows[2] = Done(5, None, 1, due[2], NEVER_NS, NEVER_NS, NEVER_NS, NEVER_NS, "unanswered")
            table.add("load", rows)
            answered = [row for row in rows if row.error is None]
            counts = {"completed": len(answered), "ok": len(answered), "unanswered": 3 - len(answered)}
            most = 3 if loop == "open" else None
            came = dict.fromkeys(("arrivals", "sent", "items"), 3)
            last = answered[-1].done_ns
            mine.append(window(second, (), START, last_done_ns=last, in_flight_max=most, **came, **counts))
        mine.append(ended(table.kept))
        (folder / name).mkdir(parents=True)
        table.write(folder / name)
        lines[name] = mine
    target = TargetRecord(kind="callable", name="made", processes=processes)
    return judge_load(load_result(target, profile, list(lines.values())), folder, lines)


def test_processes_are_counted_together(tmp_path: Path) -> None:
    """At 0.2 s the first of each is in service; the other two of each wait."""
    result = made(tmp_path)
    assert [one.in_flight_max for one in result.windows] == [6, 6]
    assert [one.queue_max for one in result.windows] == [4, 4]
    assert result.levels_reason is None
    picture = over_time_picture("load", report_of(result, [], None), None)
    levels = lines(picture, "requests (at a time)")
    assert {name: {value for _, value in line if value is not None} for name, line in levels.items()} == {
        "most in flight": {6}, "most in the queue": {4},
    }  # fmt: skip


def test_of_one_process_the_windows_say_it(tmp_path: Path) -> None:
    result = made(tmp_path, 1)
    assert [(one.in_flight_max, one.queue_max) for one in result.windows] == [(3, 2), (3, 2)]


def test_of_a_closed_loop_the_requests_say_it(tmp_path: Path) -> None:
    """The windows of one know what was answered, and not what is on its way."""
    result = made(tmp_path / "all", 1, loop="closed")
    assert [one.in_flight_max for one in result.windows] == [3, 3]
    sampled = made(tmp_path / "sampled", 1, loop="closed", keep_all=False)
    assert [one.in_flight_max for one in sampled.windows] == [None, None]
    assert sampled.levels_reason


def test_what_is_not_known_is_null_with_the_reason(tmp_path: Path) -> None:
    without_begin = made(tmp_path / "http", knows=False)
    assert [(one.in_flight_max, one.queue_max) for one in without_begin.windows] == [(6, None), (6, None)]
    assert without_begin.levels_reason
    sampled = made(tmp_path / "sampled", keep_all=False)
    assert [(one.in_flight_max, one.queue_max) for one in sampled.windows] == [(None, None), (None, None)]
    assert sampled.levels_reason


def second_of(kind: Literal["http", "callable"], **changes: Any) -> LoadResult:
    """One second with two answers after 5 ms."""
    profile = checked_profile({"phases": [{"name": "load", "duration": 1, "rate": 3}]})
    lines = [*began(1, START), window(0, [5 * MS] * 2, START, **changes)]
    return load_result(TargetRecord(kind=kind, name="made"), profile, [lines])


def test_queueing_that_only_the_target_knows_has_that_reason_and_not_that_of_those_without_an_answer() -> None:
    (phase,) = second_of("http", arrivals=3, errors={"unanswered": 1}, unanswered=1).phases
    assert (phase.latency.slower, phase.queueing.slower, phase.queueing.reason) == (1, 0, NOT_KNOWN)


@pytest.mark.parametrize(("timeouts", "p50_ms"), [(0, 5.0), (1, 5.0), (3, None)])
def test_percentiles_of_a_window_hold_what_had_no_answer_in_time(timeouts: int, p50_ms: float | None) -> None:
    came = dict.fromkeys(("arrivals", "sent", "completed"), 2 + timeouts)
    result = second_of("http", errors={"timeout": timeouts}, **came)
    figures = result.windows[0].p50_ms, result.phases[0].latency.p50.value
    assert figures == ((None, None) if p50_ms is None else (pytest.approx(p50_ms, rel=0.01),) * 2)


def test_without_an_answer_the_reason_is_that() -> None:
    profile = checked_profile({"phases": [{"name": "load", "duration": 1, "rate": 3}]})
    (phase,) = load_result(TargetRecord(kind="callable", name="made"), profile, [began(1, START)]).phases
    assert phase.latency.reason == NOT_ANSWERED
    assert phase.lateness.reason == NOT_SENT
