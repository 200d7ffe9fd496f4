"""Traces of ranks that work together, made by hand: batches of stages and collectives, on one machine clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfharness.analysis.analysis import Analysis, AnalysisOptions
from perfharness.analysis.diagnosis import Pass, diagnose, find_evidence, with_rank_delays
from perfharness.analysis.ranks import RankClock, RankGroup, RankInput, compare_ranks, rank_work
from perfharness.model import conventions
from perfharness.model.diagnosis import Diagnosis
from perfharness.trace import open_trace
from tests.support.trace_builder import US, WORDS, Recorded

UTC_NS = 1_700_000_000_000_000_000
"""Of the begin of a trace whose clock is not behind."""
CLOCK_ERROR_NS = 500
FIRST_US = 100_000.0
"""When the ranks begin."""

Work = Callable[[int], str]
"""What is in a batch, by its number: a text of `Recorded.add` in us from its begin, with `batch 0..9` in it."""


def made_rank(
    folder: Path,
    rank: int,
    work: Work | str,
    *,
    batches: int = 12,
    items: int | None = 4,
    shared: bool = False,
    apart_us: float = 1000,
    offset_us: float = 0,
    warmup: int = 0,
    first_index: int = 0,
    words: Mapping[str, Any] = WORDS,
) -> RankInput:
    """A rank whose batches begin `apart_us` apart, each after the one before it.

    Args:
        offset_us: what the clock of its trace is behind that of all.
    """
    builder = Recorded("r")
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC_NS + round(offset_us * US))
    for after in (1.0, 2.0, 3.0):  # readings of the clock that ranks share, each just before its mark
        at = round((FIRST_US + after + 0.5 - offset_us) * US)
        read = round((FIRST_US + after) * US)
        builder.mark(conventions.MARK_CLOCK, at, payload=read, domain=conventions.DEFAULT_DOMAIN, category="r")
    ended = 0.0
    for index in range(first_index, first_index + batches):
        begin = max(FIRST_US + apart_us * (index - first_index + 1), ended)
        text = work if isinstance(work, str) else work(index - first_index)
        (end,) = re.findall(r"\bbatch \S+\.\.(\S+?)(?:;|\s|$)", text)
        ended = begin + float(end)
        text = re.sub(r"\bbatch (\S+\.\.[\d.]+)", rf"batch#{index} \1 items={'none' if items is None else items}", text)
        text += f"; !shared {float(end) - 0.1}.." if shared else ""
        builder.add(text, begin - offset_us, unit=US, words=words)
    folder.mkdir(parents=True, exist_ok=True)
    trace = open_trace(builder.write(folder / f"rank_{rank}.sqlite"))
    found = rank_work(Analysis(trace, AnalysisOptions(warmup)))
    assert found is not None, "it has batches"
    return RankInput(f"rank_{rank}", rank, found, RankClock(round(offset_us * US), CLOCK_ERROR_NS))


def compute_and_reduce(computing_us: Sequence[float], rank: int) -> Work:
    """Ranks that compute in `compute` and then reduce in `exchange` until 20 us after the last has come."""
    own, done = computing_us[rank], max(computing_us) + 20
    text = f"batch 0..{done + 2}; compute 1..{own}; exchange {own}..{done + 1}"
    return lambda _: f"{text}; all_reduce {own}..{done} category=communication"


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
