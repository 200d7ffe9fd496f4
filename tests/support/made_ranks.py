"""Traces of ranks that work together, made by hand: batches of stages and collectives, on one machine clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.diagnosis import Pass, diagnose, find_evidence, with_rank_delays
from perfharness.analysis.ranks import RankClock, RankGroup, RankInput, compare_ranks, rank_work
from perfharness.model import conventions
from perfharness.model.diagnosis import Diagnosis
from perfharness.trace import open_trace
from tests.support.trace_builder import TraceBuilder

US = 1000
UTC_NS = 1_700_000_000_000_000_000
"""Of the begin of a trace whose clock is not behind."""
CLOCK_ERROR_NS = 500
FIRST_US = 100_000.0
"""When the ranks begin."""


@dataclass
class RankBatch:
    """One batch of one rank while it is made; times are microseconds on the clock of all ranks."""

    builder: TraceBuilder
    rank: int
    index: int
    now_us: float
    offset_us: float
    """What the trace's own clock is behind."""

    def at(self, us: float) -> int:
        """Nanoseconds of the trace."""
        return round((us - self.offset_us) * US)

    def range(self, name: str, first: float, last: float, *, category: str = "r", payload: int | None = None) -> None:
        """A range of the recorder."""
        self.builder.range(
            name, self.at(first), self.at(last), domain=conventions.DEFAULT_DOMAIN, category=category, payload=payload
        )

    def collective(self, name: str, first: float, last: float) -> None:
        """A call that is annotated."""
        self.range(name, first, last, category=f"r/{conventions.COMMUNICATION}")

    def collective_of_cpp(self, name: str, first: float, last: float, lane: int) -> None:
        """One that C++ code calls, which goes on after its call: a range on a lane of its own."""
        category = f"r/{conventions.COMMUNICATION}#{lane}"
        domain = conventions.DEFAULT_DOMAIN
        self.builder.range(name, self.at(first), self.at(last), domain=domain, category=category, start_end=True)

    def kernel(self, name: str, call: float, first: float, last: float) -> None:
        """A launch of 2 us, and its kernel."""
        self.builder.kernel((self.at(call), self.at(call + 2)), (self.at(first), self.at(last)), name=name)

    def mark(self, name: str, at: float, payload: int | None = None) -> None:
        """A mark of the recorder."""
        domain = conventions.DEFAULT_DOMAIN
        self.builder.mark(name, self.at(at), domain=domain, category="r", payload=payload)


Work = Callable[[RankBatch], float]
"""Makes the content of a batch that begins at `now_us`, which it may move; returns when the batch ends."""


def made_rank(
    folder: Path, rank: int, work: Work, *, batches: int = 12, items: int | None = 4, shared: bool = False,
    apart_us: float = 1000, offset_us: float = 0, warmup: int = 0, first_index: int = 0,
) -> RankInput:  # fmt: skip
    """A rank whose batches begin `apart_us` apart, each after the one before it.

    Args:
        offset_us: what the clock of its trace is behind that of all.
    """
    builder = TraceBuilder()
    outside = RankBatch(builder, rank, -1, 0.0, offset_us)
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC_NS + round(offset_us * US))
    outside.mark(conventions.MARK_RECORDER, FIRST_US)
    for after in (1.0, 2.0, 3.0):  # readings of the clock that ranks share, each just before its mark
        outside.mark(conventions.MARK_CLOCK, FIRST_US + after + 0.5, round((FIRST_US + after) * US))
    ended = 0.0
    for index in range(batches):
        begin = max(FIRST_US + apart_us * (index + 1), ended)
        batch = RankBatch(builder, rank, first_index + index, begin, offset_us)
        ended = work(batch)
        batch.range("batch", batch.now_us, ended, payload=first_index + index)
        if items is not None:
            batch.mark(conventions.MARK_ITEMS, ended - 0.2, items)
        if shared:
            batch.mark(conventions.MARK_SHARED, ended - 0.1)
    folder.mkdir(parents=True, exist_ok=True)
    trace = open_trace(builder.write(folder / f"rank_{rank}.sqlite"))
    found = rank_work(Analysis(trace, AnalysisOptions(warmup)))
    assert found is not None, "it has batches"
    return RankInput(f"rank_{rank}", rank, found, RankClock(round(offset_us * US), CLOCK_ERROR_NS))


def compute_and_reduce(
    computing_us: Sequence[float], rank: int, *, reduce_us: float = 20, name: str = "all_reduce"
) -> Work:
    """Ranks that compute in `compute` and then reduce in `exchange` until `reduce_us` after the last has come."""

    def work(batch: RankBatch) -> float:
        begin, own = batch.now_us, computing_us[rank]
        done = begin + max(computing_us) + reduce_us
        batch.range("compute", begin + 1, begin + own)
        batch.range("exchange", begin + own, done + 1)
        batch.collective(name, begin + own, done)
        return done + 2

    return work


def ranks_diagnosis(
    folder: Path, computing_us: Sequence[float], rank: int = 0, **more: Any
) -> tuple[RankGroup, Diagnosis]:
    """Ranks that compute for so long before they reduce, and the diagnosis of one of them.

    Args:
        more: of `made_rank`.
    """
    works = [compute_and_reduce(computing_us, number) for number in range(len(computing_us))]
    group = compare_ranks([made_rank(folder, number, work, **more) for number, work in enumerate(works)])
    alone = diagnose(find_evidence(Pass(Analysis(open_trace(folder / f"rank_{rank}.sqlite")))))
    return group, with_rank_delays(alone, group.delays, f"rank_{rank}")
