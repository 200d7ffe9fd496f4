"""Compare versions: launches of a base and of others -> one `Comparison`, its verdicts at a stated rate of error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perfharness.analysis.comparison import (
    MAX_ORDER_SHARE,
    Judgement,
    Pair,
    Reason,
    Rule,
    compare,
    geometric_mean,
    order_share,
    relative_spread,
    width_for_drift,
)
from perfharness.errors import ResultError, UsageError
from perfharness.model.checks import MaskedArguments
from perfharness.model.notebook import notebook_html
from perfharness.model.result import TIMES, path_text
from perfharness.model.result import Path as StagePath
from perfharness.runs.compared_launch import DECIDING, METRICS, Figure, LaunchFigures, Unit, find_stage, read_launches
from perfharness.runs.compared_suite import read_suite, suite_file
from perfharness.runs.inputs import locate
from perfharness.runs.launch_figures import PER_ITEM
from perfharness.runs.limits import Limit, LimitResult, judge_limit, parse_limit
from perfharness.runs.run_folder import AS_LAUNCHED, ReadAs
from perfharness.runs.steadiness import movements_of, unsteady_findings
from perfharness.runs.trtexec import is_trtexec, read_trtexec

COMPARISON_VERSION = 1

Verdict = Literal["faster", "slower", "same", "undecided", "not-comparable"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Order = Literal["in-turns", "one-after-the-other", "unknown"]

FEW_LAUNCHES = 3
"""With fewer a side an interval is so wide that hardly anything is decided."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class CompareRule(_Model):
    """How the verdicts are made."""

    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """highest rate of false alarms, over all rows together"""

    min_effect: float = Field(default=0.02, ge=0)
    """smallest relative difference that counts"""

    min_abs: dict[Unit, float] = Field(default_factory=dict)
    """smallest difference that counts, by unit"""

    spread: float | None = Field(default=None, gt=0)
    """relative standard deviation between launches, as the user stated it; null: only what was seen counts"""

    allow_drift: bool = True
    """whether intervals allow for a machine that drifts, where one side was measured after the other"""


class ComparedLaunch(_Model):
    """One launch of a side."""

    folder: str
    run_id: str
    created: str | None
    problem: str | None = None
    """why it was left out; null: it was used"""

    errors: list[str] = Field(default_factory=list)
    """codes of the findings that put numbers of it in doubt"""


class ComparedSide(_Model):
    """The launches of a version."""

    name: str
    launches: list[ComparedLaunch]

    @property
    def used(self) -> int:
        """How many launches were used."""
        return sum(launch.problem is None for launch in self.launches)


class EnvironmentDifference(_Model):
    """Something that is not the same on both sides, or not in all launches of one."""

    name: str
    base: list[str | None]
    """each value that a launch has; null: not recorded"""

    new: list[str | None]
    decides: bool
    """whether it makes the comparison meaningless"""

    allowed: bool = False
    """whether the user said that it may differ"""

    reason: str | None = None
    """why it makes the comparison meaningless"""

    @property
    def is_deciding(self) -> bool:
        """Whether nothing can be compared for it."""
        return self.decides and not self.allowed


class SideFigures(_Model):
    """A figure of one side."""

    mean: float | None
    """geometric mean of the launches; null: not measured"""

    spread: float | None
    """relative standard deviation between launches; null: of one launch it is not known"""

    launches: list[float | None]
    """each launch's"""


class RatioInterval(_Model):
    """An interval of a ratio."""

    low: float
    high: float
    confidence: float


class ComparedRow(_Model):
    """One figure of a stage, or of the run."""

    stage: str
    """path in the base; empty: of the whole run"""

    new_stage: str | None = None
    """path in the new version, where it is another one"""

    metric: str
    unit: Unit
    base: SideFigures
    new: SideFigures
    verdict: Verdict = "not-comparable"
    """of memory and energy, `slower` means more of it"""

    ratio: float | None = None
    """new over base"""

    interval: RatioInterval | None = None
    """of this row alone"""

    judged_by: RatioInterval | None = None
    """the interval that the verdict rests on: corrected for the number of rows"""

    threshold: float | None = None
    """relative difference that had to be exceeded, both thresholds together"""

    p_different: float | None = None
    """that it is within the threshold, adjusted for the number of rows"""

    p_same: float | None = None
    """that it is beyond the threshold, adjusted for the number of rows"""

    reason: str | None = None
    """of `undecided` and `not-comparable`"""

    launches_needed: int | None = None
    """launches a side that would probably decide it; null: it is decided, more than a thousand, or not known"""


class NotCompared(_Model):
    """A figure that is in one version only, or in neither measured."""

    stage: str
    metric: str
    reason: str


class UnmatchedStage(_Model):
    """A stage that one version has alone."""

    side: Literal["base", "new"]
    stage: str
    cpu_ms: float | None
    """mean of a batch over the launches; null: not measured"""

    gpu_ms: float | None


class ComparedVersion(_Model):
    """One version against the base."""

    side: ComparedSide
    order: Order
    """whether the launches of both sides were made in turns"""

    allows_drift: bool
    """whether the intervals are made wider for a machine that drifts"""

    differences: list[EnvironmentDifference]
    rows: list[ComparedRow]
    not_compared: list[NotCompared]
    only_in_base: list[str]
    """stages"""

    only_in_new: list[str]
    unmatched: list[UnmatchedStage] = Field(default_factory=list)
    """the same stages with their times"""

    remarks: list[str]
    """what a reader must know of the whole"""

    @property
    def deciding(self) -> list[EnvironmentDifference]:
        """Differences that make the comparison meaningless."""
        return [one for one in self.differences if one.is_deciding]


class Comparison(_Model):
    """What `perfharness compare` says. Times are milliseconds."""

    schema_version: int = COMPARISON_VERSION
    created: str
    """UTC, ISO 8601"""

    command: MaskedArguments = Field(default_factory=list)
    rule: CompareRule
    rows_tested: int
    """how many rows the verdicts are corrected for"""

    base: ComparedSide
    versions: list[ComparedVersion]

    limits: list[LimitResult] = Field(default_factory=list)

    @property
    def has_nothing(self) -> bool:
        """Whether no row of any version could be compared."""
        return self.verdicts() <= {"not-comparable"}

    def verdicts(self) -> set[Verdict]:
        """All that occur."""
        return {row.verdict for version in self.versions for row in version.rows}

    def _repr_html_(self) -> str | None:
        return notebook_html(self)


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
        metrics: only these; empty: all.
        limits: that the other versions are to keep to.
    """

    rule: CompareRule = field(default_factory=CompareRule)
    renamed: Mapping[str, str] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()
    stages: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()


def read_side(text: str, nsys: Path | None = None, read_as: ReadAs = AS_LAUNCHED) -> SideInput:
    """A side as it is named: a path, or several joined by commas. Raises what `read_launches` raises."""
    paths = [Path(text)] if Path(text).exists() else [Path(part) for part in text.split(",") if part]
    launches = [launch for path in paths for launch in _read(path, nsys, read_as)]
    ids = [launch.run_id for launch in launches]
    twice = next((launch for launch in launches if ids.count(launch.run_id) > 1), None)
    if twice is not None and len({(one.folder.resolve(), one.run_id) for one in launches}) < len(launches):
        raise UsageError(f"{twice.folder} is named twice on one side; a launch counts once")
    return SideInput(text if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more", launches)


def _read(path: Path, nsys: Path | None, read_as: ReadAs) -> list[LaunchFigures]:
    if path.is_file() and is_trtexec(path):
        return [read_trtexec(path)]
    if (suite := suite_file(path)) is not None:
        return [read_suite(suite)]
    return read_launches(locate(path, nsys), read_as)


def read_baseline(name: str, store: str | None = None) -> SideInput:
    """A baseline of the run store as a side. Raises `StoreError`, `ResultError`."""
    from perfharness.runs.store.baselines import baseline_launches

    launches = [launch for folder in baseline_launches(name, store) for launch in read_launches(locate(folder))]
    return SideInput(f"baseline {name}", launches)


def compare_runs(
    base: str | Path,
    *others: str | Path,
    renamed: Mapping[str, str] | None = None,
    allowed: Iterable[str] = (),
    stages: Iterable[str] = (),
    metrics: Iterable[str] = (),
    limits: Iterable[str] = (),
    **rule: Any,
) -> Comparison:
    """Compare versions with a base; what `perfharness compare` does.

    Args:
        base: a run folder, a repeat, or several of them joined by commas.
        others: the same, one a version.
        renamed: stages of the base and their names in the new version.
        allowed: differences that would make the comparison meaningless, and may be.
        stages: only these, by last name or path.
        metrics: only these.
        limits: as `inference.p95 > 20ms`; see `limits` of the result.
        rule: fields of `CompareRule`, as `min_effect=0.03`.

    Raises:
        UsageError: an option is wrong.
        ResultError: a side cannot be read, or has no launch that can be used.
    """
    try:
        checked = CompareRule.model_validate(rule)
    except ValidationError as error:
        raise UsageError(f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error
    if unknown := sorted(set(rule) - set(CompareRule.model_fields)):
        raise UsageError(f"{unknown[0]}: no such option; there are {', '.join(CompareRule.model_fields)}")
    options = CompareOptions(
        checked, renamed or {}, frozenset(allowed), tuple(stages), tuple(metrics), tuple(map(parse_limit, limits))
    )
    return compare_sides(read_side(str(base)), [read_side(str(other)) for other in others], options)


def compare_sides(
    base: SideInput, others: Sequence[SideInput], options: CompareOptions, command: Sequence[str] = ()
) -> Comparison:
    """Compare each of the others with the base; the verdicts are corrected for the rows of all of them.

    Raises:
        UsageError: an option names a stage, a metric or a difference that does not exist.
        ResultError: a side has no launch that can be used.
    """
    _check(options)
    for side in (base, *others):
        if not side.used:
            problems = {launch.problem for launch in side.launches}
            raise ResultError(
                f"{side.name} has no launch that can be compared: {'; '.join(sorted(map(str, problems)))}"
            )
    matched = [_match(base, other, options) for other in others]
    judged = [one for version in matched for one in version.pairs if version.is_comparable]
    rule = options.rule
    judgements = compare(
        [one.pair for one in judged],
        Rule(alpha=rule.alpha, min_effect=rule.min_effect, spread=rule.spread, allow_drift=rule.allow_drift),
    )
    by_pair = {id(one): judgement for one, judgement in zip(judged, judgements, strict=True)}
    return Comparison(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=list(command),
        rule=rule,
        rows_tested=sum(judgement.p_different is not None for judgement in judgements),
        base=_side_record(base),
        versions=[_version(version, by_pair) for version in matched],
        limits=[judge_limit(limit, base.used, other.used, other.name) for other in others for limit in options.limits],
    )


@dataclass(frozen=True)
class _MatchedPair:
    """A figure that both sides have."""

    figure: Figure
    new_figure: Figure
    base: list[float | None]
    new: list[float | None]
    pair: Pair


@dataclass(frozen=True)
class _Matched:
    base: SideInput
    new: SideInput
    differences: list[EnvironmentDifference]
    order: Order
    pairs: list[_MatchedPair]
    not_compared: list[NotCompared]
    only_in_base: list[StagePath]
    only_in_new: list[StagePath]

    @property
    def is_comparable(self) -> bool:
        return not any(one.is_deciding for one in self.differences)


def _check(options: CompareOptions) -> None:
    if unknown := sorted(options.allowed - set(DECIDING)):
        raise UsageError(f"--allow {unknown[0]}: no such difference; there are {', '.join(DECIDING)}")
    if wrong := [name for name in options.metrics if name not in METRICS or not METRICS[name].is_judged]:
        known = ", ".join(name for name, metric in METRICS.items() if metric.is_judged)
        raise UsageError(f"--metric {wrong[0]}: no such figure; there are {known}")


def _match(base: SideInput, new: SideInput, options: CompareOptions) -> _Matched:
    """The figures that both sides have, and what only one has."""
    base_paths, new_paths = _paths(base.used), _paths(new.used)
    renamed = {
        find_stage(old, base_paths, base.name): find_stage(now, new_paths, new.name)
        for old, now in options.renamed.items()
    }
    new_path = {path: _renamed(path, renamed) for path in base_paths}
    wanted = {find_stage(name, base_paths, base.name) for name in options.stages}
    figures = [
        figure
        for figure in dict.fromkeys(figure for launch in base.used for figure in launch.figures)
        if figure.is_judged
        and (not wanted or figure.path in wanted)
        and (not options.metrics or figure.metric in options.metrics)
        and (not figure.path or new_path[figure.path] in new_paths)
    ]
    figures.sort(key=lambda figure: bool(figure.path))  # the run first; the stages stay in order
    base_at, new_at = _places(base.used, new.used)
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
            min_abs=options.rule.min_abs.get(METRICS[figure.metric].unit, 0.0),
            base_at=_known(base_at, values),
            new_at=_known(new_at, new_values),
        )
        pairs.append(_MatchedPair(figure, there, values, new_values, pair))
    known_new = set(new_path.values())
    return _Matched(
        base,
        new,
        environment_differences(base.used, new.used, options.allowed),
        _order(base_at, new_at),
        pairs,
        not_compared,
        [path for path in base_paths if new_path[path] not in new_paths],
        [path for path in new_paths if path not in known_new],
    )


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


def _paths(launches: Sequence[LaunchFigures]) -> list[StagePath]:
    return list(dict.fromkeys(path for launch in launches for path in launch.paths))


def _renamed(path: StagePath, renamed: Mapping[StagePath, StagePath]) -> StagePath:
    """The path in the new version: that of the innermost renamed stage around it, and what is inside that."""
    for depth in range(len(path), 0, -1):
        if path[:depth] in renamed:
            return renamed[path[:depth]] + path[depth:]
    return path


def _places(base: Sequence[LaunchFigures], new: Sequence[LaunchFigures]) -> tuple[list[int] | None, list[int] | None]:
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
    """What is not the same in all launches; what makes the comparison meaningless first."""
    names = dict.fromkeys(name for launch in (*base, *new) for name in launch.environment)
    found = []
    for name in names:
        if not all(_records(name, side) for side in (base, new)):
            continue
        values, new_values = (
            list(dict.fromkeys(launch.environment.get(name) for launch in side)) for side in (base, new)
        )
        every = set(values) | set(new_values)
        if len(every) > 1:
            decides = name in DECIDING and None not in every
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


AFTER_THE_OTHER = "and one side was measured after the other"

REASONS = {
    Reason.ONE_LAUNCH: "one launch says nothing about the next: measure each side with --repeat, or state the spread",
    Reason.TOO_WIDE: "the launches differ too much for the difference",
    Reason.ZERO: "a launch measured 0, which has no ratio",
    Reason.MISSING: "it was not measured",
    Reason.TOO_FEW_FOR_DRIFT: "one side was measured after the other, with too few launches to allow for a drift",
}


def _version(matched: _Matched, judgements: Mapping[int, Judgement]) -> ComparedVersion:
    rows = [_row(one, judgements.get(id(one)), matched) for one in matched.pairs]
    allows_drift = any(judgement.allows_drift for one in matched.pairs if (judgement := judgements.get(id(one))))
    return ComparedVersion(
        side=_side_record(matched.new),
        order=matched.order,
        allows_drift=allows_drift,
        differences=matched.differences,
        rows=rows,
        not_compared=matched.not_compared,
        only_in_base=[path_text(path) for path in matched.only_in_base],
        only_in_new=[path_text(path) for path in matched.only_in_new],
        unmatched=[
            *(_unmatched("base", path, matched.base) for path in matched.only_in_base),
            *(_unmatched("new", path, matched.new) for path in matched.only_in_new),
        ],
        remarks=[*_remarks(matched, allows_drift=allows_drift), *_machine_remarks(matched, rows)],
    )


def _unmatched(side: Literal["base", "new"], path: StagePath, launches: SideInput) -> UnmatchedStage:
    cpu_ms, gpu_ms = (
        geometric_mean(np.asarray(_known_values(launches.used, Figure(path, time))))
        for time in ("cpu_time", "gpu_time")
    )
    return UnmatchedStage(side=side, stage=path_text(path), cpu_ms=cpu_ms, gpu_ms=gpu_ms)


def _known_values(launches: Sequence[LaunchFigures], figure: Figure) -> list[float]:
    return [value for launch in launches if (value := launch.figures.get(figure)) is not None]


def _machine_remarks(matched: _Matched, rows: Sequence[ComparedRow]) -> list[str]:
    """Whether the machine itself was faster or slower, and what moved by more than the smallest change claimed."""
    found = []
    base, new = _loop_times(matched.base.used), _loop_times(matched.new.used)
    if len(base) > 1 and len(new) > 1:
        (judged,) = compare([Pair(np.asarray(base), np.asarray(new))], Rule())
        if judged.direction in ("up", "down") and judged.ratio is not None and judged.interval is not None:
            low, high = judged.interval.low - 1, judged.interval.high - 1
            found.append(
                f"The machine itself was {'slower' if judged.direction == 'up' else 'faster'} with {matched.new.name}: "
                f"a fixed loop, timed before and after each launch, took {judged.ratio - 1:+.1%} "
                f"({low:+.1%} … {high:+.1%})."
            )
    claimed = [abs(row.ratio - 1) for row in rows if row.verdict in ("faster", "slower") and row.ratio is not None]
    conditions = [one.conditions for one in (*matched.base.used, *matched.new.used) if one.conditions is not None]
    if claimed and len(conditions) > 1:
        claim = f"a change of {min(claimed):.1%}"
        found += [one.message for one in unsteady_findings(movements_of(conditions), min(claimed), claim)]
    return found


def _loop_times(launches: Sequence[LaunchFigures]) -> list[float]:
    """Milliseconds of the fixed loop beside each launch that has a yardstick."""
    yardsticks = [launch.conditions.yardstick for launch in launches if launch.conditions is not None]
    return [(one.loop_before.wall_ms + one.loop_after.wall_ms) / 2 for one in yardsticks if one is not None]


def _row(one: _MatchedPair, judgement: Judgement | None, matched: _Matched) -> ComparedRow:
    metric = METRICS[one.figure.metric]
    base, new = _side_figures(one.base), _side_figures(one.new)
    row = ComparedRow(
        stage=one.figure.stage,
        new_stage=one.new_figure.stage if one.new_figure.path != one.figure.path else None,
        metric=one.figure.metric,
        unit=metric.unit,
        base=base,
        new=new,
    )
    if judgement is None:
        names = ", ".join(difference.name for difference in matched.differences if difference.is_deciding)
        ratio = new.mean / base.mean if base.mean and new.mean is not None else None
        return row.model_copy(update={"ratio": ratio, "reason": f"{names} differ"})
    return row.model_copy(
        update={
            "verdict": _verdict(judgement, more_is_better=metric.more_is_better),
            "ratio": judgement.ratio,
            "interval": None if judgement.interval is None else RatioInterval(**vars(judgement.interval)),
            "judged_by": None if judgement.judged_by is None else RatioInterval(**vars(judgement.judged_by)),
            "threshold": judgement.threshold,
            "p_different": judgement.p_different,
            "p_same": judgement.p_same,
            "reason": _reason(judgement),
            "launches_needed": judgement.launches_needed,
        }
    )


def _reason(judgement: Judgement) -> str | None:
    if judgement.reason is None:
        return None
    drift = judgement.reason is Reason.TOO_WIDE and judgement.allows_drift
    return REASONS[judgement.reason] + (f", {AFTER_THE_OTHER}" if drift else "")


def _verdict(judgement: Judgement, *, more_is_better: bool) -> Verdict:
    if judgement.direction == "up":
        return "faster" if more_is_better else "slower"
    if judgement.direction == "down":
        return "slower" if more_is_better else "faster"
    return judgement.direction


def _side_figures(values: Sequence[float | None]) -> SideFigures:
    known = np.asarray([value for value in values if value is not None], dtype=np.float64)
    return SideFigures(mean=geometric_mean(known), spread=relative_spread(known), launches=list(values))


def _side_record(side: SideInput) -> ComparedSide:
    return ComparedSide(
        name=side.name,
        launches=[
            ComparedLaunch(
                folder=str(launch.folder),
                run_id=launch.run_id,
                created=launch.created,
                problem=launch.problem,
                errors=list(launch.errors),
            )
            for launch in side.launches
        ],
    )


def _remarks(matched: _Matched, *, allows_drift: bool) -> list[str]:
    found = []
    for side in (matched.base, matched.new):
        left_out = [launch for launch in side.launches if launch.problem is not None]
        if left_out:
            found.append(f"{len(left_out)} of {len(side.launches)} launches of {side.name} are left out: "
                         f"{left_out[0].folder}: {left_out[0].problem}")  # fmt: skip
        if doubtful := [launch for launch in side.used if launch.errors]:
            found.append(f"numbers of {doubtful[0].folder} are in doubt: {', '.join(doubtful[0].errors)}")
        if 1 < len(side.used) < FEW_LAUNCHES:
            found.append(f"{side.name} has {len(side.used)} launches; with fewer than {FEW_LAUNCHES} hardly anything "
                         "can be decided")  # fmt: skip
    if allows_drift:
        counts = f"{len(matched.base.used)} and {len(matched.new.used)} launches"
        base_at, new_at = _places(matched.base.used, matched.new.used)
        width = width_for_drift(np.asarray(base_at, np.int64), np.asarray(new_at, np.int64))
        found.append(
            "One side was measured after the other, so the intervals allow for a machine that drifts: with "
            f"{counts} that makes them about {width:.1f} times as wide. `compare --run … --run …` measures in turns, "
            "and needs none of it."
        )
    if matched.order == "unknown" and len(matched.base.used) > 1:
        found.append("When the launches were started is not known, so a drift of the machine cannot be allowed for.")
    same = {launch.run_id for launch in matched.base.used} & {one.run_id for one in matched.new.used}
    if same:
        found.append(f"{len(same)} launches are on both sides; what is compared with itself does not differ.")
    return found
