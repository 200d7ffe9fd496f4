"""Kinds of time: what the power of a GPU may depend on, besides the class of work that runs.

The plainest model has one power for each class of work, and one for waiting. Each other model splits the classes by
something that power may depend on as well: how long the work (or the waiting) has run, what ran before, how long a
pause is, when in the run it is. Which of them the sensor's readings ask for is decided in `fits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from perfharness.analysis.timeline.busy import merge
from perfharness.model.result import Float64
from perfharness.model.trace import Int64

NS_PER_S = 1e9


class BusyShares:
    """Busy time of each class of work, shared where several ran concurrently.

    Args:
        work: (start_ns, end_ns) of the operations of each class, in any order, overlaps allowed.
    """

    def __init__(self, work: Sequence[tuple[Int64, Int64]]) -> None:
        self.spans: Spans = [merge(start, end) for start, end in work]
        self._origin = min((int(start[0]) for start, _ in self.spans if len(start)), default=0)
        self._lines = _alone(self.spans, self._origin) if _take_turns(self.spans) else _shared(self.spans, self._origin)

    def __len__(self) -> int:
        return len(self._lines)

    def until(self, row: int, moment_ns: Float64 | Int64) -> Float64:
        """Seconds of one class before each moment."""
        moment, until = self._lines[row]
        at = (moment_ns - self._origin) / NS_PER_S
        return np.interp(at, moment, until) if len(moment) else np.zeros(np.shape(at))

    def within(self, start_ns: Float64 | Int64, end_ns: Float64 | Int64) -> Float64:
        """Seconds of each class in each stretch, shape (classes, *stretches)."""
        found = np.zeros((len(self), *np.shape(start_ns)))
        for row in range(len(self)):
            found[row] = self.until(row, end_ns) - self.until(row, start_ns)
        return found


Spans = list[tuple[Int64, Int64]]
Lines = list[tuple[Float64, Float64]]
"""Of each class: moments in seconds, and busy seconds until then."""


def _take_turns(merged: Spans) -> bool:
    """Whether no two classes ever run concurrently, as on a GPU with one stream."""
    start = np.concatenate([start for start, _ in merged]) if merged else np.empty(0, dtype=np.int64)
    end = np.concatenate([end for _, end in merged]) if merged else np.empty(0, dtype=np.int64)
    order = np.argsort(start, kind="stable")
    return not (start[order][1:] < end[order][:-1]).any()


def _alone(merged: Spans, origin: int) -> Lines:
    lines = []
    for start, end in merged:
        moment = (np.stack([start, end], axis=1).ravel() - origin) / NS_PER_S
        total = np.cumsum((end - start) / NS_PER_S)
        until = np.zeros(len(moment))
        until[1::2], until[2::2] = total, total[:-1]
        lines.append((moment, until))
    return lines


def _shared(merged: Spans, origin: int) -> Lines:
    moments = np.unique(np.concatenate([np.concatenate(pair) for pair in merged]))
    inside = [_inside(start, end, moments).astype(np.int16) for start, end in merged]
    at_once = np.maximum(np.sum(inside, axis=0), 1)
    seconds = (moments - origin) / NS_PER_S
    length = np.diff(seconds, append=seconds[-1:])
    return [(seconds, np.r_[0.0, np.cumsum(length * active / at_once)[:-1]]) for active in inside]


def _inside(start: Int64, end: Int64, moments: Int64) -> Int64:
    """1 where the class is at work from a moment to the next, else 0; intervals do not overlap."""
    change = np.zeros(len(moments) + 1, dtype=np.int64)
    change[np.searchsorted(moments, start)] += 1
    change[np.searchsorted(moments, end)] -= 1
    return np.cumsum(change[:-1])


NS_PER_MS = 1e6
BRIDGED_NS = 1_000_000
"""Operations of one class with smaller gaps between them are one stretch of work: launches of one stage."""

AGE_CUTS_MS = (0, 10, 20, 35, 50, 75, 100, 150, 200, 300, 400)
"""A stretch is split at these ages: clocks and power limits act over tens to hundreds of milliseconds."""

PAUSE_CUTS_MS = (0, 1, 20, 100, 400)
"""Pauses are split by their length."""

QUARTERS = 4
THIRDS = 3
BATCH_PARTS = 10
SHORT_BATCH_NS = 250_000
"""Every sensor averages over many of these."""

PREDECESSORS = 3

Span = tuple[Int64, Int64]


class _Part:
    """Time of one class (None: waiting) inside of some spans (None: all of it)."""

    def __init__(self, owner: int | None, spans: Span | None) -> None:
        self.owner = owner
        self._spans = spans
        self._before: tuple[Float64, Float64] | None = None

    def until(self, work: BusyShares, moment_ns: Int64) -> Float64:
        """Seconds before each moment."""
        if self._spans is None:
            assert self.owner is not None
            return work.until(self.owner, moment_ns)
        start, end = self._spans
        if not len(start):
            return np.zeros(np.shape(moment_ns))
        first, before = self._sums(work)
        at = np.searchsorted(start, moment_ns, side="right") - 1
        inside = np.clip(moment_ns, start[at], end[at])
        return np.where(at < 0, 0.0, before[at] + self._time(work, inside) - first[at])

    def _sums(self, work: BusyShares) -> tuple[Float64, Float64]:
        """Of each span: the class's seconds before it, of all and of those in earlier spans."""
        if self._before is None:
            assert self._spans is not None
            first = self._time(work, self._spans[0])
            self._before = first, np.r_[0.0, np.cumsum(self._time(work, self._spans[1]) - first)]
        return self._before

    def _time(self, work: BusyShares, moment_ns: Int64) -> Float64:
        if self.owner is not None:
            return work.until(self.owner, moment_ns)
        assert self._spans is not None
        return np.asarray((moment_ns - self._spans[0][0]) / NS_PER_S, dtype=np.float64)


class Kinds:
    """Every moment belongs to one kind, and every kind to one class; the last class is waiting.

    Args:
        name: of what the classes are split by.
        work: the classes.
        parts: of the kinds; what is in none of them is one more kind of waiting, the last.
    """

    def __init__(self, name: str, work: BusyShares, parts: Sequence[_Part], window: tuple[int, int]) -> None:
        self.name = name
        self._work = work
        self._start_ns = window[0]
        ends = np.asarray(window, dtype=np.int64)
        seconds = [float(np.diff(part.until(work, ends))[0]) for part in parts]
        kept = [(part, length) for part, length in zip(parts, seconds, strict=True) if length > 0]
        self._parts = [part for part, _ in kept]
        rest = (window[1] - window[0]) / NS_PER_S - sum(seconds)
        self.owner = np.asarray([len(work) if part.owner is None else part.owner for part in self._parts] + [len(work)])
        self.seconds = np.asarray([*(length for _, length in kept), max(rest, 0.0)])
        self.present = self.seconds > 1e-9
        """The kinds that there are in the window; only these are fitted."""
        self.owner, self.seconds = self.owner[self.present], self.seconds[self.present]

    def until(self, moment_ns: Int64) -> Float64:
        """Seconds of each kind before each moment, shape (kinds, moments)."""
        moment_ns = np.asarray(moment_ns, dtype=np.int64)
        found = [part.until(self._work, moment_ns) for part in self._parts]
        rest = (moment_ns - self._start_ns) / NS_PER_S - sum(found)
        return np.asarray([*found, rest])[self.present]


class KnownWork:
    """When a GPU was at work, by class, and where its batches lay: all that is known of what its power may follow.

    Args:
        classes: of work; without any, all time is waiting.
        batches: start and end of those of each process, UTC ns, as far as they are known.
    """

    def __init__(self, classes: BusyShares, batches: Sequence[Span] = ()) -> None:
        self.classes = classes
        self._batches = [_one_by_one(*spans) for spans in batches]
        self._stretches = [_bridged(*spans) for spans in classes.spans]
        self._pauses = self._gaps()

    @property
    def steady(self) -> bool:
        """Nothing is known to have changed: no work, no batches."""
        return not any(len(start) for start, _ in (*self.classes.spans, *self._batches))

    def plain(self, window: tuple[int, int]) -> Kinds:
        """One kind a class."""
        return Kinds("class", self.classes, self._whole(), window)

    def splits(self, window: tuple[int, int]) -> Iterator[Kinds]:
        """Each way in which power may depend on more than the class."""
        if any(len(start) for start, _ in self.classes.spans):
            yield Kinds("age", self.classes, [*self._by_age()], window)
            yield Kinds("third", self.classes, [*self._by_third()], window)
            yield Kinds("pause", self.classes, [*self._whole(), *self._by_pause()], window)
            yield Kinds("before", self.classes, [*self._by_predecessor()], window)
        yield Kinds("quarter", self.classes, [*self._by_quarter(window)], window)

    def change(self, window: tuple[int, int], age_ms: float) -> Kinds:
        """Power that changes at one age of each stretch, as by a power limit that acts after a while."""
        return Kinds("change", self.classes, [*self._by_age((0.0, age_ms))], window)

    def batch_parts(self, window: tuple[int, int]) -> Iterator[Kinds]:
        """The batches of each process in ten equal parts, whatever ran in them; very short ones do not matter."""
        for start, end in self._batches:
            if len(start) and float(np.median(end - start)) >= SHORT_BATCH_NS:
                cut = start + np.multiply.outer(np.arange(BATCH_PARTS + 1) / BATCH_PARTS, end - start).astype(np.int64)
                parts = [_Part(None, (cut[at], cut[at + 1])) for at in range(BATCH_PARTS)]
                kinds = Kinds("batch", self.classes, parts, window)
                kinds.owner = np.arange(len(kinds.owner))
                yield kinds

    def _whole(self) -> list[_Part]:
        return [_Part(row, None) for row in range(len(self.classes))]

    def _gaps(self) -> Span:
        """Time without any work, between the first and the last."""
        starts, ends = zip(*self.classes.spans, strict=True) if len(self.classes) else ((), ())
        nothing = np.empty(0, dtype=np.int64)
        start, end = merge(np.concatenate([nothing, *starts]), np.concatenate([nothing, *ends]))
        return end[:-1], start[1:]

    def _owned(self) -> list[tuple[int | None, Span]]:
        return [*enumerate(self._stretches), (None, self._pauses)]

    def _by_age(self, cuts_ms: Sequence[float] = AGE_CUTS_MS) -> Iterator[_Part]:
        for owner, (start, end) in self._owned():
            for low, high in zip(cuts_ms, (*cuts_ms[1:], None), strict=True):
                first = start + round(low * NS_PER_MS)
                last = end if high is None else np.minimum(start + round(high * NS_PER_MS), end)
                yield _Part(owner, (first[last > first], last[last > first]))

    def _by_third(self) -> Iterator[_Part]:
        for owner, (start, end) in self._owned():
            cuts = start + np.multiply.outer(np.arange(THIRDS + 1), end - start) // THIRDS
            for at in range(THIRDS):
                yield _Part(owner, (cuts[at], cuts[at + 1]))

    def _by_pause(self) -> Iterator[_Part]:
        start, end = self._pauses
        length = (end - start) / NS_PER_MS
        for low, high in zip(PAUSE_CUTS_MS, (*PAUSE_CUTS_MS[1:], np.inf), strict=True):
            mine = (length > low) & (length <= high)
            yield _Part(None, (start[mine], end[mine]))

    def _by_predecessor(self) -> Iterator[_Part]:
        """By the class of the stretch that began last before; the rarer ones together."""
        begins = np.concatenate([start for start, _ in self._stretches])
        whose = np.repeat(np.arange(len(self._stretches)), [len(start) for start, _ in self._stretches])
        order = np.argsort(begins, kind="stable")
        begins, whose = begins[order], whose[order]
        for owner, (start, end) in self._owned():
            at = np.searchsorted(begins, start, side="left") - 1
            before = np.where(at < 0, len(self._stretches), whose[at])
            if not len(start):
                continue
            often = np.argsort(-np.bincount(before, weights=end - start))[:PREDECESSORS]
            for one in often.tolist():
                yield _Part(owner, (start[before == one], end[before == one]))
            others = ~np.isin(before, often)
            yield _Part(owner, (start[others], end[others]))

    def _by_quarter(self, window: tuple[int, int]) -> Iterator[_Part]:
        cuts = np.linspace(*window, QUARTERS + 1).astype(np.int64)
        for owner in (*range(len(self.classes)), None):
            for at in range(QUARTERS):
                start, end = cuts[at : at + 1], cuts[at + 1 : at + 2]
                if owner is not None:
                    yield _Part(owner, (start, end))
                    continue
                inside = self._pauses[0] < end[0], self._pauses[1] > start[0]
                mine = inside[0] & inside[1]
                yield _Part(None, (np.maximum(self._pauses[0][mine], start), np.minimum(self._pauses[1][mine], end)))


def _bridged(start: Int64, end: Int64) -> Span:
    """Stretches of work, gaps below a millisecond bridged."""
    if not len(start):
        return start, end
    gap = start[1:] - end[:-1] > BRIDGED_NS
    return start[np.r_[True, gap]], end[np.r_[gap, True]]


def _one_by_one(start: Int64, end: Int64) -> Span:
    """In order, those that overlap an earlier one left out."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    before = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, end[:-1]]) if len(end) else end
    kept = (start >= before) & (end > start)
    return start[kept], end[kept]
