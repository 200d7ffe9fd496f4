"""Evidence of a diagnosis: activities, functions, kernels, copies and GPU counters of stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

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
from perfharness.render.numbers import interval, milliseconds, percent, scaled, significant
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
    (Column("MB", "number"), lambda one: scaled(one.bytes, 1e6)),
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


def functions(names: Names, stages: Sequence[StageDiagnosis], *, every: bool = False) -> list[Block]:
    """Functions of each stage by self time."""

    def shown(stage: StageDiagnosis) -> Sequence[FunctionShare]:
        return stage.functions if every else [one for one in stage.functions[:TOP] if one.self_share >= SHOWN]

    note = "Functions: share of the stage's sampled time, waits included"
    return _table(names, stages, "functions", note, FUNCTIONS, shown)


def kernels(names: Names, stages: Sequence[StageDiagnosis]) -> list[Block]:
    """Kernels by time."""
    return _table(names, stages, "kernels", "Kernels: launches and ms per batch", KERNELS, lambda one: one.kernels)


def copies(names: Names, stages: Sequence[StageDiagnosis]) -> list[Block]:
    """Copies by direction and kind of memory."""
    return _table(names, stages, "copies", "Copies: number, ms and size per batch", COPIES, lambda one: one.copies)


def counters(names: Names, stages: Sequence[StageDiagnosis]) -> list[Block]:
    """GPU counters and roofline."""

    def points(stage: StageDiagnosis) -> Sequence[RooflinePoint]:
        return stage.limits.roofline if stage.limits else ()

    note = "GPU counters: share of the peak while the stage's operations ran"
    roof = "Roofline: the roof is the peak of the tensor cores or of the memory, at this FLOP/byte"
    return [
        *_table(names, stages, "GPU counters", note, COUNTERS, lambda one: one.counters),
        *_table(names, stages, "roofline", roof, ROOFLINES, points),
    ]


def _table(
    names: Names,
    stages: Sequence[StageDiagnosis],
    name: str,
    note: str,
    columns: Columns[Entry],
    entries_of: Callable[[StageDiagnosis], Sequence[Entry]],
) -> list[Block]:
    """Table without empty columns that names each stage once; nothing without rows."""
    entries = [one for stage in stages for one in entries_of(stage)]
    known = [(column, cell) for column, cell in columns if any(cell(one) is not None for one in entries)]
    firsts = [
        "" if place else shortened(names[stage.path]) for stage in stages for place, _ in enumerate(entries_of(stage))
    ]
    return [table_of(name, known, entries, note, firsts)] if entries else []


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
    stages = [(process, stage) for process, diagnosis in diagnoses.items() for stage in diagnosis.stages]
    slowdowns = [round(stage.slowdown, 2) for _, stage in stages if stage.slowdown is not None]
    if not slowdowns:
        return []
    low, high = min(slowdowns), max(slowdowns)
    factor = significant(low) if low == high else interval(low, high, "number")
    shown = {(one.process, one.path) for one in agreement(diagnoses)}
    is_marked = any(stage.is_changed and (process, stage.path) in shown for process, stage in stages)
    mark = " *: its share of the batch differed." if is_marked else ""
    text = f"Causes are from the profiling pass, in which stages took {factor} times as long.{mark}"
    return [Paragraph(text, "note")]
