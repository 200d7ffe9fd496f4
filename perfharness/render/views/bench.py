"""Suites of `bench`, alone and side by side: cases, batch sizes, recommendations, charts, machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain

from perfharness.analysis.suites.bench_figures import (
    MUCH_CLOCK_DROP_PERCENT,
    accuracy_of,
    baseline_of,
    drift_line,
    gives_wrong_answers,
    latency_of,
    memory_of,
    speedup,
    unsteady_speed,
)
from perfharness.analysis.suites.bench_names import (
    CaseNames,
    device_text,
    first_line,
    in_groups,
    short_backend,
    status_line,
)
from perfharness.analysis.suites.recommend import separable
from perfharness.model.bench import BenchCase, CaseResult, Estimate
from perfharness.model.bench_suite import (
    BenchMergedResult,
    BenchSuiteResult,
    MergedCell,
    MissedConstraint,
    Recommendation,
)
from perfharness.render.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Columns,
    Items,
    Line,
    Paragraph,
    Section,
    Table,
    facts,
    filled,
    table_of,
)
from perfharness.render.charts.bench import bench_pictures, by_model, layers_of_best
from perfharness.render.numbers import Kind, factor, interval, scaled, significant
from perfharness.runs.report.model import MergedReport

Entry = Line | list[Line]
ACCURACY = ("top1", "f1_macro", "mae", "r2", "cosine")
"""Default metrics in the table of cases."""

SUBJECTS = {
    "speedup": "Speed-up",
    "throughput": "Throughput",
    "latency": "Latency",
    "memory": "Memory",
    "accuracy": "Accuracy loss over speed-up",
    "power": "Power over throughput",
    "layers": "Time",
}


def suite_view(suite: BenchSuiteResult) -> list[Block]:
    """Recommendations, cases, remarks, largest batch sizes, and reasons."""
    return [*_winners(suite), *_cases(suite), *_layers(suite), *_searches(suite), *suite_summary(suite)]


def _winners(suite: BenchSuiteResult) -> list[Block]:
    """Recommended case of each model, with its throughput and speed-up."""
    names, known = _names(suite)
    found: list[Block] = []
    for best in (known[one.best] for one in suite.recommendations if one.best is not None):
        base = baseline_of(best, suite.cases, suite.baseline)
        gained = None if base is best else speedup(best, base)
        against = f", {_factor(gained)} of {short_backend(suite.baseline or '?')}" if gained is not None else ""
        rate = "" if best.items_per_second is None else f": {significant(best.items_per_second.value)} items/s"
        found.append(Paragraph(f"{best.case.model}: take {names.case(best.case)}{rate}{against}"))
    return found


def _layers(suite: BenchSuiteResult) -> list[Block]:
    """Layers of the recommended case of each model, longest first, or the reason why they are missing."""
    tables: list[Block] = []
    for own, _, _ in by_model(suite):
        if (found := layers_of_best(own)) is None:
            taken = {one.best for one in own.recommendations}
            tables += [
                Paragraph(f"Layers of {CaseNames.of([one.case]).case(one.case)}: {one.reasons['layers']}")
                for one in own.cases
                if one.case.case_id in taken and "layers" in one.reasons
            ]
            continue
        best, layers = found
        whole = sum(layer["ms"] for layer in layers) or 1.0
        columns = [Column("layer"), Column("ms", "ms"), Column("share", "share")]
        rows: list[list[Cell]] = [[layer["name"], layer["ms"], layer["ms"] / whole] for layer in layers]
        note = f"Layers of {CaseNames.of([best.case]).case(best.case)}, from a separate pass."
        tables.append(Table("layers", columns, rows, note))
    return tables


def _searches(suite: BenchSuiteResult) -> list[Block]:
    """Largest batch of each cell, and the end of its search."""
    names = CaseNames.of(suite.searches, with_model=False)
    lines = [
        f"{one.model}, {names.cell(one)}: largest batch {one.batch_size or '-'}: {first_line(one.reason)}"
        for one in suite.searches
    ]
    return [Items(lines)] if lines else []


def suite_sections(suite: BenchSuiteResult) -> list[Section]:
    """Cases, charts, and how they were measured."""
    charts = [Chart(replace(one, title=f"{_subject(one.name)} of {one.title}")) for one in bench_pictures(suite)]
    sections = [
        Section("Cases", [*_cases(suite), *_searches(suite)]),
        Section("Charts", [*charts, *_layers(suite)] if charts else []),
        Section("How it was measured", [_measured(suite)]),
    ]
    return filled(sections)


def merged_sections(found: MergedReport) -> list[Section]:
    """Equal cases of all runs in one row, and differences between the runs."""
    merged = found.merged
    kinds: dict[str, Kind] = {"p50": "ms", "items/s": "number", "speed-up": "number"}
    columns = [Column("model"), Column("backend/mode"), Column("precision"), Column("batch", "count")]
    columns += [Column(f"{run.name}: {heading}", kind) for run in merged.runs for heading, kind in kinds.items()]
    names = CaseNames.of(merged.rows)
    rows: list[list[Cell]] = [
        [row.model, names.backend(row), row.precision, row.batch_size, *chain.from_iterable(map(_side, row.cells))]
        for row in merged.rows
    ]
    note = f"{len(merged.runs)} runs; speed-ups are over each run's baseline."
    table = Table("cases side by side", columns, rows, note)
    return [Section("Side by side", [table, Items(list(_merged_remarks(merged)))])]


def _side(cell: MergedCell) -> list[Cell]:
    result = cell.result
    if result is None or result.status != "ok":
        return [None] * 3
    return [_value(latency_of(result, "p50")), _value(result.items_per_second), _factor(cell.speedup)]


# ---- cases ----


def _cases(suite: BenchSuiteResult) -> list[Block]:
    return [cases_table(suite), Items([*_remarks(suite), *_notes(suite)])]


def cases_table(suite: BenchSuiteResult) -> Table:
    """One row per case, without empty columns."""
    names, metric = CaseNames.of(result.case for result in suite.cases), suite.constraints.accuracy_metric
    estimates: dict[str, Callable[[CaseResult], Estimate | None]] = {
        "items/s": lambda one: one.items_per_second,
        "p50": lambda one: latency_of(one, "p50"),
        "p95": lambda one: latency_of(one, "p95"),
        "p99": lambda one: latency_of(one, "p99"),
        "J/item": lambda one: one.energy_per_item_j,
    }

    def metric_of(name: str) -> Callable[[CaseResult], Cell]:
        return lambda one: _six_digits(accuracy_of(one, None if name == "cosine" else name))

    def value(name: str) -> Callable[[CaseResult], Cell]:
        return lambda one: _value(estimates[name](one))

    def ends(name: str) -> Callable[[CaseResult], Cell]:
        return lambda one: _ends(estimates[name](one))

    meaning = "ratio of items/s to the baseline; ~: the interval includes 1"
    columns: Columns[CaseResult] = [
        (Column("model"), lambda one: one.case.model if names.with_model else None),
        (Column("backend/mode"), lambda one: names.backend(one.case)),
        (Column("precision"), lambda one: one.case.precision),
        (Column("GPU"), lambda one: one.case.gpu if names.with_gpu else None),
        (Column("batch", "count"), lambda one: one.case.batch_size),
        (Column("p50 ms", "ms"), value("p50")),
        (Column("p95 ms", "ms", drop=4), value("p95")),
        (Column("p99 ms", "ms", drop=2), value("p99")),
        (Column("items/s", "number", drop=1), value("items/s")),
        (Column("speed-up", "number", meaning), lambda one: _speedup(one, suite)),
        (Column("state"), _state),
        (Column("memory GB", "number", drop=3), lambda one: scaled(memory_of(one), 1e9)),
        (Column("W", "number", "mean power", drop=7), lambda one: one.power_mean_w),
        (Column("J/item", "number", drop=5), value("J/item")),
        *((Column(name, "number", drop=6), metric_of(name)) for name in ([metric] if metric else ACCURACY)),
        *((Column(f"95 % of {name}", drop=8 + place), ends(name)) for place, name in enumerate(estimates)),
    ]
    models = "" if names.with_model or not suite.cases else f"{suite.cases[0].case.model}. "
    note = f"{models}Latency of a batch: copy in, execute, copy out, synchronize."
    table = table_of("cases", columns, suite.cases, note)
    kept = [place for place in range(len(columns)) if any(row[place] not in (None, "") for row in table.rows)]
    rows = [[row[place] for place in kept] for row in table.rows]
    return replace(table, columns=[table.columns[place] for place in kept], rows=rows)


def _speedup(result: CaseResult, suite: BenchSuiteResult) -> Cell:
    base = baseline_of(result, suite.cases, suite.baseline)
    return "base" if base is result and result.status == "ok" else _factor(speedup(result, base))


def _six_digits(value: float | None) -> Cell:
    return None if value is None else f"{value:.6g}"


def _state(result: CaseResult) -> str:
    if result.status != "ok":
        return result.status
    return "wrong answer" if gives_wrong_answers(result) else ""


def _value(estimate: Estimate | None) -> Cell:
    return None if estimate is None else estimate.value


def _factor(estimate: Estimate | None) -> Cell:
    return None if estimate is None else factor(estimate.value, estimate.low, estimate.high)


def _ends(estimate: Estimate | None) -> Cell:
    return None if estimate is None else interval(estimate.low, estimate.high, "number")


def _remarks(suite: BenchSuiteResult) -> Iterator[Entry]:
    """Remarks and reasons for a status, grouped; cases are not listed if the table's status identifies them."""
    names = CaseNames.of(result.case for result in suite.cases)
    status_lines = {(result.status, line) for result in suite.cases if (line := status_line(result)) is not None}
    statuses = [status for status, _ in status_lines]
    known = {line for status, line in status_lines if statuses.count(status) == 1}
    for text, cases in in_groups((text, result.case) for result in suite.cases for text in _remarks_on(result)):
        cells = names.cells(cases)
        yield f"{_count(cases)}: {text}" if len(cells) > 1 and text in known else _listed(text, cells, len(cases))


def _remarks_on(result: CaseResult) -> Iterator[str]:
    if (status := status_line(result)) is not None:
        yield status
    equality = result.equality
    if equality is not None and equality.equal is False:
        yield f"wrong answer: {equality.reason or 'outputs differ'} (reference {short_backend(equality.reference)})"
    elif equality is not None and equality.equal is None and result.status == "ok":
        yield f"outputs not compared: {equality.reason}"
    if result.clock_drop_percent is not None and result.clock_drop_percent > MUCH_CLOCK_DROP_PERCENT:
        yield f"GPU clock fell by {result.clock_drop_percent:.0f} %"
    if result.latency is not None and result.latency.stable is False:
        yield "latency not stable at the end of the measurement"
    yield from filter(None, (drift_line(result.latency), unsteady_speed(result)))


def _listed(text: str, cells: list[str], count: int) -> Entry:
    """One line for one cell, else two with the cells below."""
    return f"{cells[0]}: {text}" if len(cells) == 1 else [f"{count} cases: {text}", "; ".join(cells)]


def _count(cases: Iterable[object]) -> str:
    count = len(list(cases))
    return f"{count} case" if count == 1 else f"{count} cases"


def _notes(suite: BenchSuiteResult) -> Iterator[str]:
    done, machine = sum(result.status == "ok" for result in suite.cases), suite.machine
    yield f"{done} of {_count(suite.cases)} measured on {machine.hostname} ({device_text(machine)})"
    if suite.baseline is not None:
        yield f"speed-up: ratio of items/s to {short_backend(suite.baseline)} at the same batch size"
    yield from suite.remarks


# ---- recommendations ----


def _names(suite: BenchSuiteResult) -> tuple[CaseNames, dict[str, CaseResult]]:
    """Names without the model, and cases by id."""
    names = CaseNames.of((result.case for result in suite.cases), with_model=False)
    return names, {result.case.case_id: result for result in suite.cases}


def suite_summary(suite: BenchSuiteResult) -> list[Block]:
    """Recommended case of each model, with reasons against the others."""
    names, known = _names(suite)
    blocks: list[Block] = []
    for one in suite.recommendations:
        taken = one.best or one.nearest
        what = "take" if one.best else "none meets the constraints; the nearest is"
        choice = "nothing to recommend" if taken is None else f"{what} {names.case(known[taken].case)} ({taken})"
        blocks.append(Section(f"{one.model}: {choice}", [Items(list(_reasons(one, names, known)))]))
    return blocks


def _reasons(found: Recommendation, names: CaseNames, known: dict[str, CaseResult]) -> Iterator[Entry]:
    """Reasons for the recommended case and against the others; cases that were not measured are counted."""

    def named(what: str, cases: Iterable[BenchCase]) -> Entry:
        cells = names.cells(cases)
        return f"{what}: {cells[0]}" if len(cells) == 1 else [f"{what}:", "; ".join(cells)]

    yield from found.why
    if found.ties:
        yield named("equally fast within the intervals", [known[one].case for one in found.ties])
    measured = [(known[one.case_id].case, one) for one in found.excluded if known[one.case_id].status == "ok"]
    missed = [(case, one) for case, excluded in measured for one in excluded.missed]
    for (what, limit), over in in_groups(
        ((f"{one.what} over {one.limit:.10g} {one.unit}".rstrip(), one.limit), (case, one))
        for case, one in missed
        if one.value is not None
    ):
        cells = in_groups((names.cell(case), (case.batch_size, one)) for case, one in over)
        yield [f"{what}, {_count(over)}:", *(f"{cell}: {_over(found, limit)}" for cell, found in cells)]
    unmeasured = (
        (f"{one.what} was not measured{f' ({first_line(one.reason)})' if one.reason else ''}", case)
        for case, one in missed
        if one.value is None
    )
    unfit = ((first_line(one.reason), case) for case, one in measured if not one.missed)
    for why, cases in (*in_groups(unmeasured), *in_groups(unfit)):
        yield named(f"{why}, {_count(cases)}", cases)
    if len(found.excluded) > len(measured):
        yield f"not measured: {_count(found.excluded[len(measured) :])} (see the remarks above)"


def _over(found: Iterable[tuple[int, MissedConstraint]], limit: float) -> str:
    """`5.1 ms at batch 16, 9.8 ms at 32`."""
    figures = []
    for place, (size, one) in enumerate(sorted(found, key=lambda pair: pair[0])):
        value, _ = separable(one.value or 0.0, limit)
        figures.append(f"{value} {one.unit}".rstrip() + f" at {'' if place else 'batch '}{size}")
    return ", ".join(figures)


# ---- side by side, machine ----


def _merged_remarks(merged: BenchMergedResult) -> Iterator[Entry]:
    for run in merged.runs:
        against = short_backend(run.baseline or "?")
        yield f"{run.name}: {device_text(run.machine)}, {run.created}, speed-up over {against} ({run.path})"
    names = CaseNames.of(merged.rows)
    cells = ((row, cell) for row in merged.rows for cell in row.cells if cell.reason is not None)
    for (run_name, reason), rows in in_groups(((cell.run, first_line(cell.reason or "")), row) for row, cell in cells):
        yield _listed(f"{reason} ({run_name})", names.cells(rows), len(rows))
    yield from (f"differs: {one}" for one in merged.differences)


def _subject(name: str) -> str:
    """`bench_throughput_net` -> `Throughput`."""
    return next((text for key, text in SUBJECTS.items() if key in name.split("_")), "Results")


def _measured(suite: BenchSuiteResult) -> Table:
    machine = suite.machine
    versions = dict(item for result in suite.cases for item in result.versions.items())
    known = {
        "measured": suite.created,
        "command": " ".join(suite.command),
        "machine": machine.hostname,
        "GPUs": ", ".join(machine.gpus),
        "CPU": machine.cpu,
        "baseline": suite.baseline,
        **{name: None if value is None else str(value) for name, value in suite.settings.items()},
        **{f"version of {name}": version for name, version in versions.items()},
    }
    return facts("how it was measured", [[name, value] for name, value in known.items() if value])
