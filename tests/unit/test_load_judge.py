"""What the files of a load test come to: intervals, `sustained`, findings, from requests and from histograms alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.load.histogram import Histogram
from perfharness.load.judge import judge_load
from perfharness.load.profile import checked_profile
from perfharness.load.requests import RequestTable
from perfharness.load.result import load_result
from perfharness.load.windows import Done
from perfharness.model.load import LoadResult, TargetRecord

S = 1_000_000_000
RATE = 100
FOLDER = "proc_0_gpu_0"


def made(
    folder: Path, seconds: int = 90, leak_mb_per_s: float = 0.0, slower: float = 1.0, failing: float = 0.0,
    keep_all: bool = True, kind: str = "reset",
) -> LoadResult:  # fmt: skip
    """A run of one phase at 100 requests a second, whose latencies are exponential, 5 ms on average."""
    drawn = np.random.default_rng(7)
    profile = checked_profile({"phases": [{"name": "load", "duration": seconds, "rate": RATE}]})
    lines: list[dict[str, Any]] = [
        {"kind": "run", "start_ns": 0},
        {"kind": "phase", "index": 0, "name": "load", "start_ns": 0, "end_ns": seconds * S, "concurrency": 1},
    ]
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
        line: dict[str, Any] = {
            "kind": "window", "phase": 0, "index": second, "start_ns": second * S, "end_ns": (second + 1) * S,
            "last_done_ns": records[-1].done_ns, "arrivals": RATE, "sent": RATE, "completed": RATE,
            "ok": int((~fails).sum()), "within_objective": None, "items": int((~fails).sum()),
            "errors": {kind: int(fails.sum())} if fails.any() else {}, "unanswered": 0, "first": [],
            "in_flight_max": 1, "rss_bytes": 10**8 + int(leak_mb_per_s * second * 1e6),
        }  # fmt: skip
        for name, values in (("latency", taken[~fails]), ("queueing", 0 * taken[~fails]), ("service", taken[~fails])):
            histogram = Histogram()
            histogram.add(values)
            line[name] = histogram.to_json()
        line["lateness"] = Histogram().to_json()
        lines.append(line)
    lines.append({"kind": "end", "status": "ok", "reason": None, "requests_kept": table.kept})
    (folder / FOLDER).mkdir(parents=True)
    table.write(folder / FOLDER)
    result = load_result(TargetRecord(kind="callable", name="made"), profile, [lines])
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
