"""What is not in a trace: GPU work that was started and left no record, told from the trace alone.

A trace that lost events looks whole (nsys 2023.4 on CUDA 13 writes such files). Three signs give it away: launching
calls without an operation, operations without a call, and CUDA calls that stop while the ranges go on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.call_index import (
    IS_COPY,
    IS_LAUNCH,
    IS_MEMSET,
    CallIndex,
    kinds_of_calls,
    kinds_of_names,
)
from perfharness.analysis.keys import distinct
from perfharness.analysis.projection import OperationTally
from perfharness.model.findings import Finding, Severity
from perfharness.model.trace import PROCESS_MASK, ApiCalls, Bool, Events, Int64, Integers, NvtxRanges, pid_of

BEGIN_CAPTURE = re.compile(r"^(cudaStreamBeginCapture|cuStreamBeginCapture)")
END_CAPTURE = re.compile(r"^(cudaStreamEndCapture|cuStreamEndCapture)")

MIN_SILENT_RANGES = 3
"""Fewer ranges than this without CUDA calls, at the end of a run, may be a pipeline that winds down."""

CUDA_OF_NSYS = (((2025, 3), 13), ((2022, 4), 12))
"""Newest CUDA major version that an nsys release knows: from (year, release) on. Older CUPTI loses events silently."""


def find_blind_spots(events: Events, index: CallIndex, tally: OperationTally) -> tuple[Bool, list[Finding]]:
    """Which ranges' GPU times can be trusted (False: not), and the findings that say why not.

    What calls there are without an operation is known from the index; only where that looks bad, or ranges go on
    behind the last call, are the calls read again.
    """
    known = np.ones(len(events.ranges), dtype=np.bool_)
    findings = _driver_newer_than_nsys(events)
    if events.meta.gpu_coverage == "untraced":
        findings.append(
            Finding(
                "gpu-not-traced",
                Severity.WARNING,
                f"GPU times are null: {events.meta.gpu_coverage_reason}.",
                "Run `perfharness doctor` to see what GPU tracing needs here.",
            )
        )
        return np.zeros_like(known), findings
    without, with_one = index.kinds_without_operation()
    suspects = 0 if events.meta.tracer == "embedded" else without & (IS_LAUNCH | ((IS_COPY | IS_MEMSET) & ~with_one))
    later = _ranges_behind_the_last_call(events.ranges, index)
    if suspects or later:
        look = _SecondLook(events, index, suspects, later)
        for check in (_launches_without_operation, _copies_without_operation, _calls_that_stop):
            affected, finding = check(events, look)
            if finding is not None:
                known &= ~affected
                findings.append(finding)
    findings.extend(_operations_without_call(tally))
    return known, findings


@dataclass(frozen=True)
class Calls:
    """Some calls, in no order."""

    thread: Int64
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.thread)

    def where(self, wanted: Bool) -> Calls:
        """Those of them."""
        return Calls(self.thread[wanted], self.start_ns[wanted], self.end_ns[wanted])


def _concatenated(parts: list[Calls]) -> Calls:
    none: Int64 = np.empty(0, dtype=np.int64)
    return Calls(
        np.concatenate([none, *(part.thread for part in parts)]),
        np.concatenate([none, *(part.start_ns for part in parts)]),
        np.concatenate([none, *(part.end_ns for part in parts)]),
    )


class _SecondLook:
    """All calls once more: which launches and copies started nothing, and which ranges made calls.

    `launches` have no operation, nor a launch around or inside them that has one; `copies` and `memsets` neither, and
    are only looked for where no such call has; calls made while a graph was captured are left out. `launch_count`
    counts all that did not fail. `made_calls` tells ranges of processes whose ranges go on behind the last call.
    """

    def __init__(self, events: Events, index: CallIndex, suspects: int, later: dict[int, int]) -> None:
        self.last_ns = later
        self.launch_count = 0
        self._suspects = suspects
        self._kinds = kinds_of_names(events.names)
        self._index = index
        self._seen = dict.fromkeys(index.processes, 0)
        self._nested = _NestedLaunches()
        self._copies: list[Calls] = []
        self._memsets: list[Calls] = []
        self._captures = _Captures(events.names)
        in_order = index.in_order or not index.came_in_order
        self._as_before = in_order == index.in_order
        self._makers = _Makers(events.ranges, later)
        for block in events.map_calls(_itself, in_order=in_order):
            self._take(block)
        captured = self._captures.around
        launches, copies, memsets = (
            calls.where(~captured(calls))
            for calls in (self._nested.found(), _concatenated(self._copies), _concatenated(self._memsets))
        )
        self.launches, self.copies, self.memsets = launches, copies, memsets
        self.made_calls = self._makers.made_calls

    def _take(self, block: ApiCalls) -> None:
        self._makers.take(block)
        if not self._suspects:
            return
        self._captures.take(block)
        kind = kinds_of_calls(block, self._kinds)
        started = self._started(block)
        calls = Calls(block.thread, block.start_ns, block.end_ns)
        if self._suspects & IS_LAUNCH:
            is_launch = (kind & IS_LAUNCH) > 0
            self.launch_count += int(np.count_nonzero(is_launch))
            self._nested.take(calls.where(is_launch), started[is_launch])
        for bit, found in ((IS_COPY, self._copies), (IS_MEMSET, self._memsets)):
            if self._suspects & bit:
                found.append(calls.where((kind & bit) > 0))

    def _started(self, block: ApiCalls) -> Bool:
        """Which of these calls have an operation."""
        process = block.thread & PROCESS_MASK
        started = np.zeros(len(block), dtype=np.bool_)
        for number in distinct(process):
            mine = np.flatnonzero(process == number)
            calls = self._index.processes[number]
            if self._as_before:
                begin = self._seen[number]
                self._seen[number] += len(mine)
                started[mine] = calls.started[begin : begin + len(mine)]
            else:  # ids are unique, or the index would have been made of calls in order
                found = calls.find(block.correlation[mine])
                started[mine] = (found >= 0) & calls.started[found]
        return started


def _itself(block: ApiCalls) -> ApiCalls:
    return block


class _NestedLaunches:
    """Launches without an operation that neither hold nor lie in one that has (same thread).

    A runtime launch encloses the driver launch that carries the operation, or the other way round. The nearest launch
    with an operation, before and behind, tells; where the one behind is still to come, a launch has to wait.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[int, int]] = {}
        self._waiting: dict[int, Calls] = {}
        self._lost: list[Calls] = []

    def take(self, launches: Calls, has_operation: Bool) -> None:
        """More launches, of each thread in order of start."""
        for thread in distinct(launches.thread):
            mine = launches.thread == thread
            complete = launches.where(mine & has_operation)
            missing = launches.where(mine & ~has_operation)
            if thread in self._waiting:
                missing = _concatenated([self._waiting.pop(thread), missing])
            start, end = complete.start_ns, complete.end_ns
            if thread in self._before:
                start, end = np.r_[self._before[thread][0], start], np.r_[self._before[thread][1], end]
            if len(start):
                self._before[thread] = int(start[-1]), int(end[-1])
                decided = missing.start_ns <= start[-1]
                self._judge(missing.where(decided), start, end)
                missing = missing.where(~decided)
            if len(missing):
                self._waiting[thread] = missing

    def _judge(self, missing: Calls, start: Int64, end: Int64) -> None:
        """`start` and `end`: launches of the same thread with an operation."""
        after = np.minimum(np.searchsorted(start, missing.start_ns), len(start) - 1)
        before = np.maximum(after - 1, 0)
        encloses = (start[after] >= missing.start_ns) & (end[after] <= missing.end_ns)
        inside = (start[before] <= missing.start_ns) & (end[before] >= missing.end_ns)
        self._lost.append(missing.where(~(encloses | inside)))

    def found(self) -> Calls:
        """All of them, when no launch is to come any more."""
        for thread, missing in self._waiting.items():
            if thread in self._before:
                start, end = self._before[thread]
                self._judge(missing, np.asarray([start]), np.asarray([end]))
            else:
                self._lost.append(missing)
        self._waiting = {}
        return _concatenated(self._lost)


class _Captures:
    """Spans in which a thread captured a CUDA graph: its calls record a node and start nothing."""

    def __init__(self, names: list[str]) -> None:
        self._begins = codes_matching(names, BEGIN_CAPTURE)
        self._ends = codes_matching(names, END_CAPTURE)
        self._begun: list[Calls] = []
        self._ended: list[Calls] = []

    def take(self, block: ApiCalls) -> None:
        """More calls."""
        for codes, found in ((self._begins, self._begun), (self._ends, self._ended)):
            at = np.flatnonzero(np.isin(block.name, codes)) if len(codes) else codes
            if len(at):
                found.append(Calls(block.thread[at], block.start_ns[at], block.end_ns[at]))

    def around(self, calls: Calls) -> Bool:
        """Which calls were made in a capture."""
        captured = np.zeros(len(calls), dtype=np.bool_)
        begun, ended = _concatenated(self._begun), _concatenated(self._ended)
        for thread in distinct(begun.thread):
            begins, ends = begun.where(begun.thread == thread), ended.where(ended.thread == thread)
            stops = np.append(np.sort(ends.start_ns), np.iinfo(np.int64).max)
            mine = np.flatnonzero(calls.thread == thread)
            for begin, begin_end in zip(begins.start_ns.tolist(), begins.end_ns.tolist(), strict=True):
                stop = stops[np.searchsorted(stops, begin_end)]
                captured[mine] |= (calls.start_ns[mine] >= begin) & (calls.start_ns[mine] <= stop)
        return captured


class _Makers:
    """Which ranges have a call inside, by its start, on the same thread; only in the processes asked about."""

    def __init__(self, ranges: NvtxRanges, processes: dict[int, int]) -> None:
        self.made_calls = np.zeros(len(ranges), dtype=np.bool_)
        self._ranges = ranges
        self._processes = processes
        # Ranges without a call so far, by thread: places in order of start, and the time up to which all have begun.
        self._silent: dict[int, Integers] = {}
        for thread in distinct(ranges.thread) if processes else []:
            if pid_number(thread) in processes:
                mine = np.flatnonzero(ranges.thread == thread)
                self._silent[thread] = mine[np.argsort(ranges.start_ns[mine], kind="stable")]

    def take(self, block: ApiCalls) -> None:
        """More calls, in order of start."""
        if not self._processes:
            return
        threads = distinct(block.thread)
        for thread in threads:
            silent = self._silent.get(thread)
            if silent is None:
                continue
            times = block.start_ns if len(threads) == 1 else block.start_ns[block.thread == thread]
            # Ranges that begin behind the block are not looked at: that would be all of them, block after block.
            begun = int(np.searchsorted(self._ranges.start_ns[silent], times[-1], side="right"))
            at = silent[:begun]
            first = np.searchsorted(times, self._ranges.start_ns[at], side="left")
            last = np.searchsorted(times, self._ranges.end_ns[at], side="right")
            self.made_calls[at[last > first]] = True
            still = last <= first
            still &= self._ranges.end_ns[at] >= times[-1]
            self._silent[thread] = np.r_[at[still], silent[begun:]]


def _ranges_behind_the_last_call(ranges: NvtxRanges, index: CallIndex) -> dict[int, int]:
    """Start of the last call of each process (by pid) in which ranges worth a look begin behind it."""
    last_ns: dict[int, int] = {}
    for process, moment in index.last_ns.items():
        last_ns[pid_number(process)] = max(moment, last_ns.get(pid_number(process), moment))
    if not last_ns or not len(ranges):
        return {}
    late = np.flatnonzero(ranges.start_ns > min(last_ns.values()))
    pids, starts = pid_of(ranges.thread[late]), ranges.start_ns[late]
    return {
        pid: moment
        for pid, moment in last_ns.items()
        if np.count_nonzero((pids == pid) & (starts > moment)) >= MIN_SILENT_RANGES
    }


def pid_number(thread: int) -> int:
    """Process id of one serialised thread or process id."""
    return int(pid_of(np.asarray(thread)))


def codes_matching(names: list[str], pattern: re.Pattern[str]) -> Int64:
    """Codes of the names that the pattern matches."""
    return np.asarray([code for code, name in enumerate(names) if pattern.match(name)], dtype=np.int64)


def _launches_without_operation(events: Events, look: _SecondLook) -> tuple[Bool, Finding | None]:
    if not len(look.launches):
        return np.zeros(len(events.ranges), dtype=np.bool_), None
    affected = _contains_any(events.ranges, look.launches)
    return affected, Finding(
        "trace-missing-kernels",
        Severity.ERROR,
        f"{len(look.launches)} of {look.launch_count} kernel launches have no kernel in the trace; the GPU times of "
        f"the {int(affected.sum())} ranges around them are null.",
        "The tracer lost GPU events: use an nsys that knows this driver's CUDA, or `--tracer embedded`.",
    )


def _copies_without_operation(events: Events, look: _SecondLook) -> tuple[Bool, Finding | None]:
    """Copies or memsets were called for, and the trace holds not one of them: their table is gone.

    One without an operation is no loss: a copy of nothing starts nothing.
    """
    affected = np.zeros(len(events.ranges), dtype=np.bool_)
    lost = []
    for what, calls in (("copies", look.copies), ("memsets", look.memsets)):
        if len(calls):
            affected |= _contains_any(events.ranges, calls)
            lost.append(f"{len(calls)} {what}")
    if not lost:
        return affected, None
    return affected, Finding(
        "trace-missing-copies",
        Severity.ERROR,
        f"The trace holds the calls of {' and '.join(lost)} and none of their operations; the GPU times of the "
        f"{int(affected.sum())} ranges around them are null.",
        "The tracer lost GPU events, or a table was removed from the file: export it again, or measure again.",
    )


def _contains_any(ranges: NvtxRanges, calls: Calls) -> Bool:
    """Ranges with at least one of these calls inside, on the same thread."""
    contains = np.zeros(len(ranges), dtype=np.bool_)
    for thread in distinct(np.sort(calls.thread)):
        times = np.sort(calls.start_ns[calls.thread == thread])
        mine = ranges.thread == thread
        first = np.searchsorted(times, ranges.start_ns[mine], side="left")
        last = np.searchsorted(times, ranges.end_ns[mine], side="right")
        contains[mine] = last > first
    return contains


def _calls_that_stop(events: Events, look: _SecondLook) -> tuple[Bool, Finding | None]:
    """Stages that always made CUDA calls make none any more, from one moment to the end of the run."""
    ranges = events.ranges
    affected = np.zeros(len(ranges), dtype=np.bool_)
    silent_names: set[str] = set()
    last_call_ns = 0
    for process, last_ns in sorted(look.last_ns.items()):
        mine = pid_of(ranges.thread) == process
        earlier, later = mine & (ranges.start_ns <= last_ns), mine & (ranges.start_ns > last_ns)
        always = np.setdiff1d(ranges.name[earlier & look.made_calls], ranges.name[earlier & ~look.made_calls])
        silent = later & np.isin(ranges.name, always)
        if silent.sum() >= MIN_SILENT_RANGES:
            affected |= mine & (ranges.end_ns > last_ns)
            silent_names |= {events.names[code] for code in np.unique(ranges.name[silent])}
            last_call_ns = last_ns
    if not silent_names:
        return affected, None
    shown = ", ".join(f"'{name}'" for name in sorted(silent_names)[:5])
    return affected, Finding(
        "trace-cuda-calls-stop",
        Severity.ERROR,
        f"No CUDA call is recorded after {last_call_ns / 1e6:.3f} ms, although ranges go on until "
        f"{int(ranges.end_ns.max()) / 1e6:.3f} ms and {shown} made CUDA calls before; "
        f"the GPU times of {int(affected.sum())} ranges are null.",
        "The tracer lost CUDA events: use an nsys that knows this driver's CUDA, or `--tracer embedded`.",
    )


def _operations_without_call(tally: OperationTally) -> list[Finding]:
    if not tally.without_call:
        return []
    return [
        Finding(
            "trace-missing-calls",
            Severity.ERROR,
            f"{tally.without_call} of {tally.total} GPU operations have no API call in the trace, "
            "so they are in no range; GPU times may be too small.",
            "Trace CUDA API calls too (`nsys profile --trace cuda`), or use `--tracer embedded`.",
        )
    ]


def _driver_newer_than_nsys(events: Events) -> list[Finding]:
    meta = events.meta
    release = re.match(r"(\d{4})\.(\d+)", meta.tracer_version or "")
    if meta.tracer != "nsys" or release is None or meta.cuda_driver is None or not events.has_calls:
        return []
    version = (int(release[1]), int(release[2]))
    newest = next((cuda for since, cuda in CUDA_OF_NSYS if version >= since), None)
    driver = meta.cuda_driver // 1000
    if newest is None or driver <= newest:
        return []
    return [
        Finding(
            "nsys-older-than-driver",
            Severity.ERROR,
            f"nsys {meta.tracer_version} knows CUDA up to {newest}, the driver has CUDA {driver}; such a pair loses "
            "GPU events without a word.",
            "Use a newer nsys, or `--tracer embedded`.",
        )
    ]
