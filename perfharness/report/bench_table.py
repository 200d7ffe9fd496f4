"""A suite on the terminal: one row a case, what could not run with its reason, and the recommendation."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from perfharness.analysis.bench_figures import (
    MUCH_CLOCK_DROP_PERCENT,
    accuracy_of,
    baseline_of,
    gain,
    gives_wrong_answers,
    latency_of,
    memory_of,
    speedup,
)
from perfharness.analysis.bench_names import CaseNames, in_groups
from perfharness.model.bench import CaseResult, Estimate, LatencyPercentile
from perfharness.model.bench_suite import BenchSuiteResult
from perfharness.model.text import safe_line
from perfharness.report.bench_recommendation import recommendation_lines
from perfharness.report.bench_words import (
    NOT_MEASURED,
    WIDTH,
    bytes_in_words,
    drift_line,
    first_line,
    in_significant_digits,
    listed,
    short_cell,
    shown,
    speed_that_did_not_hold,
    speedup_in_words,
    status_line,
)
from perfharness.report.console import Console as SafeConsole

LEFT_OUT_FIRST = ("cosine", "J/item", "p95 ms", "memory", "p99 ms", "items/s")
"""Columns, where a terminal is too narrow for all."""

WRONG = "!"
"""Before a speed that is one of a wrong answer."""

RIGHT_ALIGNED = ("batch", "p50 ms", "p95 ms", "p99 ms", "items/s", "speed-up", "memory", "J/item")


def print_suite(console: Console, suite: BenchSuiteResult) -> None:
    """The table, what a reader must know of its rows, and the recommendations."""
    if not console.is_terminal:
        console = SafeConsole(file=console.file, width=max(console.width, WIDTH))
    table, left_out = _fitting(console, suite)
    console.print(table)
    if left_out:
        line = (
            f"too narrow for: {', '.join(left_out)} (all of it: bench.json, or `perfharness bench show DIR | less -S`)"
        )
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for line in [*row_remarks(suite), *notes(suite)]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for recommendation in suite.recommendations:
        console.print()
        for line in recommendation_lines(recommendation, suite.cases):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _fitting(console: Console, suite: BenchSuiteResult) -> tuple[Table, list[str]]:
    """The table without the columns that the terminal has no room for, and their names."""
    left_out: list[str] = []
    for name in ("", *LEFT_OUT_FIRST):
        left_out += [name] if name else []
        table = suite_table(suite, left_out)
        if console.measure(table, options=console.options.update(width=10_000)).maximum <= console.width:
            break
    shown = {str(column.header) for column in suite_table(suite).columns}
    return table, [name for name in left_out if name in shown]


def suite_table(suite: BenchSuiteResult, without: Collection[str] = ()) -> Table:
    """A row a case, in the suite's order; the last column says what `row_remarks` explains."""
    models = list(dict.fromkeys(case.case.model for case in suite.cases))
    names_of_cases = CaseNames.of(case.case for case in suite.cases)
    metric = suite.constraints.accuracy_metric
    has_energy = any(case.energy_per_item_j for case in suite.cases)
    has_accuracy = any(accuracy_of(case, metric) is not None for case in suite.cases)
    names = [
        *(["model"] if names_of_cases.with_model else []),
        "backend/mode",
        "precision",
        "batch",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "items/s",
        "speed-up",
        "memory",
        *(["J/item"] if has_energy else []),
        *([metric or "cosine"] if has_accuracy else []),
        "",
    ]
    names = [name for name in names if name not in without]
    table = Table(
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=Text(safe_line(models[0])) if len(models) == 1 else None,
        title_justify="left",
        title_style="bold",
    )
    for name in names:
        wraps = name in ("model", "backend/mode")
        justify: JustifyMethod = "right" if name in RIGHT_ALIGNED else "left"
        table.add_column(name, justify=justify, no_wrap=not wraps, overflow="fold")
    for result in suite.cases:
        cells = {
            "model": result.case.model,
            "backend/mode": names_of_cases.backend(result.case),
            "precision": result.case.precision,
            "batch": str(result.case.batch_size),
            **_figures(result, suite),
            metric or "cosine": shown(accuracy_of(result, metric), ".6g"),
            "": _state(result),
        }
        table.add_row(*(Text(safe_line(cells[name])) for name in names), style=None if result.status == "ok" else "dim")
    return table


def _state(result: CaseResult) -> str:
    if result.status != "ok":
        return result.status
    return "wrong answer" if gives_wrong_answers(result) else ""


def _figures(result: CaseResult, suite: BenchSuiteResult) -> dict[str, str]:
    if result.status != "ok":
        return dict.fromkeys(("p50 ms", "p95 ms", "p99 ms", "items/s", "speed-up", "memory", "J/item"), NOT_MEASURED)
    base = baseline_of(result, suite.cases, suite.baseline)
    mark = WRONG if gives_wrong_answers(result) else ""

    def latency(which: LatencyPercentile) -> str:
        return in_significant_digits(latency_of(result, which))

    return {
        "p50 ms": latency("p50"),
        "p95 ms": latency("p95"),
        "p99 ms": latency("p99"),
        "items/s": mark + in_significant_digits(result.items_per_second),
        "speed-up": "base" if base is result else mark + speedup_in_words(speedup(result, base)),
        "memory": bytes_in_words(memory_of(result)),
        "J/item": in_significant_digits(result.energy_per_item_j),
    }


def row_remarks(suite: BenchSuiteResult) -> Iterator[str]:
    """Why cases are not `ok` and what else a reader must know of them; those with the same reason together.

    Where it is the only reason of a status, the rows of the table say which they are.
    """
    names = CaseNames.of(case.case for case in suite.cases)
    status_lines = {(result.status, text) for result in suite.cases if (text := status_line(result)) is not None}
    statuses = [status for status, _ in status_lines]
    told = {text for status, text in status_lines if statuses.count(status) == 1}
    for text, cases in in_groups((text, result.case) for result in suite.cases for text in _remarks(result)):
        cells = names.cells(cases)
        if len(cells) == 1:
            yield f"{cells[0]}: {text}"
            continue
        yield f"{len(cases)} cases: {text}"
        if text not in told:
            yield from listed(cells)


def _remarks(result: CaseResult) -> Iterator[str]:
    if (status := status_line(result)) is not None:
        yield status
    equality = result.equality
    if equality is not None and equality.equal is False:
        yield f"wrong answer: {equality.reason or 'outputs differ'} (reference {short_cell(equality.reference)})"
    elif equality is not None and equality.equal is None and result.status == "ok":
        yield f"outputs not compared: {equality.reason}"
    yield from unsteady_lines(result)
    yield from at_once_lines(result)


def unsteady_lines(result: CaseResult) -> Iterator[str]:
    """Why its speed may be another in another run."""
    if result.clock_drop_percent is not None and result.clock_drop_percent > MUCH_CLOCK_DROP_PERCENT:
        yield f"the GPU's clock fell by {result.clock_drop_percent:.0f} %"
    if result.latency is not None and result.latency.stable is False:
        yield "its latency had not settled when measuring ended"
    if (drift := drift_line(result.latency)) is not None:
        yield drift
    if (unlike := speed_that_did_not_hold(result)) is not None:
        yield unlike


def at_once_lines(result: CaseResult) -> Iterator[str]:
    """What several instances, or streams of one process, finish together."""
    for record in (result.instances, result.streams):
        if record is None:
            continue
        if record.items_per_second is None:
            if result.status == "ok":  # else that has its reason already
                yield f"{record.name} at once: not measured: {first_line(record.reason or '')}"
            continue
        ratio, latency = gain(result, record), record.latency
        times = "" if ratio is None else f", {ratio:.2f} times one"
        p50 = None if latency is None else latency.median
        p99 = None if latency is None else latency.p99
        together = in_significant_digits(Estimate(value=record.items_per_second))
        yield (
            f"{record.name} at once: {together} items/s{times}; p50 {in_significant_digits(p50)} ms, "
            f"p99 {in_significant_digits(p99)} ms"
        )


def notes(suite: BenchSuiteResult) -> Iterator[str]:
    """Below the table."""
    done = sum(case.status == "ok" for case in suite.cases)
    device = ", ".join(suite.machine.gpus) or suite.machine.cpu or "?"
    yield f"{done} of {len(suite.cases)} cases measured on {suite.machine.hostname} ({device})"
    if suite.baseline is not None:
        yield f"speed-up: items/s against {short_cell(suite.baseline)} at the same batch size"
    if any(gives_wrong_answers(case) for case in suite.cases):
        yield f"{WRONG}: the speed of a wrong answer, for the outputs differ from the reference's beyond the tolerance"
    yield from suite.remarks
