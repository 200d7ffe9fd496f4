"""Compare versions: launches of a base and of others -> one `Comparison`, its verdicts at a stated rate of error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from perfharness.analysis.comparison.compare import (
    Judgement,
    Pair,
    Reason,
    Rule,
    compare,
    geometric_mean,
    relative_spread,
)
from perfharness.errors import ResultError, UsageError
from perfharness.model.result import Path as StagePath
from perfharness.model.result import path_text
from perfharness.runs.comparison.compared_figure import METRICS, Figure
from perfharness.runs.comparison.compared_launch import VALIDITY, LaunchFigures, read_launches
from perfharness.runs.comparison.compared_suite import read_suite, suite_file
from perfharness.runs.comparison.limits import Limit, LimitResult, judge_limit, parse_limit
from perfharness.runs.comparison.matched_sides import (
    CompareOptions,
    MatchedPair,
    MatchedSides,
    SideInput,
    check_options,
    match_sides,
)
from perfharness.runs.comparison.result import (
    ComparedLaunch,
    ComparedRow,
    ComparedSide,
    ComparedVersion,
    Comparison,
    SideFigures,
    UnmatchedStage,
    Verdict,
)
from perfharness.runs.comparison.trtexec import is_trtexec, read_trtexec
from perfharness.runs.files.inputs import locate
from perfharness.runs.files.run_folder import AS_LAUNCHED, ReadAs
from perfharness.runs.series.machine import machine_changes, unsteady_findings

LISTED = 8
"""Metrics of accuracy that a remark names."""

SAME_ITEMS = 0.02
"""Items of a batch may differ by this part, as of a last batch that is not full, without a remark."""

HISTORY_PREFIX = "history:"
"""Before the id of a run."""

FEW_LAUNCHES = 3
"""With fewer a side an interval is so wide that hardly anything is decided."""


def read_side(text: str, read_as: ReadAs = AS_LAUNCHED) -> SideInput:
    """A side as it is named: a path, `history:ID`, or several joined by commas.

    Raises what `read_launches` raises, and `HistoryError`.
    """
    paths = [text] if Path(text).exists() else [part for part in text.split(",") if part]
    launches = [launch for path in paths for launch in _read(path, read_as)]
    ids = [launch.run_id for launch in launches]
    twice = [launch.folder for launch in launches if ids.count(launch.run_id) > 1]
    if twice:
        raise UsageError(
            f"{twice[0]} and {twice[1]} on one side are the same launch, or a copy or a process of it; a launch counts "
            "once, so name it once"
        )
    return SideInput(text if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more", launches)


def _read(text: str, read_as: ReadAs) -> list[LaunchFigures]:
    path = Path(text)
    if text.startswith(HISTORY_PREFIX) and not path.exists():
        from perfharness.runs.history import recorded_launch  # its library takes long to load

        return [recorded_launch(text.removeprefix(HISTORY_PREFIX))]
    if path.is_file() and is_trtexec(path):
        return [read_trtexec(path)]
    if (suite := suite_file(path)) is not None:
        return [read_suite(suite)]
    return read_launches(locate(path), read_as)


def compare_runs(
    base: str | Path,
    *others: str | Path,
    renamed: Mapping[str, str] | None = None,
    allowed: Iterable[str] = (),
    stages: Iterable[str] = (),
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
        limits: as `inference.p95 > 20ms`; see `limits` of the result.
        rule: fields of `Rule`, as `min_effect=0.03`.

    Raises:
        UsageError: an option is wrong.
        ResultError: a side cannot be read, or has no launch that can be used.
    """
    try:
        checked = Rule.model_validate(rule)
    except ValidationError as error:
        raise UsageError(f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error
    if unknown := sorted(set(rule) - set(Rule.model_fields)):
        raise UsageError(f"{unknown[0]}: no such option; there are {', '.join(Rule.model_fields)}")
    options = CompareOptions(checked, renamed or {}, frozenset(allowed), tuple(stages), tuple(map(parse_limit, limits)))
    return compare_sides(read_side(str(base)), [read_side(str(other)) for other in others], options)


def compare_sides(
    base: SideInput, others: Sequence[SideInput], options: CompareOptions, command: Sequence[str] = ()
) -> Comparison:
    """Compare each of the others with the base; the verdicts are corrected for the rows of all of them.

    Raises:
        UsageError: an option names a stage or a difference that does not exist.
        ResultError: a side has no launch that can be used.
    """
    check_options(options)
    for side in (base, *others):
        if not side.used:
            problems = {launch.problem for launch in side.launches}
            raise ResultError(
                f"{side.name} has no launch that can be compared: {'; '.join(sorted(map(str, problems)))}"
            )
    matched = [match_sides(base, other, options) for other in others]
    judged = [one for version in matched for one in version.pairs if version.is_comparable]
    judgements = compare([one.pair for one in judged], options.rule)
    by_pair = {id(one): judgement for one, judgement in zip(judged, judgements, strict=True)}
    return Comparison(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=list(command),
        rule=options.rule,
        rows_tested=sum(judgement.p_different is not None for judgement in judgements),
        base=_side_record(base),
        versions=[_version(version, by_pair) for version in matched],
        limits=[_judged_limit(limit, version) for version in matched for limit in options.limits],
    )


def _judged_limit(limit: Limit, matched: MatchedSides) -> LimitResult:
    base, new = matched.base, matched.new
    not_comparable = None if matched.is_comparable else _why_not(matched)
    return judge_limit(limit, base.used, new.used, new.name, matched.base_path, not_comparable)


AFTER_THE_OTHER = "and one side was measured after the other"

REASONS = {
    Reason.ONE_LAUNCH: "one launch says nothing about the next: measure each side several times, or state the spread",
    Reason.TOO_WIDE: "the launches differ too much for the difference",
    Reason.ZERO: "a launch measured 0, which has no ratio",
    Reason.MISSING: "it was not measured",
    Reason.TOO_FEW_FOR_DRIFT: "one side was measured after the other, with too few launches to allow for a drift",
}


def _version(matched: MatchedSides, judgements: Mapping[int, Judgement]) -> ComparedVersion:
    rows = [_row(one, judgements.get(id(one)), matched) for one in matched.pairs]
    judged = [judgement for one in matched.pairs if (judgement := judgements.get(id(one)))]
    allows_drift = any(judgement.allows_drift for judgement in judged)
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
        remarks=[
            *_accuracy_remarks(matched),
            *_items_remarks(matched),
            *_remarks(matched, allows_drift=allows_drift),
            *_machine_remarks(matched, rows),
        ],
    )


def _unmatched(side: Literal["base", "new"], path: StagePath, launches: SideInput) -> UnmatchedStage:
    cpu_ms, gpu_ms = (
        geometric_mean(np.asarray(_known_values(launches.used, Figure(path, time))))
        for time in ("cpu_time", "gpu_time")
    )
    return UnmatchedStage(side=side, stage=path_text(path), cpu_ms=cpu_ms, gpu_ms=gpu_ms)


def _known_values(launches: Sequence[LaunchFigures], figure: Figure) -> list[float]:
    return [value for launch in launches if (value := launch.figures.get(figure)) is not None]


def _machine_remarks(matched: MatchedSides, rows: Sequence[ComparedRow]) -> list[str]:
    """Whether the machine itself was faster or slower, and what moved by more than the smallest change claimed."""
    found = []
    base, new = _loop_times(matched.base.used), _loop_times(matched.new.used)
    if len(base) > 1 and len(new) > 1:
        (judged,) = compare([Pair(np.asarray(base), np.asarray(new))], Rule())
        if judged.direction in ("up", "down") and judged.ratio is not None and judged.interval is not None:
            low, high = judged.interval.low - 1, judged.interval.high - 1
            found.append(
                f"The machine itself was {'slower' if judged.direction == 'up' else 'faster'} with {matched.new.name}: "
                f"a reference loop, timed before and after each launch, took {judged.ratio - 1:+.1%} "
                f"({low:+.1%} … {high:+.1%})."
            )
    claimed = [abs(row.ratio - 1) for row in rows if row.verdict in ("faster", "slower") and row.ratio is not None]
    conditions = [one.conditions for one in (*matched.base.used, *matched.new.used) if one.conditions is not None]
    if claimed and len(conditions) > 1:
        claim = f"a change of {min(claimed):.1%}"
        found += [one.message for one in unsteady_findings(machine_changes(conditions), min(claimed), claim)]
    return found


def _accuracy_remarks(matched: MatchedSides) -> list[str]:
    """Metrics of accuracy whose means differ: of the same samples they are no matter of chance."""
    changed = []
    for figure, there in matched.accuracies:
        means = [
            np.mean(values) if (values := _known_values(side.used, key)) else None
            for side, key in ((matched.base, figure), (matched.new, there))
        ]
        if None not in means and means[0] != means[1]:
            changed.append(f"{figure.stage} {means[0]:.6g} → {means[1]:.6g}")
    if not changed:
        return []
    more = f"; and {len(changed) - LISTED} more" if len(changed) > LISTED else ""
    return [f"The accuracy is not the same: {'; '.join(changed[:LISTED])}{more}."]


def _items_remarks(matched: MatchedSides) -> list[str]:
    """Batches of another size: their percentiles are those of batches, whatever a time per item says."""
    found = []
    for there in dict.fromkeys(path for launch in matched.new.used for path in launch.items):
        base, new = (
            np.mean(values)
            if (values := [launch.items[path] for launch in side.used if path in launch.items])
            else None
            for side, path in ((matched.base, matched.base_path(there)), (matched.new, there))
        )
        if base is not None and new is not None and abs(new - base) > SAME_ITEMS * base:
            found.append(
                f"A batch ({path_text(there)}) has {new:.4g} items with {matched.new.name}, and {base:.4g} before: "
                "throughput and times per item compare the work, p50 and p95 are of unlike batches."
            )
    return found


def _loop_times(launches: Sequence[LaunchFigures]) -> list[float]:
    """Milliseconds of the reference loop around each launch that has it."""
    loads = [launch.conditions.load for launch in launches if launch.conditions is not None]
    return [load.loop_ms for load in loads if load is not None]


def _row(one: MatchedPair, judgement: Judgement | None, matched: MatchedSides) -> ComparedRow:
    metric = METRICS[one.figure.metric]
    base, new = _side_figures(one.base), _side_figures(one.new)
    row: dict[str, Any] = {
        "stage": one.figure.stage,
        "new_stage": one.new_figure.stage if one.new_figure.path != one.figure.path else None,
        "metric": one.figure.metric,
        "unit": metric.unit,
        "base": base,
        "new": new,
    }
    if judgement is None:
        ratio = new.mean / base.mean if base.mean and new.mean is not None else None
        return ComparedRow(**row, ratio=ratio, reason=_why_not(matched))
    verdict = _verdict(judgement, more_is_better=metric.more_is_better)
    return ComparedRow(**row, **vars(judgement) | {"verdict": verdict, "reason": _reason(judgement)})


def _why_not(matched: MatchedSides) -> str:
    """Why nothing is comparable."""
    names = [one.name for one in matched.differences if one.is_deciding and one.name != VALIDITY]
    invalid = next((one.invalid for one in (*matched.base.used, *matched.new.used) if one.invalid), None)
    is_allowed = all(one.allowed for one in matched.differences if one.name == VALIDITY)
    reasons = [f"{', '.join(names)} differ" if names else None, None if is_allowed else invalid]
    return "; ".join(reason for reason in reasons if reason)


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


def _remarks(matched: MatchedSides, *, allows_drift: bool) -> list[str]:
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
        found.append(
            "One side was measured after the other: the intervals are wider, as the machine may have drifted. "
            "Measure in turns with `compare --run … --run …`."
        )
    if matched.order == "unknown" and len(matched.base.used) > 1:
        found.append("When the launches were started is not known, so a drift of the machine cannot be allowed for.")
    same = {launch.run_id for launch in matched.base.used} & {one.run_id for one in matched.new.used}
    if same:
        found.append(f"Launches that are on both sides: {len(same)}; what is compared with itself does not differ.")
    return found
