"""A suite on the terminal: one row per case, reasons, the recommendation; and runs of several machines in one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from perfharness.analysis.suites.bench_figures import (
    MUCH_CLOCK_DROP_PERCENT,
    accuracy_of,
    baseline_of,
    drift_line,
    gives_wrong_answers,
    in_significant_digits,
    latency_of,
    memory_of,
    speedup,
    unsteady_speed,
)
from perfharness.analysis.suites.bench_names import CaseNames, in_groups, short_backend
from perfharness.analysis.suites.recommend import separable
from perfharness.model.bench import BenchCase, CaseResult, Estimate, LatencyPercentile
from perfharness.model.bench_suite import (
    BenchMergedResult,
    BenchSuiteResult,
    MergedRow,
    Recommendation,
)
from perfharness.render.terminal.console import Column, print_table, say, styled
from perfharness.render.text import NOT_MEASURED

LISTED_WIDTH = 110
"""Line width of a list of cells."""

WRONG = "!"
"""Prefix of a speed with wrong outputs."""

DROPPED = {"items/s": 1, "p99 ms": 2, "memory": 3, "p95 ms": 4, "J/item": 5, "cosine": 6}
"""Columns that a narrow terminal lacks, the last ones first."""

PERCENTILES: tuple[LatencyPercentile, ...] = ("p50", "p95", "p99")
FIGURES = ("p50 ms", "p95 ms", "p99 ms", "items/s", "speed-up", "memory", "J/item")


def print_suite(console: Console, suite: BenchSuiteResult) -> None:
    """Print one row per case in the suite's order, remarks on the rows, and the recommendations."""
    models = list(dict.fromkeys(case.case.model for case in suite.cases))
    names, metric = CaseNames.of(case.case for case in suite.cases), suite.constraints.accuracy_metric
    absent = {
        "model": not names.with_model,
        "J/item": not any(case.energy_per_item_j for case in suite.cases),
        "cosine": all(accuracy_of(case, metric) is None for case in suite.cases),
    }
    columns = {
        **{name: Column(name, is_text=True, is_whole=True) for name in ("model", "backend/mode", "precision")},
        "batch": Column("batch"),
        **{name: Column(name, drop=DROPPED.get(name, 0)) for name in FIGURES},
        "cosine": Column(metric or "cosine", drop=DROPPED["cosine"]),
        "state": Column("", is_text=True, is_whole=True),
    }
    rows = []
    for result in suite.cases:
        accuracy = accuracy_of(result, metric)
        cells = {
            "model": result.case.model,
            "backend/mode": names.backend(result.case),
            "precision": result.case.precision,
            "batch": str(result.case.batch_size),
            **_figures(result, suite),
            "cosine": NOT_MEASURED if accuracy is None else f"{accuracy:.6g}",
            "state": state_text(result),
        }
        style = "" if result.status == "ok" else "dim"
        rows.append([Text(cells[name], style) for name in columns if not absent.get(name)])
    if len(models) == 1:
        say(console, styled(models[0], "bold"))
    print_table(console, [column for name, column in columns.items() if not absent.get(name)], rows)
    for line in [*row_remarks(suite), *notes(suite)]:
        say(console, line)
    for recommendation in suite.recommendations:
        for line in ("", *recommendation_lines(recommendation, suite.cases)):
            say(console, line)


def state_text(result: CaseResult) -> str:
    """In the last column of a case: why it has no figures, or that they are those of a wrong answer."""
    if result.status != "ok":
        return result.status
    return "wrong answer" if gives_wrong_answers(result) else ""


def _figures(result: CaseResult, suite: BenchSuiteResult) -> dict[str, str]:
    if result.status != "ok":
        return dict.fromkeys(FIGURES, NOT_MEASURED)
    base = baseline_of(result, suite.cases, suite.baseline)
    mark = WRONG if gives_wrong_answers(result) else ""

    latencies = {f"{which} ms": in_significant_digits(latency_of(result, which)) for which in PERCENTILES}
    return {
        **latencies,
        "items/s": mark + in_significant_digits(result.items_per_second),
        "speed-up": "base" if base is result else mark + speedup_text(speedup(result, base)),
        "memory": bytes_text(memory_of(result)),
        "J/item": in_significant_digits(result.energy_per_item_j),
    }


def row_remarks(suite: BenchSuiteResult) -> Iterator[str]:
    """Why cases are not `ok`, and other remarks; cases with the same reason are grouped.

    Where it is the only reason of a status, the table's rows identify the cases.
    """
    names = CaseNames.of(case.case for case in suite.cases)
    status_lines = {(result.status, text) for result in suite.cases if (text := status_line(result)) is not None}
    statuses = [status for status, _ in status_lines]
    known_texts = {text for status, text in status_lines if statuses.count(status) == 1}
    for text, cases in in_groups((text, result.case) for result in suite.cases for text in _remarks(result)):
        cells = names.cells(cases)
        many = f"{len(cases)} cases: {text}"
        yield from [many] if len(cells) > 1 and text in known_texts else _with_cells(cells, f"{cells[0]}: {text}", many)


def _with_cells(cells: Sequence[str], one: str, many: str, indent: str = "  ") -> Iterator[str]:
    """One line for one cell, else with the cells below."""
    yield one if len(cells) == 1 else many
    yield from listed(cells, indent) if len(cells) > 1 else ()


def _remarks(result: CaseResult) -> Iterator[str]:
    if (status := status_line(result)) is not None:
        yield status
    equality = result.equality
    if equality is not None and equality.equal is False:
        yield f"wrong answer: {equality.reason or 'outputs differ'} (reference {short_backend(equality.reference)})"
    elif equality is not None and equality.equal is None and result.status == "ok":
        yield f"outputs not compared: {equality.reason}"
    yield from unsteady_lines(result)


def unsteady_lines(result: CaseResult) -> Iterator[str]:
    """Why its speed may not be reproducible."""
    if result.clock_drop_percent is not None and result.clock_drop_percent > MUCH_CLOCK_DROP_PERCENT:
        yield f"the GPU's clock fell by {result.clock_drop_percent:.0f} %"
    if result.latency is not None and result.latency.stable is False:
        yield "its latency had not settled when measuring ended"
    yield from filter(None, (drift_line(result.latency), unsteady_speed(result)))


def notes(suite: BenchSuiteResult) -> Iterator[str]:
    """Notes below the table."""
    done = sum(case.status == "ok" for case in suite.cases)
    device = ", ".join(suite.machine.gpus) or suite.machine.cpu or "?"
    yield f"{done} of {len(suite.cases)} cases measured on {suite.machine.hostname} ({device})"
    if suite.baseline is not None:
        yield f"speed-up: items/s against {short_backend(suite.baseline)} at the same batch size"
    if any(gives_wrong_answers(case) for case in suite.cases):
        yield f"{WRONG}: the speed of a wrong answer, for the outputs differ from the reference's beyond the tolerance"
    yield from suite.remarks


def recommendation_lines(found: Recommendation, cases: Sequence[CaseResult]) -> Iterator[str]:
    """The recommendation and its reasons; excluded cases with the constraint.

    Args:
        cases: of the suite. Those that were not measured are only counted; the table's remarks have the reasons.
    """
    names = CaseNames.of((result.case for result in cases), with_model=False)
    known = {result.case.case_id: result for result in cases}

    def named(what: str, those: Sequence[BenchCase]) -> Iterator[str]:
        cells = names.cells(those)
        return _with_cells(cells, f"  {what}: {cells[0]}", f"  {what}:", "    ")

    taken = found.best or found.nearest
    what = "take" if found.best else "none meets the constraints; nearest is"
    choice = "nothing to recommend" if taken is None else f"{what} {names.case(known[taken].case)} ({taken})"
    yield f"{found.model}: {choice}"
    for why in found.why:
        yield f"  {why}"
    if found.ties:
        yield from named("not separable from it in speed", [known[one].case for one in found.ties])
    measured = [(known[one.case_id].case, one) for one in found.excluded if known[one.case_id].status == "ok"]
    missed = [(case, constraint) for case, one in measured for constraint in one.missed]
    for (limit_text, limit), over in in_groups(
        ((f"{one.what} over {one.limit:.10g} {one.unit}".rstrip(), one.limit), (case, one, one.value))
        for case, one in missed
        if one.value is not None
    ):
        yield f"  {limit_text}, {_cases(len(over))}:"
        for cell, those in in_groups(
            (names.cell(case), (case.batch_size, one.unit, value)) for case, one, value in over
        ):
            figures = [
                f"{separable(value, limit)[0]} {unit}".rstrip() + f" at {'' if place else 'batch '}{size}"
                for place, (size, unit, value) in enumerate(sorted(those))
            ]
            yield f"    {cell}: {', '.join(figures)}"
    unmeasured = (
        (f"{one.what} was not measured" + (f" ({first_line(one.reason)})" if one.reason else ""), case)
        for case, one in missed
        if one.value is None
    )
    unfit = ((first_line(one.reason), case) for case, one in measured if not one.missed)
    for why, those_cases in (*in_groups(unmeasured), *in_groups(unfit)):
        yield from named(f"{why}, {_cases(len(those_cases))}", those_cases)
    if count := len(found.excluded) - len(measured):
        yield f"  {_cases(count)} {'was' if count == 1 else 'were'} not measured, see above"


def _cases(count: int) -> str:
    return f"{count} case" if count == 1 else f"{count} cases"


def merged_remarks(merged: BenchMergedResult) -> Iterator[str]:
    """Each run's machine and baseline, and cases without a number."""
    for run in merged.runs:
        device = ", ".join(run.machine.gpus) or run.machine.cpu or "?"
        against = short_backend(run.baseline or "?")
        yield f"{run.name}: {device}, {run.created}, speed-up against {against} ({run.path})"
    yield from _missing(merged)


def _missing(merged: BenchMergedResult) -> Iterator[str]:
    """Cases without a number on a machine, grouped by reason."""
    missing = (
        ((cell.run, first_line(cell.reason)), (f"{row.model} {_backend(row)} {row.precision}", row.batch_size))
        for row in merged.rows
        for cell in row.cells
        if cell.reason is not None
    )
    for (run, reason), rows in in_groups(missing):
        cells = [f"{cell}, batch {', '.join(map(str, sizes))}" for cell, sizes in in_groups(rows)]
        yield from _with_cells(cells, f"{run}: {cells[0]}: {reason}", f"{run}: {len(rows)} cases: {reason}")


def _backend(row: MergedRow) -> str:
    return " ".join(part for part in (f"{short_backend(row.backend)}/{row.mode}", row.device, row.variant) if part)


# ---- text that charts and progress lines share ----


def status_line(result: CaseResult) -> str | None:
    """`failed: it crashed`; None for a case that was measured."""
    if result.status == "ok":
        return None
    return f"{result.status}: {first_line(result.reason or '')}".rstrip(": ")


def side_by_side(merged: BenchMergedResult) -> str:
    """`2 runs on 1 machine`."""
    machines = len({run.machine_number for run in merged.runs})
    return f"{len(merged.runs)} runs on {machines} machine{'s' if machines > 1 else ''}"


def listed(cells: Sequence[str], indent: str = "  ") -> Iterator[str]:
    """Lines that name cells, none broken in the middle of a name."""
    line = ""
    for cell in cells:
        longer = f"{line}; {cell}" if line else f"{indent}{cell}"
        if line and len(longer) > LISTED_WIDTH:
            yield f"{line};"
            longer = f"{indent}{cell}"
        line = longer
    if line:
        yield line


def first_line(text: str) -> str:
    """First line of a message that may continue with the end of a log."""
    return text.strip().splitlines()[0] if text.strip() else ""


def speedup_text(estimate: Estimate | None) -> str:
    """`1.23x`, with `~` appended where the interval holds 1."""
    if estimate is None:
        return NOT_MEASURED
    if estimate.interval is not None and estimate.interval[0] <= 1 <= estimate.interval[1]:
        return f"{estimate.value:.2f}x ~"
    return f"{estimate.value:.2f}x"


def bytes_text(size: int | None) -> str:
    """`1.5 GB`."""
    if size is None:
        return NOT_MEASURED
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"
