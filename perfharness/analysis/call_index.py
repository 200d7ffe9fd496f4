"""The calls of a trace, by what GPU operations know of them: process and correlation id, and the ranges around each.

Of a call no more is kept than its id, the innermost range that holds it, and what kind of call it is: nine bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfharness.analysis.forest import Forest, Line
from perfharness.analysis.growing import GrowingColumn
from perfharness.analysis.keys import distinct
from perfharness.model.trace import PROCESS_MASK, ApiCalls, Bool, Events, Int64, Integers

KERNEL_LAUNCH = re.compile(
    r"^(cudaLaunch(Cooperative)?Kernel|cuLaunch(Cooperative)?Kernel|cudaGraphLaunch|cuGraphLaunch)"
)
COPY_CALL = re.compile(r"^cu(da)?Memcpy")
MEMSET_CALL = re.compile(r"^cu(da)?Memset")

IS_LAUNCH, IS_COPY, IS_MEMSET = 1, 2, 4
"""Bits of what a call that returned 0 should have started."""

UInt8 = npt.NDArray[np.uint8]
UInt32 = npt.NDArray[np.uint32]
NOT_FOUND = -1


@dataclass(frozen=True)
class _Located:
    """A block's calls of one process, in order of start."""

    process: int
    correlation: UInt32
    unknown: Int64  # places of calls without a correlation id
    kind: UInt8
    around: list[Integers]  # position of the innermost range, one column a lane
    first_ns: int
    last_ns: int


@dataclass(frozen=True)
class ProcessCalls:
    """The calls of one process, in the order in which they came; `started` tells those with an operation.

    `around` holds a column for each lane: position in the forest of the innermost range that holds the call, or -1.
    """

    correlation: UInt32
    kind: UInt8
    around: list[Integers]
    order: Integers | None
    started: Bool

    def find(self, correlation: Int64) -> Integers:
        """The call of each id; of several the last that began, the inner one; -1 where there is none."""
        wanted = correlation.astype(np.uint32)
        known = self.correlation if self.order is None else self.correlation[self.order]
        if not len(known):
            return np.full(len(wanted), NOT_FOUND, dtype=np.int64)
        at = np.searchsorted(known, wanted, side="right") - 1
        found = (at >= 0) & (known[at] == wanted) & (correlation >= 0)
        call = at if self.order is None else self.order[at]
        return np.where(found, call, NOT_FOUND)


@dataclass(frozen=True)
class CallIndex:
    """All calls by process; `last_ns` is the start of the last one of each.

    `in_order`: whether they were asked for in order of start; `came_in_order`: whether they came so. If they did not,
    no two calls of a process have the same id.
    """

    processes: dict[int, ProcessCalls]
    last_ns: dict[int, int]
    in_order: bool
    came_in_order: bool

    def kinds_without_operation(self) -> tuple[int, int]:
        """Bits of what any call should have started: of calls without an operation, and of those with one."""
        without = with_one = 0
        for calls in self.processes.values():
            without |= int(np.bitwise_or.reduce(calls.kind[~calls.started], initial=0))
            with_one |= int(np.bitwise_or.reduce(calls.kind[calls.started], initial=0))
        return without, with_one


def index_calls(events: Events, forest: Forest) -> CallIndex:
    """Read all calls once; twice where the order in which they stand in the file does not tell inner from outer."""
    index = _index(events, forest, in_order=False)
    return index if index is not None else _assert_index(_index(events, forest, in_order=True))


def _assert_index(index: CallIndex | None) -> CallIndex:
    if index is None:
        raise AssertionError("calls asked for in order of start came in another")
    return index


def _index(events: Events, forest: Forest, in_order: bool) -> CallIndex | None:
    """None where ids are not unique and the calls did not come in order."""
    lines: dict[int, list[Line]] = {}
    for line in forest.lines:
        lines.setdefault(line.thread, []).append(line)
    kinds = kinds_of_names(events.names)

    def locate(block: ApiCalls) -> list[_Located]:
        return _locate(block, forest, lines, kinds)

    found: dict[int, _Found] = {}
    last_start: int | None
    came_in_order, last_start = True, None
    for located in events.map_calls(locate, in_order=in_order):
        came_in_order &= last_start is None or min(part.first_ns for part in located) >= last_start
        last_start = max(part.last_ns for part in located)
        for part in located:
            if part.process not in found:
                found[part.process] = _Found()
            found[part.process].add(part)
    last_ns = {process: calls.last_ns for process, calls in found.items()}
    processes = {}
    for process in list(found):
        calls = found.pop(process).calls()
        if not came_in_order and not in_order and _has_equal_ids(calls):
            return None
        processes[process] = calls
    return CallIndex(processes, last_ns, in_order, came_in_order)


def _has_equal_ids(calls: ProcessCalls) -> bool:
    known = calls.correlation if calls.order is None else calls.correlation[calls.order]
    return bool((known[1:] == known[:-1]).any())


def kinds_of_names(names: list[str]) -> UInt8:
    """For each name code the bits of what such a call should start; the last place is for the code -1."""
    kinds = np.zeros(len(names) + 1, dtype=np.uint8)
    for bit, pattern in ((IS_LAUNCH, KERNEL_LAUNCH), (IS_COPY, COPY_CALL), (IS_MEMSET, MEMSET_CALL)):
        for code, name in enumerate(names):
            if pattern.match(name):
                kinds[code] |= bit
    return kinds


def kinds_of_calls(block: ApiCalls, kinds: UInt8) -> UInt8:
    """Bits of what each call should have started: nothing where it failed."""
    found = kinds[block.name]
    if block.return_value.any():
        found = np.where(block.return_value == 0, found, 0).astype(np.uint8)
    return found


def _locate(block: ApiCalls, forest: Forest, lines: dict[int, list[Line]], kinds: UInt8) -> list[_Located]:
    kind = kinds_of_calls(block, kinds)
    threads = distinct(block.thread)
    located = []
    for process in sorted({thread & PROCESS_MASK for thread in threads}):
        own = [thread for thread in threads if thread & PROCESS_MASK == process]
        mine = rows_where(block.thread & PROCESS_MASK == process) if len(own) < len(threads) else slice(None)
        start, end, thread = block.start_ns[mine], block.end_ns[mine], block.thread[mine]
        correlation = block.correlation[mine]
        located.append(
            _Located(
                process=process,
                correlation=correlation.astype(np.uint32),
                unknown=np.flatnonzero(correlation < 0),
                kind=kind[mine],
                around=_around(start, end, thread, own, forest, lines),
                first_ns=int(start[0]),
                last_ns=int(start[-1]),
            )
        )
    return located


def rows_where(condition: Bool) -> Int64:
    """Places where it holds."""
    return np.flatnonzero(condition)


def _around(
    start: Int64, end: Int64, thread: Int64, threads: list[int], forest: Forest, lines: dict[int, list[Line]]
) -> list[Integers]:
    lanes = max((len(lines.get(name, ())) for name in threads), default=0)
    columns: list[Integers] = []
    for lane in range(lanes):
        column = np.full(len(start), NOT_FOUND, dtype=np.int32)
        for name in threads:
            if lane < len(lines.get(name, ())):
                mine = slice(None) if len(threads) == 1 else rows_where(thread == name)
                column[mine] = forest.innermost(lines[name][lane], start[mine], end[mine])
        columns.append(column)
    return columns


class _Found:
    """The calls of one process so far, one block behind the other."""

    def __init__(self) -> None:
        self.last_ns = int(np.iinfo(np.int64).min)
        self._correlation = GrowingColumn(np.dtype(np.uint32))
        self._kind = GrowingColumn(np.dtype(np.uint8))
        self._around: list[GrowingColumn] = []
        self._unknown: list[Int64] = [np.empty(0, dtype=np.int64)]

    def add(self, part: _Located) -> None:
        """A block more."""
        count = len(self._correlation)
        self.last_ns = max(self.last_ns, part.last_ns)
        self._unknown.append(part.unknown + count)
        for column in part.around[len(self._around) :]:
            self._around.append(GrowingColumn(column.dtype))
            self._around[-1].add(np.broadcast_to(column.dtype.type(NOT_FOUND), count))
        for lane, grown in enumerate(self._around):
            known = lane < len(part.around)
            grown.add(part.around[lane] if known else np.broadcast_to(np.int32(NOT_FOUND), len(part.correlation)))
        self._correlation.add(part.correlation)
        self._kind.add(part.kind)

    def calls(self) -> ProcessCalls:
        """All of them; nothing can be added any more."""
        correlation = self._correlation.values()
        return ProcessCalls(
            correlation=correlation,
            kind=self._kind.values(),
            around=[column.values() for column in self._around],
            order=_order(correlation, np.concatenate(self._unknown)),
            started=np.zeros(len(correlation), dtype=np.bool_),
        )


def _order(correlation: UInt32, unknown: Integers) -> Integers | None:
    """Calls by id, those without one left out; None where they came so."""
    if not len(unknown):
        if (correlation[1:] >= correlation[:-1]).all():
            return None
        return np.argsort(correlation, kind="stable")
    known = np.ones(len(correlation), dtype=np.bool_)
    known[unknown] = False
    at = np.flatnonzero(known)
    return at[np.argsort(correlation[at], kind="stable")]
