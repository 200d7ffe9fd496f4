"""Parse and judge limits such as `inference.p95 > 20ms`.

A limit is `STAGE.FIGURE OPERATOR VALUE` with a unit, or with `%` for the change from the base. Figures of the run have
no stage. `STAGE` is a name or a path; quote names with blanks or operators.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfharness.analysis.comparison.compare import geometric_mean
from perfharness.errors import UsageError
from perfharness.model.base import Record
from perfharness.model.checks import PrintableText
from perfharness.model.result import Path as StagePath
from perfharness.runs.comparison.launches import LaunchFigures, figures_of, paths_of, read_launch, reason_of, values_of
from perfharness.runs.figures import (
    ACCURACY,
    ACCURACY_METRIC,
    LATENCY,
    METRICS,
    PHASES,
    Figure,
    Unit,
    find_stage,
)

UNITS: dict[Unit, dict[str, float]] = {
    "ms": {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3},
    "items/s": {"items/s": 1.0},
    "requests/s": {"requests/s": 1.0},
    "MB/s": {"MB/s": 1.0},
    "bytes": {"B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
    "J": {"mJ": 1e-3, "J": 1.0},
}
"""Units of limits and their sizes, by unit of the figure."""

PERCENT = "%"

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

SHORT_NAMES = {
    "cpu": ("cpu_time_per_item", "cpu_time"),
    "gpu": ("gpu_time_per_item", "gpu_time"),
    "busy": ("gpu_busy_time_per_item", "gpu_busy_time"),
}
"""Times of a stage, per item if items were counted, or else per batch."""

NAME = r"""(?:"[^"]+"|'[^']+'|[^\s"'<>=.]+)"""
LIMIT = re.compile(
    rf"\s*(?:(?P<stage>{NAME}(?:\.{NAME})*?)\.)?(?P<figure>p99\.9|{NAME})\s*(?P<operator>[<>]=?)"
    r"\s*(?P<value>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>\S*)\s*"
)


@dataclass(frozen=True)
class Limit:
    """A condition that must not be met.

    Attributes:
        stage: last name or path; empty for the run, or for the batch if the metric is of a stage.
        metrics: candidates; the first measured one is judged.
        value: in the unit of the figure, or in percent.
    """

    text: str
    stage: str
    metrics: Sequence[str]
    operator: str
    value: float
    is_change: bool


class LimitResult(Record, use_attribute_docstrings=True):
    """Result of a limit."""

    limit: PrintableText
    version: PrintableText
    figure: str | None = None
    """compared figure, or null if not measured"""

    value: float | None = None
    """mean over the launches in the unit of the figure, or the change in percent"""

    unit: str | None = None
    launches: int = 0
    failed: bool
    """whether the condition is met or cannot be judged"""

    reason: str | None = None
    """why the limit cannot be judged"""


def parse_limit(text: str) -> Limit:
    """Read a limit. Raises `UsageError`."""
    found = LIMIT.fullmatch(text)
    if found is None:
        raise _wrong(text, "must be STAGE.FIGURE OPERATOR VALUE, as in 'inference.p95 > 20ms'")
    names = [name.strip("\"'") for name in re.findall(NAME, found["stage"] or "")]
    name = found["figure"].strip("\"'").replace("p99.9", "p99_9")
    metrics = SHORT_NAMES.get(name, (name,))
    metric = ACCURACY_METRIC if names[-1:] == [ACCURACY] else METRICS.get(metrics[0])
    if metric is None:
        raise _wrong(text, f"unknown figure '{name}'; choose from {', '.join(sorted({*SHORT_NAMES, *METRICS}))}")
    if names and (metric.scope == "run" or (metric.scope == "phase" and names[0] != PHASES)):
        raise _wrong(text, f"{name} is a figure of the whole run; drop the stage")
    value, unit, fitting = float(found["value"]), found["unit"], UNITS.get(metric.unit, {})
    if unit == PERCENT and metric.unit == "share":
        share = f"{name} {found['operator']} {value / 100:g}"
        raise _wrong(text, f"% means the change from BASE; write the share as {share}")
    if unit not in ("", PERCENT, *fitting):
        known = f"the units {', '.join(fitting)} or %" if fitting else "no unit"
        raise _wrong(text, f"{name} has {known}")
    return Limit(text, ".".join(names), metrics, found["operator"], value * fitting.get(unit, 1.0), unit == PERCENT)


def _wrong(text: str, what: str) -> UsageError:
    return UsageError(f"--fail-if '{text}': {what}")


def judge_run(folder: Path, limits: Sequence[Limit]) -> list[LimitResult]:
    """Judge limits of a run without a base. Raises `UsageError` or `ResultError`."""
    if not limits:
        return []
    launch = read_launch(folder)
    return [judge_limit(limit, [], [launch], "the run") for limit in limits]


def judge_limit(
    limit: Limit,
    base: Sequence[LaunchFigures],
    new: Sequence[LaunchFigures],
    version: str,
    base_path: Callable[[StagePath], StagePath] = lambda path: path,
    not_comparable: str = "",
) -> LimitResult:
    """Judge a limit by the mean over the launches of the new version. Raises `UsageError`.

    Args:
        base_path: path in the base of a stage of the new version.
        not_comparable: why changes cannot be judged, except that of accuracy; or empty.
    """
    figure = _figure_of(limit, new, version)
    value = _mean(new, figure)
    launches = len(values_of(new, figure))

    def result(value: float | None, unit: str | None, reason: str | None = None) -> LimitResult:
        failed = value is None or OPERATORS[limit.operator](value, limit.value)
        return LimitResult(
            limit=limit.text,
            version=version,
            figure=figure.text,
            value=value,
            unit=unit,
            launches=launches,
            failed=failed,
            reason=reason,
        )

    if (invalid := next((launch.invalid for launch in new if launch.invalid), None)) is not None:
        return result(None, None, invalid)
    if value is None:
        return result(None, None, reason_of(new, figure) or "not measured")
    if not limit.is_change:
        return result(value, figure.of.unit)
    if not_comparable and figure.of is not ACCURACY_METRIC:
        return result(None, None, not_comparable)
    before = _mean(base, Figure(base_path(figure.path), figure.metric))
    if not before:
        return result(None, None, "not measured in the base")
    return result(100 * (value / before - 1), PERCENT)


def _mean(launches: Sequence[LaunchFigures], figure: Figure) -> float | None:
    """Geometric mean over launches, or arithmetic mean of shares, which may be almost 0."""
    values = np.asarray(values_of(launches, figure))
    return float(values.mean()) if len(values) and figure.of.unit == "share" else geometric_mean(values)


def _figure_of(limit: Limit, launches: Sequence[LaunchFigures], version: str) -> Figure:
    """First measured figure of the limit's stage, or of the only batch. Raises `UsageError`."""
    path: StagePath = ()
    if limit.stage:
        path = find_stage(limit.stage, paths_of(launches), version)
    elif METRICS[limit.metrics[0]].scope == "stage":
        batches = list(dict.fromkeys(path for launch in launches for path in launch.batches))
        batches = [path for path in batches if path != LATENCY] or batches
        if len(batches) != 1:
            raise _wrong(limit.text, f"{version} has {len(batches)} batch stages; name one")
        path = batches[0]
    figures = [Figure(path, name) for name in limit.metrics]
    known = figures_of(launches)
    if path and not set(known).intersection(figures):
        there = ", ".join(figure.metric for figure in known if figure.path == path)
        raise _wrong(limit.text, f"{version} has no such figure of '{limit.stage}'; choose from {there or 'none'}")
    return next((figure for figure in figures if values_of(launches, figure)), figures[0])
