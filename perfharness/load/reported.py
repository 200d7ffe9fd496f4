"""A load test for a report: its percentiles over time, rates, and the distribution of its latencies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from perfharness.errors import ToolNotFoundError
from perfharness.files import is_plain, read_model
from perfharness.load.findings import keeps_up
from perfharness.load.histogram import Histogram, require_load
from perfharness.load.result import percentile_of, slower_in
from perfharness.load.windows import read_lines
from perfharness.model.load import (
    LEAST_BEYOND,
    PERCENTILES,
    WINDOWS_NAME,
    LoadFigure,
    LoadResult,
    LoadWindow,
    StepVerdict,
)
from perfharness.model.load import PhaseResult as Phase
from perfharness.model.manifest import LOAD_NAME
from perfharness.runs.report.model import LoadBins, LoadCurve, LoadMoment, LoadPoint, LoadReport

Line = dict[str, Any]
MAX_POINTS = 240
"""Of a curve."""

SHORTEST_NS = 900_000_000
"""Of a stretch: a window, of which the last of a phase is shorter."""

BINS = 40
CURVES = {"latency": ("p50", "p90", "p99", "p99_9", "max"), "lateness": ("p50", "p99", "max")}
NO_FILES = f"the run has no {WINDOWS_NAME}"


def load_report(folder: Path) -> LoadReport | None:
    """Of a run folder; None where it was not under load. Raises `ResultError` where its files are damaged."""
    result = read_model(folder / LOAD_NAME, LoadResult)
    if result is None:
        return None
    processes = [read_lines(file) for file in sorted(folder.glob(f"*/{WINDOWS_NAME}")) if is_plain(file)]
    starts = [line["start_ns"] for lines in processes for line in lines if line["kind"] == "run"]
    return report_of(result, processes, min(starts, default=None))


def report_of(result: LoadResult, processes: Sequence[Sequence[Line]], start_ns: int | None) -> LoadReport:
    """Of a result and the lines of each process's file of windows."""
    curves: list[LoadCurve] = []
    bins: list[LoadBins] = []
    reason = None if start_ns is not None else NO_FILES
    try:
        require_load("a chart of latencies")
        bins = [found for phase in result.phases if (found := bins_of(phase)) is not None]
        if start_ns is not None:
            curves = list(curves_of(processes, start_ns))
    except ToolNotFoundError as error:
        reason = str(error)
    main = _main(result)
    facts: dict[str, Any] = {}
    if main is not None:
        phase = result.phases[main]
        facts = {
            "workers_busy": _workers_busy(phase),
            "queueing_share": _ratio(phase.queueing.mean.value, phase.latency.mean.value),
            "objective": objective_verdict(result, phase),
        }
    return LoadReport(
        result=result,
        start_ns=start_ns,
        main=main,
        **facts,
        curves=curves,
        curves_reason=reason,
        moments=list(moments_of(result.windows)),
        bins=bins,
    )


def _main(result: LoadResult) -> int | None:
    """The longest phase that counts."""
    places = [place for place, phase in enumerate(result.phases) if not phase.is_warmup]
    return max(places, key=lambda place: result.phases[place].duration_s, default=None)


def _workers_busy(phase: Phase) -> float | None:
    """Little's law: requests in service on average, over the workers."""
    service = phase.service.mean.value
    if service is None or phase.achieved_rate is None or not phase.completed or not phase.concurrency:
        return None
    well = phase.service.count / phase.completed  # of errors, service is not kept
    return phase.achieved_rate * well * service / 1e3 / phase.concurrency


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def objective_figure(result: LoadResult, phase: Phase) -> LoadFigure | None:
    """The percentile of the latency that the objective is about; None where there is none of it."""
    if result.objective is None:
        return None
    name = next((name for name, percent in PERCENTILES.items() if percent == result.objective.percentile), None)
    return None if name is None else getattr(phase.latency, name)


def objective_verdict(result: LoadResult, phase: Phase) -> StepVerdict | None:
    """By the interval of its percentile; None: there is no objective, or no such percentile."""
    figure = objective_figure(result, phase)
    if figure is None or result.objective is None:
        return None
    if figure.high is not None and figure.high <= result.objective.latency_ms:
        return "meets"
    if figure.low is not None and figure.low > result.objective.latency_ms:
        return "misses"
    return "undecided"


def phase_verdict(result: LoadResult, phase: Phase) -> StepVerdict | None:
    """Whether a phase met the objective as a whole: by its latency, its errors, and whether the target kept up; None:
    there is no objective, or the phase does not count.
    """
    objective = result.objective
    if objective is None or phase.is_warmup:
        return None
    failed = sum(phase.errors.values())
    may_fail = 1 - objective.percentile / 100 if objective.max_error_rate is None else objective.max_error_rate
    if failed > may_fail * (phase.ok + failed) or not keeps_up(phase, result):
        return "misses"
    return objective_verdict(result, phase) or "undecided"


# ---- over time ----


def moments_of(windows: Sequence[LoadWindow]) -> Iterator[LoadMoment]:
    """At most about `MAX_POINTS` stretches."""
    size = max(1, math.ceil(len(windows) / MAX_POINTS))
    for _, of_phase in groupby(windows, key=lambda one: one.phase):
        own = list(of_phase)
        groups = [own[first : first + size] for first in range(0, len(own), size)]
        if len(groups) > 1 and _length_s(groups[-1]) < _length_s(groups[0]) / 2:  # its rates would be of few requests
            groups[-2:] = [[*groups[-2], *groups[-1]]]
        yield from map(_moment, groups)


def _length_s(windows: Sequence[LoadWindow]) -> float:
    return windows[-1].end_s - windows[0].start_s


def _moment(windows: Sequence[LoadWindow]) -> LoadMoment:
    start_s, end_s = windows[0].start_s, windows[-1].end_s
    seconds = max(end_s - start_s, 1e-9)
    kinds = dict.fromkeys(kind for one in windows for kind in one.errors)
    levels = [one.in_flight_max for one in windows if one.in_flight_max is not None]
    queues = [one.queue_max for one in windows if one.queue_max is not None]
    memory = [one.rss_mb for one in windows if one.rss_mb is not None]
    return LoadMoment(
        phase=windows[0].phase,
        start_s=start_s,
        end_s=end_s,
        due=sum(one.arrivals for one in windows) / seconds,
        answered=sum(one.completed for one in windows) / seconds,
        ok=sum(one.ok for one in windows) / seconds,
        errors={kind: sum(one.errors.get(kind, 0) for one in windows) / seconds for kind in kinds},
        in_flight_max=max(levels, default=None),
        queue_max=max(queues, default=None),
        rss_mb=memory[-1] if memory else None,
    )


@dataclass
class _Stretch:
    """Windows added up until they have enough answers."""

    phase: int
    start_ns: int
    end_ns: int
    histogram: Histogram = field(default_factory=Histogram)
    slower: int = 0

    def add(self, end_ns: int, histogram: Histogram, slower: int) -> None:
        """One more window."""
        self.end_ns = max(self.end_ns, end_ns)
        self.histogram.merge(histogram)
        self.slower += slower

    @property
    def total(self) -> int:
        """Requests, those without an answer in time included."""
        return self.histogram.count + self.slower


class _Curve:
    """One percentile, as the windows come in order of time."""

    def __init__(self, of: str, start_ns: int, least_ns: int) -> None:
        self.of, self.start_ns, self.least_ns = of, start_ns, least_ns
        beyond = 1000 - round(10 * PERCENTILES.get(of, 0.0))  # of a thousand
        self.least_count = -(-1000 * LEAST_BEYOND // beyond) if beyond < 500 else 0
        self.points: list[LoadPoint] = []
        self._last: _Stretch | None = None  # that of the last point
        self._open: _Stretch | None = None

    def add(self, phase: int, start_ns: int, end_ns: int, histogram: Histogram, slower: int) -> None:
        """One more window."""
        if self._open is not None and self._open.phase != phase:
            self.close()
        if self._open is None:
            self._open = _Stretch(phase, start_ns, start_ns)
        self._open.add(end_ns, histogram, slower)
        if self._open.end_ns - self._open.start_ns >= self.least_ns and self._open.total >= self.least_count:
            self._keep(self._open)
            self._open = None

    def close(self) -> None:
        """What is left at the end of a phase is too short, or has too few answers: it joins the stretch before."""
        left, self._open = self._open, None
        if left is None:
            return
        if self._last is not None and self._last.phase == left.phase:
            self._last.add(left.end_ns, left.histogram, left.slower)
            self.points.pop()
            left = self._last
        self._keep(left)

    def _keep(self, stretch: _Stretch) -> None:
        self._last = stretch
        begin, end = ((at - self.start_ns) / 1e9 for at in (stretch.start_ns, stretch.end_ns))
        self.points.append(
            LoadPoint(phase=stretch.phase, start_s=begin, end_s=end, count=stretch.total, ms=self._value(stretch))
        )

    def _value(self, stretch: _Stretch) -> float | None:
        if not stretch.histogram.count:
            return None
        if self.of == "max":
            return None if stretch.slower else stretch.histogram.max_ns / 1e6
        return percentile_of(stretch.histogram, PERCENTILES[self.of], stretch.total, "").value


def curves_of(processes: Sequence[Sequence[Line]], start_ns: int) -> Iterator[LoadCurve]:
    """Percentiles over time, of all processes together."""
    windows: dict[tuple[int, int], list[Line]] = {}
    for lines in processes:
        for line in lines:
            if line["kind"] == "window":
                windows.setdefault((line["phase"], line["index"]), []).append(line)
    last_ns = max((line["end_ns"] for lines in windows.values() for line in lines), default=start_ns)
    least_ns = max((last_ns - start_ns) // MAX_POINTS, SHORTEST_NS)
    made = {time: [_Curve(of, start_ns, least_ns) for of in names] for time, names in CURVES.items()}
    for (phase, _), together in sorted(windows.items(), key=lambda one: one[0]):
        begin, end = min(line["start_ns"] for line in together), max(line["end_ns"] for line in together)
        for time, curves in made.items():
            histogram = Histogram()
            for line in together:
                histogram.merge(Histogram.of_json(line[time]))
            slower = sum(map(slower_in, together)) if time == "latency" else 0
            for curve in curves:
                curve.add(phase, begin, end, histogram, slower)
    for time, curves in made.items():
        for curve in curves:
            curve.close()
            if any(point.ms is not None for point in curve.points):
                yield LoadCurve(time=time, of=curve.of, points=curve.points)


# ---- distribution ----


def bins_of(phase: Phase) -> LoadBins | None:
    """The latencies of a phase; None where there is none."""
    histogram = Histogram.decode(phase.latency.histogram)
    if not histogram.count:
        return None
    low, high, counts = histogram.buckets()
    first, last = max(int(low[0]), 1), max(int(high[-1]), 2)
    edges = np.geomspace(first, last + 1, BINS + 1)
    edges[0] = min(edges[0], int(low[0]))
    places = np.clip(np.searchsorted(edges, low, side="right") - 1, 0, BINS - 1)
    found = np.bincount(places, counts, BINS).astype(int)
    edges[0] = first
    return LoadBins(phase=phase.name, edges_ms=(edges / 1e6).tolist(), counts=found.tolist())
