"""Groups of ranks: communication, waiting, and the rank that comes last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from perfharness.model.result import path_text
from perfharness.render.blocks import Block, Chart, Column, Columns, Paragraph, Section, table_of
from perfharness.render.numbers import milliseconds

if TYPE_CHECKING:
    from perfharness.analysis.ranks import RankGroup, RunRanks
    from perfharness.analysis.ranks.results import RankFigures, StageWaiting

MAX_RANKS = 64
"""Rows of a table; all ranks are in the JSON files."""

PARALLEL = {
    "model": "they process the same items, which count once",
    "data": "their items add up",
    None: "not known whether they process the same items",
}
BASIS = {
    "option": "--parallel",
    "annotation": "perf.batch(shared=True)",
    "recognized": "equal batches with collectives in them",
    "different_batches": "they have different batches",
    "no_collectives": "no collectives in their batches",
}


RANKS: Columns[RankFigures] = [
    (Column("rank", "count"), lambda one: one.rank),
    (Column("process", drop=7), lambda one: one.process),
    (Column("batch", "ms", "from start to start", drop=3), lambda one: one.batch_ms),
    (Column("collectives", "number", "per batch", drop=6), lambda one: one.collectives),
    (Column("communication", "ms", "a collective was running"), lambda one: one.communication_ms),
    (Column("share", "share", "of the batch", has_bar=True, drop=1), lambda one: one.communication_share),
    (Column("waiting", "ms", "part of communication, until the last rank arrived"), lambda one: one.waiting_ms),
    (Column("came last", "share", "of the collectives in which all wait", drop=2), lambda one: one.last_share),
    (Column("later by", "ms", "than the mean of the others, sum per batch", drop=4), lambda one: one.lag_ms),
]
COLLECTIVES: Columns[StageWaiting] = [
    (Column("process"), lambda one: one.process),
    (Column("stage"), lambda one: path_text(one.path[1:])),
    (Column("operations"), lambda one: ", ".join(one.operations)),
    (Column("collectives", "number", "per batch"), lambda one: one.collectives),
    (Column("communication", "ms", "per batch"), lambda one: one.communication_ms),
    (Column("waiting", "ms", "per batch"), lambda one: one.waiting_ms),
]


def ranks_view(ranks: RunRanks) -> list[Block]:
    """One table per group."""
    return [block for group in ranks.groups for block in _group(group)]


def ranks_section(ranks: RunRanks | None, number: int) -> Section:
    """Tables, charts and the collectives of each stage, for a page."""
    from perfharness.render.charts.report import ranks_picture  # slow to import

    parts = []
    for place, group in enumerate(ranks.groups if ranks else ()):
        blocks = list(_group(group))
        if group.ranks:
            blocks.append(Chart(ranks_picture(f"ranks_{number}_{place}", group.ranks[:MAX_RANKS])))
            stages = group.stages[: 4 * MAX_RANKS]
            blocks.append(table_of("collectives", COLLECTIVES, stages, "Collectives by the stage that calls them"))
        parts.append(Section(", ".join(group.processes[:1]), blocks))
    return Section("Ranks", parts[0].blocks) if len(parts) == 1 else Section("Ranks", [], parts)


def group_text(processes: Sequence[str], world_size: int | None, parallel: str | None, basis: str | None) -> str:
    """Number of ranks, and whether they process the same items."""
    why = "" if basis is None else f" ({BASIS[basis]})"
    return f"{len(processes)} of {world_size or len(processes)} ranks; {PARALLEL[parallel]}{why}"


def _group(group: RankGroup) -> Iterator[Block]:
    about = group_text(group.processes, group.world_size, group.parallel, group.parallel_basis)
    if not group.ranks:
        yield Paragraph(f"{about}; communication not known: {group.reason}")
        return
    note = f"{about}; ms per batch, over the {group.batches} batches that all ranks have"
    yield table_of("ranks", RANKS, group.ranks[:MAX_RANKS], note)
    if len(group.ranks) > MAX_RANKS:
        yield Paragraph(f"{len(group.ranks) - MAX_RANKS} more ranks are in the JSON files.")
    if group.reason is not None:
        yield Paragraph(f"Not known which rank the others wait for: {group.reason}.", "note")
    if group.skew is not None:
        yield Paragraph(
            f"Arrival at a collective, first to last: {milliseconds(group.skew.p50_ms)} (median of "
            f"{group.skew.collectives}), at most {milliseconds(group.skew.max_ms)}; "
            f"clocks agree to {milliseconds(group.skew.clock_error_ms)}"
        )
