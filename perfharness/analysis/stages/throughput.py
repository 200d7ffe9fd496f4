"""Items per second of a loop, a process and a run.

A batch lasts from its start to the start of the next batch of its loop, so pauses count; the last batch of a loop lasts
until its own end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfharness.analysis.timeline.busy import BusyLine, Window
from perfharness.analysis.timeline.grouping import unique
from perfharness.model.columns import Bool, Float64, Int64
from perfharness.model.manifest import is_part_of
from perfharness.model.result import BatchLoop, path_text
from perfharness.model.rounding import figure
from perfharness.model.units import NS_PER_S

MIN_BATCHES = 3
"""Fewest measured batches for a rate."""

MIN_WINDOW_NS = 1_000_000
"""Shortest window; below it, annotation costs of microseconds per batch dominate."""


@dataclass(frozen=True)
class _Measured:
    """Measured batches of one loop: `edges_ns` has their starts and the end of the last period."""

    edges_ns: Int64
    end_ns: Int64
    items: Float64

    @property
    def window(self) -> Window:
        return int(self.edges_ns[0]), int(self.edges_ns[-1])

    def shares(self, window: Window) -> Float64:
        """Share of each batch's period inside the window."""
        clipped = np.clip(self.edges_ns, *window)
        length = np.diff(self.edges_ns)
        at_once = (self.edges_ns[:-1] >= window[0]) & (self.edges_ns[:-1] < window[1])
        return np.where(length > 0, np.diff(clipped) / np.maximum(length, 1), at_once)


@dataclass(frozen=True)
class _Process:
    """Loops of one process, and the window in which all of them are in steady state."""

    path: str
    loops: list[_Measured]
    window: Window

    def batches(self, window: Window) -> float:
        return float(sum(loop.shares(window).sum() for loop in self.loops))

    def items(self, window: Window) -> float:
        """Items inside the window; NaN if a batch in it has no count."""
        shares = [loop.shares(window) for loop in self.loops]
        return float(sum((loop.items * share)[share > 0].sum() for loop, share in zip(self.loops, shares, strict=True)))


@dataclass(frozen=True)
class Sharing:
    """Groups of processes that share items, which count once; `unknown`: reason if the groups are unknown."""

    groups: Sequence[Sequence[str]] = ()
    unknown: str | None = None


ALL_SEPARATE = Sharing()


def throughput(
    processes: Mapping[str, Sequence[BatchLoop]],
    clock_is_utc: bool,
    failed: Mapping[str, str] | None = None,
    sharing: Sharing = ALL_SEPARATE,
) -> dict[str, Any]:
    """Throughput of the run, over the window in which all processes are in steady state, and of each process; null with
    a reason if a part is missing or a process `failed` (reason by folder). If a launched process and its children both
    have batches, only its own count.
    """

    def counts(name: str) -> bool:
        return not any(loops and name != of and is_part_of(of, name) for of, loops in processes.items())

    found = {name: _process(loops) for name, loops in processes.items()}
    own = {name: _no_rate(one) if isinstance(one, str) else _rate([one], one.window) for name, one in found.items()}
    rates = {name: {**rate, "share": None, "in_window": None} for name, rate in own.items()}
    counted = {name: one for name, one in found.items() if counts(name)}
    known = {name: one for name, one in counted.items() if isinstance(one, _Process)}
    groups = [group for each in sharing.groups if len(group := [name for name in each if name in known]) > 1]
    once: dict[str, Any] = {"counted_once": groups} if groups else {}
    missing = {name: how for name, how in (failed or {}).items() if counts(name)}
    missing |= {name: one for name, one in counted.items() if isinstance(one, str)}
    window = _common(known, clock_is_utc, missing)
    if isinstance(window, str) or sharing.unknown is not None:
        reason = window if isinstance(window, str) else str(sharing.unknown)
        return {**_no_rate(reason), **once, "concurrency": None, "processes": rates}
    again = {name for group in groups for name in group[1:]}
    whole = _rate([one for name, one in known.items() if name not in again], window)
    for name, one in known.items():
        rates[name] |= _part(one, window, whole["items"])
    return {**whole, **once, "concurrency": _concurrency(list(known.values()), window), "processes": rates}


def loop_window(loop: BatchLoop) -> Window | None:
    """The window of a loop's measured batches; None without any."""
    measured = _measured(loop)
    return None if measured is None or measured.window[0] == measured.window[1] else measured.window


def measured_rows(counted: Bool) -> slice | None:
    """Batches of a loop from the first to the last that counts."""
    at = np.flatnonzero(counted)
    return slice(int(at[0]), int(at[-1]) + 1) if len(at) else None


def _measured(loop: BatchLoop) -> _Measured | None:
    counted = ~loop.warmup
    if loop.barrier_opened_ns is not None:
        counted &= loop.start_ns >= loop.barrier_opened_ns
    rows = measured_rows(counted)
    if rows is None:
        return None
    stop = loop.start_ns[rows.stop] if rows.stop < loop.count else loop.end_ns[rows].max()
    return _Measured(np.r_[loop.start_ns[rows], stop], loop.end_ns[rows], loop.items[rows])


def _process(loops: Sequence[BatchLoop]) -> _Process | str:
    """Steady state of a process, or the reason why it has none."""
    if not loops:
        return "has no batches"
    paths = sorted({path_text(loop.path) for loop in loops})
    if len(paths) > 1:
        return f"has loops of several names ({', '.join(paths)}), so the one to count is unknown"
    measured = [one for loop in loops if (one := _measured(loop)) is not None]
    if len(measured) < len(loops):
        which = f" in {len(loops) - len(measured)} of {len(loops)} threads or tasks" if len(loops) > 1 else ""
        return f"has only warm-up batches{which}; run more batches or lower -w"
    window = _overlap([one.window for one in measured])
    if window is None:
        return "has threads or tasks that were never in steady state at the same time"
    process = _Process(paths[0], measured, window)
    return _too_little(process, window) or process


def _overlap(windows: Sequence[Window]) -> Window | None:
    start, end = max(start for start, _ in windows), min(end for _, end in windows)
    return (start, end) if start < end else None


def _too_little(process: _Process, window: Window) -> str | None:
    batches, length = process.batches(window), window[1] - window[0]
    if batches < MIN_BATCHES - 1e-9:
        return f"has too few measured batches ({batches:.3g} of {MIN_BATCHES})"
    if length < MIN_WINDOW_NS:
        return f"has only {length / 1e6:.3g} measured ms, too short for a rate; run more batches"
    return None


def _common(known: Mapping[str, _Process], clock_is_utc: bool, missing: Mapping[str, str]) -> Window | str:
    """Window in which all processes are in steady state, or the reason why there is none."""
    for name, how in missing.items():
        return f"{name} {how}"
    if not known:
        return "no process has a result"
    if len(known) > 1 and not clock_is_utc:
        return "a trace has no UTC start time, so the processes cannot be aligned"
    window = _overlap([one.window for one in known.values()])
    if window is None:
        return "the processes were never in steady state at the same time"
    for name, process in known.items():
        if (reason := _too_little(process, window)) is not None:
            return f"while all processes run, {name} {reason}"
    return window


def _no_rate(reason: str) -> dict[str, Any]:
    numbers = dict.fromkeys(("window_ms", "items", "periods"))
    return {"items_per_second": None, "unit": "items/s", **numbers, "reason": reason}


def _rate(processes: Sequence[_Process], window: Window) -> dict[str, Any]:
    length, items = window[1] - window[0], sum(one.items(window) for one in processes)
    is_known = not np.isnan(items)
    return {
        "items_per_second": figure(items / length * NS_PER_S) if is_known else None,
        "unit": "items/s",
        "window_ms": round(length / 1e6, 6),
        "items": round(items, 6) if is_known else None,
        "periods": round(sum(one.batches(window) for one in processes), 6),
        "loop": processes[0].path,
        "reason": None if is_known else "a batch counted no items",
    }


def _part(process: _Process, window: Window, total: float | None) -> dict[str, Any]:
    """Share of one process in the common window."""
    items, length = process.items(window), window[1] - window[0]
    if np.isnan(items):
        return {}
    return {
        "share": min(round(items / total, 6), 1.0) if total else None,
        "in_window": {"items": round(items, 6), "items_per_second": figure(items / length * NS_PER_S)},
    }


def _concurrency(processes: Sequence[_Process], window: Window) -> dict[str, Any]:
    """Number of processes inside a measured batch at the same time."""
    start, end = window
    inside = [
        BusyLine(
            np.concatenate([loop.edges_ns[:-1] for loop in one.loops]).clip(start, end),
            np.concatenate([loop.end_ns for loop in one.loops]).clip(start, end),
        )
        for one in processes
    ]
    edges = unique(np.concatenate([edge for line in inside for edge in (line.start, line.end)]))
    length = np.diff(edges)
    count = sum(line.within(edges[:-1], edges[1:]) > 0 for line in inside)
    return {
        "processes": len(processes),
        "mean_processes": round(float((length * count).sum() / (end - start)), 6),
        "all_processes_share": round(float(length[count == len(inside)].sum() / (end - start)), 6),
    }
