"""The same document as Markdown, as CSV files and as a workbook: its tables and sentences, without charts."""

from __future__ import annotations

import csv
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from perfharness.errors import ToolNotFoundError
from perfharness.files import replacing
from perfharness.model.distribution import install_command
from perfharness.model.text import no_formula, safe, safe_line
from perfharness.render.report.document import (
    Block,
    Cell,
    Chart,
    Details,
    Document,
    Figures,
    Items,
    Paragraph,
    Section,
    Table,
    cell_text,
)
from perfharness.render.terminal.console import markdown_text

SHEET_NAME_LENGTH = 31
NUMBER_FORMATS = {"ms": "#,##0.000", "share": "0.0%", "count": "#,##0", "number": "#,##0.####"}


# ---- Markdown ----


def markdown(document: Document) -> str:
    """All of it as GitHub's Markdown."""
    lines = [f"# {_md(document.title)}", "", _md(document.subtitle), "", *_md_blocks(document.summary)]
    for section in document.sections:
        lines += _md_section(section, 2)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _md(text: str) -> str:
    return markdown_text(safe_line(text))


def _md_section(section: Section, level: int) -> Iterator[str]:
    blocks = list(_md_blocks(section.blocks))
    below = [line for one in section.sections for line in _md_section(one, level + 1)]
    if blocks or below:  # a section of charts only has nothing to say here
        yield from (f"{'#' * min(level, 6)} {_md(section.title)}", "", *blocks, *below)


def _md_blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Table):
            yield from _md_table(block)
        elif isinstance(block, Paragraph):
            yield from (("**Error:** " if block.style == "error" else "") + _md(block.text), "")
        elif isinstance(block, Items):
            for place, text in enumerate(block.texts, 1):
                yield f"{f'{place}.' if block.numbered else '-'} {_md(text)}"
            yield ""
        elif isinstance(block, Figures):
            for one in block.figures:
                yield f"- {_md(one.label)}: **{_md(one.value)}**" + (f" ({_md(one.note)})" if one.note else "")
            yield ""
        elif isinstance(block, Details):
            yield from (f"**{_md(block.title)}**", "", *_md_blocks(block.blocks))


def _md_table(table: Table) -> Iterator[str]:
    if table.note:
        yield from (_md(table.note), "")
    yield f"| {' | '.join(_md(column.heading) for column in table.columns)} |"
    yield f"| {' | '.join(':--' if column.kind == 'text' else '--:' for column in table.columns)} |"
    for row in table.rows:
        cells = [_md_cell(cell_text(cell, column.kind)) for cell, column in zip(row, table.columns, strict=True)]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _md_cell(text: str) -> str:
    """Leading blanks, which show a stage's depth, stay."""
    depth = len(text) - len(text.lstrip(" "))
    return "&nbsp;" * depth + markdown_text(text.strip(" "))


# ---- CSV ----


def write_csv(document: Document, folder: Path) -> list[Path]:
    """Write a file for each table into the folder; numbers in full. Raises `ResultError`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in _named(document, 80):
        path = folder / f"{name}.csv"
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([no_formula(safe_line(_heading(column.heading, column.kind))) for column in table.columns])
            writer.writerows([_csv_cell(cell) for cell in row] for row in table.flat_rows())
        written.append(path)
    return written


def _heading(heading: str, kind: str) -> str:
    return f"{heading} (ms)" if kind == "ms" else heading


def _csv_cell(cell: Cell) -> Cell:
    if cell is None:
        return ""
    return no_formula(safe_line(cell.strip(" "))) if isinstance(cell, str) else cell


def _named(document: Document, length: int) -> Iterator[tuple[str, Table]]:
    """Every table with a name of its own, made of harmless characters."""
    used: Counter[str] = Counter()
    for table in document.tables():
        name = re.sub(r"[^A-Za-z0-9]+", "_", table.name).strip("_").lower()[: length - 4] or "table"
        used[name] += 1
        yield name if used[name] == 1 else f"{name}_{used[name]}", table


# ---- workbook ----


def write_workbook(document: Document, path: Path) -> Path:
    """Write an .xlsx: a sheet with the summary, and one for each table. Raises `ToolNotFoundError`, `ResultError`."""
    if importlib.util.find_spec("xlsxwriter") is None:
        raise ToolNotFoundError(f"--format xlsx needs XlsxWriter, which is not installed; {install_command('report')}")
    import xlsxwriter

    with replacing(path) as temporary:
        options = {
            "strings_to_formulas": False,
            "strings_to_urls": False,
            "strings_to_numbers": False,
            "in_memory": True,
        }
        with xlsxwriter.Workbook(str(temporary), {**options, "nan_inf_to_errors": True}) as book:
            wrapped = book.add_format({"text_wrap": True, "valign": "top"})
            bold = book.add_format({"bold": True, "text_wrap": True, "valign": "top"})
            formats = {kind: book.add_format({"num_format": text}) for kind, text in NUMBER_FORMATS.items()}
            _summary_sheet(book.add_worksheet("summary"), document, wrapped, bold)
            for name, table in _named(document, SHEET_NAME_LENGTH):
                _sheet(book.add_worksheet(name if name != "summary" else "summary_table"), table, formats, bold)
    return path


def _summary_sheet(sheet: Any, document: Document, wrapped: Any, bold: Any) -> None:
    sheet.set_column(0, 0, 110)
    sheet.write_string(0, 0, safe_line(document.title), bold)
    sheet.write_string(1, 0, safe_line(document.subtitle), wrapped)
    for place, text in enumerate(_plain(document.summary), 3):
        sheet.write_string(place, 0, text, wrapped)


def _plain(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Paragraph):
            yield safe(block.text)
        elif isinstance(block, Items):
            yield from (safe(text) for text in block.texts)
        elif isinstance(block, Figures):
            for one in block.figures:
                yield safe_line(f"{one.label}: {one.value}" + (f" ({one.note})" if one.note else ""))
        elif not isinstance(block, Table | Details | Chart):
            raise TypeError(type(block))


def _sheet(sheet: Any, table: Table, formats: dict[str, Any], bold: Any) -> None:
    for place, column in enumerate(table.columns):
        sheet.write_string(0, place, safe_line(_heading(column.heading, column.kind)), bold)
        longest = max((len(cell_text(row[place], column.kind)) for row in table.flat_rows()), default=0)
        sheet.set_column(place, place, min(60, max(12, longest + 2, len(column.heading) + 2)))
    for number, row in enumerate(table.flat_rows(), 1):
        for place, (cell, column) in enumerate(zip(row, table.columns, strict=True)):
            if isinstance(cell, str):
                sheet.write_string(number, place, safe_line(cell))
            elif cell is not None:
                sheet.write_number(number, place, cell, formats.get(column.kind))
    if table.note:
        sheet.write_string(len(table.rows) + 2, 0, safe_line(table.note))
    sheet.freeze_panes(1, 1)
