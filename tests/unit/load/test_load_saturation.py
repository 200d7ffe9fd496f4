"""Whether a target keeps up, said while the load goes on: of flows whose queue is known."""

from __future__ import annotations

import heapq
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.analysis.load.saturation import Flow, saturation_of
from perfharness.load.histogram import Histogram
from perfharness.load.profile import checked_profile
from perfharness.load.progress import LoadProgress
from perfharness.model.load import ErrorKind, LoadResult, PhaseResult, Status, TargetRecord
from perfharness.render.terminal.console import Console
from perfharness.render.terminal.load import print_load, saturation_text, status_text

S = 1_000_000_000


def flows_of(arrivals: np.ndarray, ends: np.ndarray, seconds: int) -> list[Flow]:
    edges = np.arange(seconds + 1)
    due, ended = (np.histogram(one, edges)[0] for one in (arrivals, ends))
    return [Flow(1.0, int(came), int(went)) for came, went in zip(due, ended, strict=True)]


def queue(
    rate: float, service_s: float, *, servers: int = 1, seconds: int = 60, seed: int = 1,
    stall: tuple[float, float] | None = None, spread: float = 0.0,
) -> list[Flow]:  # fmt: skip
    """Poisson arrivals, first come first served; `spread` is the mean of an exponential part of each service."""
    drawn = np.random.default_rng(seed)
    arrivals = np.cumsum(drawn.exponential(1 / rate, int(rate * seconds * 1.2)))
    arrivals = arrivals[arrivals < seconds]
    free, ends = [0.0] * servers, []
    for at in arrivals:
        begin = max(at, heapq.heappop(free))
        if stall is not None and stall[0] <= begin < sum(stall):
            begin = sum(stall)
        ends.append(begin + service_s + (drawn.exponential(spread) if spread else 0.0))
        heapq.heappush(free, ends[-1])
    return flows_of(arrivals, np.array(ends), seconds)


def first_said(flows: list[Flow]) -> int | None:
    """After how many seconds it is said that the target does not keep up."""
    return next((end for end in range(1, len(flows) + 1) if saturation_of(flows[:end]) is not None), None)


@pytest.mark.parametrize(("load", "before_s"), [(3.0, 26), (2.0, 22), (1.5, 20), (1.2, 60), (1.1, 120)])
def test_a_queue_that_grows_is_said(load: float, before_s: int) -> None:
    flows = queue(100 * load, 0.01, seconds=120)
    said = first_said(flows)
    assert said is not None
    assert 10 <= said <= before_s
    found = saturation_of(flows)
    assert found is not None
    assert found.answered_rate == pytest.approx(100, rel=0.02)  # which is what the server can do
    assert found.asked_rate == pytest.approx(100 * load, rel=0.1)
    assert found.waiting == sum(one.due - one.ended for one in flows)


def test_how_long_a_request_will_wait_by_hand() -> None:
    """20 come and 10 are answered a second; after 20 s 200 wait, after 50 s more 700, which take 70 s."""
    found = saturation_of([Flow(1.0, 20, 10)] * 20)
    assert found is not None
    assert (found.asked_rate, found.answered_rate, found.waiting) == (20, 10, 200)
    assert found.wait_s(50) == 70


@pytest.mark.parametrize(
    "flows",
    [
        *(queue(rate, 0.01, seconds=120, seed=seed) for rate in (50, 80, 95) for seed in range(5)),
        *(queue(80, 0.002, spread=0.008, seconds=120, seed=seed) for seed in range(5)),
        queue(80, 0.01, stall=(20, 2)),
        queue(40, 0.01, stall=(20, 4)),
        queue(5, 20.0, servers=1000, seconds=120),  # answers take 20 s, and none waits
        *(queue(rate, 5.0, spread=10.0, servers=3000, seconds=90) for rate in (5, 50)),
        [Flow(1.0, 10, 0)] * 60,  # nothing was ever answered: that is no rate
        [Flow(1.0, 0, 0)] * 60,
        [],
    ],
)
def test_a_target_that_keeps_up_or_stalls_is_not_called_saturated(flows: list[Flow]) -> None:
    assert first_said(flows) is None


def window(index: int, arrivals: int, completed: int, unanswered: int = 0, phase: int = 0) -> dict[str, object]:
    errors = {"unanswered": unanswered} if unanswered else {}
    return {
        "kind": "window", "phase": phase, "index": index, "start_ns": index * S, "end_ns": (index + 1) * S,
        "arrivals": arrivals, "completed": completed, "unanswered": unanswered, "errors": errors,
        "latency": Histogram().to_json(),
    }  # fmt: skip


def test_the_live_view_of_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is asked 30 and answers 10 a second; one is a second behind with its file."""
    profile = checked_profile({"phases": [{"name": "load", "duration": 60, "rate": 60}], "grace": 5})
    files = [tmp_path / "a", tmp_path / "b"]
    begin = {"kind": "phase", "index": 0, "start_ns": 0, "end_ns": 60 * S, "is_warmup": False}
    for file, seconds in zip(files, (26, 25), strict=True):
        lines = [begin, *(window(index, 30, 10) for index in range(seconds))]
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    monkeypatch.setattr("perfharness.load.progress.perf_counter_ns", lambda: 26 * S)
    progress = LoadProgress(profile, files)
    status = progress.poll()
    assert status is not None
    assert status.waiting == 25 * 40
    assert status.saturation is not None
    assert (status.saturation.asked_rate, status.saturation.answered_rate) == (60, 20)
    assert "keep up" in (saturation_text(status) or "")
    for file, first in zip(files, (26, 25), strict=True):
        lines = [window(index, 30, 10) for index in range(first, 60)]
        lines += [window(60, 0, 10), window(61, 0, 5, unanswered=1185)]
        with file.open("a") as opened:
            opened.write("".join(f"{json.dumps(line)}\n" for line in lines[:-1]))
    monkeypatch.setattr("perfharness.load.progress.perf_counter_ns", lambda: 62 * S)
    status = progress.poll()
    assert status is not None
    assert (status.left_s, status.grace_left_s, status.saturation) == (0, 3, None)
    assert "3 s" in status_text(status)
    for file in files:
        with file.open("a") as opened:
            opened.write(f"{json.dumps(lines[-1])}\n")
    status = progress.poll()
    assert status is not None
    assert (status.waiting, status.failed, status.unanswered, status.grace_left_s) == (0, 0, 2 * 1185, None)
    assert "2370 unanswered" in status_text(status)


def phase(name: str, **more: Any) -> PhaseResult:
    made = {"loop": "open", "concurrency": 1, "start_s": 0, "duration_s": 5, "completed": 90, "ok": 88, "items": 88}
    times = {time: {"reason": "-"} for time in ("latency", "queueing", "service", "lateness")}
    return PhaseResult.model_validate({"name": name, **made, **times, **more})


@pytest.mark.parametrize(("status", "shown"), [("ok", "grace"), ("interrupted", "ended")])
def test_what_has_no_answer_is_shown_apart_from_errors(status: Status, shown: str) -> None:
    """7 in the warm-up, 5 in the load, of which 4 were never sent; and 2 errors."""
    warmup = phase("w", is_warmup=True, arrivals=97, sent=90, errors={"unanswered": 7})
    load = phase("l", arrivals=95, sent=91, errors={"unanswered": 5, "reset": 2}, asked_rate=19, achieved_rate=18.9)
    errors = [ErrorKind(kind="unanswered", count=12), ErrorKind(kind="reset", count=2)]
    result = LoadResult(
        target=TargetRecord(kind="callable", name="app:f"), profile={"grace": 10.0}, status=status, created="",
        duration_s=10, phases=[warmup, load], windows=[], errors=errors, tracer="nsys",
    )  # fmt: skip
    assert (warmup.never_sent, load.never_sent) == (7, 4)
    text = io.StringIO()
    print_load(Console(file=text, width=200), result)
    lines = text.getvalue().splitlines()
    row = next(line.split() for line in lines if line.strip().startswith("l "))
    assert row[:6] == ["l", "19", "18.9", "95", "2", "5"]
    unanswered = next(line for line in lines if "12 unanswered" in line)
    assert "7 of them in the warm-up" in unanswered
    assert "11 were never sent" in unanswered
    assert shown in unanswered
    assert any("nsys" in line and "--tracer none" in line for line in lines)
