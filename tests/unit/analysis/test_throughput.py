"""Loops, warm-up and throughput of made traces, whose rates are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.trace_builder import Recorded
from tests.unit.analysis.test_results import analyze

A, B = "batch#* 0..5 x20+10 tid=1", "batch#* 30..35 items=3 x9+20 tid=2"
EACH = "; ".join(f"batch#{at} {10 * at}..{10 * at + 25} {{}}={at + 1}" for at in range(10))
ROWS: dict[str, tuple[int, list[str], float | None, float | None, int]] = {
    # name: warm-up, batches of each process, items per second (None: null), milliseconds, measured batches
    "to the start of the batch after the last": (1, ["batch#* 0..5 x7+50"], 20, 250, 5),
    "to the end of the last": (0, ["batch#* 0..5 x5+50"], 5 / 0.205, 205, 5),
    "a pause counts": (1, ["batch#* 0..5 x3+10; batch#* 130..135 x3+10"], 4 / 0.140, 140, 4),
    "passes with the same indices are one loop": (
        1, ["; ".join(f"batch#* {begin}..{begin + 5} x3+10" for begin in (0, 30, 60, 90))], 100, 100, 10,
    ),
    "an index that never changes": (1, ["batch#0 0..5 x5+10"], 100, 30, 3),
    "too few batches": (1, ["batch#* 0..5 x4+50"], None, None, 2),
    "no batch": (0, [""], None, None, 0),
    "all warm-up": (9, ["batch#* 0..5 x12+50"], None, None, 0),
    "too short": (0, ["batch#* 0..0.005 x6+0.01"], None, None, 6),
    "a batch without items": (0, ["batch#* 0..5 items=none x6+10"], None, 55, 6),
    "loops of several names": (0, ["batch#* 0..5 x6+10; other#* 5..7 x6+10"], None, None, 12),
    "threads: the time in which all are measured": (1, [f"{A}; {B}"], 100 + 150, 140, 18 + 7),
    "threads: one is all warm-up": (2, [f"{A}; batch#* 0..5 items=9 x4+50 tid=2"], None, None, 16),
    "threads: never at the same time": (
        0, ["batch#* 0..5 x5+10 tid=1; batch#* 100..105 x5+10 tid=2"], None, None, 10,
    ),
    "tasks with their own numbers": (
        1, ["batch#* 0..5 x10+10 lane=1; batch#* 3..8 x10+10 lane=2"], 200, 77, 16,
    ),
    "a task for each request": (1, [EACH.format(*["lane"] * 10)], 100, 80, 8),
    "a thread for each request": (1, [EACH.format(*["tid"] * 10)], 100, 80, 8),
    "processes: the time in which all are measured": (
        1, ["batch#* 0..5 x40+10", "batch#* 30..35 items=3 x9+50"], 100 + 60, 310, 38 + 7,
    ),
    "processes: one has no batch": (0, ["batch#* 0..5 x40+10", ""], None, None, 40),
    "processes: never at the same time": (0, ["batch#* 0..5 x5+10", "batch#* 100..105 x5+10"], None, None, 10),
}  # fmt: skip


def traces(folder: Path, *processes: str) -> list[Path]:
    found = []
    for name, text in zip("ab", processes, strict=False):
        builder = Recorded()
        builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1)
        found.append(builder.add(text).write(folder / f"{name}.sqlite"))
    return found


@pytest.mark.parametrize("name", ROWS)
def test_rates(name: str, tmp_path: Path) -> None:
    warmup, processes, rate, window_ms, measured = ROWS[name]
    found = analyze(traces(tmp_path, *processes), tmp_path / "out", "-w", str(warmup))
    whole = found.pop("benchmark_mean")["throughput"]
    assert whole["items_per_second"] == (None if rate is None else pytest.approx(rate, rel=1e-5))
    assert whole["window_ms"] == (None if window_ms is None else pytest.approx(window_ms))
    assert (whole["reason"] is None) == (rate is not None)
    counts = [one["meta"]["total_batches_minus_warmup"] for one in found.values()]
    assert sum(sum(one.values()) for one in counts) == measured


def test_shares_and_concurrency_of_two_processes(tmp_path: Path) -> None:
    """Batches of 5 ms every 10 ms, and of 80 ms every 100 ms with 3 items, from 100 to 400 ms."""
    made = traces(tmp_path, "batch#* 0..5 x60+10", "batch#* 0..80 items=3 x5+100")
    found = analyze(made, tmp_path / "out", "-w", "1")["benchmark_mean"]["throughput"]
    assert (found["items"], found["window_ms"], found["periods"]) == (30 + 9, 300, 33)
    assert found["concurrency"] == {"processes": 2, "mean_processes": 1.3, "all_processes_share": 0.4}
    shares = {Path(name).name: one["share"] for name, one in found["processes"].items()}
    assert shares == {"a": round(30 / 39, 6), "b": round(9 / 39, 6)}
