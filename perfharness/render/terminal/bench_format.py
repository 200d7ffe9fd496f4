"""Text of figures, reasons and lists of cases, for a suite's table, charts and recommendations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfharness.analysis.bench_figures import NOT_MEASURED
from perfharness.model.bench import CaseResult, Estimate
from perfharness.model.bench_suite import BenchMergedResult

LISTED_WIDTH = 110
"""Line width of a list of cells."""


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


def short_cell(name: str) -> str:
    """`module:Class/mode/precision` without the module."""
    return name.rpartition(":")[2]


def first_line(text: str) -> str:
    """First line of a message that may continue with the end of a log."""
    return text.strip().splitlines()[0] if text.strip() else ""


def shown(value: float | None, form: str) -> str:
    """A number, or a dash."""
    return NOT_MEASURED if value is None else format(value, form)


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
