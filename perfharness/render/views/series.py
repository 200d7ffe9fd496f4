"""Several launches: repeats, numbers of processes, cold starts, tracing overhead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfharness.model.result import path_of
from perfharness.render.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Figure,
    Figures,
    Items,
    Paragraph,
    Section,
    Table,
    omitted,
)
from perfharness.render.charts.scaling import scaling_picture
from perfharness.render.numbers import milliseconds, ms, number, with_half
from perfharness.render.views.findings import finding_sentence
from perfharness.render.views.names import row_names
from perfharness.runs.figures import QUANTILES
from perfharness.runs.series.model import TRACED, UNTRACED, WHOLE, Overhead, Series, Summary
from perfharness.runs.series.overhead import percent

MAX_STAGES = 40

REPEATED = {
    "wall": ("cpu_time", 0),
    "p50": ("cpu_time_p50", 3),
    "p95": ("cpu_time_p95", 4),
    "GPU": ("gpu_time", 1),
    "busy": ("gpu_busy_time", 5),
    "wall/item": ("cpu_time_per_item", 2),
    "GPU/item": ("gpu_time_per_item", 6),
}
"""Heading -> metric and `Column.drop`."""

SCALED = {
    "items_per_second": Column("items/s", "number"),
    "speedup": Column("speed-up", "number", drop=1),
    "efficiency": Column("efficiency", "share", has_bar=True, drop=4),
    "latency_p50_ms": Column("p50, ms", "ms", drop=2),
    "latency_p99_ms": Column("p99, ms", "ms", drop=3),
    "gpu_busy_share": Column("GPU busy", "share", has_bar=True, drop=5),
    "gpu_power_w": Column("W", "number", drop=6),
}
"""Figure of a scaling run -> column."""

STARTED = {
    "process_to_first_batch_ms": "to the first batch",
    "interpreter_and_imports_ms": "  interpreter and imports",
    "cuda_context_ms": "  CUDA context",
    "model_load_ms": "  model load",
    "start_barrier_wait_ms": "  start barrier",
    "other_ms": "  other",
    "first_batch_ms": "first batch",
    "process_to_first_result_ms": "to the first result",
    "process_ms": "  interpreter, perfharness",
    "import_ms": "  import of the framework",
    "build_ms": "  build",
    "load_ms": "  load",
    "allocate_ms": "  allocate",
    "first_inference_ms": "  first inference",
}
"""Figure of a start -> label."""

OF_LAUNCHES = {"items_per_second": "items/s", "duration_s": "process, s", "cpu_s": "CPU time of processes, s"}
"""Figure of a launch -> label."""

TITLES = {
    "repeat": "Repeated launches",
    "processes": "Scaling over processes",
    "cold": "Cold starts",
    "overhead": "Tracing overhead",
}


def series_view(series: Series) -> list[Block]:
    """Conclusion, table, and launches that were not measured."""
    tables = {"repeat": _repeat, "processes": _processes, "cold": _cold, "overhead": _overhead}
    blocks = [] if series.conclusion is None else [Paragraph(series.conclusion)]
    reasons = {row.reason: row.folder for row in reversed(series.not_measured)}  # each once
    missing = [f"{folder}: {reason}" for reason, folder in reversed(reasons.items())]
    return [*blocks, *tables[series.kind](series), *([Items(missing)] if missing else [])]


def series_section(series: Series, shown: str | None) -> Section:
    """Section of a report.

    Args:
        shown: folder of the only launch in the rest of the report, or None if all are there.
    """
    blocks = series_view(series)
    if series.kind == "processes":
        blocks.append(Chart(scaling_picture(series)))
    if series.findings:
        blocks.append(Items([finding_sentence(one) for one in series.findings]))
    if shown is not None:
        text = f"The rest of this report is about {shown}, the launch with the median batch time."
        blocks.append(Paragraph(text, "note"))
    return Section(TITLES[series.kind], blocks)


def mean_text(one: Summary | None) -> Cell:
    """Mean ± half of its interval, ms."""
    if one is None or one.mean is None:
        return None
    if one.low is None or one.high is None:
        return ms(one.mean)
    return with_half(one.mean, (one.high - one.low) / 2)


def _repeat(series: Series) -> Iterator[Block]:
    return (block for label in series.summary for block in _means(series, label))


def _means(series: Series, label: str) -> Iterator[Block]:
    count, summary = len(series.measured(label)), series.summary[label]
    stages = {path: metrics for path, metrics in summary.items() if path != WHOLE}
    columns = {
        metric: Column(heading, "ms", drop=drop)
        for heading, (metric, drop) in REPEATED.items()
        if any(metric in metrics and metrics[metric].count for metrics in stages.values())
    }
    cells = {path: [mean_text(metrics.get(metric)) for metric in columns] for path, metrics in stages.items()}
    name = f"{label}: " if len(series.summary) > 1 else ""
    spread = f"{count} launches ± half of the 95 % interval" if count > 1 else "1 launch (no interval)"
    note = f"ms per batch, without warm-up: {name}mean of {spread}"
    yield from _stages("launches", list(columns.values()), cells, note)
    rate = summary.get(WHOLE, {}).get("items_per_second")
    if rate is None or rate.mean is None:
        yield Paragraph(f"Throughput not measured: {rate.reason if rate else 'no launch measured it'}.")
    else:
        mean = number(rate.mean) if rate.low is None or rate.high is None else mean_text(rate)
        yield Figures([Figure("Throughput", f"{mean} items/s")])


def _stages(name: str, columns: Sequence[Column], cells: Mapping[str, Sequence[Cell]], note: str) -> Iterator[Block]:
    shown = list(cells)[:MAX_STAGES]
    names = row_names([path_of(path) for path in shown])
    rows = [[name, *cells[path]] for name, path in zip(names, shown, strict=True)]
    if rows:
        yield Table(name, [Column("stage"), *columns], rows, note)
    yield from omitted(len(cells) - MAX_STAGES, "more stages are in series.json.")


def _processes(series: Series) -> Iterator[Block]:
    figures = [row.figures.get(WHOLE, {}) for row in series.rows]
    columns = {name: column for name, column in SCALED.items() if any(found.get(name) for found in figures)}
    rows: list[list[Cell]] = []
    for row, found in zip(series.rows, figures, strict=True):
        remarks = [row.reason if row.status == "ok" else row.status.replace("_", " "), *row.findings]
        rows.append([row.num_processes, *map(found.get, columns), "; ".join(filter(None, remarks))])
    remark = [Column("remark")] if any(row[-1] for row in rows) else []
    if columns:
        shown = [Column("-np", "count"), *columns.values(), *remark]
        yield Table("scaling", shown, [row[: len(shown)] for row in rows])


def _cold(series: Series) -> Iterator[Block]:
    labels = [label for label in ("cold", "warm") if label in series.summary]
    found = [series.summary[label].get(WHOLE, {}) for label in labels]
    counts = [len(series.measured(label)) for label in labels]
    starts = [f"{label} cache, {count} start{'s'[: count != 1]}" for label, count in zip(labels, counts, strict=True)]
    columns = [Column("ms, median (range)"), *(Column(start, "ms") for start in starts)]
    rows: list[list[Cell]] = [
        [title, *(_range(summary.get(name)) for summary in found)]
        for name, title in STARTED.items()
        if any(name in summary and summary[name].max for summary in found)
    ]
    if rows:
        yield Table("cold starts", columns, rows)
    first = series.rows[0].figures.get(WHOLE, {}).get("container_to_first_batch_ms")
    if first is not None:
        yield Paragraph(f"Container start to first batch: {milliseconds(first)} (first launch).")


def _range(one: Summary | None) -> Cell:
    if one is None or one.median is None:
        return None
    return f"{one.median:.1f} ({one.min:.1f} to {one.max:.1f})"


def _overhead(series: Series) -> Iterator[Block]:
    sides = [series.summary.get(label, {}) for label in (UNTRACED, TRACED)]
    added = [Column("untraced", "ms"), Column("traced", "ms", drop=1), Column("overhead", "share")]
    columns = [*added, Column("95 %", "share", drop=2)]
    cells = {
        path: [*(mean_text(side.get(path, {}).get("cpu_time")) for side in sides), *_added(found.get("cpu_time"))]
        for path, found in series.overhead.items()
        if path != WHOLE
    }
    yield from _stages("overhead", columns, cells, "ms per batch, without warm-up: mean ± half of the 95 % interval")
    for path in series.loops:
        times = sides[0].get(path, {})
        shown = {name: mean_text(times.get(f"cpu_time_{name}")) for name in QUANTILES}
        texts = [f"{name} {text}" for name, text in shown.items() if text is not None]
        if texts:
            yield Paragraph(f"Untraced latency of {path}, ms: {', '.join(texts)}")
    whole = series.overhead.get(WHOLE, {})
    rows: list[list[Cell]] = [
        [title, *(mean_text(side.get(WHOLE, {}).get(name)) for side in sides), *_added(whole[name])]
        for name, title in OF_LAUNCHES.items()
        if name in whole
    ]
    if rows:
        yield Table("overhead of launches", [Column("per launch"), *columns], rows)


def _added(one: Overhead | None) -> list[Cell]:
    if one is None or one.overhead is None:
        return [None, None]
    interval = None if one.low is None else f"{percent(one.low)} to {percent(one.high)}"
    return [percent(one.overhead), interval]
