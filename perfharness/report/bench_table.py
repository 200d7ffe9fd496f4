"""A suite on the terminal: one row a case, what could not run with its reason, and the recommendation."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from perfharness.analysis.bench_figures import (
    accuracy_of,
    baseline_of,
    gives_wrong_answers,
    latency_of,
    memory_of,
    speedup,
)
from perfharness.model.bench import BenchCase, CaseResult, Estimate, LatencyPercentile
from perfharness.model.bench_suite import BenchSuiteResult, Recommendation

NOT_MEASURED = "-"
WIDTH = 160
"""Of a table that goes to a file."""

LEFT_OUT_FIRST = ("cosine", "J/item", "p95 ms", "memory", "p99 ms", "items/s")
"""Columns, where a terminal is too narrow for all."""

CLOCK_DROP_PERCENT = 5.0
WRONG = "!"
"""Before a speed that is one of a wrong answer."""

RIGHT_ALIGNED = ("batch", "p50 ms", "p95 ms", "p99 ms", "items/s", "speed-up", "memory", "J/item")


def print_suite(console: Console, suite: BenchSuiteResult) -> None:
    """The table, what a reader must know of its rows, and the recommendations."""
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, WIDTH))
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
        for line in recommendation_lines(recommendation):
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
    metric = suite.constraints.accuracy_metric
    has_energy = any(case.energy_per_item_j for case in suite.cases)
    has_accuracy = any(accuracy_of(case, metric) is not None for case in suite.cases)
    names = [
        *(["model"] if len(models) > 1 else []),
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
        title=escape(models[0]) if len(models) == 1 else None,
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
            "backend/mode": backend_of(result.case, suite),
            "precision": result.case.precision,
            "batch": str(result.case.batch_size),
            **_figures(result, suite),
            metric or "cosine": shown(accuracy_of(result, metric), ".6g"),
            "": _state(result),
        }
        table.add_row(*(escape(cells[name]) for name in names), style=None if result.status == "ok" else "dim")
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
    """Why cases are not `ok` and what else a reader must know of them; those with the same reason in one line."""
    several = len({case.case.model for case in suite.cases}) > 1
    grouped: dict[tuple[str, str], list[int]] = {}
    for result in suite.cases:
        case = result.case
        model = f"{case.model} " if several else ""
        for text in _remarks(result):
            cell = f"{model}{backend_of(case, suite)} {case.precision}"
            grouped.setdefault((cell, text), []).append(case.batch_size)
    for (cell, text), sizes in grouped.items():
        yield f"{cell}, batch {', '.join(map(str, sizes))}: {text}"


def _remarks(result: CaseResult) -> Iterator[str]:
    if result.status != "ok":
        yield f"{result.status}: {first_line(result.reason or '')}".rstrip(": ")
    equality = result.equality
    if equality is not None and equality.equal is False:
        yield f"wrong answer: {equality.reason or 'outputs differ'} (reference {short_cell(equality.reference)})"
    elif equality is not None and equality.equal is None and result.status == "ok":
        yield f"outputs not compared: {equality.reason}"
    if result.clock_drop_percent is not None and result.clock_drop_percent > CLOCK_DROP_PERCENT:
        yield f"the GPU's clock fell by {result.clock_drop_percent:.0f} %"
    if result.latency is not None and result.latency.stable is False:
        yield "its latency had not settled when measuring ended"


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


def recommendation_lines(found: Recommendation) -> Iterator[str]:
    """What to take, and why; what was excluded, and by which constraint."""
    if found.best is not None:
        yield f"{found.model}: take {found.best}"
    elif found.nearest is not None:
        yield f"{found.model}: none meets the constraints; nearest is {found.nearest}"
    else:
        yield f"{found.model}: nothing to recommend"
    for why in found.why:
        yield f"  {why}"
    if len(found.front) > 1:
        yield f"  on the Pareto front: {', '.join(found.front)}"
    grouped: dict[str, list[str]] = {}
    for one in found.excluded:
        grouped.setdefault(first_line(one.reason), []).append(one.case_id)
    for reason, case_ids in grouped.items():
        yield f"  not {', '.join(case_ids)}: {reason}"


def short_cell(name: str) -> str:
    """`module:Class/mode/precision` without the module."""
    return name.rpartition(":")[2]


def backend_of(case: BenchCase, suite: BenchSuiteResult) -> str:
    """`torch/compile`; with the device where the suite uses both."""
    name = f"{case.backend.rpartition(':')[2]}/{case.mode}" if case.mode else case.backend.rpartition(":")[2]
    return name if len({one.case.device for one in suite.cases}) < 2 else f"{name} {case.device}"


def first_line(text: str) -> str:
    """Of a message that goes on with the end of a log."""
    return text.strip().splitlines()[0] if text.strip() else ""


def shown(value: float | None, form: str) -> str:
    """A number, or a dash."""
    return NOT_MEASURED if value is None else format(value, form)


def in_significant_digits(estimate: Estimate | None) -> str:
    """As many digits as a reader can use: three, or as many as stand before the point."""
    if estimate is None:
        return NOT_MEASURED
    value = estimate.value
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def speedup_in_words(estimate: Estimate | None) -> str:
    """`1.23x`, with `~` behind it where the interval holds 1."""
    if estimate is None:
        return NOT_MEASURED
    if estimate.low is not None and estimate.high is not None and estimate.low <= 1 <= estimate.high:
        return f"{estimate.value:.2f}x ~"
    return f"{estimate.value:.2f}x"


def bytes_in_words(size: int | None) -> str:
    """`1.5 GB`."""
    if size is None:
        return NOT_MEASURED
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"
