"""Loops, warm-up and throughput of made traces, whose rates are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.unit.analysis.test_results import analyze
from tests.unit.recorded_traces import Recorded


@dataclass(frozen=True)
class Loop:
    """Batches of one item that begin at these milliseconds."""

    starts: list[float]
    length: float = 5
    items: int | None = 1
    indices: list[int] | None = None
    name: str = "batch"
    where: dict[str, int] = field(default_factory=dict)


def every(period: float, count: int, begin: float = 0, **more: Any) -> Loop:
    return Loop([begin + period * index for index in range(count)], **more)


def threads(*loops: Loop, key: str = "tid") -> list[Loop]:
    return [
        Loop(one.starts, one.length, one.items, one.indices, one.name, {key: at + 1}) for at, one in enumerate(loops)
    ]


ROWS: dict[str, tuple[int, list[list[Loop]], float | None, float | None, int]] = {
    # name: warm-up, loops of each process, items per second (None: null), milliseconds, measured batches
    "to the start of the batch after the last": (1, [[every(50, 7)]], 20, 250, 5),
    "to the end of the last": (0, [[every(50, 5)]], 5 / 0.205, 205, 5),
    "a pause counts": (1, [[Loop([0, 10, 20, 130, 140, 150])]], 4 / 0.140, 140, 4),
    "passes with the same indices are one loop": (
        1, [[Loop([10.0 * at for at in range(12)], indices=[0, 1, 2] * 4)]], 100, 100, 10,
    ),
    "an index that never changes": (1, [[Loop([0, 10, 20, 30, 40], indices=[0] * 5)]], 100, 30, 3),
    "too few batches": (1, [[every(50, 4)]], None, None, 2),
    "no batch": (0, [[]], None, None, 0),
    "all warm-up": (9, [[every(50, 12)]], None, None, 0),
    "too short": (0, [[every(0.01, 6, length=0.005)]], None, None, 6),
    "a batch without items": (0, [[every(10, 6, items=None)]], None, 55, 6),
    "loops of several names": (0, [[every(10, 6), every(10, 6, 5, length=2, name="other")]], None, None, 12),
    "threads: the time in which all are measured": (
        1, [threads(every(10, 20), every(20, 9, 30, items=3))], 100 + 150, 140, 18 + 7,
    ),
    "threads: one is all warm-up": (2, [threads(every(10, 20), every(50, 4, items=9))], None, None, 16),
    "threads: never at the same time": (0, [threads(every(10, 5), every(10, 5, 100))], None, None, 10),
    "tasks with their own numbers": (1, [threads(every(10, 10), every(10, 10, 3), key="lane")], 200, 77, 16),
    "a task for each request": (
        1, [threads(*(Loop([10.0 * at], 25, indices=[at]) for at in range(10)), key="lane")], 100, 80, 8,
    ),
    "a thread for each request": (1, [threads(*(Loop([10.0 * at], 25, indices=[at]) for at in range(10)))], 100, 80, 8),
    "processes: the time in which all are measured": (
        1, [[every(10, 40)], [every(50, 9, 30, items=3)]], 100 + 60, 310, 38 + 7,
    ),
    "processes: one has no batch": (0, [[every(10, 40)], []], None, None, 40),
    "processes: never at the same time": (0, [[every(10, 5)], [every(10, 5, 100)]], None, None, 10),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rates(name: str, tmp_path: Path) -> None:
    warmup, processes, rate, window_ms, measured = ROWS[name]
    traces = []
    for number, loops in enumerate(processes):
        builder = Recorded()
        builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1)
        for one in loops:
            for at, start in enumerate(one.starts):
                index = at if one.indices is None else one.indices[at]
                builder.batch(index, start, start + one.length, one.items, name=one.name, **one.where)
        traces.append(builder.write(tmp_path / f"{number}.sqlite"))
    found = analyze(traces, tmp_path / "out", "-w", str(warmup))
    whole = found.pop("benchmark_mean")["throughput"]
    assert whole["items_per_second"] == (None if rate is None else pytest.approx(rate, rel=1e-5))
    assert whole["window_ms"] == (None if window_ms is None else pytest.approx(window_ms))
    assert (whole["reason"] is None) == (rate is not None)
    counts = [one["meta"]["total_batches_minus_warmup"] for one in found.values()]
    assert sum(sum(one.values()) for one in counts) == measured


def test_shares_and_concurrency_of_two_processes(tmp_path: Path) -> None:
    """Batches of 5 ms every 10 ms, and of 80 ms every 100 ms with 3 items, from 100 to 400 ms."""
    traces = []
    for name, loop in (("a", every(10, 60)), ("b", every(100, 5, length=80, items=3))):
        builder = Recorded()
        builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1)
        for index, start in enumerate(loop.starts):
            builder.batch(index, start, start + loop.length, loop.items)
        traces.append(builder.write(tmp_path / f"{name}.sqlite"))
    found = analyze(traces, tmp_path / "out", "-w", "1")["benchmark_mean"]["throughput"]
    assert (found["items"], found["window_ms"], found["periods"]) == (30 + 9, 300, 33)
    assert found["concurrency"] == {"processes": 2, "mean_processes": 1.3, "all_processes_share": 0.4}
    shares = {Path(name).name: one["share"] for name, one in found["processes"].items()}
    assert shares == {"a": round(30 / 39, 6), "b": round(9 / 39, 6)}
