"""Items per second, over the time in which all processes were in their steady state.

A batch owns its period: from its start to the start of the batch after it, so that N batches take N periods, whatever
lies between them (a loader). The last batch of a loop owns none. Where up to M batches of a loop overlap (tasks of a
server), a period lasts to the start of the M-th batch after it: those that M workers that take turns would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.result import BatchLoop, Float64, Path, path_text
from perfharness.model.rounding import figure
from perfharness.model.trace import Bool, Int64

NS_PER_S = 1e9

MIN_PERIODS = 3
"""Of one process in the window. Fewer predict little of the next ones. Where M batches overlap, it takes 2 M + 1."""

MIN_WINDOW_NS = 1_000_000
"""Over a shorter one a rate is that of the annotation: a batch costs it some microseconds."""

DRAIN_THRESHOLD = 1.517
"""Of the largest excess of a cumulative sum, in standard deviations of it: exceeded by chance in 1 % of steady loops
(exp(-2 x^2), the one-sided Kolmogorov distribution)."""

FASTER = {True: 1.1, False: 1.5}
"""So many times faster than the rest is a beginning that lives on a full queue: where the process had threads or
children to fill one while it waited at the start barrier, and where that is not known. Less may be the machine."""

MOSTLY = 0.9
"""Of the batches that begin in a loop's window so many have to end in it, where they overlap: else it is filling up."""

_Borders = tuple[Int64, Int64]


@dataclass(frozen=True)
class _Periods:
    """The counted periods of one loop, in order. `reason`: why there are none."""

    path: Path
    start_ns: Int64
    end_ns: Int64
    items: Float64
    overlap: int
    """So many of its batches ran concurrently at most; so many periods overlap while it is steady."""

    steady: BusyLine
    """When that many do."""

    extent: tuple[int, int]
    """First and last start of the loop's batches."""

    batches: _Borders
    """Starts and ends of the counted batches."""

    reason: str | None = None

    def shares(self, window: BusyLine) -> Float64:
        """The part of each period that lies inside the window."""
        length = self.end_ns - self.start_ns
        inside = window.within(self.start_ns, self.end_ns)
        if (length > 0).all():
            return np.asarray(inside / length, dtype=np.float64)
        # Batches that begin in the same moment (threads, tasks) have periods without length.
        at_once = window.within(self.start_ns, self.start_ns + 1) > 0
        return np.where(length > 0, inside / np.maximum(length, 1), at_once)


@dataclass(frozen=True)
class _Steady:
    """The steady state of one process: when, and its loops' periods."""

    window: BusyLine
    loops: list[_Periods]

    def periods(self, window: BusyLine) -> float:
        """How many lie inside the window."""
        return float(sum(loop.shares(window).sum() for loop in self.loops))

    @property
    def periods_needed(self) -> int:
        """For a rate."""
        return MIN_PERIODS + 2 * max(loop.overlap - 1 for loop in self.loops)

    def items(self, window: BusyLine) -> float | None:
        """Items inside the window, those of a period on its border by the part inside; None if a batch counted none."""
        total = 0.0
        for loop in self.loops:
            shares = loop.shares(window)
            total += float((loop.items * shares)[shares > 0].sum())
        return None if np.isnan(total) else total


@dataclass(frozen=True)
class Sharing:
    """Which processes work on the same items, so that these count once; names of processes.

    `unknown`: why it is not known whether some do.
    """

    groups: Sequence[Sequence[str]] = ()
    unknown: str | None = None


ALL_SEPARATE = Sharing()


def throughput(
    processes: dict[str, list[BatchLoop]],
    clock_is_utc: bool,
    failed: Mapping[str, str] | None = None,
    sharing: Sharing = ALL_SEPARATE,
) -> dict[str, Any]:
    """Throughput of the run and of each process.

    Args:
        processes: the outermost loops of each process, by its folder name.
        clock_is_utc: whether the processes' times can be compared with each other.
        failed: how processes failed, by folder name; with one of them, also one that measured nothing, there is no
            throughput of the run.
        sharing: which of them work on the same items.

    Items of the time in which all processes were in their steady state, divided by its length; never processes divided
    by mean latency. Null, with the reason, where there is too little of such time. In addition, of the same time: how
    many processes were inside a measured batch concurrently, and each process's share of the items.
    """
    steady = {name: _steady(loops) for name, loops in processes.items()}
    own = {name: _own_rate(found) for name, found in steady.items()}
    common, reason = _common(steady, own, clock_is_utc, failed or {})
    groups = [group for each in sharing.groups if len(group := [name for name in each if name in steady]) > 1]
    once: dict[str, Any] = {"counted_once": groups} if groups else {}
    if common is None or sharing.unknown is not None:
        nothing = {"share": None, "in_window": None}
        alone = {name: {**rate, **nothing} for name, rate in own.items()}
        return {**_no_rate(reason or sharing.unknown), **once, "concurrency": None, "processes": alone}
    together = [found for found in steady.values() if isinstance(found, _Steady)]
    again = {name for group in groups for name in group[1:]}
    whole = _rate([found for name, found in steady.items() if name not in again and isinstance(found, _Steady)], common)
    return {
        **whole,
        **once,
        "concurrency": _concurrency(together, common),
        "processes": {
            name: {**own[name], **_part(found, common, whole["items"])}
            for name, found in steady.items()
            if isinstance(found, _Steady)
        },
    }


def loop_window(loop: BatchLoop) -> tuple[int, int] | None:
    """From the first to the last period of a loop that counts; None where no batch is left without the warm-up.

    Where no period counts (a single batch): from its first such batch to the start of the one after the last, or, where
    there is none, to the end of the last.
    """
    line = _periods(loop).steady
    if line.length:
        return int(line.start[0]), int(line.end[-1])
    kept = np.flatnonzero(~loop.warmup)
    if not len(kept):
        return None
    is_last = kept[-1] + 1 == len(loop.start_ns)
    start, end = loop.start_ns[kept[0]], loop.end_ns[kept].max() if is_last else loop.start_ns[kept[-1] + 1]
    return (int(start), int(end)) if end > start else None


def _common(
    steady: Mapping[str, _Steady | str],
    own: Mapping[str, dict[str, Any]],
    clock_is_utc: bool,
    failed: Mapping[str, str],
) -> tuple[BusyLine | None, str | None]:
    """When all were in their steady state, or why that is not known."""
    if not steady:
        return None, "no process has a result"
    for name, how in failed.items():
        return None, f"{name}: {how}, so what was measured is no whole run"
    for name, found in steady.items():
        if isinstance(found, str):
            return None, f"{name}: {found}"
    if len(steady) > 1 and not clock_is_utc:
        return None, "a trace has no UTC start time, so the processes cannot be aligned"
    known = {name: found for name, found in steady.items() if isinstance(found, _Steady)}
    common = _while_all_steady([(found.window.start, found.window.end) for found in known.values()], len(known))
    if not common.length:
        return None, "the processes were never in their steady state at the same time"
    for name in known:
        if own[name]["reason"] is not None and own[name]["window_ms"] is None:
            return None, f"{name}: {own[name]['reason']}"
    fewest = min(known, key=lambda name: known[name].periods(common) / known[name].periods_needed)
    reason = _too_little(known[fewest], common)
    if reason is not None:
        return None, f"{fewest}, while all processes were in their steady state: {reason}"
    return common, None


def _steady(loops: Sequence[BatchLoop]) -> _Steady | str:
    """The time in which all loops of a process that run concurrently were in their steady state, or why there is none.

    Loops that run one after another (the pipeline is called twice) each add their own time; the pause between them is
    in no period. Of concurrent loops (threads), it is the time in which as many are steady as ever run concurrently.
    """
    if not loops:
        return "there are no batches"
    if len({loop.path for loop in loops}) > 1:
        names = ", ".join(sorted({path_text(loop.path) for loop in loops}))
        return f"there are several loops of batches ({names}), and which of them counts is not known"
    found = [_periods(loop) for loop in loops]
    counted = [periods for periods in found if len(periods.start_ns)]
    if not counted:
        return next((one.reason for one in found if one.reason), "no batch is left without the warm-up")
    most = int(_counts([_one_span(*loop.extent) for loop in counted])[2].max())
    window = _while_all_steady([(loop.steady.start, loop.steady.end) for loop in counted], most)
    if not window.length:
        return "its loops were never all in their steady state at the same time"
    return _Steady(window, counted)


def _one_span(begin: int, end: int) -> _Borders:
    return np.asarray([begin]), np.asarray([max(end, begin + 1)])


def _periods(loop: BatchLoop) -> _Periods:
    """The periods that count: neither warm-up, nor from before the barrier opened, nor fast by what was prepared."""
    start = loop.start_ns
    counted = ~loop.warmup
    if loop.barrier_opened_ns is not None:
        counted &= start >= loop.barrier_opened_ns
    reason = None if counted.any() else "no batch is left without the warm-up"
    if counted.any():
        first, reason = _after_drain(loop, int(np.argmax(counted)))
        counted[:first] = False
    overlap = _max_concurrent(start, loop.end_ns, counted)
    owns = np.flatnonzero(counted[:-overlap])
    if reason is None and not len(owns):
        reason = f"all of its {counted.sum()} batches overlap, or there is only one; run more batches"
    steady = _while_all_steady([(start[owns], start[owns + overlap])], overlap)
    if steady.length:
        begun, ended = ((times >= steady.start[0]) & (times < steady.end[-1]) for times in (start, loop.end_ns - 1))
        if ended.sum() < MOSTLY * begun.sum() - 1:
            reason = (
                f"of {begun.sum()} batches that began in its window only {ended.sum()} ended there; run more batches"
            )
            owns, counted, steady = owns[:0], np.zeros_like(counted), BusyLine(owns[:0], owns[:0])
    return _Periods(
        path=loop.path,
        start_ns=start[owns],
        end_ns=start[owns + overlap],
        items=loop.items[owns],
        overlap=overlap,
        steady=steady,
        extent=(int(start[0]), int(start[-1])) if len(start) else (0, 0),
        batches=(start[counted], loop.end_ns[counted]),
        reason=reason,
    )


def _max_concurrent(start_ns: Int64, end_ns: Int64, counted: Bool) -> int:
    """How many batches of a loop overlap at most, from its first counted to its last; 1 where none do."""
    at = np.flatnonzero(counted)
    if not len(at):
        return 1
    start, end = start_ns[at[0] : at[-1] + 1], np.sort(end_ns[at[0] : at[-1] + 1])
    in_flight = np.arange(1, len(start) + 1) - np.searchsorted(end, start, side="right")
    return max(1, int(in_flight.max()))


def _after_drain(loop: BatchLoop, first: int) -> tuple[int, str | None]:
    """From which batch on the loop is steady, where a loader worked ahead before the first one; and why nothing is.

    While a loop waits (at the start barrier, or for a slow warm-up batch), a background loader fills its queue, and the
    batches after it run faster than the loader until the queue is empty. Where the beginning of the counted part runs
    faster than the rest, by no more than what a loader can have gained since the process began, it is excluded. Where
    other threads worked during the wait for as long as the whole counted part took, nothing is known of its speed.

    Args:
        loop: of one thread or task.
        first: the first batch that counts.
    """
    start = loop.start_ns
    period: Float64 = np.diff(start[first:]).astype(np.float64)
    count, spread = len(period), float(period.std()) if len(period) else 0.0
    ahead = start[first] - (start[0] if loop.traced_from_ns is None else loop.traced_from_ns)
    if count >= MIN_PERIODS and spread > 0:
        excess = np.cumsum(period.mean() - period)[:-1]
        at = int(np.argmax(excess)) + 1
        rest = period[at:].mean()
        gained = at - period[:at].sum() / rest
        is_faster = rest > FASTER[loop.barrier_has_workers] * period[:at].mean()
        is_change = excess[at - 1] > DRAIN_THRESHOLD * spread * np.sqrt(count)
        if is_faster and is_change and gained <= max(ahead, 0) / rest:
            return first + at + 1, None  # the period in which the queue runs empty is of neither part
    if loop.barrier_has_workers and count and loop.barrier_wait_ns >= period.sum():
        waited = f"{loop.barrier_wait_ns / 1e6:.0f} ms at the start barrier"
        return len(start), (
            f"while it waited {waited}, its other threads or processes may have prepared all of the "
            f"{period.sum() / 1e6:.0f} ms that it measured; run more batches"
        )
    return first, None


def _counts(lines: Iterable[_Borders]) -> tuple[Int64, Int64, Int64]:
    """How many of the lines' intervals overlap: start, end and count of each stretch, in order."""
    pairs = list(lines)
    times = np.concatenate([border for pair in pairs for border in pair])
    steps = np.concatenate([np.full(len(pair[0]), sign) for pair in pairs for sign in (1, -1)])
    order = np.argsort(times, kind="stable")
    times, count = times[order], np.cumsum(steps[order])
    longer = np.flatnonzero(times[1:] > times[:-1])
    return times[longer], times[longer + 1], count[longer]


def _while_all_steady(lines: Sequence[_Borders], most: int) -> BusyLine:
    """The time in which so many intervals of the lines overlap."""
    start, end, count = _counts(lines)
    return BusyLine(start[count == most], end[count == most])


def _too_little(found: _Steady, window: BusyLine) -> str | None:
    """Why a window is too short for a rate of this process; None where it is not."""
    periods, needed = found.periods(window), found.periods_needed
    if periods < needed - 1e-9:
        return f"{periods:.3g} periods from batch to batch were measured, and it takes {needed}; run more batches"
    if window.length < MIN_WINDOW_NS:
        return f"the window of {window.length / 1e6:.3g} ms is too short for a rate; run more batches"
    return None


def _own_rate(found: _Steady | str) -> dict[str, Any]:
    """Of one process over its own steady state."""
    if isinstance(found, str):
        return _no_rate(found)
    reason = _too_little(found, found.window)
    return _no_rate(reason) if reason is not None else _rate([found], found.window)


def _no_rate(reason: str | None) -> dict[str, Any]:
    return {
        "items_per_second": None,
        "unit": "items/s",
        "window_ms": None,
        "items": None,
        "periods": None,
        "reason": reason,
    }


def _rate(processes: Sequence[_Steady], window: BusyLine) -> dict[str, Any]:
    counts = [found.items(window) for found in processes]
    known = [count for count in counts if count is not None]
    items = sum(known) if len(known) == len(counts) else None
    return {
        "items_per_second": figure(items / window.length * NS_PER_S) if items is not None else None,
        "unit": "items/s",
        "window_ms": round(window.length / 1e6, 6),
        "items": round(items, 6) if items is not None else None,
        "periods": round(sum(found.periods(window) for found in processes), 6),
        "loop": path_text(processes[0].loops[0].path),
        "reason": None if items is not None else "a batch counted no items",
    }


def _concurrency(processes: Sequence[_Steady], window: BusyLine) -> dict[str, Any]:
    """Over the time of the window, without its pauses."""
    inside = []
    for found in processes:
        starts, ends = (np.concatenate([loop.batches[border] for loop in found.loops]) for border in (0, 1))
        inside.append(BusyLine(window.until(starts), window.until(ends)))
    mean_processes, all_processes_share = concurrency(inside, window.length)
    return {
        "processes": len(processes),
        "mean_processes": round(mean_processes, 6),
        "all_processes_share": round(all_processes_share, 6),
    }


def concurrency(inside: Sequence[BusyLine], length: int) -> tuple[float, float]:
    """How many processes were inside a batch on average over a time of this length, and the share of it in which all
    were. `inside`: when each was, within that time.
    """
    start, end, count = _counts([(line.start, line.end) for line in inside])
    lengths = end - start
    return float((lengths * count).sum() / length), float(lengths[count == len(inside)].sum() / length)


def _part(found: _Steady, window: BusyLine, total: float | None) -> dict[str, Any]:
    """What one process did in the window of all."""
    items = found.items(window)
    return {
        "share": min(round(items / total, 6), 1.0) if items is not None and total else None,
        "in_window": None
        if items is None
        else {"items": round(items, 6), "items_per_second": figure(items / window.length * NS_PER_S)},
    }
