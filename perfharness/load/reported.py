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
from perfharness.files import read_model
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
    processes = [read_lines(file) for file in sorted(folder.glob(f"*/{WINDOWS_NAME}"))]
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
    """Neighbouring windows of a phase, of all processes."""

    phase: int
    start_ns: int
    end_ns: int
    histogram: Histogram = field(default_factory=Histogram)
    slower: int = 0

    @property
    def total(self) -> int:
        """Requests, those without an answer in time included."""
        return self.histogram.count + self.slower

    def add(self, other: _Stretch) -> None:
        """Append what follows it."""
        self.end_ns = max(self.end_ns, other.end_ns)
        self.histogram.merge(other.histogram)
        self.slower += other.slower

    def value(self, of: str) -> float | None:
        """A percentile or the maximum, ms."""
        if not self.histogram.count:
            return None
        if of == "max":
            return None if self.slower else self.histogram.max_ns / 1e6
        return percentile_of(self.histogram, PERCENTILES[of], self.total, "").value


def curves_of(processes: Sequence[Sequence[Line]], start_ns: int) -> Iterator[LoadCurve]:
    """Percentiles over time, of all processes together."""
    lines = [line for process in processes for line in process if line["kind"] == "window"]
    lines.sort(key=lambda line: (line["phase"], line["index"]))
    last_ns = max((line["end_ns"] for line in lines), default=start_ns)
    least_ns = max((last_ns - start_ns) // MAX_POINTS, SHORTEST_NS)
    for time, names in CURVES.items():
        windows = [
            _window(list(own), time) for _, own in groupby(lines, key=lambda line: (line["phase"], line["index"]))
        ]
        for of in names:
            points = [
                LoadPoint(
                    phase=one.phase,
                    start_s=(one.start_ns - start_ns) / 1e9,
                    end_s=(one.end_ns - start_ns) / 1e9,
                    count=one.total,
                    ms=one.value(of),
                )
                for one in _stretches(windows, least_ns, _least_count(of))
            ]
            if any(point.ms is not None for point in points):
                yield LoadCurve(time=time, of=of, points=points)


def _window(lines: Sequence[Line], time: str) -> _Stretch:
    """A window of all processes."""
    begin, end = min(line["start_ns"] for line in lines), max(line["end_ns"] for line in lines)
    made = _Stretch(lines[0]["phase"], begin, end)
    for line in lines:
        made.histogram.merge(Histogram.of_json(line[time]))
    made.slower = sum(map(slower_in, lines)) if time == "latency" else 0
    return made


def _least_count(of: str) -> int:
    """Requests of which enough are beyond a percentile."""
    beyond = 1000 - round(10 * PERCENTILES.get(of, 0.0))  # of a thousand
    return -(-1000 * LEAST_BEYOND // beyond) if beyond < 500 else 0


def _stretches(windows: Sequence[_Stretch], least_ns: int, least_count: int) -> Iterator[_Stretch]:
    """Windows added up until they are long enough and have enough requests; a rest joins the stretch before it."""

    def is_whole(one: _Stretch) -> bool:
        return one.end_ns - one.start_ns >= least_ns and one.total >= least_count

    for _, of_phase in groupby(windows, key=lambda window: window.phase):
        made: list[_Stretch] = []
        for window in of_phase:
            if not made or is_whole(made[-1]):
                made.append(_Stretch(window.phase, window.start_ns, window.start_ns))
            made[-1].add(window)
        if len(made) > 1 and not is_whole(made[-1]):
            rest = made.pop()
            made[-1].add(rest)
        yield from made


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
