"""Limits of a gate: `inference.p95 > 20ms`, as text -> a condition -> whether a version's figures meet it.

    limit    := name ("." name)* operator number [unit]
    name     := word | "quoted" | 'quoted'
    operator := ">" | ">=" | "<" | "<="

The last name is the figure, those before it are the stage (dots in its name need no quotes); a figure of the whole run
has no stage. `[STAGE.]accuracy.NAME` is a metric of accuracy, `phases.NAME.FIGURE` is of a single phase of a load test.
With the unit `%` it is the change against the base that is compared.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from perfharness.analysis.comparison.compare import geometric_mean
from perfharness.errors import UsageError
from perfharness.model.base import Record
from perfharness.model.checks import PrintableText
from perfharness.model.load import PERCENTILES
from perfharness.model.result import Path as StagePath
from perfharness.model.result import path_text
from perfharness.runs.comparison.compared_figure import ACCURACY, METRICS, PHASES, Figure, Unit
from perfharness.runs.comparison.compared_launch import LaunchFigures, find_stage, read_launch

UNITS: dict[str, tuple[Unit, float]] = {
    "ns": ("ms", 1e-6),
    "us": ("ms", 1e-3),
    "µs": ("ms", 1e-3),
    "ms": ("ms", 1.0),
    "s": ("ms", 1e3),
    "items/s": ("items/s", 1.0),
    "requests/s": ("requests/s", 1.0),
    "MB/s": ("MB/s", 1.0),
    "B": ("bytes", 1.0),
    "kB": ("bytes", 1e3),
    "KB": ("bytes", 1e3),
    "MB": ("bytes", 1e6),
    "GB": ("bytes", 1e9),
    "KiB": ("bytes", 2.0**10),
    "MiB": ("bytes", 2.0**20),
    "GiB": ("bytes", 2.0**30),
    "mJ": ("J", 1e-3),
    "J": ("J", 1.0),
}
"""What a unit measures, and how many of that one's own unit it is."""

PERCENT = "%"

Operator = Literal[">", ">=", "<", "<="]
OPERATORS: dict[Operator, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

FIGURES: dict[str, tuple[str, ...]] = {
    "cpu": ("cpu_time_per_item", "cpu_time"),
    "gpu": ("gpu_time_per_item", "gpu_time"),
    "busy": ("gpu_busy_time_per_item", "gpu_busy_time"),
    "p50": ("stage_p50",),
    "p95": ("stage_p95",),
    "p99": ("stage_p99",),
}
"""Figures of a stage by their short names: the first that was measured."""

RUN_FIGURES = {
    "throughput": "throughput",
    "start_up": "start_up",
    "gpu_memory": "gpu_memory",
    "host_memory": "host_memory",
    "energy": "energy_per_item",
    "achieved_rate": "achieved_rate",
    "goodput": "goodput",
    "error_rate": "error_rate",
    "memory_slope": "memory_slope",
    "loadgen_rate": "loadgen_rate",
    "loadgen_latency": "loadgen_latency",
    "early_stopping": "loadgen_early_stopping",
    "over_latency": "over_latency_share",
}
"""Figures of the run by their short names."""

LATENCY = "latency"
LOAD_FIGURES = {"mean": "load_mean", **{name: f"load_{name}" for name in PERCENTILES}}
"""Figures of the latency of a load test, as `latency.p99`; `p99_9` is also written p99.9."""

OF_PHASES = LOAD_FIGURES | {name: name for name in ("achieved_rate", "goodput", "error_rate")}
"""Figures of a single phase, as `phases.steady.p99`."""

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
QUANTITY = re.compile(rf"({NUMBER.pattern})\s*({'|'.join(map(re.escape, sorted(UNITS, key=len, reverse=True)))}|%)?")
TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"[^"]*"|'[^']*')|(?P<operator>[<>]=?)|(?P<dot>\.)|(?P<word>[^\s"'<>=.]+)|(?P<other>\S))"""
)


@dataclass(frozen=True)
class Quantity:
    """A number with its unit; None: it has none."""

    value: float
    unit: Unit | Literal["%"] | None


@dataclass(frozen=True)
class Limit:
    """A condition that makes a gate fail where it is met.

    Args:
        text: as it was written.
        stage: last name or path; empty: of the run, or of the batch where the figure is one of a stage.
        figure: its short name; of `accuracy`, the name of the metric.
        phase: of a load test, where one is named.
    """

    text: str
    stage: str
    figure: str
    operator: Operator
    quantity: Quantity
    phase: str | None = None
    is_accuracy: bool = False


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


def parse_quantity(text: str, what: str) -> Quantity:
    """`5us`, `2 %`, `1.5`. Raises `UsageError`, which names `what`."""
    found = QUANTITY.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{what} {text}: must be a number, with one of these units or none: {', '.join(UNITS)}, %")
    number, unit = float(found[1]), found[4]
    if unit is None:
        return Quantity(number, None)
    if unit == PERCENT:
        return Quantity(number, "%")
    kind, factor = UNITS[unit]
    return Quantity(number * factor, kind)


def parse_limit(text: str) -> Limit:
    """A limit of its text. Raises `UsageError`, which shows the place."""
    names: list[str] = []
    position, expects_name = 0, True
    while True:
        token = TOKEN.match(text, position)
        if token is None:
            raise _wrong(text, len(text), "an operator, as in 'inference.p95 > 20ms', is missing")
        kind, content = str(token.lastgroup), token[str(token.lastgroup)]
        start = token.start(kind)
        if kind == "operator" and not expects_name:
            break
        if kind == "dot" and not expects_name:
            expects_name = True
        elif kind in ("quoted", "word") and expects_name:
            names.append(content[1:-1] if kind == "quoted" else content)
            expects_name = False
        else:
            wanted = "the name of a stage or a figure" if expects_name else "'.' or one of > >= < <="
            raise _wrong(text, start, f"{wanted} is expected")
        position = token.end()
    rest = text[token.end() :].strip()
    if QUANTITY.fullmatch(rest) is None:
        begin = len(text) - len(text[token.end() :].lstrip())
        raise _wrong(text, begin, f"a number with a unit is expected ({', '.join(UNITS)}, %)")
    quantity = parse_quantity(rest, "--fail-if")
    if len(names) > 1 and names[-2] == ACCURACY:
        limit = Limit(text, ".".join(names[:-2]), names[-1], content, quantity, is_accuracy=True)  # type: ignore[arg-type]
        return _checked(limit, ACCURACY)
    is_latency = names[:1] in ([LATENCY], [PHASES])
    if is_latency and names[-2:] == ["p99", "9"]:
        names = [*names[:-2], "p99_9"]
    *stage, figure = names
    if stage[:1] == [PHASES] and len(stage) > 1 and figure in OF_PHASES:
        limit = Limit(text, ".".join(stage), figure, content, quantity, phase=".".join(stage[1:]))  # type: ignore[arg-type]
        return _checked(limit, OF_PHASES[figure])
    known = {*FIGURES, *RUN_FIGURES, *(LOAD_FIGURES if stage == [LATENCY] else ())}
    if figure not in known:
        raise UsageError(f"--fail-if '{text}': there is no figure '{figure}'; there are {', '.join(sorted(known))}")
    if stage and figure in RUN_FIGURES:
        raise UsageError(f"--fail-if '{text}': {figure} is one of the whole run; leave the stage away")
    names_of = RUN_FIGURES | {name: figures[0] for name, figures in FIGURES.items()}
    limit = Limit(text, ".".join(stage), figure, content, quantity)  # type: ignore[arg-type]
    return _checked(limit, names_of.get(figure) or LOAD_FIGURES[figure])


def _checked(limit: Limit, metric: str) -> Limit:
    """Raises `UsageError` where the unit is not one of the figure."""
    unit = METRICS[metric].unit
    if unit == "share" and limit.quantity.unit == PERCENT:
        raise UsageError(
            f"--fail-if '{limit.text}': {limit.figure} is a share, and % would be its change against BASE; give the "
            f"share, as {limit.figure} {limit.operator} {limit.quantity.value / 100:g}"
        )
    if limit.quantity.unit not in (None, PERCENT, unit):
        fitting = [name for name, (kind, _) in UNITS.items() if kind == unit]
        known = f"is in one of {', '.join(fitting)}, or %" if fitting else "has no unit; give a number, or %"
        raise UsageError(f"--fail-if '{limit.text}': {limit.figure} {known}")
    return limit


def _wrong(text: str, position: int, what: str) -> UsageError:
    return UsageError(f"--fail-if '{text}': {what} at character {position + 1}")


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
        not_comparable: why the sides have no change that could be judged; None: they are comparable. Accuracy is: it
            is of no machine.

    Raises `UsageError`.
    """
    is_load = limit.stage == LATENCY and _has_load(new) and limit.figure in LOAD_FIGURES
    path: StagePath = ()
    names: tuple[str, ...]
    if limit.is_accuracy:
        path, names = _accuracy_path(limit, new, version), (ACCURACY,)
    elif limit.phase is not None and (phase := _phase_path(limit, new, version)):
        path, names = phase, (OF_PHASES[limit.figure],)
    elif is_load:
        names = (LOAD_FIGURES[limit.figure],)
    elif limit.figure in RUN_FIGURES:
        names = (RUN_FIGURES[limit.figure],)
    elif limit.figure in FIGURES:
        path, names = _path_of(limit, new, version), FIGURES[limit.figure]
    else:
        raise UsageError(
            f"--fail-if '{limit.text}': {version} is no load test, so it has no {limit.stage}.{limit.figure}"
        )
    figure = next((Figure(path, name) for name in names if _values(new, Figure(path, name))), Figure(path, names[0]))
    values = _values(new, figure)
    common = {"limit": limit.text, "version": version, "figure": figure.text, "launches": len(values)}
    unit: str = METRICS[figure.metric].unit
    # The geometric mean of shares would be next to nothing where one launch has next to none.
    value = float(np.mean(values)) if values and unit == "share" else geometric_mean(np.asarray(values))
    if (invalid := next((launch.invalid for launch in new if launch.invalid), None)) is not None:
        return LimitResult.model_validate({**common, "failed": True, "reason": invalid})
    if value is None:
        known = next((launch.reasons[figure] for launch in new if figure in launch.reasons), "it was not measured")
        return LimitResult.model_validate({**common, "failed": True, "reason": known})
    if limit.quantity.unit == PERCENT:
        if not_comparable and not limit.is_accuracy:
            return LimitResult.model_validate({**common, "failed": True, "reason": not_comparable})
        before = geometric_mean(np.asarray(_values(base, Figure(base_path(figure.path), figure.metric))))
        if not before:
            reason = "the base has no such figure, so there is no change of it"
            return LimitResult.model_validate({**common, "failed": True, "reason": reason})
        value, unit = 100 * (value / before - 1), PERCENT
    failed = OPERATORS[limit.operator](value, limit.quantity.value)
    return LimitResult.model_validate({**common, "value": value, "unit": unit, "failed": failed})


def _accuracy_path(limit: Limit, launches: Sequence[LaunchFigures], version: str) -> StagePath:
    """Of a metric of accuracy, of a case of a suite. Raises `UsageError`."""
    there = list(dict.fromkeys(one.path for launch in launches for one in launch.figures if one.metric == ACCURACY))
    named = [path for path in there if path[-1] == limit.figure]
    if limit.stage:
        stage = find_stage(limit.stage, list(dict.fromkeys(path[:-2] for path in named if path[:-2])), version)
        named = [path for path in named if path[:-2] == stage]
    if len(named) == 1:
        return named[0]
    if named:
        cases = ", ".join(path_text(path[:-2]) for path in named)
        raise UsageError(f"--fail-if '{limit.text}': {version} has several; name the case, in quotes: {cases}")
    known = ", ".join(dict.fromkeys(path[-1] for path in there)) or "none"
    raise UsageError(f"--fail-if '{limit.text}': {version} has no accuracy '{limit.figure}'; there are: {known}")


def _phase_path(limit: Limit, launches: Sequence[LaunchFigures], version: str) -> StagePath | None:
    """Of a phase that counts; None: they are no load tests, and it is a stage. Raises `UsageError`."""
    there = list(dict.fromkeys(one.path for launch in launches for one in launch.figures if one.is_of_phase))
    path = (PHASES, str(limit.phase))
    if path in there:
        return path
    if there:
        known = ", ".join(name for _, name in there)
        raise UsageError(f"--fail-if '{limit.text}': {version} has no phase '{limit.phase}'; those that count: {known}")
    if limit.figure in FIGURES:
        return None
    raise UsageError(f"--fail-if '{limit.text}': {version} has no phases: it is no load test")


def _has_load(launches: Sequence[LaunchFigures]) -> bool:
    """Whether they are load tests, without a stage that is called as their latency is."""
    return any(Figure((), "load_p50") in one.figures for one in launches) and not any(
        path[-1] == LATENCY for one in launches for path in one.paths
    )


def _path_of(limit: Limit, launches: Sequence[LaunchFigures], version: str) -> StagePath:
    """The stage of a limit; of a figure of stages without a stage, the one that is a batch."""
    paths = list(dict.fromkeys(path for launch in launches for path in launch.paths))
    if limit.stage:
        return find_stage(limit.stage, paths, version)
    batches = list(dict.fromkeys(figure.path for one in launches for figure in one.figures
                                 if figure.metric == "latency_p50"))  # fmt: skip
    if len(batches) != 1:
        raise UsageError(f"--fail-if '{limit.text}': {version} has {len(batches)} kinds of batches; name the stage")
    return batches[0]


def _values(launches: Sequence[LaunchFigures], figure: Figure) -> list[float]:
    return [value for launch in launches if (value := launch.figures.get(figure)) is not None]
