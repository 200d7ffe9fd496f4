"""A suite of `bench`, or a sweep, as sections of a report: what to take, every case, charts, the machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from perfharness.analysis.suites.bench_figures import (
    accuracy_of,
    baseline_of,
    latency_of,
    memory_of,
    speedup,
)
from perfharness.analysis.suites.bench_names import CaseNames
from perfharness.model.bench import Estimate
from perfharness.model.bench_suite import BenchSuiteResult
from perfharness.render.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Figure,
    Figures,
    Items,
    Section,
    Table,
)
from perfharness.render.charts.bench import bench_pictures, sweep_pictures
from perfharness.render.numbers import significant
from perfharness.render.terminal.bench import (
    WRONG,
    merged_remarks,
    notes,
    recommendation_lines,
    row_remarks,
    side_by_side,
    state_text,
)
from perfharness.runs.report.model import MergedReport, SuiteReport

GB = 1e9


def suite_summary(found: SuiteReport) -> Iterator[Block]:
    """What to take, and why."""
    suite = found.suite
    yield Figures(list(_first_figures(suite)))
    for recommendation in suite.recommendations:
        yield Items(_joined(recommendation_lines(recommendation, suite.cases)))


def suite_sections(found: SuiteReport) -> list[Section]:
    """Every case, the charts, and how it was measured."""
    suite = found.suite
    pictures = sweep_pictures(found.sweep) if found.sweep else bench_pictures(suite)
    below = (line for line in notes(suite) if not line.startswith(f"{WRONG}:"))  # the table has no such mark
    remarks = _joined((*row_remarks(suite), *below), first=0)
    cases: list[Block] = [cases_table(suite), *([Items(remarks)] if remarks else [])]
    sections = [Section("Cases", cases)]
    if pictures:
        named = [replace(picture, title=f"{_subject(picture.name)} of {picture.title}") for picture in pictures]
        sections.append(Section("Charts", [Chart(picture) for picture in named]))
    return [*sections, Section("How it was measured", [_measured(suite)])]


def _joined(lines: Iterable[str], first: int = 2) -> list[str]:
    """Lines of a terminal; what is indented by more than `first` belongs to the line before it."""
    found: list[str] = []
    for line in lines:
        if len(line) - len(line.lstrip(" ")) > first and found:
            found[-1] += f" {line.strip()}"
        else:
            found.append(line.strip())
    return found


def merged_sections(found: MergedReport) -> list[Section]:
    """Every case with the figures of each run, what is not the same, the chart."""
    merged = found.merged
    columns = [Column("model"), Column("backend/mode"), Column("precision"), Column("batch", "count")]
    for run in merged.runs:
        columns += [
            Column(f"{run.name}: p50", "ms"), Column(f"{run.name}: items/s", "number"),
            Column(f"{run.name}: speed-up", "number"),
        ]  # fmt: skip
    rows: list[list[Cell]] = []
    for row in merged.rows:
        backend = " ".join(part for part in (f"{row.backend}/{row.mode}", row.device, row.variant) if part)
        cells: list[Cell] = [row.model, backend, row.precision, row.batch_size]
        for cell in row.cells:
            result = cell.result if cell.result is not None and cell.result.status == "ok" else None
            cells += [
                None if result is None else _value(latency_of(result, "p50")),
                None if result is None else _value(result.items_per_second),
                None if result is None else _value(cell.speedup),
            ]
        rows.append(cells)
    note = f"{side_by_side(merged)}; speed-ups are against the baseline of each."
    blocks: list[Block] = [Table("cases side by side", columns, rows, note)]
    blocks += [Items([*merged_remarks(merged), *(f"not the same: {one}" for one in merged.differences)])]
    return [Section("Side by side", blocks)]


SUBJECTS = {
    "speedup": "Speed-up", "throughput": "Throughput", "latency": "Latency",
    "memory": "Memory", "accuracy": "Accuracy loss over speed-up", "layers": "Time",
}  # fmt: skip


def _subject(name: str) -> str:
    """What a chart is about, by its name (`bench_throughput_net`)."""
    return next((text for key, text in SUBJECTS.items() if key in name.split("_")), "Results")


def _first_figures(suite: BenchSuiteResult) -> Iterator[Figure]:
    names = CaseNames.of((result.case for result in suite.cases), with_model=False)
    known = {result.case.case_id: result for result in suite.cases}
    measured = sum(result.status == "ok" for result in suite.cases)
    yield Figure("cases measured", f"{measured} of {len(suite.cases)}", suite.machine.hostname)
    for one in suite.recommendations:
        if one.best is None:
            yield Figure(one.model, "nothing to recommend", "none meets the constraints")
            continue
        best = known[one.best]
        rate = "" if best.items_per_second is None else f"{significant(best.items_per_second.value)} items/s"
        yield Figure(f"take for {one.model}", names.case(best.case), rate)
        gained = speedup(best, baseline_of(best, suite.cases, suite.baseline))
        if gained is not None:
            yield Figure("speed-up", f"{gained.value:.2f}", f"against {suite.baseline}")


def cases_table(suite: BenchSuiteResult) -> Table:
    """A row a case; columns that nothing fills are left out."""
    names = CaseNames.of(result.case for result in suite.cases)
    metric = suite.constraints.accuracy_metric
    columns = [
        *([Column("model")] if names.with_model else []), Column("backend/mode"), Column("precision"),
        Column("batch", "count"), Column("p50", "ms"), Column("p95", "ms"), Column("p99", "ms"),
        Column("items/s", "number"), Column("95 % of items/s"), Column("speed-up", "number"),
        Column("memory (GB)", "number"), Column("power (W)", "number"), Column("J/item", "number"),
        Column(metric or "cosine", "number"), Column("state"),
    ]  # fmt: skip
    rows = []
    for result in suite.cases:
        base = baseline_of(result, suite.cases, suite.baseline)
        memory = memory_of(result)
        rows.append([
            *([result.case.model] if names.with_model else []),
            names.backend(result.case), result.case.precision, result.case.batch_size,
            *(_value(latency_of(result, which)) for which in ("p50", "p95", "p99")),
            _value(result.items_per_second), _ends(result.items_per_second), _value(speedup(result, base)),
            None if memory is None else memory / GB, result.power_mean_w, _value(result.energy_per_item_j),
            accuracy_of(result, metric), state_text(result),
        ])  # fmt: skip
    kept = [place for place in range(len(columns)) if any(row[place] not in (None, "") for row in rows)]
    return Table(
        "cases",
        [columns[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
        "Latencies are of a batch, ms: copy in, execute, copy out, synchronised.",
    )


def _value(estimate: Estimate | None) -> Cell:
    return None if estimate is None else estimate.value


def _ends(estimate: Estimate | None) -> Cell:
    if estimate is None or estimate.interval is None:
        return None
    return " to ".join(significant(end) for end in estimate.interval)


def _measured(suite: BenchSuiteResult) -> Table:
    machine = suite.machine
    rows: list[list[Cell]] = [
        ["measured", suite.created or None],
        ["command", " ".join(suite.command) or None],
        ["machine", machine.hostname],
        ["GPUs", ", ".join(machine.gpus) or None],
        ["CPU", machine.cpu],
        ["baseline", suite.baseline],
    ]
    rows += [[name, str(value)] for name, value in suite.settings.items() if value is not None]
    versions = dict(item for result in suite.cases for item in result.versions.items())
    rows += [[f"version of {name}", version] for name, version in versions.items()]
    return Table("how it was measured", [Column("what"), Column("value")], [row for row in rows if row[1] is not None])
