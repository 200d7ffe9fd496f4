"""Items per second, over the time in which all processes were in their steady state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfharness.analysis.concurrency import concurrency
from perfharness.model.result import BatchLoop

NS_PER_S = 1e9


@dataclass(frozen=True)
class Window:
    """A span of time, `begin_ns < end_ns`."""

    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.begin_ns) / NS_PER_S


def steady_window(loop: BatchLoop) -> Window | None:
    """From the start of the first batch that is not set apart to the end of the last; None where there is none."""
    kept = ~loop.warmup
    if not kept.any():
        return None
    window = Window(int(loop.start_ns[kept].min()), int(loop.end_ns[kept].max()))
    return window if window.end_ns > window.begin_ns else None


def items_inside(loop: BatchLoop, window: Window) -> float | None:
    """Items processed inside the window, a batch on its border by the part that lies inside; None if one counted none.

    Whole batches only would be off by up to a batch per process, which is most of a short run.
    """
    some = (loop.end_ns > window.begin_ns) & (loop.start_ns < window.end_ns) & (loop.end_ns > loop.start_ns)
    items = loop.items[some]
    if np.isnan(items).any():
        return None
    start, end = loop.start_ns[some], loop.end_ns[some]
    inside = np.minimum(end, window.end_ns) - np.maximum(start, window.begin_ns)
    return float((items * inside / (end - start)).sum())


def throughput(processes: dict[str, list[BatchLoop]], clock_is_utc: bool) -> dict[str, Any]:
    """Throughput of the run and of each process.

    Args:
        processes: the outermost loops of each process, by its folder name.
        clock_is_utc: whether the processes' times can be compared with each other.

    Items processed inside the window in which all processes were in their steady state, divided by its length; never
    processes divided by mean latency. Null, with the reason, where there is no such window. Beside it, of the same
    window: how many processes were inside a measured batch at once, and each process's share of the items.
    """
    answer: dict[str, Any] = {"items_per_second": None, "unit": "items/s", "window_ms": None, "items": None}
    own: dict[str, Any] = {}
    windows: dict[str, tuple[BatchLoop, Window]] = {}
    reason = None if processes else "no process has a result"
    for name, loops in processes.items():
        loop, problem = _the_loop(loops)
        window = steady_window(loop) if loop is not None else None
        if loop is not None and window is None:
            problem = "no batch is left without the warm-up"
        if loop is None or window is None:
            reason = reason or f"{name}: {problem}"
            own[name] = {**answer, "reason": problem}
            continue
        own[name] = _rate(loop.path, [(loop, window)], window)
        windows[name] = (loop, window)
    window, reason = (None, reason) if reason is not None else _common_window(windows, clock_is_utc)
    if window is None:
        nothing = {"share": None, "in_window": None}
        alone = {name: {**rate, **nothing} for name, rate in own.items()}
        return {**answer, "reason": reason, "concurrency": None, "processes": alone}
    pairs = list(windows.values())
    common = _rate(pairs[0][0].path, pairs, window)
    return {
        **common,
        "concurrency": _concurrency([loop for loop, _ in pairs], window),
        "processes": {name: {**rate, **_part(windows[name][0], window, common["items"])} for name, rate in own.items()},
    }


def _common_window(
    windows: dict[str, tuple[BatchLoop, Window]], clock_is_utc: bool
) -> tuple[Window | None, str | None]:
    """When all were in their steady state, or why that is not known."""
    if len(windows) > 1 and not clock_is_utc:
        return None, "a trace does not tell when it began, so the processes cannot be laid side by side"
    begin = max(window.begin_ns for _, window in windows.values())
    end = min(window.end_ns for _, window in windows.values())
    if end <= begin:
        return None, "the processes were never in their steady state at the same time"
    return Window(begin, end), None


def _concurrency(loops: list[BatchLoop], window: Window) -> dict[str, Any]:
    achieved = concurrency(
        [loop.start_ns[~loop.warmup] for loop in loops],
        [loop.end_ns[~loop.warmup] for loop in loops],
        window.begin_ns,
        window.end_ns,
    )
    return {
        "processes": len(loops),
        "mean_processes": round(achieved.mean_processes, 6),
        "all_processes_share": round(achieved.all_processes_share, 6),
    }


def _part(loop: BatchLoop, window: Window, total: float | None) -> dict[str, Any]:
    """What one process did in the window of all."""
    items = items_inside(loop, window)
    return {
        "share": round(items / total, 6) if items is not None and total else None,
        "in_window": None
        if items is None
        else {"items": round(items, 6), "items_per_second": round(items / window.seconds, 6)},
    }


def _rate(path: tuple[str, ...], windows: list[tuple[BatchLoop, Window]], window: Window) -> dict[str, Any]:
    counts = [items_inside(loop, window) for loop, _ in windows]
    known = [count for count in counts if count is not None]
    items = sum(known) if len(known) == len(counts) else None
    return {
        "items_per_second": round(items / window.seconds, 6) if items is not None else None,
        "unit": "items/s",
        "window_ms": round(window.seconds * 1e3, 6),
        "items": round(items, 6) if items is not None else None,
        "loop": "/".join(path),
        "reason": None if items is not None else "a batch counted no items",
    }


def _the_loop(loops: list[BatchLoop]) -> tuple[BatchLoop | None, str | None]:
    """The loop that throughput is about: loops of one path (one per thread) are one; of several paths none."""
    if not loops:
        return None, "there are no batches"
    if len({loop.path for loop in loops}) > 1:
        names = ", ".join(sorted("/".join(loop.path) for loop in loops))
        return None, f"there are several loops of batches ({names}), and which of them counts is not known"
    return (
        BatchLoop(
            path=loops[0].path,
            start_ns=np.concatenate([loop.start_ns for loop in loops]),
            end_ns=np.concatenate([loop.end_ns for loop in loops]),
            items=np.concatenate([loop.items for loop in loops]),
            warmup=np.concatenate([loop.warmup for loop in loops]),
        ),
        None,
    )
