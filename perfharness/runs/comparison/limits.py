"""Limits of a gate: `inference.p95 > 20ms`, as text -> a condition -> whether a version's figures meet it.

A limit is `STAGE.FIGURE OPERATOR VALUE`, with a unit, or with `%` for the change against the base. Figures of the whole
run have no stage. `STAGE` is a name or a path; names with blanks or operators are in quotes.
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
"""The units that a limit may have, by that of the figure, and their sizes in that one."""

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
"""Times of a stage, per item where items were counted, else per batch."""

NAME = r"""(?:"[^"]+"|'[^']+'|[^\s"'<>=.]+)"""
LIMIT = re.compile(
    rf"\s*(?:(?P<stage>{NAME}(?:\.{NAME})*?)\.)?(?P<figure>p99\.9|{NAME})\s*(?P<operator>[<>]=?)"
    r"\s*(?P<value>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>\S*)\s*"
)


@dataclass(frozen=True)
class Limit:
    """A condition that makes a gate fail where it is met."""

    text: str
    stage: str  # last name or path; empty: the run, or the batch where the figure is one of a stage
    metrics: Sequence[str]  # the first of them that was measured
    operator: str
    value: float  # in the unit of the figure, or in percent
    is_change: bool


class LimitResult(Record, use_attribute_docstrings=True):
    """What became of a limit."""

    limit: PrintableText
    version: PrintableText
    figure: str | None = None
    """what was compared; null: nothing of that name was measured"""

    value: float | None = None
    """mean over the launches, in the unit of the figure; of a limit in percent, the change in percent"""

    unit: str | None = None
    launches: int = 0
    failed: bool
    """whether the condition is met; a limit that cannot be judged fails"""

    reason: str | None = None
    """why it cannot be judged"""


def parse_limit(text: str) -> Limit:
    """Read a limit. Raises `UsageError`."""
    found = LIMIT.fullmatch(text)
    if found is None:
        raise _wrong(text, "it must be STAGE.FIGURE OPERATOR VALUE, as in 'inference.p95 > 20ms'")
    names = [name.strip("\"'") for name in re.findall(NAME, found["stage"] or "")]
    name = found["figure"].strip("\"'").replace("p99.9", "p99_9")
    metrics = SHORT_NAMES.get(name, (name,))
    metric = ACCURACY_METRIC if names[-1:] == [ACCURACY] else METRICS.get(metrics[0])
    if metric is None:
        raise _wrong(text, f"there is no figure '{name}'; there are {', '.join(sorted({*SHORT_NAMES, *METRICS}))}")
    if names and (metric.scope == "run" or (metric.scope == "phase" and names[0] != PHASES)):
        raise _wrong(text, f"{name} is a figure of the whole run; drop the stage")
    value, unit, fitting = float(found["value"]), found["unit"], UNITS.get(metric.unit, {})
    if unit == PERCENT and metric.unit == "share":
        share = f"{name} {found['operator']} {value / 100:g}"
        raise _wrong(text, f"% would be the change of a share against BASE; give the share, as {share}")
    if unit not in ("", PERCENT, *fitting):
        known = f"one of the units {', '.join(fitting)}, or %" if fitting else "no unit"
        raise _wrong(text, f"{name} has {known}")
    return Limit(text, ".".join(names), metrics, found["operator"], value * fitting.get(unit, 1.0), unit == PERCENT)


def _wrong(text: str, what: str) -> UsageError:
    return UsageError(f"--fail-if '{text}': {what}")


def judge_run(folder: Path, limits: Sequence[Limit]) -> list[LimitResult]:
    """Whether conditions are met by one run, which has no base. Raises `UsageError`, `ResultError`."""
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
    not_comparable: str | None = None,
) -> LimitResult:
    """Whether the condition is met by the mean over the launches of the new version.

    Args:
        base_path: what the base calls a stage of the new version.
        not_comparable: why the sides have no change that could be judged; accuracy always has one.

    Raises `UsageError`.
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
        return result(None, None, reason_of(new, figure) or "it was not measured")
    if not limit.is_change:
        return result(value, figure.of.unit)
    if not_comparable and figure.of is not ACCURACY_METRIC:
        return result(None, None, not_comparable)
    before = _mean(base, Figure(base_path(figure.path), figure.metric))
    if not before:
        return result(None, None, "the base has no such figure, so there is no change of it")
    return result(100 * (value / before - 1), PERCENT)


def _mean(launches: Sequence[LaunchFigures], figure: Figure) -> float | None:
    """Over launches; the geometric mean of shares would be next to nothing where one launch has next to none."""
    values = np.asarray(values_of(launches, figure))
    return float(values.mean()) if len(values) and figure.of.unit == "share" else geometric_mean(values)


def _figure_of(limit: Limit, launches: Sequence[LaunchFigures], version: str) -> Figure:
    """The first of the figures that was measured; without a stage, of the only batch. Raises `UsageError`."""
    path: StagePath = ()
    if limit.stage:
        path = find_stage(limit.stage, paths_of(launches), version)
    elif METRICS[limit.metrics[0]].scope == "stage":
        batches = list(dict.fromkeys(path for launch in launches for path in launch.batches))
        batches = [path for path in batches if path != LATENCY] or batches
        if len(batches) != 1:
            raise _wrong(limit.text, f"{version} has {len(batches)} kinds of batches; name the stage")
        path = batches[0]
    figures = [Figure(path, name) for name in limit.metrics]
    known = figures_of(launches)
    if path and not set(known).intersection(figures):
        there = ", ".join(figure.metric for figure in known if figure.path == path)
        raise _wrong(limit.text, f"{version} has no such figure of '{limit.stage}'; there are: {there or 'none'}")
    return next((figure for figure in figures if values_of(launches, figure)), figures[0])
