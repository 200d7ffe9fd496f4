"""What the files of a load test come to: intervals, `sustained`, findings, from requests and from histograms alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfharness.load.judge import _conditions, judge_load
from perfharness.load.profile import checked_profile
from perfharness.load.requests import RequestTable
from perfharness.load.result import load_result
from perfharness.load.windows import Done
from perfharness.model.load import LoadResult, TargetRecord
from tests.support.load_lines import S, began, ended, hdr, window
from tests.support.sample_builder import SampleBuilder

RATE = 100
FOLDER = "proc_0_gpu_0"


def made(
    folder: Path, seconds: int = 90, leak_mb_per_s: float = 0.0, slower: float = 1.0, failing: float = 0.0,
    keep_all: bool = True, kind: str = "reset", nsys_bytes: int | None = None,
) -> LoadResult:  # fmt: skip
    """A run of one phase at 100 requests a second, whose latencies are exponential, 5 ms on average."""
    drawn = np.random.default_rng(7)
    profile = checked_profile({"phases": [{"name": "load", "duration": seconds, "rate": RATE}]})
    lines = began(seconds)
    table = RequestTable(most_rows=10**6 if keep_all else 500, slowest=50)
    for second in range(seconds):
        due = second * S + np.arange(RATE) * (S // RATE)
        level = 1 + (slower - 1) * second / seconds
        taken = (drawn.exponential(5e6, RATE) * level).astype(np.int64) + 1
        fails = drawn.random(RATE) < failing * second / seconds
        records = [
            Done(second * RATE + n, None, 1, int(at), int(at), int(at), int(at), int(at + took), kind if bad else None)
            for n, (at, took, bad) in enumerate(zip(due, taken, fails, strict=True))
        ]
        table.add("load", records)
        failed = {"errors": {kind: int(fails.sum())} if fails.any() else {}}
        came = dict.fromkeys(("arrivals", "sent", "completed"), RATE)
        held = {"last_done_ns": records[-1].done_ns, "rss_bytes": 10**8 + int(leak_mb_per_s * second * 1e6)}
        times = {"queueing": hdr(0 * taken[~fails]), "service": hdr(taken[~fails])}
        lines.append(window(second, taken[~fails], **came, **failed, **held, **times))
    lines.append(ended(table.kept))
    (folder / FOLDER).mkdir(parents=True)
    table.write(folder / FOLDER)
    if nsys_bytes is not None:
        with (folder / FOLDER / "trace.sqlite").open("wb") as trace:
            trace.truncate(nsys_bytes)
    tracer = None if nsys_bytes is None else "nsys"
    result = load_result(TargetRecord(kind="callable", name="made"), profile, [lines], tracer)
    return judge_load(result, folder, {FOLDER: lines})


def codes(result: LoadResult) -> set[str]:
    return {finding.code for finding in result.findings}


def test_a_steady_run_has_intervals_and_no_findings(tmp_path: Path) -> None:
    result = made(tmp_path)
    latency = result.phases[0].latency
    assert latency.p50.low is not None
    assert latency.p50.high is not None
    assert latency.p50.low < 5 * np.log(2) < latency.p50.high
    assert latency.mean.low is not None
    assert latency.mean.high is not None
    assert latency.mean.low < 5 < latency.mean.high
    assert latency.p99_9.value is None
    assert result.sustained is not None
    assert result.sustained.memory[0].verdict == "does-not-leak"
    assert result.sustained.queue_grows is False
    assert result.sustained.throughput is not None
    assert result.sustained.throughput.verdict == "steady"
    assert not codes(result)


def test_requests_and_histograms_tell_the_same(tmp_path: Path) -> None:
    exact, sampled = made(tmp_path / "all"), made(tmp_path / "sample", keep_all=False)
    assert sampled.requests_kept is not None
    for name in ("p50", "p90", "p95"):
        one, other = (getattr(result.phases[0].latency, name) for result in (exact, sampled))
        assert one.value == other.value
        assert other.low == pytest.approx(one.low, rel=0.15)
        assert other.high == pytest.approx(one.high, rel=0.15)


def test_a_leak_is_a_finding_with_its_figure(tmp_path: Path) -> None:
    result = made(tmp_path, leak_mb_per_s=1.0)
    assert codes(result) == {"load-memory-leaks"}
    assert result.sustained is not None
    memory = result.sustained.memory[0]
    assert memory.slope_mb_per_s.value == pytest.approx(1.0)
    assert memory.per_request_bytes == pytest.approx(10_000, rel=0.01)


@pytest.mark.parametrize(("nsys_bytes", "verdict"), [(25 * 10**6, "cannot-tell"), (20 * 10**6, "leaks")])
def test_what_nsys_holds_is_no_leak_of_the_target(tmp_path: Path, nsys_bytes: int, verdict: str) -> None:
    """89 MB in 90 s."""
    result = made(tmp_path, leak_mb_per_s=1.0, nsys_bytes=nsys_bytes)
    assert result.sustained is not None
    assert result.sustained.memory[0].verdict == verdict
    assert codes(result) == ({"load-memory-leaks"} if verdict == "leaks" else set())


def test_a_latency_that_rises_and_errors_that_do(tmp_path: Path) -> None:
    result = made(tmp_path, seconds=240, slower=2.0, failing=0.3)
    assert {"load-latency-rises", "load-errors-rise"} <= codes(result)
    assert result.sustained is not None
    (errors,) = result.sustained.errors
    assert errors.of == "errors.reset"
    assert errors.first.value == pytest.approx(0.05, abs=0.02)
    assert errors.last.value == pytest.approx(0.25, abs=0.03)


def test_a_short_run_is_not_judged_as_a_sustained_one(tmp_path: Path) -> None:
    result = made(tmp_path, seconds=20, leak_mb_per_s=5.0)
    assert result.sustained is None
    assert not codes(result)


@pytest.mark.parametrize("keep_all", [True, False])
def test_requests_that_timed_out_are_slower_than_the_others(tmp_path: Path, keep_all: bool) -> None:
    result = made(tmp_path, failing=0.8, keep_all=keep_all, kind="timeout")
    latency = result.phases[0].latency
    assert latency.slower == result.phases[0].errors["timeout"] > 3000
    assert latency.mean.value is None
    assert latency.p90.value is None
    assert latency.p50.value is not None
    assert latency.p50.value > 5 * np.log(2) * 1.4  # of the answered ones it would be 5 ms * ln 2
    assert latency.p50.low is None or latency.p50.low > 5 * np.log(2)


def test_a_queue_that_grows_is_judged_without_the_grace_period(tmp_path: Path) -> None:
    """Twice what is answered for 40 s; then 10 s in which late answers come, and what is left is given up."""
    rate, seconds, grace = 20, 40, 10
    profile = checked_profile({"phases": [{"name": "load", "duration": seconds, "rate": rate}], "grace": grace})
    lines = began(seconds, workers=2)
    left, number = 0, 0
    table = RequestTable()
    for second in range(seconds + grace):
        arrivals = rate if second < seconds else 0
        given_up = left - rate // 2 if second == seconds + grace - 1 else 0
        left += arrivals - rate // 2
        records = []
        for _ in range(rate // 2):
            due, done = number * S // rate + 1, (second + 1) * S - 1 - number % (rate // 2)
            begun = done - S // 10
            records.append(Done(number, None, 1, due, begun, begun, begun, done))
            number += 1
        later = range(number, number + given_up)
        records += [Done(at, None, 1, at * S // rate + 1, 0, 0, 0, 0, "unanswered") for at in later]
        table.add("load", records)
        well = records[: rate // 2]
        failed = {"errors": {"unanswered": given_up} if given_up else {}, "unanswered": given_up}
        times = {"queueing": hdr([0]), "service": hdr([S // 10] * len(well)), "lateness": hdr([0])}
        levels = {"arrivals": arrivals, "in_flight_max": left, "rss_bytes": 10**8}
        lines.append(window(second, [one.done_ns - one.intended_ns for one in well], **failed, **times, **levels))
    lines.append({"kind": "phase-end", "index": 0, "at_ns": (seconds + grace) * S})
    lines.append(ended())
    (tmp_path / FOLDER).mkdir()
    table.write(tmp_path / FOLDER)
    result = load_result(TargetRecord(kind="callable", name="made"), profile, [lines], "nsys")
    result = judge_load(result, tmp_path, {FOLDER: lines})
    (phase,) = result.phases
    assert (phase.unanswered, phase.never_sent) == (rate * seconds - rate // 2 * 50, 300)
    assert phase.achieved_rate == pytest.approx(10)
    assert result.sustained is not None
    assert result.sustained.queue_grows is True
    assert result.sustained.throughput is not None
    assert result.sustained.throughput.first.value == result.sustained.throughput.last.value == 0.5
    assert result.sustained.errors == []
    # One cause, one finding: no rising latency, no growing queue, no rising errors beside it.
    assert codes(result) == {"requests-unanswered", "rate-not-achieved"}


def test_windows_without_an_answer_and_without_requests_are_judged(tmp_path: Path) -> None:
    """A process was killed, so there is no table of requests; what its windows have is the result. Each request takes
    1.5 s: 25 of 40 were answered, and 15 were open.
    """
    profile = checked_profile({"phases": [{"name": "load", "duration": 30, "rate": 10}]})
    lines = began(30, workers=100)
    lines += [
        window(at, [1.5 * S] * answered, arrivals=10, in_flight_max=15) for at, answered in enumerate((0, 5, 10, 10))
    ]
    result = load_result(TargetRecord(kind="callable", name="made"), profile, [lines])
    (phase,) = judge_load(result, tmp_path, {FOLDER: lines}).phases
    assert (result.status, phase.latency.count, phase.latency.slower) == ("killed", 25, 15)
    assert phase.latency.p50.value == pytest.approx(1500, rel=0.001)


def test_a_gpu_under_load_has_its_clock_power_temperature_and_use(tmp_path: Path) -> None:
    at = [second * S for second in range(100)]
    made = SampleBuilder(offset_ns=0)
    made.readings("GPU-1", "power_instant_mw", at, [200_000 + 1000 * second for second in range(100)])
    made.readings("GPU-1", "temperature_c", at, [40 + second / 10 for second in range(100)])
    made.readings("GPU-1", "gpu_utilization_percent", at, [*([50.0] * 99), None])
    log = made.build()
    found = _conditions(log, "GPU-1", 0, 99 * S)
    assert found["power_w"] == pytest.approx(249.5)
    assert found["power_max_w"] == 299
    assert found["temperature_first_c"] == pytest.approx(40.45)
    assert found["temperature_last_c"] == pytest.approx(49.45)
    assert found["busy_percent"] == 50
    assert _conditions(log, "GPU-1", 40 * S, 59 * S)["power_max_w"] == 259  # of the phase, not of the run
    assert set(_conditions(log, "GPU-2", 0, 99 * S).values()) == {None}
