"""The launches of two versions, and which figure of one is which of the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from perfharness.analysis.comparison.compare import MAX_ORDER_SHARE, Pair, Rule, order_share
from perfharness.errors import UsageError
from perfharness.model.result import TIMES, path_text
from perfharness.model.result import Path as StagePath
from perfharness.runs.comparison.compared_figure import ACCURACY, METRICS, Figure
from perfharness.runs.comparison.compared_launch import DECIDING, VALIDITY, LaunchFigures, find_stage
from perfharness.runs.comparison.launch_figures import PER_ITEM
from perfharness.runs.comparison.limits import Limit
from perfharness.runs.comparison.result import EnvironmentDifference, NotCompared, Order


@dataclass(frozen=True)
class SideInput:
    """The launches of a side, those that cannot be used included."""

    name: str
    launches: Sequence[LaunchFigures]

    @property
    def used(self) -> list[LaunchFigures]:
        """Those that can be used."""
        return [launch for launch in self.launches if launch.problem is None]


@dataclass(frozen=True)
class CompareOptions:
    """What to compare, and how.

    Args:
        renamed: stages of the base and what the new version calls them: last names or paths.
        allowed: names of differences that may be, though they make most comparisons meaningless.
        stages: only these, by last name or path; empty: all, and the run.
        limits: that the other versions are to keep to.
    """

    rule: Rule = field(default_factory=Rule)
    renamed: Mapping[str, str] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()
    stages: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class MatchedPair:
    """A figure that both sides have."""

    figure: Figure
    new_figure: Figure
    base: list[float | None]
    new: list[float | None]
    pair: Pair


@dataclass(frozen=True)
class MatchedSides:
    """The base and a version, what they have in common and what not."""

    base: SideInput
    new: SideInput
    differences: list[EnvironmentDifference]
    order: Order
    pairs: list[MatchedPair]
    not_compared: list[NotCompared]
    only_in_base: list[StagePath]
    only_in_new: list[StagePath]
    accuracies: list[tuple[Figure, Figure]]
    """Metrics of accuracy that both sides have."""

    base_paths: Mapping[StagePath, StagePath] = field(default_factory=dict)
    """What the base calls the stages of the new version."""

    def base_path(self, path: StagePath) -> StagePath:
        """What the base calls a stage of the new version; one that it does not have has the same name."""
        return self.base_paths.get(path, path)

    @property
    def is_comparable(self) -> bool:
        """Whether nothing differs that makes the comparison meaningless."""
        return not any(one.is_deciding for one in self.differences)


def check_options(options: CompareOptions) -> None:
    """Raises `UsageError` where a name does not exist."""
    if unknown := sorted(options.allowed - set(DECIDING)):
        raise UsageError(f"--allow {unknown[0]}: no such difference; there are {', '.join(DECIDING)}")


def match_sides(base: SideInput, new: SideInput, options: CompareOptions) -> MatchedSides:
    """The figures that both sides have, and what only one has."""
    base_paths, new_paths = _paths(base.used), _paths(new.used)
    renamed = {
        _stage_or_group(old, base_paths, base.name): _stage_or_group(now, new_paths, new.name)
        for old, now in options.renamed.items()
    }
    new_path = {path: _renamed(path, renamed) for path in base_paths}
    wanted = {find_stage(name, base_paths, base.name) for name in options.stages}
    figures = [
        figure
        for figure in dict.fromkeys(figure for launch in base.used for figure in launch.figures)
        if (figure.is_judged or (figure.path in wanted and METRICS[figure.metric].is_judged))
        and (not wanted or figure.path in wanted)
        and (not figure.path or new_path[figure.path] in new_paths)
    ]
    figures.sort(key=lambda figure: bool(figure.path))  # the run first; the stages stay in order
    base_at, new_at = _places_of(base.used, new.used)
    pairs, not_compared = [], []
    for figure in figures:
        there = Figure(new_path[figure.path] if figure.path else (), figure.metric)
        is_time = figure.metric.removesuffix(PER_ITEM) in TIMES
        if is_time and _is_per_item(figure, there, base, new) != figure.metric.endswith(PER_ITEM):
            continue
        values = [launch.figures.get(figure) for launch in base.used]
        new_values = [launch.figures.get(there) for launch in new.used]
        if reason := _missing(base, new, figure, there, values, new_values):
            not_compared.append(NotCompared(stage=figure.stage, metric=figure.metric, reason=reason))
            continue
        if all(value == 0 for value in (*values, *new_values)):
            continue  # the stage does nothing on the GPU
        pair = Pair(
            np.asarray([value for value in values if value is not None], dtype=np.float64),
            np.asarray([value for value in new_values if value is not None], dtype=np.float64),
            base_at=_known(base_at, values),
            new_at=_known(new_at, new_values),
        )
        pairs.append(MatchedPair(figure, there, values, new_values, pair))
    known_new = set(new_path.values())
    return MatchedSides(
        base,
        new,
        environment_differences(base.used, new.used, options.allowed),
        _order(base_at, new_at),
        pairs,
        not_compared,
        [path for path in base_paths if new_path[path] not in new_paths],
        [path for path in new_paths if path not in known_new],
        [
            (Figure(path, ACCURACY), Figure(new_path[path], ACCURACY))
            for path in base_paths
            if path[-2:-1] == (ACCURACY,) and new_path[path] in new_paths
        ],
        dict(sorted(((now, old) for old, now in new_path.items()), key=lambda pair: pair[0] != pair[1])),
    )  # a stage that `--map` names is that one, also where the base has another of its new name


def _is_per_item(figure: Figure, there: Figure, base: SideInput, new: SideInput) -> bool:
    """Whether both sides counted items, so that times per item are compared, and not those of batches."""
    time = figure.metric.removesuffix(PER_ITEM)
    return all(
        any(launch.figures.get(Figure(key.path, f"{time}{PER_ITEM}")) is not None for launch in side.used)
        for side, key in ((base, figure), (new, there))
    )


def _missing(
    base: SideInput,
    new: SideInput,
    figure: Figure,
    there: Figure,
    values: Sequence[float | None],
    new_values: Sequence[float | None],
) -> str | None:
    """Why a figure cannot be compared; None: both sides have it."""
    lacking = [
        (side, key)
        for side, key, own in ((base, figure, values), (new, there, new_values))
        if all(value is None for value in own)
    ]
    if not lacking:
        return None
    side, key = lacking[0]
    known = next((launch.reasons[key] for launch in side.used if key in launch.reasons), None)
    where = "on neither side" if len(lacking) == 2 else f"not of {side.name}"
    return f"measured {where}" + (f": {known}" if known else "")


def _stage_or_group(name: str, paths: Sequence[StagePath], where: str) -> StagePath:
    """The stage of that name, or what stages lie in, by its path: cases of a suite lie in backend, precision, device.

    Raises `UsageError`.
    """
    groups = dict.fromkeys(path[:depth] for path in paths for depth in range(1, len(path)))
    return next((group for group in groups if path_text(group) == name), None) or find_stage(name, paths, where)


def _paths(launches: Sequence[LaunchFigures]) -> list[StagePath]:
    return list(dict.fromkeys(path for launch in launches for path in launch.paths))


def _renamed(path: StagePath, renamed: Mapping[StagePath, StagePath]) -> StagePath:
    """The path in the new version: that of the innermost renamed stage around it, and what is inside that."""
    for depth in range(len(path), 0, -1):
        if path[:depth] in renamed:
            return renamed[path[:depth]] + path[depth:]
    return path


def _places_of(
    base: Sequence[LaunchFigures], new: Sequence[LaunchFigures]
) -> tuple[list[int] | None, list[int] | None]:
    """Each launch's place in the order in which all were started; None where a start is not known."""
    starts = [launch.start_unix_ns for launch in (*base, *new)]
    known = [start for start in starts if start is not None]
    if len(known) < len(starts):
        return None, None
    place = {start: number for number, start in enumerate(sorted(known))}
    places = [place[start] for start in known]
    return places[: len(base)], places[len(base) :]


def _known(places: Sequence[int] | None, values: Sequence[float | None]) -> np.typing.NDArray[np.int64] | None:
    if places is None:
        return None
    return np.asarray([place for place, value in zip(places, values, strict=True) if value is not None], np.int64)


def _order(base_at: list[int] | None, new_at: list[int] | None) -> Order:
    if base_at is None or new_at is None:
        return "unknown"
    share = order_share(np.asarray(base_at, np.int64), np.asarray(new_at, np.int64))
    return "in-turns" if share <= MAX_ORDER_SHARE else "one-after-the-other"


def environment_differences(
    base: Sequence[LaunchFigures], new: Sequence[LaunchFigures], allowed: frozenset[str] = frozenset()
) -> list[EnvironmentDifference]:
    """What is not the same in all launches; what makes the comparison meaningless first.

    A test that is invalid by its own verdict is among them where both sides are.
    """
    names = dict.fromkeys(name for launch in (*base, *new) for name in launch.environment)
    found = []
    for name in names:
        if not all(_records(name, side) for side in (base, new)):
            continue
        values, new_values = (
            list(dict.fromkeys(launch.environment.get(name) for launch in side)) for side in (base, new)
        )
        every = set(values) | set(new_values)
        is_invalid = name == VALIDITY and any(launch.invalid for launch in (*base, *new))
        if len(every) > 1 or is_invalid:
            decides = is_invalid if name == VALIDITY else name in DECIDING and None not in every
            found.append(
                EnvironmentDifference(
                    name=name, base=values, new=new_values, decides=decides, allowed=name in allowed,
                    reason=DECIDING.get(name),
                )
            )  # fmt: skip
    return sorted(found, key=lambda one: not one.decides)


def _records(name: str, side: Sequence[LaunchFigures]) -> bool:
    """Whether launches of that kind record it at all: a library that is not listed is not there."""
    if name.startswith(("package ", "file of ")):
        name = "python"
    return any(name in launch.environment for launch in side)
