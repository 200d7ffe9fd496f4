"""Sections of a report on one launch or bare trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfharness.analysis.diagnosis import agreement
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import NodeRecord, ProcessRecord
from perfharness.model.result import path_text
from perfharness.model.units import NS_PER_MS
from perfharness.render.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Columns,
    Figure,
    Figures,
    Items,
    Paragraph,
    Section,
    Table,
    cell_text,
    facts,
    filled,
    omitted,
    table_of,
)
from perfharness.render.charts.flame import flame_picture
from perfharness.render.charts.report import distribution_picture, series_picture, stage_picture, timeline_picture
from perfharness.render.charts.telemetry import telemetry_pictures
from perfharness.render.numbers import milliseconds, percent, significant, size
from perfharness.render.views.causes import advice_view
from perfharness.render.views.diagnosis import evidence_on_page
from perfharness.render.views.energy import cost_view, energy_view
from perfharness.render.views.evidence import profiling
from perfharness.render.views.findings import ORDER, finding_sentence, grouped, listed_processes
from perfharness.render.views.load import load_figures, load_sections, load_sentences
from perfharness.render.views.machine import telemetry_view
from perfharness.render.views.mlperf import mlperf_figures, mlperf_section, mlperf_sentences
from perfharness.render.views.names import row_names
from perfharness.render.views.ranks import ranks_section
from perfharness.render.views.slowest import slowest_view
from perfharness.render.views.stages import (
    latency_table,
    limited_by,
    outside_view,
    stages_view,
    sums_view,
    throughput_view,
)
from perfharness.runs.report.model import RunReport
from perfharness.runs.stage_lines import StageLine

MAX_SERIES = 12
"""Loops that get a chart."""

MAX_WARNINGS = 5
"""Findings in the summary."""

PROCESSES: Columns[ProcessRecord] = [
    (Column("process"), lambda one: one.folder),
    (Column("ended"), lambda one: one.ended),
    (Column("seconds", "number"), lambda one: one.duration_s),
    (Column("resident"), lambda one: size(one.max_rss_bytes)),
    (Column("CPUs"), lambda one: None if one.placement is None else one.placement.cpus),
    (Column("GPU"), lambda one: ", ".join(one.used_gpus) or None),
]
NODES: Columns[NodeRecord] = [
    (Column("node", "number"), lambda one: one.rank),
    (Column("host"), lambda one: one.environment.hostname),
    (Column("GPUs"), lambda one: ", ".join(gpu.name or "unknown" for gpu in one.environment.gpus) or None),
    (Column("driver"), lambda one: one.environment.driver),
    (Column("clock error, ms", "number"), lambda one: one.clock_error_ns / NS_PER_MS),
]
HINT = (
    "Drag to move, Shift+wheel to zoom, double-click to reset. `perfharness export` writes a timeline of all batches."
)


def run_summary(run: RunReport) -> Iterator[Block]:
    """Key figures, bottleneck and warnings."""
    yield Figures(list(_first_figures(run)))
    yield from map(Paragraph, () if run.mlperf is None else mlperf_sentences(run.mlperf))
    if run.load is None:
        yield from map(Paragraph, _where_time_goes(run))
    else:
        yield Items(load_sentences(run.load))
    yield from advice_view(run.diagnoses, run.stages)
    for one, processes in _important(run)[:MAX_WARNINGS]:
        is_error = one.severity is Severity.ERROR
        yield Paragraph(finding_sentence(one, processes), "error" if is_error else "warning")


def run_sections(run: RunReport, number: int) -> list[Section]:
    """Sections of a run."""
    slowest = _slowest(run, number)
    under_load = [] if run.load is None else load_sections(run.load, number, run.sampled.log if run.sampled else None)
    sections = [
        *under_load,
        *([] if run.mlperf is None else [mlperf_section(run.mlperf)]),
        *([slowest] if under_load else []),
        _stages(run, number),
        _diagnosis(run, number),
        _over_time(run, number),
        _timelines(run, number),
        *([] if under_load else [slowest]),
        ranks_section(run.ranks, number),
        _telemetry(run, number),
        Section("Energy", energy_view(run.energy, run.metrics)),
        Section("Cost", [] if run.cost is None else cost_view(run.cost)),
        _findings(run),
        _measured(run),
    ]
    return filled(sections)


def has_gpu(run: RunReport) -> bool:
    """Whether a GPU was there, so that GPU times of 0 are measurements."""
    environment = run.measured.environment
    return bool(run.measured.devices or (environment is not None and environment.gpus))


# ---- summary ----


def _main_batch(run: RunReport) -> StageLine | None:
    batches = [line for line in run.stages if line.is_batch]
    return max(batches, key=lambda line: (line.cpu.mean or 0.0) * line.batches, default=None)


def _where_time_goes(run: RunReport) -> list[str]:
    """Sentence on the stage with the largest share; empty without batches."""
    batch = _main_batch(run)
    if batch is None or batch.cpu.p50 is None:
        return []
    own = [line for line in run.stages if line.path[:-1] == batch.path and line.cpu_share is not None]
    if not own:
        return [f"A batch takes {milliseconds(batch.cpu.p50)} (median of {batch.batches}); it has no stages."]
    largest = max(own, key=lambda line: line.cpu_share or 0.0)
    name = "outside of its stages" if largest.is_rest else f"in '{path_text(largest.path[-1:])}'"
    return [f"{percent(largest.cpu_share)} of the batches' time is {name}."]


def _first_figures(run: RunReport) -> Iterator[Figure]:
    if run.mlperf is not None:
        yield from mlperf_figures(run.mlperf)
    yield from _batch_figures(run) if run.load is None else load_figures(run.load)
    for gpu in run.metrics.gpus if run.metrics else ():
        if gpu.busy_share is not None:
            yield Figure(f"{gpu.title} busy", cell_text(gpu.busy_share, "share"), "of the measured window")
    if run.energy is not None and run.energy.energy_per_item_j is not None:
        yield Figure("energy of the GPUs", f"{significant(run.energy.energy_per_item_j)} J/item", "idle power included")
    if run.cost is not None and run.cost.machine is not None:
        yield Figure("a million items", significant(run.cost.machine), "at the price per hour")


def _batch_figures(run: RunReport) -> Iterator[Figure]:
    throughput = run.throughput
    if throughput["items_per_second"] is not None:
        rate = f"{significant(throughput['items_per_second'])} items/s"
        yield Figure("throughput", rate, "all processes in steady state")
    else:
        yield Figure("throughput", "not measured", throughput["reason"] or "")
    batch = _main_batch(run)
    if batch is None or batch.cpu.p50 is None:
        return
    tail = "" if batch.cpu.p99 is None else f"p99 {milliseconds(batch.cpu.p99)}, "
    yield Figure("batch, median", milliseconds(batch.cpu.p50), f"{tail}{batch.batches} batches")
    if batch.cpu_per_item is not None:
        yield Figure("time per item", milliseconds(batch.cpu_per_item), "mean")
    if batch.limited_by is not None:
        yield Figure("limited by", batch.limited_by, batch.agreement or "")


# ---- times ----


def _stages(run: RunReport, number: int) -> Section:
    if not run.stages:
        return Section("Ranges", sums_view(run.ranges, has_gpu=has_gpu(run)))
    limits = limited_by(agreement(run.diagnoses), run.diagnoses)
    lines = [line for line in run.stages if not line.has_id]
    picture = stage_picture(f"stages_{number}", lines, row_names([line.path for line in lines]), has_gpu=has_gpu(run))
    blocks = [
        *stages_view(run.stages, limits, has_gpu=has_gpu(run), full=True),
        *profiling(run.diagnoses),
        *([Chart(picture)] if picture else []),
        *latency_table(lines),
        *throughput_view(run.throughput),
        *outside_view(run.outside_batches),
    ]
    return Section("Stages", blocks)


def _over_time(run: RunReport, number: int) -> Section:
    largest = sorted(range(len(run.series)), key=lambda place: -run.series[place].series.batches)[:MAX_SERIES]
    charts = [
        Chart(series_picture(f"series_{number}_{place}", run.series[place], has_gpu=has_gpu(run)))
        for place in sorted(largest)
    ]
    distributions = [
        Chart(distribution_picture(f"distribution_{number}_{place}", one), small=True)
        for place, one in enumerate(run.distributions if charts else ())
    ]
    left_out = omitted(len(run.series) - MAX_SERIES, "shorter loops have no chart.")
    return Section("Batches over time", [*charts, *left_out], filled([Section("Distributions", distributions)]))


def _timelines(run: RunReport, number: int) -> Section:
    pictures = [timeline_picture(f"timeline_{number}_{one.which}", one, has_gpu=has_gpu(run)) for one in run.timelines]
    pictures[:1] = [replace(one, notes=(*one.notes, HINT)) for one in pictures[:1]]
    return Section("A typical, the best and the worst batch", [Chart(picture) for picture in pictures])


def _slowest(run: RunReport, number: int) -> Section:
    """Slowest batches, or the reason why a load test has none."""
    title, found = "The slowest requests" if run.load is not None else "The slowest batches", run.slowest
    if found is None:
        reason = run.slowest_reason if run.load is not None else None
        return Section(title, [Paragraph(f"Not known why they were slow: {reason}.", "note")] if reason else [])
    compared = [loop for loop in found.result.loops if run.load or any(one.typical for one in loop.requests)]
    if not compared:
        return Section(title)
    charts = [Chart(timeline_picture(f"slowest_{number}_{place}", one)) for place, one in enumerate(found.timelines)]
    below = filled([Section("Timelines of the slowest and a typical one", charts)])
    return Section(title, slowest_view(found.result.model_copy(update={"loops": compared}), folded=True), below)


def _diagnosis(run: RunReport, number: int) -> Section:
    charts = [] if run.stacks is None else [Chart(flame_picture(f"flame_{number}", *run.stacks))]
    blocks = list(evidence_on_page(run.diagnoses, charts))
    if run.diagnoses and not run.measured.explained:
        text = "To see more samples and the kinds of waits, add --explain (runs the script twice)."
        blocks.append(Paragraph(text, "note"))
    return Section("What limits each stage", blocks)


def _telemetry(run: RunReport, number: int) -> Section:
    if run.metrics is None:
        return Section("Telemetry")
    pictures = [] if run.sampled is None else telemetry_pictures(run.sampled)
    charts = [Chart(replace(picture, name=f"{picture.name}_{number}")) for picture in pictures]
    return Section("Telemetry", [*telemetry_view(run.metrics), *charts])


# ---- findings, measurement ----


def _important(run: RunReport) -> list[tuple[Finding, list[str]]]:
    found = [one for one in grouped(run.findings) if one[0].severity is not Severity.NOTE]
    return sorted(found, key=lambda one: -ORDER.index(one[0].severity))


def _findings(run: RunReport) -> Section:
    """Findings that are not in the summary."""
    notes = [one for one in grouped(run.findings) if one[0].severity is Severity.NOTE]
    columns = [Column("severity"), Column("process"), Column("finding"), Column("next step"), Column("code")]
    rows: list[list[Cell]] = [
        [one.severity.value, listed_processes(processes), one.message, one.hint, one.code]
        for one, processes in [*_important(run)[MAX_WARNINGS:], *notes]
    ]
    return Section("Findings", [Table("findings", columns, rows)] if rows else [])


def _measured(run: RunReport) -> Section:
    blocks = [facts("how it was measured", list(_how(run)))]
    of = PROCESSES if has_gpu(run) else [one for one in PROCESSES if one[0].heading != "GPU"]
    if run.measured.processes:
        rates = {name: rate["items_per_second"] for name, rate in run.throughput["processes"].items()}
        of = [*of, (Column("items/s", "number"), lambda one: rates.get(one.folder))]
        blocks.append(table_of("processes", of, run.measured.processes))
    if run.measured.nodes:
        blocks.append(table_of("nodes", NODES, run.measured.nodes))
    environment = list(_environment(run))
    below = Section("Environment", [facts("environment", environment)] if environment else [])
    return Section("How it was measured", blocks, filled([below]))


def _how(run: RunReport) -> Iterator[list[Cell]]:
    of = run.measured
    yield ["measured", of.created]
    yield ["script", of.script]
    yield ["command", " ".join(of.command) or None]
    why = f" ({of.tracer.reason})" if of.tracer.reason else ""
    yield ["tracer", f"{of.tracer.kind} {of.tracer.version or ''}".strip() + why]
    batches = "batch" if of.warmup_batches == 1 else "batches"
    yield ["warm-up", f"{of.warmup_batches} {batches} dropped at both ends of each loop"]
    yield ["telemetry", "not sampled" if run.metrics is None else "sampled during the run"]
    yield ["profiling pass", "yes, after the timed pass" if of.explained else "no"]
    if of.clock_error_ns is not None:
        yield ["clock error", f"{significant(of.clock_error_ns / 1e3)} µs against UTC"]


def _environment(run: RunReport) -> Iterator[list[Cell]]:
    of = run.measured.environment
    if of is None:
        for device in run.measured.devices:
            yield ["GPU", device]
        return
    names = ("hostname", "os", "kernel", "cpu", "cpu_count", "python", "perfharness", "nvtx", "driver", "cuda_driver")
    for name in names:
        if (value := getattr(of, name)) is not None:
            yield [name.replace("_", " "), str(value)]
    for gpu in of.gpus:
        memory = "" if gpu.memory_total_bytes is None else f", {size(gpu.memory_total_bytes)}"
        yield [f"GPU {gpu.index}", f"{gpu.name or 'unknown'}{memory}{', MIG' if gpu.mig else ''}"]
