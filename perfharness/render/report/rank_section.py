"""Ranks that work together, as a section of a report."""

from __future__ import annotations

from collections.abc import Iterator

from perfharness.analysis.ranks import RankGroup, RunRanks
from perfharness.analysis.ranks.findings import delay_finding
from perfharness.model.result import path_text
from perfharness.render.blocks import Block, Cell, Chart, Column, Paragraph, Section, Table
from perfharness.render.charts.report import ranks_picture
from perfharness.render.numbers import significant
from perfharness.render.terminal.findings import finding_sentence
from perfharness.render.terminal.ranks import group_text

MAX_RANKS = 256


def ranks_section(ranks: RunRanks | None, number: int) -> Section | None:
    """Every group of ranks; None where there is none."""
    if ranks is None:
        return None
    groups = ranks.groups
    if len(groups) == 1:
        return Section("Ranks", list(_group(groups[0], f"{number}")))
    parts = [
        Section(", ".join(group.processes[:1]), list(_group(group, f"{number}_{place}")))
        for place, group in enumerate(groups)
    ]
    return Section("Ranks", [], parts)


def _group(group: RankGroup, name: str) -> Iterator[Block]:
    yield Paragraph(f"{group_text(group.processes, group.world_size, group.parallel, group.parallel_basis)}.")
    if group.reason is not None:
        yield Paragraph(f"Whom ranks wait for is not known: {group.reason}.", "note")
    for delay in group.delays:
        yield Paragraph(finding_sentence(delay_finding(delay)), "warning")
    if not group.ranks:
        return
    yield _figures(group)
    yield Chart(ranks_picture(f"ranks_{name}", group.ranks[:MAX_RANKS]))
    yield _stages(group)
    if group.skew is not None:
        yield Paragraph(
            f"From the first to the last arrival at a collective: {significant(group.skew.p50_ms)} ms in the median of "
            f"{group.skew.collectives}, at most {significant(group.skew.max_ms)} ms; clocks agree to "
            f"{significant(group.skew.clock_error_ms)} ms."
        )


def _figures(group: RankGroup) -> Table:
    columns = [
        Column("rank", "count"), Column("process"), Column("batch", "ms", "from the start of one to that of the next"),
        Column("collectives", "number", "a batch"), Column("communication", "ms", "a collective was under way"),
        Column("share", "share", "of the time from batch to batch", has_bar=True),
        Column("waiting", "ms", "part of it, until the last rank had come"),
        Column("came last", "share", "of the collectives in which all wait for the last"),
        Column("later by", "ms", "than the mean of the others, all collectives of a batch added up"),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            one.rank, one.process, one.batch_ms, one.collectives, one.communication_ms, one.communication_share,
            one.waiting_ms, one.last_share, one.lag_ms,
        ]
        for one in group.ranks[:MAX_RANKS]
    ]  # fmt: skip
    note = f"Means over {group.batches} batches that all ranks have, without warm-up."
    if len(group.ranks) > MAX_RANKS:
        note += f" {len(group.ranks) - MAX_RANKS} more ranks are in benchmark_mean.json."
    return Table("ranks", columns, rows, note)


def _stages(group: RankGroup) -> Table:
    columns = [
        Column("rank", "count"), Column("stage"), Column("operations"), Column("collectives", "number", "a batch"),
        Column("communication", "ms", "a batch"), Column("waiting", "ms", "a batch"),
    ]  # fmt: skip
    rank_of = {one.process: one.rank for one in group.ranks}
    rows: list[list[Cell]] = [
        [
            rank_of[one.process], path_text(one.path[1:]), ", ".join(one.operations), one.collectives,
            one.communication_ms, one.waiting_ms,
        ]
        for one in group.stages
        if one.process in rank_of
    ]  # fmt: skip
    return Table("collectives", columns, rows[: 4 * MAX_RANKS], "Collectives by the stage that calls them.")
