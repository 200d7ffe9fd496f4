"""One launch, or a bare trace, as sections of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfharness.analysis.energy.results import GpuEnergy, RunEnergy
from perfharness.analysis.metrics.results import MetricFigures
from perfharness.model.bench import Estimate
from perfharness.model.diagnosis import FunctionShare, KernelGroup, StageDiagnosis
from perfharness.model.findings import Severity
from perfharness.model.result import last_key, path_text
from perfharness.render.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Details,
    Figure,
    Figures,
    Items,
    Paragraph,
    Section,
    Table,
    cell_text,
)
from perfharness.render.charts.report import (
    distribution_picture,
    series_picture,
    stage_picture,
    timeline_picture,
)
from perfharness.render.charts.telemetry import telemetry_pictures
from perfharness.render.numbers import significant
from perfharness.render.places import file_and_line
from perfharness.render.report.rank_section import ranks_section
from perfharness.render.report.slowest_section import HINT, slowest_section
from perfharness.render.terminal.advice import advice_text, cause_name, milliseconds, stage_names
from perfharness.render.terminal.diagnosis import figure_lines, reason_lines
from perfharness.render.terminal.findings import finding_sentence
from perfharness.render.terminal.machine import gpu_name
from perfharness.render.terminal.results import row_names
from perfharness.render.text import short_function
from perfharness.render.views.load import load_figures, load_sections, load_sentences
from perfharness.render.views.mlperf import mlperf_figures, mlperf_section, mlperf_sentences
from perfharness.runs.report.model import RunReport, StageLine

SENTENCES = 3
"""Of what limits a run, at its beginning."""

MAX_SERIES = 12
"""Loops with a chart."""

MAX_EVIDENCE = 60
"""Stages whose evidence is shown."""

MIB, GIB = float(1 << 20), float(1 << 30)
WITHIN = (
    "Intervals are 95 % intervals of the mean over the batches of this launch. They say nothing about the next launch: "
    "to compare two versions, repeat the launch."
)
SHARE = "of the host time of all batches"


def run_sections(run: RunReport, number: int) -> list[Section]:
    """All that the report has about a run."""
    has_gpu = _has_gpu(run)
    sections = [
        *_load(run, number),
        None if run.mlperf is None else mlperf_section(run.mlperf),
        slowest_section(run, number) if run.load is not None else None,
        _latency(run),
        _breakdown(run, number, has_gpu=has_gpu),
        _over_time(run, number),
        _timelines(run, number),
        slowest_section(run, number) if run.load is None else None,
        _diagnosis(run, has_gpu=has_gpu),
        ranks_section(run.ranks, number),
        _telemetry(run, number),
        _energy(run),
        _cost(run),
        _findings(run),
        _measured(run),
    ]
    return [section for section in sections if section is not None]


def run_summary(run: RunReport) -> Iterator[Block]:
    """What limits it, and the numbers that a reader wants first."""
    yield Figures(list(_first_figures(run)))
    where = _where_time_goes(run) if run.load is None else load_sentences(run.load)
    where = [*(() if run.mlperf is None else mlperf_sentences(run.mlperf)), *where]
    advice = limiting_sentences(run, SENTENCES - len(where))
    yield Items([*where, *(advice or [_no_limit(run)])], numbered=bool(advice or run.load))
    errors = [one for one in run.findings if one.severity is Severity.ERROR]
    warnings = [one for one in run.findings if one.severity is Severity.WARNING]
    for one in errors[:SENTENCES]:
        yield Paragraph(finding_sentence(one), "error")
    for one in warnings[: max(0, SENTENCES - len(errors))]:
        yield Paragraph(finding_sentence(one), "warning")
    more = len(errors) + len(warnings) - SENTENCES
    if more > 0:
        yield Paragraph(f"{more} more warnings and errors are among the findings.", "note")


def _where_time_goes(run: RunReport) -> list[str]:
    """A sentence about the stage that takes most of the batches' host time; none where there are no batches."""
    batch = _main_batch(run)
    if batch is None or batch.cpu.p50 is None:
        return []
    own = [line for line in run.stages if line.path[:-1] == batch.path and line.cpu_share is not None]
    largest = max(own, key=lambda line: line.cpu_share or 0.0, default=None)
    begin = f"A batch takes {milliseconds(batch.cpu.p50)} on the host (median of {batch.batches})"
    if largest is None or largest.cpu_share is None:
        return [f"{begin}; it has no stages."]
    name = "outside of its stages" if largest.is_rest else f"in '{path_text(largest.path[-1:])}'"
    return [f"{begin}; {100 * largest.cpu_share:.0f} % of the batches' host time is {name}."]


def _main_batch(run: RunReport) -> StageLine | None:
    """The batches that take most host time."""
    return max(_batches(run), key=lambda line: (line.cpu.mean or 0.0) * line.batches, default=None)


def limiting_sentences(run: RunReport, most: int = SENTENCES) -> list[str]:
    """What limits the run, the most valuable step first."""
    names = stage_names(one.diagnosis.path for one in run.causes)
    return [advice_text(advice, names[advice.path], len(run.measured.processes)) for advice in run.advice[:most]]


def _no_limit(run: RunReport) -> str:
    undecided = next((one.diagnosis.verdict for one in run.causes), None)
    if undecided is None:
        return "What limits it is not known: nothing was traced in batches."
    return f"What limits it is not known. {undecided.what} {undecided.step}"


def _has_gpu(run: RunReport) -> bool:
    """Whether zeros of GPU times mean something."""
    environment = run.measured.environment
    return bool(run.measured.devices or (environment is not None and environment.gpus))


def _batches(run: RunReport) -> list[StageLine]:
    return [line for line in run.stages if line.is_batch]


def _load(run: RunReport, number: int) -> list[Section]:
    if run.load is None:
        return []
    log = run.sampled.log if run.sampled else None
    return load_sections(run.load, number, log)


def _first_figures(run: RunReport) -> Iterator[Figure]:
    if run.mlperf is not None:
        yield from mlperf_figures(run.mlperf)
    yield from _batch_figures(run) if run.load is None else load_figures(run.load)
    for gpu in run.metrics.gpus if run.metrics else ():
        if gpu.busy_share is not None:
            yield Figure(
                f"{gpu_name(gpu.gpu_index, gpu.uuid)} busy",
                cell_text(gpu.busy_share, "share"),
                "of the measured window",
            )
    if run.energy is not None and run.energy.energy_per_item_j is not None:
        yield Figure("energy of the GPUs", f"{significant(run.energy.energy_per_item_j)} J/item", "idle power included")
    if run.cost is not None and run.cost.machine is not None:
        yield Figure("a million items", significant(run.cost.machine), "at the price per hour")


def _batch_figures(run: RunReport) -> Iterator[Figure]:
    throughput = run.throughput
    if throughput.items_per_second is not None:
        yield Figure(
            "throughput", f"{significant(throughput.items_per_second)} items/s", "all processes in steady state"
        )
    else:
        yield Figure("throughput", "not measured", throughput.reason or "")
    batch = _main_batch(run)
    if batch is not None and batch.cpu.p50 is not None:
        tail = "" if batch.cpu.p99 is None else f"p99 {milliseconds(batch.cpu.p99)}, "
        yield Figure("batch, median", milliseconds(batch.cpu.p50), f"{tail}{batch.batches} batches")
    if batch is not None and batch.cpu_per_item is not None:
        yield Figure("host time an item", f"{significant(batch.cpu_per_item)} ms", "mean")
    if batch is not None and batch.limited_by is not None:
        yield Figure("limited by", batch.limited_by, batch.agreement or "")


# ---- times ----


def _latency(run: RunReport) -> Section | None:
    if not run.stages:
        return _ranges(run)
    columns = [
        Column("stage"), Column("batches", "count", "batches without the warm-up in which it occurs"),
        Column("mean", "ms"), Column("95 % of the mean", "text", "interval within this launch only"),
        Column("p50", "ms"), Column("p90", "ms"), Column("p95", "ms"), Column("p99", "ms"),
        Column("min", "ms"), Column("max", "ms"), Column("std", "ms"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for name, line in zip(_names(run.stages), run.stages, strict=True):
        cpu = line.cpu
        rows.append([
            name, line.batches, cpu.mean, interval_text(line.cpu_mean), cpu.p50, cpu.p90, cpu.p95, cpu.p99, cpu.min,
            cpu.max, cpu.std,
        ])  # fmt: skip
    blocks: list[Block] = [
        Table("latency", columns, rows, f"Host time, ms a batch, without warm-up. {WITHIN}"),
        *(Paragraph(f"No interval: {reason}.", "note") for reason in _reasons(run.stages)),
    ]
    if run.throughput.concurrency is not None and run.throughput.concurrency.processes > 1:
        one = run.throughput.concurrency
        text = (
            f"{one.mean_processes:.2f} of {one.processes} processes were inside a batch on average, all of them "
            f"{100 * one.all_processes_share:.0f} % of the time."
        )
        blocks.append(Paragraph(text))
    return Section("Latency", [*blocks, *_outside(run)])


def _reasons(stages: Sequence[StageLine]) -> list[str]:
    """Why means have no interval, each reason once; an iteration of a benchmark is a batch here."""
    estimates = [line.cpu_mean for line in stages if line.cpu_mean is not None]
    reasons = (one.reason.replace("iterations", "batches") for one in estimates if one.reason and one.low is None)
    return list(dict.fromkeys(reasons))[:SENTENCES]


def interval_text(estimate: Estimate | None) -> str | None:
    """Both ends, ms."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    return f"{estimate.low:,.3f} to {estimate.high:,.3f}"


def _names(stages: Sequence[StageLine]) -> list[str]:
    return row_names([line.path for line in stages])


def _ranges(run: RunReport) -> Section | None:
    if not run.ranges:
        return None
    columns = [
        Column("range"), Column("count", "count"), Column("CPU total", "ms"), Column("GPU total", "ms"),
        Column("GPU busy total", "ms"),
    ]  # fmt: skip
    names = row_names([one.path for one in run.ranges])
    rows: list[list[Cell]] = [
        [name, one.count, one.cpu, one.gpu, one.gpu_busy] for name, one in zip(names, run.ranges, strict=True)
    ]
    note = "There are no batches. Sums over all occurrences of all processes, ms, warm-up included."
    return Section("Ranges", [Table("ranges", columns, rows, note)])


def _outside(run: RunReport) -> Iterator[Block]:
    if not run.outside_batches:
        return
    columns = [
        Column("stage"), Column("count", "count"), Column("CPU mean", "ms"), Column("p50", "ms"),
        Column("CPU total", "ms"), Column("GPU mean", "ms"),
    ]  # fmt: skip
    names = row_names([tuple(one.path) for one in run.outside_batches])
    rows = [
        [name, one.count, one.cpu_time.mean, one.cpu_time.p50, one.cpu_time.total, one.gpu_time.mean]
        for name, one in zip(names, run.outside_batches, strict=True)
    ]  # fmt: skip
    note = "Stages outside of batches of their recorder, ms per occurrence; not assigned to a batch."
    yield Table("outside_batches", columns, rows, note)


def _breakdown(run: RunReport, number: int, *, has_gpu: bool) -> Section | None:
    if not run.stages:
        return None
    per_item = any(line.cpu_per_item is not None for line in run.stages)
    end = "/item" if per_item else ""
    of_gpu = [
        Column(f"GPU{end}", "ms", "from the first to the last GPU operation that was started inside"),
        Column(f"busy{end}", "ms", "union of these operations"),
        Column("share of GPU busy", "share", "of the busy time of all batches; stages may overlap", has_bar=True),
    ]
    columns = [
        Column("stage"), Column(f"CPU{end}", "ms", "host time from push to pop"),
        Column("share of CPU", "share", SHARE, has_bar=True), *(of_gpu if has_gpu else []), Column("limited by"),
    ]  # fmt: skip
    rows = []
    for name, line in zip(_names(run.stages), run.stages, strict=True):
        cpu, projected, busy = _times(line, per_item=per_item)
        gpu = [projected, busy, line.gpu_busy_share] if has_gpu else []
        limited = line.limited_by and line.limited_by + (f" {line.agreement}" if line.agreement else "")
        rows.append([name, cpu, line.cpu_share, *gpu, limited])
    note = "ms an item, ratios of totals, without warm-up."
    if not per_item:
        note = "ms a batch, without warm-up: the batches counted no items, so there are no times an item."
    blocks: list[Block] = [Table("breakdown", columns, rows, note)]
    blocks += [Paragraph(f"{path_text(one.path)}: {one.reason}.", "note") for one in run.stages if one.reason]
    picture = stage_picture(f"stages_{number}", run.stages, _names(run.stages), has_gpu=has_gpu)
    return Section("Stage by stage", [*blocks, *([Chart(picture)] if picture else [])])


def _times(line: StageLine, *, per_item: bool) -> tuple[float | None, float | None, float | None]:
    """Host, projected and busy time, an item or a batch."""
    if per_item:
        return line.cpu_per_item, line.gpu_per_item, line.gpu_busy_per_item
    gpu, busy = (None if one is None else one.mean for one in (line.gpu, line.gpu_busy))
    return line.cpu.mean, gpu, busy


def _over_time(run: RunReport, number: int) -> Section | None:
    if not run.series:
        return None
    largest = sorted(range(len(run.series)), key=lambda place: -run.series[place].series.batches)[:MAX_SERIES]
    shown = [run.series[place] for place in sorted(largest)]
    blocks: list[Block] = [Chart(series_picture(f"series_{number}_{place}", one)) for place, one in enumerate(shown)]
    if len(run.series) > len(shown):
        blocks.append(
            Paragraph(f"{len(run.series) - len(shown)} more loops, with no more batches, have no chart.", "note")
        )
    distributions: list[Block] = [
        Chart(distribution_picture(f"distribution_{number}_{place}", one), small=True)
        for place, one in enumerate(run.distributions)
    ]
    below = [Section("Distributions", distributions)] if distributions else []
    return Section("Batches over time", blocks, below)


def _timelines(run: RunReport, number: int) -> Section | None:
    if not run.timelines:
        return None
    pictures = [timeline_picture(f"timeline_{number}_{one.which}", one) for one in run.timelines]
    pictures[0] = replace(pictures[0], notes=(*pictures[0].notes, HINT))
    return Section("A typical, the best and the worst batch", [Chart(picture) for picture in pictures])


# ---- diagnosis ----


def _diagnosis(run: RunReport, *, has_gpu: bool) -> Section | None:
    if not run.causes:
        return None
    paths = [one.diagnosis.path for one in run.causes]
    several = any(one.agreement.processes > 1 for one in run.causes)
    columns = [Column("stage"), Column("limited by"), *([Column("processes")] if several else []), Column("CPU", "ms")]
    columns += [Column("GPU busy", "ms")] if has_gpu else []
    columns.append(Column("saves", "ms", "what the first step saves at most"))
    rows = []
    for name, one in zip(row_names(paths), run.causes, strict=True):
        stage = one.diagnosis
        counts = ", ".join(f"{count} {code.value}" for code, count in one.agreement.verdicts.items())
        gpu = [stage.gpu_busy_ms] if has_gpu else []
        texts = [name, cause_name(stage.verdict), *([counts] if several else [])]
        rows.append([*texts, stage.wall_ms, *gpu, stage.verdict.saves_ms])
    blocks: list[Block] = [Table("diagnosis", columns, rows, "ms per batch, without warm-up.")]
    if len(run.advice) > SENTENCES:
        blocks.append(Items(limiting_sentences(run, len(run.advice)), numbered=True))
    if not run.measured.explained:
        text = "A launch with --explain finds functions, lines and what threads wait for, in a second pass."
        blocks.append(Paragraph(text, "note"))
    largest = sorted(range(len(run.causes)), key=lambda place: -run.causes[place].diagnosis.wall_ms)
    shown = [run.causes[place] for place in sorted(largest[:MAX_EVIDENCE])]
    blocks += [
        Details(
            f"{path_text(one.diagnosis.path)}: {cause_name(one.diagnosis.verdict)}"
            + (f" (figures of {one.agreement.process})" if several else ""),
            list(_evidence(one.diagnosis)),
        )
        for one in shown
    ]
    if len(shown) < len(run.causes):
        more = len(run.causes) - len(shown)
        text = f"The evidence of {more} more stages, which take less time: `perfharness analyze -v`."
        blocks.append(Paragraph(text, "note"))
    return Section("Diagnosis and evidence", blocks)


def _evidence(stage: StageDiagnosis) -> Iterator[Block]:
    yield Items([line.strip() for line in reason_lines(stage)])
    if stage.kernels:
        yield _kernels(stage.kernels, path_text(stage.path))
    if stage.functions:
        yield _functions(stage.functions, path_text(stage.path))
    yield Items([line.strip() for line in figure_lines(stage)])


def _kernels(kernels: Sequence[KernelGroup], stage: str) -> Table:
    columns = [
        Column("kernel"), Column("launches", "number"), Column("time", "ms"), Column("share", "share", has_bar=True),
        Column("mean (µs)", "number"), Column("kind"), Column("occupancy", "share"),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [short_function(one.name), one.count, one.time_ms, one.share, one.mean_us, one.kind.value, one.occupancy]
        for one in kernels
    ]
    return Table(f"kernels of {stage}", columns, rows, "Launches and time a batch; share of the stage's kernel time.")


def _functions(functions: Sequence[FunctionShare], stage: str) -> Table:
    columns = [Column("function"), Column("where"), Column("own", "share", has_bar=True), Column("total", "share")]
    rows: list[list[Cell]] = [[one.function, file_and_line(one), one.self_share, one.total_share] for one in functions]
    return Table(f"functions of {stage}", columns, rows, "Share of the stage's sampled time, alone and with callees.")


# ---- machine ----


FIGURES = (
    "power_sample_w", "power_instant_w", "power_average_w", "gpu_utilization_percent", "memory_utilization_percent",
    "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "memory_used_bytes",
)  # fmt: skip
"""Of a GPU, in the order of the table; others are in benchmark_mean.json."""


def _telemetry(run: RunReport, number: int) -> Section | None:
    if run.metrics is None:
        return None
    blocks: list[Block] = []
    columns = [
        Column("metric"), Column("mean", "number"), Column("min", "number"), Column("p50", "number"),
        Column("p95", "number"), Column("max", "number"), Column("readings", "count"),
    ]  # fmt: skip
    for gpu in run.metrics.gpus:
        rows = [_metric_row(name, gpu.figures[name]) for name in FIGURES if _is_known(gpu.figures.get(name))]
        window = "the measured window" if gpu.window == "measured" else "the whole run"
        if rows:
            title = f"{gpu_name(gpu.gpu_index, gpu.uuid)} {gpu.name or ''}".strip()
            blocks.append(Table(title, columns, rows, f"{title}, over {window}."))
        if gpu.clock_events:
            lowered = ", ".join(f"{one.reason} {one.seconds:.2f} s" for one in gpu.clock_events)
            blocks.append(Paragraph(f"{gpu_name(gpu.gpu_index, gpu.uuid)}: clocks were lowered ({lowered})."))
    host = [_metric_row(name, found) for name, found in run.metrics.host.figures.items() if _is_known(found)]
    if host:
        blocks.append(Table("host", columns, host, "The machine."))
    pictures = [] if run.sampled is None else telemetry_pictures(run.sampled)
    blocks += [Chart(replace(picture, name=f"{picture.name}_{number}")) for picture in pictures]
    return Section("Telemetry", blocks) if blocks else None


def _is_known(found: MetricFigures | None) -> bool:
    return found is not None and found.mean is not None


def _metric_row(name: str, found: MetricFigures) -> list[Cell]:
    scale, label = 1.0, name
    if name.endswith("_bytes"):
        scale, label = 1 / MIB, f"{name.removesuffix('_bytes')} (MiB)"
    else:
        stem, _, unit = name.rpartition("_")
        label = f"{stem} ({UNITS[unit]})" if unit in UNITS else name
    values = [found.mean, found.min, found.p50, found.p95, found.max]
    scaled = [None if value is None else value * scale for value in values]
    return [label.replace("_", " "), *scaled, found.new_readings]


UNITS = {"w": "W", "percent": "%", "mhz": "MHz", "c": "°C", "mj": "mJ"}


def _energy(run: RunReport) -> Section | None:
    energy = run.energy
    if energy is None or not energy.gpus:
        return None
    columns = [Column("of the GPUs"), Column("energy", "number"), Column("±", "number"), Column("unit")]
    rows = [
        ["measured window", energy.energy_j, energy.error_j, "J"],
        ["per batch", energy.energy_per_batch_j, None, "J"],
        ["per item", energy.energy_per_item_j, None, "J"],
        ["from the first process's start to the last one's end", energy.energy_run_j, None, "J"],
    ]
    blocks: list[Block] = [Table("energy", columns, rows)]
    if energy.reason:
        blocks.append(Paragraph(energy.reason, "note"))
    for gpu in energy.gpus:
        blocks += list(_stage_energy(gpu, _energy_name(run, gpu, energy)))
    return Section("Energy", blocks)


def _energy_name(run: RunReport, gpu: GpuEnergy, energy: RunEnergy) -> str:
    of = [] if run.metrics is None else [one for one in run.metrics.gpus if one.uuid == gpu.uuid]
    return gpu_name(of[0].gpu_index, gpu.uuid) if of else f"GPU {energy.gpus.index(gpu)}"


def _stage_energy(gpu: GpuEnergy, name: str) -> Iterator[Block]:
    reason = gpu.stages_reason or next((one.reason for one in gpu.stages if one.reason), None)
    if not any(one.energy_j for one in gpu.stages):
        if reason:
            yield Paragraph(f"{name}: energy by stage was not measured ({reason}).", "note")
        return
    columns = [
        Column("stage"), Column("busy (s)", "number"), Column("energy (J)", "number"), Column("bounds (J)"),
        Column("power (W)", "number"), Column("J/batch", "number"), Column("J/item", "number"), Column("remark"),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [
            last_key(one.stage), one.busy_s, one.energy_j, _interval(one.energy_j_low, one.energy_j_high),
            one.power_mean_w, one.energy_per_batch_j, one.energy_per_item_j, one.reason,
        ]
        for one in gpu.stages if one.busy_s
    ]  # fmt: skip
    yield Table(f"energy by stage, {name}", columns, rows, f"{name}, over the measured window, idle power included.")


def _interval(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"{low:,.1f} to {high:,.1f}"


def _cost(run: RunReport) -> Section | None:
    cost = run.cost
    if cost is None:
        return None
    columns = [
        Column("a million items"),
        Column("price", "number"),
        Column("cost", "number"),
        Column("±", "number"),
        Column("remark"),
    ]
    rows = [
        ["machine, an hour", cost.prices.per_hour, cost.machine, None, cost.machine_reason],
        ["energy of the GPUs, a kWh", cost.prices.per_kwh, cost.energy, cost.energy_error, cost.energy_reason],
    ]
    note = "In the currency of the prices. The energy is that of the GPUs, without the rest of the machine and cooling."
    return Section("Cost", [Table("cost", columns, rows, note)])


# ---- what must be known ----


def _findings(run: RunReport) -> Section:
    if not run.findings:
        return Section("Findings", [Paragraph("There is none.")])
    order = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
    columns = [Column("severity"), Column("process"), Column("finding"), Column("next step"), Column("code")]
    rows = [
        [one.severity.value, one.process or "", one.message, one.hint, one.code]
        for one in sorted(run.findings, key=lambda one: order.index(one.severity))
    ]
    return Section("Findings", [Table("findings", columns, rows)])


def _measured(run: RunReport) -> Section:
    columns = [Column("what"), Column("value")]
    how = Table("how it was measured", columns, list(_how(run)))
    environment = Table("environment", columns, list(_environment(run)))
    blocks: list[Block] = [how]
    processes = run.measured.processes
    if processes:
        of = [
            Column("process"), Column("ended"), Column("seconds", "number"), Column("items/s", "number"),
            Column("resident (MiB)", "number"), Column("CPUs"), Column("GPU"),
        ]  # fmt: skip
        rows = [
            [
                one.name, one.ended, one.duration_s, one.items_per_second,
                None if one.max_rss_bytes is None else one.max_rss_bytes / MIB, one.cpus, one.gpu,
            ]
            for one in processes
        ]  # fmt: skip
        blocks.append(Table("processes", of, rows))
    below = [Section("Environment", [environment])] if environment.rows else []
    return Section("How it was measured", blocks, below)


def _how(run: RunReport) -> Iterator[list[Cell]]:
    of = run.measured
    yield ["measured", of.created]
    yield ["script", of.script]
    yield ["command", " ".join(of.command) or None]
    for tracer in of.tracers:
        why = f" ({tracer.reason})" if tracer.reason else ""
        yield ["tracer", f"{tracer.kind} {tracer.version or ''}".strip() + why]
    yield ["warm-up", f"{of.warmup_batches} batches at both ends of each loop are left out"]
    yield ["telemetry", "sampled during the run" if of.sampled else "not sampled"]
    yield ["profiling pass", "yes, a second pass; times are of the first" if of.explained else "no"]
    if of.clock_error_ns is not None:
        yield ["clock", f"tied to UTC within {of.clock_error_ns / 1e3:,.1f} µs"]
    yield ["analysed by", f"perfharness {of.analysed_by}"]


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
        memory = "" if gpu.memory_total_bytes is None else f", {gpu.memory_total_bytes / GIB:.0f} GiB"
        yield [f"GPU {gpu.index}", f"{gpu.name or 'unknown'}{memory}{', MIG' if gpu.mig else ''}"]
