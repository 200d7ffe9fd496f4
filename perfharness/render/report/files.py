"""Gather reports and write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from perfharness.analysis.suites.cost import Prices
from perfharness.bench.side_by_side import side_by_side, suite_report
from perfharness.errors import UsageError
from perfharness.files import STDOUT, write_text
from perfharness.load.report import load_report
from perfharness.progress import step
from perfharness.render.html import write_html
from perfharness.render.markdown import markdown
from perfharness.render.pdf import require_typst, write_pdf
from perfharness.render.report.sections import document_of
from perfharness.runs.files.inputs import locate
from perfharness.runs.files.run_folder import ReadAs
from perfharness.runs.report.anonymous import anonymous as made_anonymous
from perfharness.runs.report.gather import gather
from perfharness.runs.report.model import Report

ReportFormat = Literal["html", "md", "pdf"]
ENDINGS: dict[str, ReportFormat] = {".html": "html", ".htm": "html", ".md": "md", ".pdf": "pdf"}


def report(
    *runs: str | Path,
    output: str | Path | None = None,
    price_per_hour: float | None = None,
    price_per_kwh: float | None = None,
    anonymous: bool = False,
    warmup_batches: int | None = None,
    domain: str | None = None,
    batch_pattern: str | None = None,
) -> Report:
    """Gather a report of runs and write it, as `perfharness report` does.

    Args:
        runs: run folders, their processes, repeats, sweeps, cold starts, traces, suites of `bench`.
        output: file to write, .html, .md or .pdf, or None to write nothing.
        price_per_hour: price of the machine, in any currency.
        price_per_kwh: price of electricity.
        anonymous: leave out host, user and paths.
        warmup_batches, domain, batch_pattern: how to read bare traces, as for `analyze`.

    Raises:
        UsageError: no run is given, or the file's suffix is unknown.
        ToolNotFoundError: a PDF needs typst.
        ResultError, TraceError: a run cannot be read, or the file cannot be written.
    """
    if not runs:
        raise UsageError("give a run, a trace or a suite")
    file = None if output is None else Path(output)
    wanted = None if file is None else format_of(file)
    if wanted == "pdf":
        require_typst()
    has_price = price_per_hour is not None or price_per_kwh is not None
    made = gather_all(
        [Path(run) for run in runs],
        ReadAs(warmup_batches, domain, batch_pattern),
        Prices(price_per_hour, price_per_kwh) if has_price else None,
    )
    made = made_anonymous(made) if anonymous else made
    if file is not None:
        step(f"drawing {file.name}")
        write_report(made, file)
    return made


def write_report(made: Report, file: Path) -> None:
    """Write a report. Raises `UsageError`, `ToolNotFoundError`, `ResultError`."""
    wanted, document = format_of(file), document_of(made)
    if wanted == "html":
        write_html(document, file)
    elif wanted == "pdf":
        write_pdf(document, file)
    else:
        write_text(file, lambda text: print(markdown(document), end="", file=text))


def gather_all(paths: Sequence[Path], read_as: ReadAs, prices: Prices | None) -> Report:
    """Gather the report of runs, traces and suites. Raises `ResultError`, `TraceError`."""
    suites = {path: found for path in paths if (found := suite_report(path)) is not None}
    located = [locate(path) for path in paths if path not in suites]
    folders = (folder for one in located if one.process is None for folder in one.runs)
    loads = {folder: load for folder in folders if (load := load_report(folder)) is not None}
    return gather(located, read_as, prices, list(suites.values()), side_by_side(suites), loads)


def format_of(output: Path) -> ReportFormat:
    """Format by the file's suffix; Markdown for stdout. Raises `UsageError`."""
    if output == STDOUT:
        return "md"
    found = ENDINGS.get(output.suffix.lower())
    if found is None:
        raise UsageError(f"{output}: give a file that ends in {', '.join(ENDINGS)}.")
    return found
