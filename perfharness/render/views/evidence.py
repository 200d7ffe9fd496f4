"""What a diagnosis rests on: tables of activities, functions, kernels, copies and counters of stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from perfharness.model.activity import ACTIVITIES
from perfharness.model.diagnosis import Diagnosis, GpuCounters, GpuLimits, Path, StageDiagnosis
from perfharness.render.blocks import Block, Cell, Column, Items, Paragraph, Table
from perfharness.render.numbers import interval, milliseconds, percent, significant
from perfharness.render.text import short_function
from perfharness.render.views.names import line_of, shortened

TOP = 3
"""Functions of a stage, where not all are asked for."""

SHOWN = 0.02
"""Of a stage's time: functions and activities that take less are left out, where not all are asked for."""

Names = Mapping[Path, str]
"""Of stages."""

Rows = Sequence[tuple[Path, list[Cell]]]
"""The rows of stages, those of a stage together."""


def _table(names: Names, name: str, note: str, columns: Sequence[Column], rows: Rows) -> Iterator[Block]:
    """A table, if it has rows; a stage is named in the first of its rows."""
    if not rows:
        return
    filled: list[list[Cell]] = []
    before = None
    for path, cells in rows:
        filled.append([shortened(names[path]) if path != before else "", *cells])
        before = path
    yield Table(name, [Column("stage"), *columns], filled, note)


def activities(names: Names, stages: Sequence[StageDiagnosis]) -> Iterator[Block]:
    """What the stages' threads did; without activities that take little of every stage."""
    shown = [one for one in ACTIVITIES if any(stage.activities.get(one, 0.0) >= SHOWN for stage in stages)]
    columns = [*(Column(one.value, "share") for one in shown), Column("samples", "count", drop=1)]
    rows: Rows = [(stage.path, [*(stage.activities.get(one, 0.0) for one in shown), stage.samples]) for stage in stages]
    yield from _table(names, "activities", "Time: what the stage's threads did", columns, rows if shown else [])


def functions(names: Names, stages: Sequence[StageDiagnosis], *, every: bool = False) -> Iterator[Block]:
    """Each stage's functions by their own time."""
    columns = [
        Column("function"),
        Column("line"),
        Column("own", "share", has_bar=True),
        Column("with callees", "share", drop=1),
    ]
    rows: Rows = [
        (stage.path, [one.function, line_of(one), one.self_share, one.total_share])
        for stage in stages
        for one in (stage.functions if every else stage.functions[:TOP])
        if every or one.self_share >= SHOWN
    ]
    yield from _table(names, "functions", "Functions: share of the stage's sampled time", columns, rows)


def kernels(names: Names, stages: Sequence[StageDiagnosis]) -> Iterator[Block]:
    """Kernels by their time, with their shape."""
    columns = [
        Column("kernel"),
        Column("launches", "number"),
        Column("time", "ms"),
        Column("share", "share", "of the stage's kernel time", has_bar=True),
        Column("mean µs", "number"),
        Column("kind"),
        Column("grid", drop=4),
        Column("block", drop=4),
        Column("waves", "number", "how often the grid fills the GPU", drop=3),
        Column("occupancy", "share", "of the GPU's warps that can be resident at most", drop=1),
        Column("limited by", meaning="what limits the resident warps", drop=2),
    ]
    rows: Rows = [
        (
            stage.path,
            [
                short_function(one.name),
                one.count,
                one.time_ms,
                one.share,
                one.mean_us,
                one.kind.value,
                _shape(one.grid),
                _shape(one.block),
                one.waves,
                one.occupancy,
                None if one.limiter is None else one.limiter.value,
            ],
        )
        for stage in stages
        for one in stage.kernels
    ]
    yield from _table(names, "kernels", "Kernels: launches and time per batch, ms", columns, rows)


def _shape(values: tuple[int, int, int] | None) -> str | None:
    return None if values is None else "x".join(str(value) for value in values)


def copies(names: Names, stages: Sequence[StageDiagnosis]) -> Iterator[Block]:
    """Copies of one direction and kind of memory."""
    columns = [
        Column("direction"),
        Column("GPUs", drop=1),
        Column("host memory"),
        Column("copies", "number"),
        Column("time", "ms"),
        Column("MB", "number"),
        Column("GB/s", "number"),
    ]
    rows: Rows = [
        (
            stage.path,
            [
                one.direction,
                None if one.source_gpu is None else f"{one.source_gpu} to {one.target_gpu}",
                one.host_memory,
                one.count,
                one.time_ms,
                None if one.bytes is None else one.bytes / 1e6,
                one.gb_per_s,
            ],
        )
        for stage in stages
        for one in stage.copies
    ]
    yield from _table(names, "copies", "Copies: number, time and size per batch, ms", columns, rows)


COUNTERS: Mapping[str, Callable[[GpuCounters], float | None]] = {
    "SMs": lambda one: one.sm_active,
    "occupancy": lambda one: one.occupancy,
    "tensor": lambda one: one.tensor,
    "DRAM": lambda one: one.dram,
}


def counters(names: Names, stages: Sequence[StageDiagnosis]) -> Iterator[Block]:
    """Counters of the GPUs, a row for each stage and GPU; without counters that no row has."""
    found = [(stage.path, one) for stage in stages for one in stage.counters]
    shown = {name: value for name, value in COUNTERS.items() if any(value(row) is not None for _, row in found)}
    columns = [Column("GPU"), *(Column(name, "share") for name in shown), Column("seconds", "number", drop=2)]
    rows: Rows = [(path, [str(one.gpu), *(value(one) for value in shown.values()), one.seconds]) for path, one in found]
    note = "GPU counters: while the stage's operations ran, of the peak"
    yield from _table(names, "GPU counters", note, columns, rows)


def rooflines(names: Names, stages: Sequence[StageDiagnosis]) -> Iterator[Block]:
    """What the kernels of each stage reached of the tensor cores' and the memory's peak."""
    columns = [
        Column("GPU", drop=4),
        Column("tensor TFLOP/s", "number"),
        Column("of peak", "share"),
        Column("DRAM GB/s", "number"),
        Column("of peak", "share"),
        Column("FLOP/byte", "number", drop=2),
        Column("of the roof", "share", drop=1),
    ]
    rows: Rows = [
        (
            stage.path,
            [
                str(one.gpu),
                one.flop_per_s / 1e12,
                one.tensor_share,
                one.bytes_per_s / 1e9,
                _part(one.bytes_per_s, one.peak_bytes_per_s),
                one.flop_per_byte,
                _part(one.flop_per_s, one.ceiling_flop_per_s),
            ],
        )
        for stage in stages
        if stage.limits is not None
        for one in stage.limits.roofline
    ]
    note = "Roofline: the roof is the peak of the tensor cores, or of the memory at as many FLOP per byte"
    yield from _table(names, "roofline", note, columns, rows)


def _part(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def gpu_limits(limits: GpuLimits | None) -> Iterator[Block]:
    """What limits the GPU's own work, and what is not known of it."""
    if limits is None or not limits.work_ms:
        return
    basis = "" if limits.basis is None else f", according to {limits.basis}"
    lines = [f"GPU work limited by: {limits.limit.value}{basis} ({milliseconds(limits.work_ms)})"]
    parts = {name: ms for name, ms in limits.by_name_ms.items() if ms}
    named = {"underfilled": limits.underfilled_ms, "short kernels": limits.short_ms, "last waves": limits.tail_ms}
    parts |= {name: ms for name, ms in named.items() if ms}
    if parts:
        lines.append("of it " + ", ".join(f"{name} {milliseconds(ms)}" for name, ms in parts.items()))
    if limits.moved_gb_per_s is not None:
        share = limits.moved_peak_share
        of_peak = "" if share is None else f", {percent(share)} of the memory's bandwidth"
        lines.append(f"copies inside the GPU and memsets: {significant(limits.moved_gb_per_s)} GB/s{of_peak}")
    lines += [f"not known: {missing}" for missing in limits.missing]
    yield Items(lines)


def profiling(diagnoses: Mapping[str, Diagnosis]) -> list[Block]:
    """How much slower the profiling pass was, and what its mark means."""
    stages = [stage for diagnosis in diagnoses.values() for stage in diagnosis.stages]
    slowdowns = [stage.slowdown for stage in stages if stage.slowdown is not None]
    if not slowdowns:
        return []
    low, high = (round(bound, 2) for bound in (min(slowdowns), max(slowdowns)))
    factor = significant(low) if low == high else interval(low, high, "number")
    mark = "; *: it took another part of the batch" if any(stage.is_changed for stage in stages) else ""
    return [Paragraph(f"Causes are of a profiling pass: stages took {factor} times as long in it{mark}.", "note")]
