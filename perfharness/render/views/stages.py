"""The table of stages, of ranges where no batch was measured, and the throughput."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfharness.analysis.diagnosis import StageAgreement
from perfharness.analysis.statistics import summarise
from perfharness.model.diagnosis import Diagnosis
from perfharness.model.result import Path, Statistics, Tree
from perfharness.render.blocks import Block, Cell, Column, Line, Paragraph, Table
from perfharness.render.numbers import Kind, interval, milliseconds, percent, significant
from perfharness.render.views.causes import cause_name, cause_span
from perfharness.render.views.names import row_names
from perfharness.runs.stage_lines import RangeSum, StageLine

MAX_ROWS = 200
"""Stages on a terminal; all are in the JSON files."""

MAX_RANGES = 100

MANY_RARE = 40
"""More stages that occur in one batch each are one row: their names contain ids."""

LEAST_SHARE_OF_OTHERS = 0.05
"""Of the batch: a shorter stage that another recorder or a library made is in the JSON files only."""

Value = Callable[[StageLine], Cell]


@dataclass(frozen=True)
class _Figure:
    """A column of the table. `of_gpu`: zeros mean nothing without a GPU; `on_page`: too much for a terminal."""

    heading: str
    value: Value
    kind: Kind = "ms"
    meaning: str = ""
    drop: int = 0
    of_gpu: bool = False
    on_page: bool = False
    has_bar: bool = False


def _mean(found: Statistics | None) -> float | None:
    return None if found is None else found.mean


FIGURES = (
    _Figure("batches", lambda line: line.batches, "count", "without the warm-up, in which it occurs", drop=3),
    _Figure("CPU", lambda line: line.cpu.mean, "ms", "from push to pop, mean"),
    _Figure("share", lambda line: line.cpu_share, "share", "of all batches' time", on_page=True, has_bar=True),
    _Figure("p50", lambda line: line.cpu.p50, drop=2),
    _Figure("p99", lambda line: line.cpu.p99, drop=5),
    _Figure("GPU", lambda line: _mean(line.gpu), "ms", "from the first GPU operation to the last", 1, of_gpu=True),
    _Figure("busy", lambda line: _mean(line.gpu_busy), "ms", "union of these operations", 6, of_gpu=True),
    _Figure(
        "share of busy",
        lambda line: line.gpu_busy_share,
        "share",
        "of all batches' busy time; stages may overlap",
        of_gpu=True,
        on_page=True,
        has_bar=True,
    ),
    _Figure("CPU/item", lambda line: line.cpu_per_item, "ms", "ratio of totals", 4),
    _Figure("GPU/item", lambda line: line.gpu_per_item, "ms", "ratio of totals", 7, of_gpu=True),
    _Figure("busy/item", lambda line: line.gpu_busy_per_item, "ms", "ratio of totals", of_gpu=True, on_page=True),
)


def stages_view(
    lines: Sequence[StageLine],
    limits: Mapping[Path, Line],
    *,
    has_gpu: bool,
    hidden: Container[Path] = (),
    full: bool = False,
) -> list[Block]:
    """The table of stages. A column without any value is omitted.

    Args:
        limits: what limits each stage.
        has_gpu: whether zeros of GPU times mean something.
        hidden: stages that are shown only if they take a good part of their batch.
        full: with the columns of a page.
    """
    shown = _in_one_row(list(_without_short_ones(lines, hidden)))
    rare = next((one.reason for one in shown if one.reason and not one.is_rest), None)
    rest = len(shown) - MAX_ROWS if not full else 0
    shown = shown if full else shown[:MAX_ROWS]
    figures = [one for one in FIGURES if (full or not one.on_page) and _is_known(one, shown, has_gpu=has_gpu)]
    columns = [
        Column("stage"),
        *(Column(one.heading, one.kind, one.meaning, one.has_bar, one.drop) for one in figures),
        *([Column("limited by")] if limits else []),
    ]
    rows: list[list[Cell]] = []
    for name, line in zip(row_names([line.path for line in shown]), shown, strict=True):
        limit = [limits.get(line.path)] if limits else []
        rows.append([name, *(one.value(line) for one in figures), *limit])
    of_gpu = any(one.of_gpu for one in figures)
    note = "ms per batch, without warm-up" + (" (GPU: projected, busy: union of operations)" if of_gpu else "")
    blocks: list[Block] = [Table("stages", columns, rows, note)]
    if rest > 0:
        blocks.append(Paragraph(f"{rest} more stages are in the JSON files."))
    if rare is not None:
        blocks.append(Paragraph(rare, "warning"))
    return blocks


def _is_known(figure: _Figure, lines: Sequence[StageLine], *, has_gpu: bool) -> bool:
    values = [figure.value(line) for line in lines]
    return any(value is not None and (not figure.of_gpu or has_gpu or value) for value in values)


def _without_short_ones(lines: Sequence[StageLine], hidden: Container[Path]) -> Iterator[StageLine]:
    """The lines without the hidden stages that take less than 5 % of their batch."""
    batch_ms = 0.0
    for line in lines:
        total_ms = (line.cpu.mean or 0.0) * line.batches
        if line.is_batch:
            batch_ms = total_ms
        if line.path not in hidden or total_ms >= LEAST_SHARE_OF_OTHERS * batch_ms:
            yield line


def _in_one_row(lines: list[StageLine]) -> list[StageLine]:
    """One line instead of many stages that occur in one batch of several each."""
    batches = [line for line in lines if line.is_batch and line.batches > 1]
    rare = [
        line
        for line in lines
        if line.batches == 1
        and not (line.is_batch or line.is_rest)
        and any(line.path[: len(batch.path)] == batch.path for batch in batches)
    ]
    if len(rare) <= MANY_RARE:
        return lines
    first = rare[0]
    one = replace(
        first,
        path=(*first.path[:-1], f"{len(rare)} stages that occur in one batch each"),
        cpu=summarise(np.array([line.cpu.mean for line in rare], dtype=np.float64)),
        gpu=None,
        gpu_busy=None,
        cpu_per_item=None,
        gpu_per_item=None,
        gpu_busy_per_item=None,
        cpu_share=sum(line.cpu_share or 0.0 for line in rare) if first.cpu_share is not None else None,
        gpu_busy_share=None,
        reason=f"The names of {len(rare)} stages contain ids, such as {first.path[-1]!r}: give a stage one name, "
        "or its times cannot be averaged.",
    )
    left_out = {line.path for line in rare[1:]}
    return [one if line is first else line for line in lines if line.path not in left_out]


def latency_table(lines: Sequence[StageLine]) -> list[Block]:
    """How the times of each stage are distributed, for a page."""
    columns = [Column("stage"), Column("mean", "ms"), Column("95 % of the mean", meaning="within this launch only")]
    percentiles = ("min", "p50", "p90", "p95", "p99", "max", "std")
    columns += [Column(name, "ms") for name in percentiles]
    rows: list[list[Cell]] = []
    for name, line in zip(row_names([line.path for line in lines]), lines, strict=True):
        mean = line.cpu_mean
        ends = None if mean is None else interval(mean.low, mean.high)
        rows.append([name, line.cpu.mean, ends, *(getattr(line.cpu, one) for one in percentiles)])
    note = "ms per batch, without warm-up. Intervals say nothing about the next launch: to compare, repeat the launch."
    estimates = [line.cpu_mean for line in lines if line.cpu_mean is not None]
    reasons = dict.fromkeys(one.reason for one in estimates if one.reason and one.low is None)
    reasons |= dict.fromkeys(f"{line.path[-2]}: {line.reason}" for line in lines if line.is_rest and line.reason)
    return [
        Table("latency", columns, rows, note),
        *(Paragraph(f"Not known: {reason.replace('iterations', 'batches')}.", "note") for reason in reasons),
    ]


def outside_view(stages: Sequence[Tree]) -> list[Block]:
    """Stages outside of batches."""
    if not stages:
        return []
    columns = [
        Column("stage"),
        Column("count", "count"),
        Column("CPU", "ms"),
        Column("p50", "ms", drop=2),
        Column("total", "ms"),
        Column("GPU", "ms", drop=1),
    ]
    shown = stages[:MAX_ROWS]
    rows: list[list[Cell]] = [
        [name, one["count"], *(one["cpu_time"][key] for key in ("mean", "p50", "total")), one["gpu_time"]["mean"]]
        for name, one in zip(row_names([tuple(one["path"]) for one in shown]), shown, strict=True)
    ]
    return [Table("outside of batches", columns, rows, "outside of batches, ms per occurrence")]


def sums_view(ranges: Sequence[RangeSum], *, has_gpu: bool) -> list[Block]:
    """Every range of a run without batches: count, sum and mean of its times."""
    if not ranges:
        return []
    times: dict[str, Callable[[RangeSum], float | None]] = {
        "CPU": lambda one: one.cpu,
        "GPU": lambda one: one.gpu,
        "busy": lambda one: one.gpu_busy,
    }
    shown = {
        heading: value
        for heading, value in times.items()
        if heading == "CPU" or any(has_gpu or value(one) for one in ranges if value(one) is not None)
    }
    columns = [Column("range"), Column("count", "count")]
    for heading in shown:
        is_gpu = heading != "CPU"
        columns += [
            Column(f"{heading} total", "ms", drop=1 + is_gpu),
            Column(f"{heading} mean", "ms", drop=int(is_gpu)),
        ]
    rows: list[list[Cell]] = []
    for name, one in zip(row_names([one.path for one in ranges]), ranges, strict=True):
        row: list[Cell] = [name, one.count]
        for value in shown.values():
            total = value(one)
            row += [total, None if total is None or not one.count else total / one.count]
        rows.append(row)
    blocks: list[Block] = [
        Table("ranges", columns, rows[:MAX_RANGES], "ms per range, all processes together, with warm-up")
    ]
    if len(rows) > MAX_RANGES:
        more = f"{len(rows) - MAX_RANGES} more ranges; for all: perfharness export --table ranges"
        blocks.append(Paragraph(more))
    return blocks


def throughput_view(throughput: Tree) -> list[Block]:
    """Items per second, and how many processes were in a batch at once."""
    if throughput["items_per_second"] is None:
        return [Paragraph(f"Throughput not measured: {throughput['reason']}")]
    window = milliseconds(throughput["window_ms"])
    line = (
        f"Throughput: {significant(throughput['items_per_second'])} items/s "
        f"({significant(throughput['items'])} items in {window} of steady state)"
    )
    achieved = throughput.get("concurrency")
    if achieved is not None and achieved["processes"] > 1:
        line += (
            f"; on average {achieved['mean_processes']:.2f} of {achieved['processes']} processes in a batch, "
            f"all of them {percent(achieved['all_processes_share'])} of the time"
        )
    return [Paragraph(line)]


def limited_by(agreements: Sequence[StageAgreement], diagnoses: Mapping[str, Diagnosis]) -> dict[Path, Line]:
    """What limits each stage; where processes differ, what limits most of them, and how many.

    Args:
        agreements: of the processes.
        diagnoses: by process, for the limit of the GPU, or what a wait is for.
    """
    stages = {(process, one.path): one for process, diagnosis in diagnoses.items() for one in diagnosis.stages}
    found: dict[Path, Line] = {}
    for agreement in agreements:
        stage = stages.get((agreement.process, agreement.path))
        name = next(iter(agreement.verdicts)).value if stage is None else cause_name(stage.verdict)
        mark = " *" if stage is not None and stage.is_changed else ""
        found[agreement.path] = (cause_span(name), f" {agreement.votes}" if agreement.votes else "", mark)
    return found
