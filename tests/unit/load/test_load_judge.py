"""What the files of a load test come to: intervals, `sustained`, levels, findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.load.record import Done
from perfharness.model.load import LoadResult
from perfharness.telemetry.store import write_sample_log
from tests.support.load_lines import (
    FOLDER,
    MS,
    START,
    S,
    answered,
    given_up,
    made_load,
    made_result,
    write_process,
)
from tests.support.sample_builder import SampleBuilder

RATE = 100


def made(
    folder: Path, seconds: int = 90, leak_mb_per_s: float = 0.0, slower: float = 1.0, failing: float = 0.0,
    kind: str = "reset", nsys_bytes: int | None = None,
) -> LoadResult:  # fmt: skip
    """A run of one phase at 100 requests a second, whose latencies are exponential, 5 ms on average."""
    drawn = np.random.default_rng(7)
    requests: list[Done] = []
    for second in range(seconds):
        due = START + second * S + np.arange(RATE) * (S // RATE)
        level = 1 + (slower - 1) * second / seconds
        taken = drawn.exponential(5, RATE) * level + 1e-6
        fails = drawn.random(RATE) < failing * second / seconds
        requests += [
            answered(second * RATE + n, int(at), float(ms), error=kind if bad else None)
            for n, (at, ms, bad) in enumerate(zip(due, taken, fails, strict=True))
        ]
    profile = {"phases": [{"name": "load", "duration": seconds, "rate": RATE}]}
    (folder / FOLDER).mkdir(parents=True)
    if nsys_bytes is not None:
        with (folder / FOLDER / "trace.sqlite").open("wb") as trace:
            trace.truncate(nsys_bytes)
    return made_load(
        folder, profile, [requests], memory=lambda second: 10**8 + int(leak_mb_per_s * second * 1e6),
        tracer=None if nsys_bytes is None else "nsys",
    )  # fmt: skip


def codes(result: LoadResult) -> set[str]:
    return {finding.code for finding in result.findings}


def test_a_steady_run_has_intervals(tmp_path: Path) -> None:
    result = made(tmp_path)
    latency, sustained = result.phases[0].latency, result.sustained
    for figure, truth in ((latency.p50, 5 * np.log(2)), (latency.mean, 5)):
        assert figure.low is not None
        assert figure.high is not None
        assert figure.low < truth < figure.high
    assert latency.p99_9.value is None
    assert sustained is not None
    assert sustained.throughput is not None
    assert (sustained.memory[0].verdict, sustained.queue_grows) == ("does-not-leak", False)
    assert sustained.throughput.verdict == "steady"


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, set()),
        ({"seconds": 20, "leak_mb_per_s": 5.0}, set()),  # too short
        ({"leak_mb_per_s": 1.0}, {"load-memory-leaks"}),
        ({"leak_mb_per_s": 1.0, "nsys_bytes": 25 * 10**6}, set()),  # 89 MB in 90 s: nsys may hold them
        ({"leak_mb_per_s": 1.0, "nsys_bytes": 20 * 10**6}, {"load-memory-leaks"}),
        ({"seconds": 240, "slower": 2.0, "failing": 0.3}, {"load-latency-rises", "load-errors"}),
    ],
)
def test_what_changes_is_a_finding(tmp_path: Path, more: dict[str, Any], found: set[str]) -> None:
    result = made(tmp_path, **more)
    assert codes(result) - {"load-throughput-falls"} == found
    if "load-memory-leaks" in found:
        assert result.sustained is not None
        memory = result.sustained.memory[0]
        assert memory.slope_mb_per_s.value == pytest.approx(1.0)
        assert memory.per_request_bytes == pytest.approx(10_000, rel=0.01)
    if "load-errors" in found:
        assert result.sustained is not None
        (errors,) = result.sustained.errors
        assert (errors.of, errors.verdict) == ("errors.reset", "rises")
        assert (errors.first.value, errors.last.value) == pytest.approx((0.05, 0.25), abs=0.03)


def test_requests_that_timed_out_are_slower_than_the_others(tmp_path: Path) -> None:
    phase = made(tmp_path, failing=0.8, kind="timeout").phases[0]
    latency = phase.latency
    assert latency.slower == phase.errors["timeout"] > 3000
    assert (latency.mean.value, latency.p90.value, latency.max.value) == (None, None, None)
    assert latency.p50.value is not None
    assert latency.p50.value > 5 * np.log(2) * 1.4  # of the answered ones it would be 5 ms * ln 2


def test_a_queue_that_grows_is_judged_without_the_grace_period(tmp_path: Path) -> None:
    """Twice what is answered for 40 s; then 10 s in which late answers come, and what is left is given up."""
    rate, seconds, grace = 20, 40, 10
    requests = []
    for number in range(rate * seconds):
        due = START + number * S // rate + 1
        done = START + (number // 10 + 1) * S - 1 - number % 10
        wait_ms, ms = (done - S // 10 - due) / MS, (done - due) / MS
        is_answered = number < 10 * (seconds + grace)
        requests.append(answered(number, due, ms, wait_ms=wait_ms) if is_answered else given_up(number, due))
    profile = {"phases": [{"name": "load", "duration": seconds, "rate": rate}], "grace": grace}
    result = made_load(tmp_path, profile, [requests], workers=2, grace_s=grace, memory=lambda second: 10**8)
    (phase,) = result.phases
    assert (phase.unanswered, phase.never_sent) == (300, 300)
    assert phase.achieved_rate == pytest.approx(10)
    sustained = result.sustained
    assert sustained is not None
    assert sustained.throughput is not None
    assert sustained.queue_grows is True
    assert sustained.throughput.first.value == sustained.throughput.last.value == 0.5
    assert sustained.errors == []
    # One cause, one finding: no rising latency, no growing queue, no rising errors beside it.
    assert codes(result) == {"requests-failed", "rate-not-achieved"}


def test_requests_that_were_open_at_a_kill_are_slower_than_all(tmp_path: Path) -> None:
    """Each request takes 1.5 s: 25 of 40 were answered, and 15 were open."""
    requests = [answered(number, START + number * S // 10, 1500.0) for number in range(25)]
    profile = {"phases": [{"name": "load", "duration": 4, "rate": 10}]}
    result = made_load(tmp_path, profile, [requests], workers=100, status=None, missing=15)
    (phase,) = result.phases
    assert (result.status, phase.latency.count, phase.latency.slower) == ("killed", 25, 15)
    assert phase.latency.p50.value == pytest.approx(1500)
    assert [window.in_flight_max for window in result.windows] == [None] * 4
    assert result.levels_reason


def test_a_gpu_under_load_has_its_power_temperature_and_use(tmp_path: Path) -> None:
    at = [START + second * S for second in range(100)]
    log = SampleBuilder(offset_ns=0).subject("GPU-1", gpu_index=0, name="made up")
    log.readings("GPU-1", "sm_clock_mhz", at, [1980.0] * 100)
    log.readings("GPU-1", "power_instant_mw", at, [200_000.0 + 1000 * second for second in range(100)])
    log.readings("GPU-1", "temperature_c", at, [40 + second / 10 for second in range(100)])
    log.readings("GPU-1", "gpu_utilization_percent", at, [50.0] * 100)
    write_sample_log(tmp_path / "telemetry.parquet", log.build())
    sustained = made(tmp_path, seconds=99).sustained
    assert sustained is not None
    (found,) = sustained.clocks
    assert found.power_w == pytest.approx(249.5)
    assert found.power_max_w == 299
    assert found.temperature_first_c == pytest.approx(40.45)
    assert found.temperature_last_c == pytest.approx(49.45)
    assert (found.busy_percent, found.first_mhz) == (50, 1980)


# ---- requests in flight and in the queue ----


def levels_of(folder: Path, processes: int = 2, *, knows: bool = True, loop: str = "open") -> LoadResult:
    """Each of the processes has 3 requests a second, due at 0, 0.1 and 0.2 s, served one after the other for 0.3 s
    each; the last of all is never answered.
    """
    asked = {"rate": 3 * processes} if loop == "open" else {}
    profile: dict[str, Any] = {"phases": [{"name": "load", "duration": 2, **asked}]}
    for process in range(processes):
        requests = []
        for second, number in np.ndindex(2, 3):
            due = START + second * S + number * S // 10
            wait = 200.0 * number
            one = answered(3 * second + number, due, wait + 300, wait_ms=wait, late_ms=wait)
            requests.append(one if knows else one._replace(begun_ns=0))
        if process == processes - 1:
            requests[-1] = given_up(5, requests[-1].intended_ns)
        write_process(folder / f"proc_{process}_gpu_0", profile, [requests])
    return made_result(folder, profile, processes)


@pytest.mark.parametrize(
    ("more", "levels", "is_said"),
    [
        ({}, (6, 4), False),  # at 0.2 s the first of each is in service; the other two of each wait
        ({"processes": 1}, (3, 2), False),
        ({"processes": 1, "loop": "closed"}, (3, 2), False),
        ({"knows": False}, (6, None), True),
    ],
)
def test_levels_are_of_all_processes_together(
    tmp_path: Path, more: dict[str, Any], levels: tuple[int, int | None], is_said: bool
) -> None:
    result = levels_of(tmp_path, **more)
    assert [(one.in_flight_max, one.queue_max) for one in result.windows] == [levels] * 2
    assert bool(result.levels_reason) == is_said
    if is_said:
        assert (result.phases[0].queueing.slower, bool(result.phases[0].queueing.reason)) == (0, True)


@pytest.mark.parametrize(("timeouts", "p50_ms"), [(0, 5.0), (1, 5.0), (3, None)])
def test_percentiles_of_a_window_hold_what_had_no_answer_in_time(
    tmp_path: Path, timeouts: int, p50_ms: float | None
) -> None:
    requests = [answered(number, START + number, 5, error=None if number < 2 else "timeout")
                for number in range(2 + timeouts)]  # fmt: skip
    result = made_load(tmp_path, {"phases": [{"name": "load", "duration": 1, "rate": 3}]}, [requests], kind="http")
    assert (result.windows[0].p50_ms, result.phases[0].latency.p50.value) == (p50_ms, p50_ms)


@pytest.mark.parametrize("unanswered", [0, 3])
def test_without_an_answer_the_reason_is_that(tmp_path: Path, unanswered: int) -> None:
    requests = [given_up(number, START + number) for number in range(unanswered)]
    result = made_load(tmp_path, {"phases": [{"name": "load", "duration": 1, "rate": 3}]}, [requests])
    (phase,) = result.phases
    assert phase.latency.reason
    assert phase.lateness.reason
    assert ("requests-failed" in codes(result)) == (unanswered > 0)


# ---- service that never overlaps ----


@pytest.mark.parametrize(("workers", "overlap_ms", "is_found"), [(8, 0.0, True), (8, 5.0, False), (1, 0.0, False)])
def test_a_coroutine_that_never_awaits_is_named(
    tmp_path: Path, workers: int, overlap_ms: float, is_found: bool
) -> None:
    """40 requests a second, of 50 ms one after the other; all workers but one are free."""
    requests = []
    for number in range(80):
        due, begun = START + number * 25 * MS, START + number * 50 * MS
        wait_ms = (begun - due) / MS
        requests.append(answered(number, due, wait_ms + 50 + overlap_ms, wait_ms=wait_ms, late_ms=wait_ms))
    profile = {"phases": [{"name": "load", "duration": 2, "rate": 40}], "concurrency": workers}
    found = codes(made_load(tmp_path, profile, [requests], workers=workers, grace_s=3))
    assert ("load-never-overlaps" in found) == is_found
    assert ("generator-limited" in found) != is_found


@pytest.mark.parametrize(("warm", "is_found"), [(3, True), (4, False)])
def test_a_warm_up_has_a_request_for_each_worker(tmp_path: Path, warm: int, is_found: bool) -> None:
    phases = [{"name": "warm", "duration": 1, "rate": warm, "warmup": True}, {"name": "load", "duration": 1, "rate": 4}]
    requests = [
        [answered(number, START + phase * S + number * MS, 1) for number in range(count)]
        for phase, count in enumerate((warm, 4))
    ]
    found = codes(made_load(tmp_path, {"phases": phases, "concurrency": 4}, requests, workers=4))
    assert ("warmup-too-short" in found) == is_found
