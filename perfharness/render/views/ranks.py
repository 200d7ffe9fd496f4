"""Ranks that work together: communication, waiting, and who comes last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfharness.analysis.ranks import RankGroup, RunRanks
from perfharness.model.result import path_text
from perfharness.render.blocks import Block, Cell, Chart, Column, Paragraph, Section, Table
from perfharness.render.numbers import milliseconds

MAX_RANKS = 64
"""Rows; all are in the JSON files."""

PARALLEL = {
    "model": "their items count once: they work on the same ones",
    "data": "their items add up",
    None: "whether they share their items is not known",
}
BASIS = {
    "option": "--parallel",
    "annotation": "perf.batch(shared=True)",
    "recognized": "equal batches with collectives in them",
    "different_batches": "they have different batches",
    "no_collectives": "no collectives in their batches",
}


def ranks_view(ranks: RunRanks | None) -> list[Block]:
    """Each group: a table of its ranks; nothing where there is none."""
    return [block for group in (ranks.groups if ranks is not None else ()) for block in _group(group)]


def ranks_section(ranks: RunRanks | None, number: int) -> Section | None:
    """The same on a page, with a chart and the collectives of each stage."""
    if ranks is None:
        return None
    from perfharness.render.charts.report import ranks_picture  # not needed on a terminal

    parts = []
    for place, group in enumerate(ranks.groups):
        blocks = list(_group(group))
        if group.ranks:
            blocks.append(Chart(ranks_picture(f"ranks_{number}_{place}", group.ranks[:MAX_RANKS])))
            blocks.append(_collectives(group))
        parts.append(Section(", ".join(group.processes[:1]), blocks))
    return Section("Ranks", parts[0].blocks) if len(parts) == 1 else Section("Ranks", [], parts)


def group_text(processes: Sequence[str], world_size: int | None, parallel: str | None, basis: str | None) -> str:
    """How many ranks, and whether they share their items."""
    why = "" if basis is None else f" ({BASIS[basis]})"
    return f"{len(processes)} of {world_size or len(processes)} ranks; {PARALLEL[parallel]}{why}"


def _group(group: RankGroup) -> Iterator[Block]:
    about = group_text(group.processes, group.world_size, group.parallel, group.parallel_basis)
    if not group.ranks:
        yield Paragraph(f"{about}; their communication is not known: {group.reason}")
        return
    columns = [
        Column("rank", "count"),
        Column("process", drop=7),
        Column("batch", "ms", "from the start of one to that of the next", drop=3),
        Column("collectives", "number", "per batch", drop=6),
        Column("communication", "ms", "a collective was under way"),
        Column("share", "share", "of the time from batch to batch", has_bar=True, drop=1),
        Column("waiting", "ms", "part of it, until the last rank had come"),
        Column("came last", "share", "of the collectives in which all wait for the last", drop=2),
        Column("later by", "ms", "than the mean of the others, all collectives of a batch added up", drop=4),
    ]
    rows: list[list[Cell]] = [
        [
            one.rank,
            one.process,
            one.batch_ms,
            one.collectives,
            one.communication_ms,
            one.communication_share,
            one.waiting_ms,
            one.last_share,
            one.lag_ms,
        ]
        for one in group.ranks[:MAX_RANKS]
    ]
    yield Table("ranks", columns, rows, f"{about}; ms per batch, of {group.batches} batches that all ranks have")
    if len(group.ranks) > MAX_RANKS:
        yield Paragraph(f"{len(group.ranks) - MAX_RANKS} more ranks are in the JSON files.")
    if group.reason is not None:
        yield Paragraph(f"Which rank the others wait for is not known: {group.reason}.", "note")
    if group.skew is not None:
        yield Paragraph(
            f"Arrival at a collective, first to last: {milliseconds(group.skew.p50_ms)} (median of "
            f"{group.skew.collectives}), at most {milliseconds(group.skew.max_ms)}; "
            f"clocks agree to {milliseconds(group.skew.clock_error_ms)}"
        )


def _collectives(group: RankGroup) -> Table:
    columns = [
        Column("rank", "count"),
        Column("stage"),
        Column("operations"),
        Column("collectives", "number", "per batch"),
        Column("communication", "ms", "per batch"),
        Column("waiting", "ms", "per batch"),
    ]
    rank_of = {one.process: one.rank for one in group.ranks}
    rows: list[list[Cell]] = [
        [
            rank_of[one.process],
            path_text(one.path[1:]),
            ", ".join(one.operations),
            one.collectives,
            one.communication_ms,
            one.waiting_ms,
        ]
        for one in group.stages
        if one.process in rank_of
    ]
    return Table("collectives", columns, rows[: 4 * MAX_RANKS], "Collectives by the stage that calls them.")
