"""Energy of the GPUs, in total and by stage, and the cost per million items."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from perfharness.analysis.energy.results import GpuEnergy, RunEnergy, StageEnergy
from perfharness.analysis.metrics.results import RunMetrics
from perfharness.model.machines import gpu_name
from perfharness.model.result import last_key
from perfharness.render.blocks import Block, Cell, Column, Columns, Paragraph, Table, table_of
from perfharness.render.numbers import interval, significant

if TYPE_CHECKING:
    from perfharness.analysis.suites.cost import Cost


def energy_view(energy: RunEnergy | None, metrics: RunMetrics | None) -> list[Block]:
    """Total energy, and a table of stages per GPU; nothing without a GPU. `metrics` has the names of the GPUs."""
    if energy is None or not energy.gpus:
        return []
    titles = {} if metrics is None else metrics.gpu_titles
    tables = [_stages(gpu, titles.get(gpu.uuid) or gpu_name(None, gpu.uuid)) for gpu in energy.gpus]
    return [Paragraph(_line(energy)), *(block for blocks in tables for block in blocks)]


def _line(energy: RunEnergy) -> str:
    if energy.energy_j is None:
        reason = f"not known for the measured window ({energy.reason or 'see the results'})"
        if energy.energy_run_j is None:
            return f"Energy: {reason}"
        whole = significant(energy.energy_run_j)
        return f"Energy: {whole} J from the start of the first process to the end of the last; {reason}"
    error = "" if energy.error_j is None else f" ± {significant(energy.error_j)}"
    parts = [f"{significant(energy.energy_j)}{error} J measured, idle power included"]
    per = {"batch": energy.energy_per_batch_j, "item": energy.energy_per_item_j}
    parts += [f"{significant(value)} J/{unit}" for unit, value in per.items() if value is not None]
    idle = [gpu.idle.power_mean_w for gpu in energy.gpus if gpu.idle.power_mean_w is not None]
    watts = ", ".join(f"{significant(one)} W" for one in idle)
    parts.append(f"idle before the run {watts}" if idle else "idle power not known")
    return f"Energy: {'; '.join(parts)}"


def _stages(gpu: GpuEnergy, name: str) -> list[Block]:
    if not any(one.energy_j for one in gpu.stages):
        reason = gpu.stages_reason or next((one.reason for one in gpu.stages if one.reason), None)
        return [Paragraph(f"Energy by stage, {name}: not measured ({reason})")] if reason else []
    shown = [one for one in gpu.stages if one.busy_s]
    last = Counter(last_key(one.stage) for one in shown)
    columns: Columns[StageEnergy] = [
        (Column("stage"), lambda one: last_key(one.stage) if last[last_key(one.stage)] == 1 else one.stage),
        (Column("busy s", "number", drop=3), lambda one: one.busy_s),
        (Column("J", "number"), lambda one: one.energy_j),
        (Column("range", drop=1), lambda one: interval(one.energy_j_low, one.energy_j_high, "number")),
        (Column("W", "number", drop=4), lambda one: one.power_mean_w),
        (Column("J/batch", "number", drop=2), lambda one: one.energy_per_batch_j),
        (Column("J/item", "number", drop=5), lambda one: one.energy_per_item_j),
        (Column("remark", drop=6), lambda one: one.reason or ""),
    ]
    return [table_of(f"energy by stage, {name}", columns, shown, f"Energy by stage, {name}")]


def cost_view(cost: Cost) -> list[Block]:
    """Cost per million items of machine and energy."""
    numbers = [Column(one, "number") for one in ("price", "cost", "±")]
    columns = [Column("a million items"), *numbers, Column("remark")]
    rows: list[list[Cell]] = [
        ["machine, per hour", cost.prices.per_hour, cost.machine, None, cost.machine_reason],
        ["energy of the GPUs, per kWh", cost.prices.per_kwh, cost.energy, cost.energy_error, cost.energy_reason],
    ]
    note = "In the currency of the prices. Energy of the GPUs only, without host and cooling."
    return [Table("cost", columns, rows, note)]
