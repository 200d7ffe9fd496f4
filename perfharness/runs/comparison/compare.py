"""Compare launches of versions with those of a base, with verdicts at a given error rate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from math import log
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from perfharness.analysis.comparison.compare import (
    MIN_EFFECT,
    Judgement,
    Reason,
    Rule,
    compare,
    geometric_mean,
    relative_spread,
)
from perfharness.analysis.statistics import ALPHA
from perfharness.errors import ResultError, UsageError
from perfharness.model.result import Path as StagePath
from perfharness.model.result import path_text
from perfharness.runs.comparison.conclusion import conclude
from perfharness.runs.comparison.launches import VALIDITY, LaunchFigures, paths_of, values_of
from perfharness.runs.comparison.limits import judge_limit, parse_limit
from perfharness.runs.comparison.match import CompareOptions, MatchedPair, MatchedSides, match_sides
from perfharness.runs.comparison.remarks import (
    accuracy_remarks,
    base_findings,
    graded_advice,
    items_remarks,
    judged_machine,
    launch_remarks,
    machine_remarks,
)
from perfharness.runs.comparison.result import (
    THE_MACHINE,
    ComparedLaunch,
    ComparedRow,
    ComparedSide,
    ComparedVersion,
    Comparison,
    SideFigures,
    UnmatchedStage,
    Verdict,
)
from perfharness.runs.comparison.sides import SideInput, read_side
from perfharness.runs.figures import Figure


def compare_runs(
    base: str | Path,
    *others: str | Path,
    renamed: Mapping[str, str] | None = None,
    allowed: Iterable[str] = (),
    stages: Iterable[str] = (),
    limits: Iterable[str] = (),
    alpha: float = ALPHA,
    min_effect: float = MIN_EFFECT,
    spread: float | None = None,
) -> Comparison:
    """Compare versions with a base, as `perfharness compare` does.

    Args:
        base: run folder or series, or several joined by commas.
        others: the same for each version.
        renamed: new names of stages, by their names in the base.
        allowed: differences to ignore that would prevent the comparison.
        stages: stages to compare, by last name or path (default: all).
        limits: such as `inference.p95 > 20ms`; see `limits` of the result.
        alpha, min_effect, spread: see `Rule`.

    Raises:
        UsageError: an option is wrong.
        ResultError: a side cannot be read or has no usable launch.
    """
    try:
        rule = Rule(alpha=alpha, min_effect=min_effect, spread=spread)
    except ValidationError as error:
        raise UsageError(f"{error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}") from error
    options = CompareOptions(rule, renamed or {}, frozenset(allowed), tuple(stages), tuple(map(parse_limit, limits)))
    return compare_sides(read_side(str(base)), [read_side(str(other)) for other in others], options)


def compare_sides(
    base: SideInput, others: Sequence[SideInput], options: CompareOptions, command: Sequence[str] = ()
) -> Comparison:
    """Compare each version with the base, with verdicts corrected for the rows of all versions.

    Raises `UsageError` if an option names something that does not exist, `ResultError` without usable launches.
    """
    for side in (base, *others):
        if not side.used:
            problems = "; ".join(sorted({str(launch.problem) for launch in side.launches}))
            raise ResultError(f"{side.name} has no usable launch: {problems}. Measure it again.")
    matched = [match_sides(base, other, options) for other in others]
    judged = [one.pair for version in matched for one in version.pairs if not version.deciding]
    judgements = compare(judged, options.rule)
    remaining = iter(judgements)
    of_versions = [[None if one.deciding else next(remaining) for _ in one.pairs] for one in matched]
    return Comparison(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=list(command),
        rule=options.rule,
        rows_tested=sum(judgement.p_different is not None for judgement in judgements),
        base=_side_record(base),
        versions=[_version(one, found, options.rule) for one, found in zip(matched, of_versions, strict=True)],
        limits=[
            judge_limit(limit, base.used, one.new.used, one.new.name, one.base_path, _why_not_comparable(one))
            for one in matched
            for limit in options.limits
        ],
    )


def _side_record(side: SideInput) -> ComparedSide:
    launches = [
        ComparedLaunch(
            folder=str(launch.folder),
            run_id=launch.run_id,
            created=launch.created,
            problem=launch.problem,
            errors=list(launch.errors),
        )
        for launch in side.launches
    ]
    return ComparedSide(name=side.name, launches=launches)


def _version(matched: MatchedSides, judgements: Sequence[Judgement | None], rule: Rule) -> ComparedVersion:
    machine = judged_machine(matched)
    machine_ratio = machine.ratio if machine is not None and machine.direction in ("up", "down") else None
    pairs = zip(matched.pairs, judgements, strict=True)
    rows = [_row(one, found, matched, machine_ratio) for one, found in pairs]
    allows_drift = any(found is not None and found.allows_drift for found in judgements)
    return ComparedVersion(
        side=_side_record(matched.new),
        conclusion=conclude(matched, rows, machine_ratio, rule),
        order=matched.order,
        allows_drift=allows_drift,
        differences=matched.differences,
        rows=rows,
        not_compared=matched.not_compared,
        unmatched=list(_unmatched(matched)),
        machine_ratio=machine_ratio,
        advice=[] if matched.deciding else list(graded_advice(matched, rows)),
        remarks=[
            *accuracy_remarks(matched),
            *items_remarks(matched),
            *launch_remarks(matched, allows_drift=allows_drift),
            *machine_remarks(matched, rows, machine),
        ],
        findings=list(base_findings(matched)),
    )


def _unmatched(matched: MatchedSides) -> Iterator[UnmatchedStage]:
    """Stages of one side only."""
    base, new, new_path = matched.base.used, matched.new.used, matched.new_path
    there, known = set(paths_of(new)), set(new_path.values())
    found: list[tuple[Literal["base", "new"], Sequence[LaunchFigures], StagePath]] = [
        *(("base", base, path) for path, now in new_path.items() if now not in there),
        *(("new", new, path) for path in paths_of(new) if path not in known),
    ]
    for side, launches, path in found:
        cpu, gpu = (np.asarray(values_of(launches, Figure(path, time))) for time in ("cpu_time", "gpu_time"))
        yield UnmatchedStage(side=side, stage=path_text(path), cpu_ms=geometric_mean(cpu), gpu_ms=geometric_mean(gpu))


# ---- rows ----

OF_THE_MACHINE = ("ms", "items/s", "requests/s", "J")
"""Units of figures that depend on the speed of the machine."""

REASONS = {
    Reason.ONE_LAUNCH: "too few launches, and no --spread",
    Reason.TOO_WIDE: "launches vary more than the sides differ",
    Reason.ZERO: "a launch measured 0, which has no ratio",
    Reason.MISSING: "not measured",
    Reason.TOO_FEW_FOR_DRIFT: "too few launches to rule out a drift between sides not measured in turns",
}


def _row(
    one: MatchedPair, judgement: Judgement | None, matched: MatchedSides, machine_ratio: float | None
) -> ComparedRow:
    metric = one.figure.of
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
        return ComparedRow(**row, ratio=ratio, reason=_why_not_comparable(matched))
    reason = None if judgement.reason is None else REASONS[judgement.reason]
    if judgement.reason is Reason.TOO_WIDE and judgement.allows_drift:
        reason = f"{reason}; the sides were not measured in turns"
    verdict = _verdict(judgement, more_is_better=metric.more_is_better)
    if metric.unit in OF_THE_MACHINE and _may_be_the_machine(verdict, judgement.ratio, machine_ratio):
        verdict, reason = "undecided", THE_MACHINE
    return ComparedRow(**row, **vars(judgement) | {"verdict": verdict, "reason": reason})


def _side_figures(values: Sequence[float | None]) -> SideFigures:
    known = np.asarray([value for value in values if value is not None], dtype=np.float64)
    return SideFigures(mean=geometric_mean(known), spread=relative_spread(known), launches=list(values))


def _verdict(judgement: Judgement, *, more_is_better: bool) -> Verdict:
    if judgement.direction == "up":
        return "faster" if more_is_better else "slower"
    if judgement.direction == "down":
        return "slower" if more_is_better else "faster"
    return judgement.direction


def _may_be_the_machine(verdict: Verdict, ratio: float | None, machine_ratio: float | None) -> bool:
    """Whether the machine changed in the same direction, at least half as much."""
    if verdict not in ("slower", "faster") or ratio is None or machine_ratio is None:
        return False
    return (verdict == "slower") == (machine_ratio > 1) and abs(log(ratio)) < 2 * abs(log(machine_ratio))


def _why_not_comparable(matched: MatchedSides) -> str:
    """Differences that prevent the comparison; empty without any."""
    names = [one.name for one in matched.deciding if one.name != VALIDITY]
    reasons = [f"different: {', '.join(names)}"] if names else []
    if any(one.name == VALIDITY for one in matched.deciding):
        reasons += [one.invalid for one in (*matched.base.used, *matched.new.used) if one.invalid][:1]
    return "; ".join(reasons)
