"""Evidence of a diagnosis: activities, functions, kernels, copies and GPU counters of stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from perfharness.analysis.diagnosis import agreement
from perfharness.model.activity import ACTIVITIES, DOING, Activity
from perfharness.model.diagnosis import (
    CopyGroup,
    Diagnosis,
    FunctionShare,
    GpuCounters,
    GpuLimits,
    KernelGroup,
    Path,
    RooflinePoint,
    StageDiagnosis,
)
from perfharness.render.blocks import Block, Cell, Column, Columns, Entry, Items, Paragraph, Table, table_of
from perfharness.render.numbers import interval, milliseconds, percent, significant
from perfharness.render.text import short_function
from perfharness.render.views.names import line_of, shortened

TOP = 3
"""Functions per stage in a summary."""

SHOWN = 0.02
"""Smallest share of a stage's time in a summary."""

Names = Mapping[Path, str]

FUNCTIONS: Columns[FunctionShare] = [
    (Column("function"), lambda one: one.function),
    (Column("line"), line_of),
    (Column("self", "share", has_bar=True), lambda one: one.self_share),
    (Column("total", "share", "callees included", drop=1), lambda one: one.total_share),
]
KERNELS: Columns[KernelGroup] = [
    (Column("kernel"), lambda one: short_function(one.name)),
    (Column("launches", "number"), lambda one: one.count),
    (Column("time", "ms"), lambda one: one.time_ms),
    (Column("share", "share", "of the stage's kernel time", has_bar=True), lambda one: one.share),
    (Column("mean µs", "number"), lambda one: one.mean_us),
    (Column("kind"), lambda one: one.kind.value),
    (Column("grid", drop=4), lambda one: _shape(one.grid)),
    (Column("block", drop=4), lambda one: _shape(one.block)),
    (Column("waves", "number", "how often the grid fills the GPU", drop=3), lambda one: one.waves),
    (Column("occupancy", "share", "of the GPU's warps, at most", drop=1), lambda one: one.occupancy),
    (Column("by", meaning="what limits the occupancy", drop=2), lambda one: one.limiter and one.limiter.value),
]
COPIES: Columns[CopyGroup] = [
    (Column("direction"), lambda one: one.direction),
    (Column("from GPU", "count", drop=1), lambda one: one.source_gpu),
    (Column("to GPU", "count", drop=1), lambda one: one.target_gpu),
    (Column("host memory"), lambda one: one.host_memory),
    (Column("copies", "number"), lambda one: one.count),
    (Column("time", "ms"), lambda one: one.time_ms),
    (Column("MB", "number"), lambda one: None if one.bytes is None else one.bytes / 1e6),
    (Column("GB/s", "number"), lambda one: one.gb_per_s),
]
COUNTERS: Columns[GpuCounters] = [
    (Column("GPU", "count"), lambda one: one.gpu),
    (Column("SMs", "share"), lambda one: one.sm_active),
    (Column("occupancy", "share"), lambda one: one.occupancy),
    (Column("tensor", "share"), lambda one: one.tensor),
    (Column("DRAM", "share"), lambda one: one.dram),
    (Column("seconds", "number", drop=2), lambda one: one.seconds),
]
ROOFLINES: Columns[RooflinePoint] = [
    (Column("GPU", "count", drop=4), lambda one: one.gpu),
    (Column("tensor TFLOP/s", "number"), lambda one: one.flop_per_s / 1e12),
    (Column("of peak", "share"), lambda one: one.tensor_share),
    (Column("DRAM GB/s", "number"), lambda one: one.bytes_per_s / 1e9),
    (Column("of peak", "share"), lambda one: _part(one.bytes_per_s, one.peak_bytes_per_s)),
    (Column("FLOP/byte", "number", drop=2), lambda one: one.flop_per_byte),
    (Column("of the roof", "share", drop=1), lambda one: _part(one.flop_per_s, one.ceiling_flop_per_s)),
]


def activities(names: Names, stages: Sequence[StageDiagnosis]) -> Iterator[Block]:
    """Activities of the stages' threads."""
    shown = [one for one in ACTIVITIES if any(stage.activities.get(one, 0.0) >= SHOWN for stage in stages)]
    heads = [Column("CPU wait" if one is Activity.NO_CPU else one.value, "share", DOING[one]) for one in shown]
    columns = [Column("stage"), *heads, Column("samples", "count", drop=1)]
    rows: list[list[Cell]] = [
        [shortened(names[one.path]), *(one.activities.get(activity, 0.0) for activity in shown), one.samples]
        for one in stages
    ]
    if shown:
        yield Table("activities", columns, rows, "Activities: share of the stage's time")


def functions(names: Names, stages: Sequence[StageDiagnosis], *, every: bool = False) -> Iterator[Block]:
    """Functions of each stage by self time."""
    found = [
        (stage.path, one)
        for stage in stages
        for one in (stage.functions if every else stage.functions[:TOP])
        if every or one.self_share >= SHOWN
    ]
    yield from _table(
        names, "functions", "Functions: share of the stage's sampled time, waits included", FUNCTIONS, found
    )


def kernels(names: Names, stages: Sequence[StageDiagnosis]) -> Iterator[Block]:
    """Kernels by time."""
    found = [(stage.path, one) for stage in stages for one in stage.kernels]
    yield from _table(names, "kernels", "Kernels: launches and ms per batch", KERNELS, found)


def copies(names: Names, stages: Sequence[StageDiagnosis]) -> Iterator[Block]:
    """Copies by direction and kind of memory."""
    found = [(stage.path, one) for stage in stages for one in stage.copies]
    yield from _table(names, "copies", "Copies: number, ms and size per batch", COPIES, found)


def counters(names: Names, stages: Sequence[StageDiagnosis]) -> Iterator[Block]:
    """GPU counters and roofline."""
    found = [(stage.path, one) for stage in stages for one in stage.counters]
    note = "GPU counters: share of the peak while the stage's operations ran"
    yield from _table(names, "GPU counters", note, COUNTERS, found)
    points = [(stage.path, one) for stage in stages if stage.limits is not None for one in stage.limits.roofline]
    note = "Roofline: the roof is the peak of the tensor cores or of the memory, at this FLOP/byte"
    yield from _table(names, "roofline", note, ROOFLINES, points)


def _table(
    names: Names, name: str, note: str, columns: Columns[Entry], found: Sequence[tuple[Path, Entry]]
) -> Iterator[Block]:
    """Table without empty columns that names each stage once; nothing without rows."""
    if not found:
        return
    known = [(column, cell) for column, cell in columns if any(cell(one) is not None for _, one in found)]
    made = table_of(name, known, (one for _, one in found), note)
    paths = [path for path, _ in found]
    firsts = [
        shortened(names[path]) if path != before else "" for path, before in zip(paths, [None, *paths], strict=False)
    ]
    rows = [[first, *row] for first, row in zip(firsts, made.rows, strict=True)]
    yield replace(made, columns=[Column("stage"), *made.columns], rows=rows)


def _shape(values: tuple[int, int, int] | None) -> str | None:
    return None if values is None else "x".join(str(value) for value in values)


def _part(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def gpu_limits(limits: GpuLimits | None) -> Iterator[Block]:
    """Limits of the GPU's own work, and missing information."""
    if limits is None or not limits.work_ms:
        return
    basis = "" if limits.basis is None else f", according to {limits.basis}"
    lines = [f"GPU work limited by: {limits.limit.value}{basis} ({milliseconds(limits.work_ms)})"]
    more = {"underfilled": limits.underfilled_ms, "short": limits.short_ms, "lost in last waves": limits.tail_ms}
    for about, times in (("by kind", limits.by_name_ms), ("kernels", more)):
        parts = [f"{name} {milliseconds(ms)}" for name, ms in times.items() if ms]
        lines += [f"{about}: {', '.join(parts)}"] if parts else []
    if limits.moved_gb_per_s is not None:
        share = limits.moved_peak_share
        of_peak = "" if share is None else f", {percent(share)} of the memory's bandwidth"
        lines.append(f"copies inside the GPU and memsets: {significant(limits.moved_gb_per_s)} GB/s{of_peak}")
    yield Items([*lines, *(f"not known: {missing}" for missing in limits.missing)])


def profiling(diagnoses: Mapping[str, Diagnosis]) -> list[Block]:
    """Note on the slowdown of the profiling pass, and on its mark."""
    stages = [stage for diagnosis in diagnoses.values() for stage in diagnosis.stages]
    slowdowns = [round(stage.slowdown, 2) for stage in stages if stage.slowdown is not None]
    if not slowdowns:
        return []
    low, high = min(slowdowns), max(slowdowns)
    factor = significant(low) if low == high else interval(low, high, "number")
    shown = {(one.process, one.path) for one in agreement(diagnoses)}
    is_marked = any(
        stage.is_changed and (process, stage.path) in shown
        for process, diagnosis in diagnoses.items()
        for stage in diagnosis.stages
    )
    mark = " *: its share of the batch differed." if is_marked else ""
    return [
        Paragraph(f"Causes are from the profiling pass, in which stages took {factor} times as long.{mark}", "note")
    ]
