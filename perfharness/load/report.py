"""Report data of a load test: percentiles over time, rates, and the distribution of its latencies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from perfharness.analysis.load.latency import NEVER_NS, percentile_of
from perfharness.errors import ResultError
from perfharness.files import read_model
from perfharness.load.findings import keeps_up
from perfharness.load.record import read_lines
from perfharness.load.result import Requests, of_phase
from perfharness.model.columns import Int64
from perfharness.model.load import (
    LEAST_BEYOND,
    PERCENTILES,
    REQUESTS_NAME,
    WINDOWS_NAME,
    LoadFigure,
    LoadResult,
    LoadWindow,
    StepVerdict,
)
from perfharness.model.load import PhaseResult as Phase
from perfharness.model.manifest import LOAD_NAME
from perfharness.model.units import NS_PER_MS
from perfharness.runs.report.model import LoadBins, LoadCurve, LoadPoint, LoadReport

MAX_POINTS = 240
"""Maximum points of a curve."""

BINS = 40
CURVES = {"latency": ("p50", "p90", "p99", "p99_9", "max"), "lateness": ("p50", "p99", "max")}
NO_FILES = f"the run has no {WINDOWS_NAME} and {REQUESTS_NAME} of each process"


def load_report(folder: Path) -> LoadReport | None:
    """Read the load test of a run folder, if any. Raises `ResultError` if its files are damaged."""
    result = read_model(folder / LOAD_NAME, LoadResult)
    if result is None:
        return None
    lines = [file for file in sorted(folder.glob(f"*/{WINDOWS_NAME}")) if file.is_file()]
    tables = [file.with_name(REQUESTS_NAME) for file in lines]
    if not lines or not all(map(Path.is_file, tables)):
        return report_of(result)
    start_ns = min(line["start_ns"] for file in lines for line in read_lines(file)[:1])
    try:
        requests = pa.concat_tables([pq.read_table(table) for table in tables])
    except (OSError, pa.ArrowException) as error:
        raise ResultError(f"{REQUESTS_NAME} of {folder} cannot be read ({error}); run the load test again") from error
    return report_of(result, requests, start_ns)


def report_of(result: LoadResult, requests: pa.Table | None = None, start_ns: int | None = None) -> LoadReport:
    """Prepare a result and the rows of its requests, since `start_ns`; charts over time need rows."""
    main = main_phase(result)
    phase = None if main is None else result.phases[main]
    parts = [] if requests is None else [of_phase(requests, one.name) for one in result.phases]
    found = [bins_of(phase.name, part) for phase, part in zip(result.phases, parts, strict=False)]
    return LoadReport(
        result=result,
        start_ns=start_ns,
        main=main,
        workers_busy=None if phase is None else _workers_busy(phase),
        queueing_share=None if phase is None else _ratio(phase.queueing.mean.value, phase.latency.mean.value),
        objective=None if phase is None else objective_verdict(result, phase),
        curves=list(curves_of(result, parts, start_ns or 0)),
        curves_reason=NO_FILES if requests is None else None,
        bins=[one for one in found if one is not None],
    )


def main_phase(result: LoadResult) -> int | None:
    """The longest measured phase; of equally long ones, that of the highest rate that met the objective."""

    def importance(place: int) -> tuple[float, float]:
        phase = result.phases[place]
        has_met = phase_verdict(result, phase) == "meets"
        return round(phase.duration_s, 1), (phase.asked_rate or 0.0) if has_met else 0.0

    return max((place for place, one in enumerate(result.phases) if not one.is_warmup), key=importance, default=None)


def _workers_busy(phase: Phase) -> float | None:
    """Little's law: mean number of requests in service, divided by the workers."""
    service = phase.service.mean.value
    if service is None or phase.achieved_rate is None or not phase.completed or not phase.concurrency:
        return None
    well = phase.service.count / phase.completed  # service is not recorded for errors
    return phase.achieved_rate * well * service / 1e3 / phase.concurrency


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def objective_figure(result: LoadResult, phase: Phase) -> LoadFigure | None:
    """The percentile of the latency in the objective; None if it has none."""
    if result.objective is None:
        return None
    name = next((name for name, percent in PERCENTILES.items() if percent == result.objective.percentile), None)
    return None if name is None else getattr(phase.latency, name)


def objective_verdict(result: LoadResult, phase: Phase) -> StepVerdict | None:
    """Judged by the interval of its percentile; None: no objective, or no such percentile."""
    figure = objective_figure(result, phase)
    if figure is None or result.objective is None:
        return None
    if figure.high is not None and figure.high <= result.objective.latency_ms:
        return "meets"
    if figure.low is not None and figure.low > result.objective.latency_ms:
        return "misses"
    return "undecided"


def phase_verdict(result: LoadResult, phase: Phase) -> StepVerdict | None:
    """Whether a phase met the objective in all respects: latency, errors, and whether the target kept up. None: no
    objective, or the phase is not measured.
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


def thinned(windows: Sequence[LoadWindow]) -> Iterator[LoadWindow]:
    """Neighbouring windows of a phase merged, to about `MAX_POINTS` at most."""
    size = math.ceil(len(windows) / MAX_POINTS)
    for _, group in groupby(windows, key=lambda one: one.phase):
        own = list(group)
        yield from (_joined(own[first : first + size]) for first in range(0, len(own), size))


def _joined(windows: Sequence[LoadWindow]) -> LoadWindow:
    def most(name: str) -> int | None:
        return max((level for one in windows if (level := getattr(one, name)) is not None), default=None)

    update = {
        "start_s": windows[0].start_s,
        **{name: sum(getattr(one, name) for one in windows) for name in ("arrivals", "completed", "ok")},
        "errors": dict(sum((Counter(one.errors) for one in windows), Counter())),
        "in_flight_max": most("in_flight_max"),
        "queue_max": most("queue_max"),
    }
    return windows[-1].model_copy(update=update)


def curves_of(result: LoadResult, phases: Sequence[Requests], start_ns: int) -> Iterator[LoadCurve]:
    """Percentiles over time: of equal parts of a phase, of at least one second, with enough requests."""
    for time, names in CURVES.items():
        for of in names:
            points = [
                point
                for place, requests in enumerate(phases)
                for point in _points(result, place, requests, time, of, start_ns)
            ]
            if any(point.ms is not None for point in points):
                yield LoadCurve(time=time, of=of, points=points)


def _points(
    result: LoadResult, place: int, requests: Requests, time: str, of: str, start_ns: int
) -> Iterator[LoadPoint]:
    phase = result.phases[place]
    begin_s = phase.start_s
    end_s = max((one.end_s for one in result.windows if one.phase == phase.name), default=begin_s)
    ended_ns, _, values = requests.values(time)
    beyond = 0.5 if of == "max" else 1 - PERCENTILES[of] / 100
    enough = len(values) if beyond >= 0.5 else int(len(values) * beyond / LEAST_BEYOND + 1e-6)
    count = max(min(round(end_s - begin_s), enough, MAX_POINTS), 1)
    edges = np.linspace(begin_s, end_s, count + 1)
    part = np.searchsorted(edges[1:-1], (ended_ns - start_ns) / 1e9, side="right")  # the last has given-up requests
    order = np.argsort(part, kind="stable")
    parts = np.split(values[order], np.searchsorted(part[order], np.arange(1, count)))
    for low, high, own in zip(edges[:-1].tolist(), edges[1:].tolist(), parts, strict=True):
        yield LoadPoint(phase=place, start_s=low, end_s=high, count=len(own), ms=_value(own, of))


def _value(values: Int64, of: str) -> float | None:
    """A percentile or the maximum, ms."""
    ordered = np.sort(values)
    if of != "max":
        found = percentile_of(ordered, PERCENTILES[of])
        return None if isinstance(found, str) else found
    return None if not len(values) or ordered[-1] == NEVER_NS else float(ordered[-1]) / NS_PER_MS


# ---- distribution ----


def bins_of(phase: str, requests: Requests) -> LoadBins | None:
    """The latencies of a phase; None if there are none."""
    _, _, values = requests.values("latency")
    values = values[values != NEVER_NS]
    if not len(values):
        return None
    first, last = max(int(values.min()), 1), max(int(values.max()), 2)
    edges = np.geomspace(first, last + 1, BINS + 1)
    edges[0] = first
    counts, _ = np.histogram(np.maximum(values, first), edges)
    return LoadBins(phase=phase, edges_ms=(edges / 1e6).tolist(), counts=counts.tolist())
