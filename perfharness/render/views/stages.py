"""Tables of stages and ranges, and the throughput."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from operator import attrgetter

import numpy as np

from perfharness.analysis.diagnosis import StageAgreement
from perfharness.analysis.statistics import summarise
from perfharness.model.diagnosis import Diagnosis
from perfharness.model.result import Path, Statistics, Tree
from perfharness.render.blocks import Block, Column, Columns, Entry, Line, Paragraph, Table, table_of
from perfharness.render.numbers import interval, milliseconds, percent, significant
from perfharness.render.views.causes import cause_name, cause_span
from perfharness.render.views.names import row_names
from perfharness.runs.stage_lines import RangeSum, StageLine

MAX_ROWS = 200
"""Stages on a terminal; all are in the JSON files."""

MAX_RANGES = 100

LEAST_SHARE_OF_OTHERS = 0.05
"""Share of the batch below which stages of other recorders and libraries are hidden."""

STAGES: Columns[StageLine] = [
    (Column("batches", "count", "that contain the stage, without warm-up", drop=3), lambda line: line.batches),
    (Column("wall", "ms", "from push to pop, mean"), lambda line: line.cpu.mean),
    (Column("share", "share", "of all batches' time", has_bar=True), lambda line: line.cpu_share),
    (Column("p50", "ms", drop=2), lambda line: line.cpu.p50),
    (Column("p99", "ms", drop=5), lambda line: line.cpu.p99),
    (Column("GPU", "ms", "from the first GPU operation to the last", drop=1), lambda line: _mean(line.gpu)),
    (Column("busy", "ms", "union of these operations", drop=6), lambda line: _mean(line.gpu_busy)),
    (Column("share of busy", "share", "stages may overlap", has_bar=True), lambda line: line.gpu_busy_share),
    (Column("wall/item", "ms", "ratio of totals", drop=4), lambda line: line.cpu_per_item),
    (Column("GPU/item", "ms", "ratio of totals", drop=7), lambda line: line.gpu_per_item),
    (Column("busy/item", "ms", "ratio of totals"), lambda line: line.gpu_busy_per_item),
]
MOST_OF_THE_TIME = 0.9
"""Share of the throughput's window; report if all processes were in a batch for less."""
ON_PAGE = ("share", "share of busy", "busy/item")
"""Columns that only a page shows."""

PERCENTILES = ("min", "p50", "p90", "p95", "p99", "max", "std")
OUTSIDE: Columns[Tree] = [
    (Column("count", "count"), lambda one: one["count"]),
    (Column("wall", "ms"), lambda one: one["cpu_time"]["mean"]),
    (Column("p50", "ms", drop=2), lambda one: one["cpu_time"]["p50"]),
    (Column("total", "ms"), lambda one: one["cpu_time"]["total"]),
    (Column("GPU", "ms", drop=1), lambda one: one["gpu_time"]["mean"]),
]
RANGES: Columns[RangeSum] = [
    (Column("count", "count"), lambda one: one.count),
    (Column("wall total", "ms", drop=1), lambda one: one.cpu),
    (Column("wall mean", "ms"), lambda one: _per(one.cpu, one.count)),
    (Column("GPU total", "ms", drop=2), lambda one: one.gpu),
    (Column("GPU mean", "ms", drop=1), lambda one: _per(one.gpu, one.count)),
    (Column("busy total", "ms", drop=2), lambda one: one.gpu_busy),
    (Column("busy mean", "ms", drop=1), lambda one: _per(one.gpu_busy, one.count)),
]


def _mean(found: Statistics | None) -> float | None:
    return None if found is None else found.mean


def _per(total: float | None, count: float) -> float | None:
    return None if total is None or not count else total / count


def _is_of_gpu(column: Column) -> bool:
    """Whether zeros are not measurements without a GPU."""
    return any(word in column.heading for word in ("GPU", "busy"))


def _known(columns: Columns[Entry], entries: Sequence[Entry], *, has_gpu: bool) -> Columns[Entry]:
    """Columns with a value in any row."""
    return [
        (column, cell)
        for column, cell in columns
        if any(value is not None and (has_gpu or value or not _is_of_gpu(column)) for value in map(cell, entries))
    ]


def _named(name: str, columns: Columns[Entry], entries: Mapping[Path, Entry], note: str, first: str = "stage") -> Table:
    return table_of(name, columns, entries.values(), note, row_names(list(entries)), first)


def stages_view(
    lines: Sequence[StageLine],
    limits: Mapping[Path, Line],
    *,
    has_gpu: bool,
    hidden: Container[Path] = (),
    full: bool = False,
) -> list[Block]:
    """Table of stages, without empty columns.

    Args:
        limits: limit of each stage.
        has_gpu: whether GPU times of 0 are measurements.
        hidden: stages to show only if they take a large share of their batch.
        full: show all rows and columns, as on a page.
    """
    shown = _in_one_row(list(_without_short_ones(lines, hidden)))
    rest = len(shown) - MAX_ROWS if not full else 0
    shown = shown if full else shown[:MAX_ROWS]
    columns = [one for one in STAGES if full or one[0].heading not in ON_PAGE]
    columns = list(_known(columns, shown, has_gpu=has_gpu))
    of_gpu = " (GPU: projected, busy: union of operations)" if any(_is_of_gpu(one) for one, _ in columns) else ""
    if limits:
        columns.append((Column("limited by"), lambda line: limits.get(line.path)))
    in_some = "; stage times are means over the batches that contain the stage"
    note = f"ms per batch, without warm-up{of_gpu}{in_some * (len({one.batches for one in shown}) > 1)}"
    blocks: list[Block] = [_named("stages", columns, {line.path: line for line in shown}, note)]
    if rest > 0:
        blocks.append(Paragraph(f"{rest} more stages are in the JSON files."))
    return blocks


def _without_short_ones(lines: Sequence[StageLine], hidden: Container[Path]) -> Iterator[StageLine]:
    """Drop hidden stages that take less than 5 % of their batch."""
    batch_ms = 0.0
    for line in lines:
        total_ms = (line.cpu.mean or 0.0) * line.batches
        if line.is_batch:
            batch_ms = total_ms
        if line.path not in hidden or total_ms >= LEAST_SHARE_OF_OTHERS * batch_ms:
            yield line


def _in_one_row(lines: list[StageLine]) -> list[StageLine]:
    """Join the stages whose names contain ids in one line."""
    rare = [line for line in lines if line.has_id]
    if not rare:
        return lines
    first, shares = rare[0], [line.cpu_share or 0.0 for line in rare]
    joined = StageLine(
        path=(*first.path[:-1], f"{len(rare)} stages that occur in one batch each"),
        is_batch=False,
        batches=first.batches,
        cpu=summarise(np.empty(0)),
        gpu=None,
        gpu_busy=None,
        cpu_per_item=None,
        gpu_per_item=None,
        gpu_busy_per_item=None,
        cpu_share=None if first.cpu_share is None else sum(shares),
    )
    return [joined if line is first else line for line in lines if line is first or not line.has_id]


def latency_table(lines: Sequence[StageLine]) -> list[Block]:
    """Distribution of the times of each stage."""
    columns: Columns[StageLine] = [
        (Column("mean", "ms"), lambda line: line.cpu.mean),
        (Column("95 % of the mean", meaning="within this launch only"), _interval),
        *((Column(name, "ms"), attrgetter(f"cpu.{name}")) for name in PERCENTILES),
    ]
    estimates = [line.cpu_mean for line in lines if line.cpu_mean is not None]
    note = "Distribution of the times, ms per batch, without warm-up"
    if any(one.low is not None for one in estimates):
        note += "; intervals are within this launch: repeat the launch to compare versions"
    reasons = dict.fromkeys(one.reason for one in estimates if one.reason and one.low is None)
    reasons |= dict.fromkeys(f"{line.path[-2]}: {line.reason}" for line in lines if line.is_rest and line.reason)
    return [
        _named("latency", _known(columns, lines, has_gpu=True), {line.path: line for line in lines}, note),
        *(Paragraph(f"Not known: {reason.replace('iterations', 'batches')}.", "note") for reason in reasons),
    ]


def _interval(line: StageLine) -> str | None:
    return None if line.cpu_mean is None else interval(line.cpu_mean.low, line.cpu_mean.high)


def outside_view(stages: Sequence[Tree]) -> list[Block]:
    """Stages outside of batches."""
    shown = {tuple(one["path"]): one for one in stages[:MAX_ROWS]}
    return [_named("outside of batches", OUTSIDE, shown, "outside of batches, ms per occurrence")] if shown else []


def sums_view(ranges: Sequence[RangeSum], *, has_gpu: bool) -> list[Block]:
    """Counts, sums and means of the ranges of a run without batches."""
    if not ranges:
        return []
    shown = {one.path: one for one in ranges[:MAX_RANGES]}
    note = "ms per range, all processes together, with warm-up"
    blocks: list[Block] = [_named("ranges", _known(RANGES, ranges, has_gpu=has_gpu), shown, note, "range")]
    if len(ranges) > MAX_RANGES:
        blocks.append(Paragraph(f"{len(ranges) - MAX_RANGES} more ranges: perfharness export --table ranges"))
    return blocks


def throughput_view(throughput: Tree) -> list[Block]:
    """Throughput, and whether the processes ran at the same time."""
    if throughput["items_per_second"] is None:
        return [Paragraph(f"Throughput not measured: {throughput['reason']}")]
    window = milliseconds(throughput["window_ms"])
    line = f"Throughput: {significant(throughput['items_per_second'])} items/s"
    achieved = throughput.get("concurrency")
    if achieved is None or achieved["processes"] == 1:
        return [Paragraph(f"{line} ({significant(throughput['items'])} items in {window} of steady state)")]
    every = "both" if achieved["processes"] == 2 else f"all {achieved['processes']}"
    line += f" while {every} processes ran ({window})"
    if achieved["all_processes_share"] < MOST_OF_THE_TIME:
        line += f"; all of them were in a batch for {percent(achieved['all_processes_share'])} of that"
    return [Paragraph(line)]


def limited_by(agreements: Sequence[StageAgreement], diagnoses: Mapping[str, Diagnosis]) -> dict[Path, Line]:
    """Verdict on each stage; if processes differ, the most frequent one with its votes.

    Args:
        agreements: verdicts of all processes.
        diagnoses: by process, for the detail of each verdict.
    """
    stages = {(process, one.path): one for process, diagnosis in diagnoses.items() for one in diagnosis.stages}
    found: dict[Path, Line] = {}
    for agreement in agreements:
        stage = stages.get((agreement.process, agreement.path))
        name = next(iter(agreement.verdicts)).value if stage is None else cause_name(stage.verdict)
        mark = " *" if stage is not None and stage.is_changed else ""
        found[agreement.path] = (cause_span(name), f" {agreement.votes}" if agreement.votes else "", mark)
    return found
