"""Match figures of the base with those of a new version, and find differences between the sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfharness.analysis.comparison.compare import MAX_ORDER_SHARE, Pair, Rule, order_share
from perfharness.errors import UsageError
from perfharness.model.columns import Float64, Int64
from perfharness.model.result import PER_ITEM, TIMES, path_text
from perfharness.model.result import Path as StagePath
from perfharness.runs.comparison.launches import (
    DECIDING,
    VALIDITY,
    LaunchFigures,
    figures_of,
    paths_of,
    reason_of,
    values_of,
)
from perfharness.runs.comparison.limits import Limit
from perfharness.runs.comparison.result import EnvironmentDifference, NotCompared, Order
from perfharness.runs.comparison.sides import SideInput
from perfharness.runs.figures import BATCH_LATENCIES, LATENCY, LOAD_LATENCIES, Figure, find_stage

SAME_ITEMS = 0.02
"""Allowed relative difference in items per batch, because a last batch may not be full."""


@dataclass(frozen=True)
class CompareOptions:
    """Options of a comparison.

    Args:
        renamed: stages by their names in the base and in the new version (last names or paths).
        stages: stages to compare, by last name or path; empty for all and the run.
    """

    rule: Rule = field(default_factory=Rule)
    renamed: Mapping[str, str] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()
    stages: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class MatchedPair:
    """A figure of both sides, with its values per launch."""

    figure: Figure
    new_figure: Figure
    base: list[float | None]
    new: list[float | None]
    pair: Pair


@dataclass(frozen=True)
class MatchedSides:
    """Figures and differences of both sides; `new_path` has all stages of the base, even if missing."""

    base: SideInput
    new: SideInput
    differences: list[EnvironmentDifference]
    order: Order
    pairs: list[MatchedPair]
    not_compared: list[NotCompared]
    new_path: Mapping[StagePath, StagePath]

    def base_path(self, path: StagePath) -> StagePath:
        """Path in the base of a stage of the new version; renamed stages take precedence."""
        found = [old for old, now in self.new_path.items() if now == path]
        return next((old for old in found if old != path), path)

    def new_figure(self, figure: Figure) -> Figure:
        """Figure of the new version for a figure of the base."""
        return Figure(self.new_path.get(figure.path, ()), figure.metric)

    def unlike_items(self, path: StagePath) -> tuple[float, float] | None:
        """Items per batch in the base and the new version, if different; `path` is in the new version."""
        base, new = (
            [items for launch in side.used if (items := launch.batches.get(there))]
            for side, there in ((self.base, self.base_path(path)), (self.new, path))
        )
        was, now = float(np.mean(base or 0.0)), float(np.mean(new or 0.0))
        return (was, now) if was and now and abs(now - was) > SAME_ITEMS * was else None

    @property
    def deciding(self) -> list[EnvironmentDifference]:
        """Differences that make the comparison meaningless."""
        return [one for one in self.differences if one.is_deciding]


def match_sides(base: SideInput, new: SideInput, options: CompareOptions) -> MatchedSides:
    """Match the figures of both sides. Raises `UsageError`."""
    if unknown := sorted(options.allowed - set(DECIDING)):
        raise UsageError(f"--allow {unknown[0]}: unknown difference; choose from {', '.join(DECIDING)}")
    base_paths, new_paths = paths_of(base.used), paths_of(new.used)
    renamed = {
        _stage_or_group(old, base_paths, base.name): _stage_or_group(now, new_paths, new.name)
        for old, now in options.renamed.items()
    }
    wanted = {find_stage(name, base_paths, base.name) for name in options.stages}
    base_at, new_at = _places_of(base.used, new.used)
    matched = MatchedSides(
        base=base,
        new=new,
        differences=environment_differences(base.used, new.used, options.allowed),
        order=_order(base_at, new_at),
        pairs=[],
        not_compared=[],
        new_path={path: _renamed(path, renamed) for path in base_paths},
    )
    for figure in _judged_figures(base.used, wanted):
        there = matched.new_figure(figure)
        if (figure.path and there.path not in new_paths) or _is_of_other_time(figure, there, base, new):
            continue
        values = [launch.value(figure) for launch in base.used]
        new_values = [launch.value(there) for launch in new.used]
        (known, at), (new_known, new_known_at) = _known(values, base_at), _known(new_values, new_at)
        unlike = matched.unlike_items(there.path) if figure.metric in BATCH_LATENCIES else None
        if unlike is not None:
            reason = f"{unlike[0]:.4g} and {unlike[1]:.4g} items per batch"
            matched.not_compared.append(NotCompared(stage=figure.stage, metric=figure.metric, reason=reason))
        elif not len(known) or not len(new_known):
            reason = _why_missing((base, figure, known), (new, there, new_known))
            matched.not_compared.append(NotCompared(stage=figure.stage, metric=figure.metric, reason=reason))
        elif known.any() or new_known.any():  # otherwise the stage has no GPU work
            pair = Pair(known, new_known, at, new_known_at)
            matched.pairs.append(MatchedPair(figure, there, values, new_values, pair))
    return matched


def _judged_figures(launches: Sequence[LaunchFigures], wanted: set[StagePath]) -> list[Figure]:
    """Figures with a verdict of all or wanted stages: first the run, then a load test's latency."""
    batches = {path for launch in launches for path in launch.batches}
    judged = [
        figure
        for figure in figures_of(launches)
        if (figure.path in wanted if wanted else not figure.is_of_phase) and _is_judged(figure, batches)
    ]
    return sorted(judged, key=lambda figure: (bool(figure.path), figure.path != LATENCY))


def _is_judged(figure: Figure, batches: set[StagePath]) -> bool:
    """Whether a figure gets a verdict. Each verdict widens the intervals of the others."""
    if not figure.is_latency:
        return figure.of.is_judged
    if figure.path == LATENCY or figure.is_of_phase:
        return figure.metric in LOAD_LATENCIES
    return figure.path in batches and figure.metric in BATCH_LATENCIES


def _is_of_other_time(figure: Figure, there: Figure, base: SideInput, new: SideInput) -> bool:
    """Whether the other unit of the time (per item or per batch) is compared instead.

    Times are compared per item if both sides counted items, and per batch otherwise.
    """
    time = figure.metric.removesuffix(PER_ITEM)
    counted = all(
        bool(values_of(side.used, Figure(key.path, f"{time}{PER_ITEM}")))
        for side, key in ((base, figure), (new, there))
    )
    return time in TIMES and counted != figure.metric.endswith(PER_ITEM)


def _why_missing(*sides: tuple[SideInput, Figure, Float64]) -> str:
    """Name the side that did not measure a figure, and the reason."""
    lacking = [(side, figure) for side, figure, known in sides if not len(known)]
    side, figure = lacking[0]
    reason = reason_of(side.used, figure)
    where = "on either side" if len(lacking) == 2 else f"in {side.name}"
    return f"not measured {where}" + (f": {reason}" if reason else "")


def _stage_or_group(name: str, paths: Sequence[StagePath], where: str) -> StagePath:
    """Find a stage by name, or a group of stages by path (such as a backend of a suite). Raises `UsageError`."""
    groups = dict.fromkeys(path[:depth] for path in paths for depth in range(1, len(path)))
    return next((group for group in groups if path_text(group) == name), None) or find_stage(name, paths, where)


def _renamed(path: StagePath, renamed: Mapping[StagePath, StagePath]) -> StagePath:
    """Path in the new version: the innermost renamed ancestor is replaced."""
    for depth in range(len(path), 0, -1):
        if path[:depth] in renamed:
            return renamed[path[:depth]] + path[depth:]
    return path


# ---- the order of the launches ----


def _places_of(base: Sequence[LaunchFigures], new: Sequence[LaunchFigures]) -> tuple[Int64, Int64] | tuple[None, None]:
    """Position of each launch in the order of starts; None if a start is unknown."""
    starts = [start for launch in (*base, *new) if (start := launch.start_unix_ns) is not None]
    if len(starts) < len(base) + len(new):
        return None, None
    places = np.unique(starts, return_inverse=True)[1].astype(np.int64)
    return places[: len(base)], places[len(base) :]


def _known(values: Sequence[float | None], places: Int64 | None) -> tuple[Float64, Int64 | None]:
    """Known values, and the places of their launches."""
    known = np.asarray(values, dtype=np.float64)
    is_known = ~np.isnan(known)
    return known[is_known], None if places is None else places[is_known]


def _order(base_at: Int64 | None, new_at: Int64 | None) -> Order:
    if base_at is None or new_at is None:
        return "unknown"
    return "in-turns" if order_share(base_at, new_at) <= MAX_ORDER_SHARE else "one-after-the-other"


# ---- the environments ----


def environment_differences(
    base: Sequence[LaunchFigures], new: Sequence[LaunchFigures], allowed: frozenset[str] = frozenset()
) -> list[EnvironmentDifference]:
    """Differences between launches; first those that make the comparison meaningless.

    Includes invalid load tests, even on both sides.
    """
    found = []
    for name in dict.fromkeys(name for launch in (*base, *new) for name in launch.environment):
        was, now = (list(dict.fromkeys(launch.environment.get(name) for launch in side)) for side in (base, new))
        is_invalid = name == VALIDITY and any(launch.invalid for launch in (*base, *new))
        is_listed = is_invalid or len({*was, *now}) > 1
        if is_listed and _records(name, base) and _records(name, new):
            decides = is_invalid if name == VALIDITY else name in DECIDING and None not in (*was, *now)
            one = EnvironmentDifference(name=name, base=was, new=now, decides=decides, reason=DECIDING.get(name))
            found.append(one.model_copy(update={"allowed": name in allowed}))
    return sorted(found, key=lambda one: not one.decides)


def _records(name: str, side: Sequence[LaunchFigures]) -> bool:
    """Whether a side records the value. A library that is not listed is not installed."""
    return any(("python" if name.startswith("package ") else name) in launch.environment for launch in side)
