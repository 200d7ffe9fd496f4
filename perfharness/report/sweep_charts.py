"""Charts of a sweep as PNG: throughput, latency and memory over the batch size, and where each sweep ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfharness.analysis.bench_names import in_groups
from perfharness.model.bench_search import CellSweep, SweepFile
from perfharness.report.bench_chart import LIMIT, Chart, Curve, Value, value_of
from perfharness.report.bench_charts import by_model, latency, memory, throughput
from perfharness.report.pictures import require_matplotlib
from perfharness.report.sweep import as_suite, case_of, end_in_words, is_of, names_of

CHARTS = {"throughput": throughput, "latency": latency, "memory": memory}


def draw_sweep(found: SweepFile, folder: Path) -> list[Path]:
    """One PNG each and model; returns the files. Raises `ToolNotFoundError` without matplotlib."""
    require_matplotlib("--charts")
    written = []
    for own, title, end in by_model(as_suite(found)):
        swept = found.model_copy(
            update={"cases": own.cases, "cells": [one for one in found.cells if one.model == own.cases[0].case.model]}
        )
        for name, draw in CHARTS.items():
            chart = _SweepChart(swept, title)
            if draw(chart):
                written.append(chart.save(folder / f"sweep_{name}{end}.png"))
    return written


class _SweepChart(Chart):
    """With what ended each sweep at its batch size, and a ring around the largest that meets the target."""

    def __init__(self, found: SweepFile, title: str) -> None:
        target = None if found.target_ms is None or found.figure is None else (found.figure, found.target_ms)
        super().__init__(as_suite(found), title, target, names_of(found))
        self.found = found

    def lines(self, value: Value, what: str) -> bool:
        """The curves, and their ends."""
        if not super().lines(value, what):
            return False
        for cell in self.found.cells:
            curve = next((one for one in self.curves if is_of(one.results[0].case, cell)), None)
            mark = "" if curve is None else self._ring(curve, cell, value)
            self.notes.append(f"{mark}{self.names.cell(case_of(cell))}: {end_in_words(cell)}")
        for size, ended in in_groups((one.ended_at_batch, one) for one in self.found.cells):
            if size is not None:
                self._end(size, [one for one in ended if one.ended_by != "interrupted"])
        return True

    def _end(self, size: int, ended: Sequence[CellSweep]) -> None:
        """A line in words, one beside the other, for a mark in the data would pass for a value."""
        for position, cell in enumerate(ended):
            color = next((one.color for one in self.curves if is_of(one.results[0].case, cell)), LIMIT)
            self.ax.axvline(size, color=LIMIT, linestyle=":", linewidth=1)
            self.ax.annotate(
                str(cell.ended_by), (size, 0.02), xycoords=self.ax.get_xaxis_transform(), rotation=90, fontsize=8,
                xytext=(-3 - 11 * position, 0), textcoords="offset points", ha="right", va="bottom", color=color,
            )  # fmt: skip
            self.missing = [one for one in self.missing if not (is_of(one[1], cell) and one[1].batch_size == size)]

    def _ring(self, curve: Curve, cell: CellSweep, value: Value) -> str:
        best = None if cell.target is None else cell.target.batch_size
        found = next((one for one in curve.results if one.case.batch_size == best), None)
        if found is None or (estimate := value_of(found, value)) is None:
            return ""
        self.ax.plot(
            [found.case.batch_size], [estimate.value], "o",
            color=curve.color, markersize=17, markerfacecolor="none", markeredgewidth=1.8, zorder=5,
        )  # fmt: skip
        return "ring: "
