"""Which case to take: the fastest that keeps to the user's constraints, on the Pareto front; and why not the others.

A case is beaten by another that is at least as good in every objective, by the measured values, and better in one
beyond the intervals of both. So two that differ within their intervals only are both on the front. Where too few
iterations were measured for an interval, all that was observed stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfharness.analysis.suites.bench_figures import (
    accuracy_loss,
    baseline_of,
    gives_wrong_answers,
    in_significant_digits,
    latency_of,
    memory_of,
    overlap,
)
from perfharness.model.bench import CaseResult, Estimate, LatencyPercentile
from perfharness.model.bench_suite import BenchSuiteResult, Constraints, Exclusion, MissedConstraint, Recommendation

OBJECTIVES = ("items/s", "latency", "memory", "energy per item", "accuracy loss")
NOT_MEASURED = "was not measured"


@dataclass(frozen=True)
class Candidate:
    """A case as points in the space of objectives: less is better in all of them (items per second negated).

    Args:
        objectives: None where it is not known.
    """

    case_id: str
    objectives: tuple[Estimate | None, ...]


def separable(value: float, limit: float) -> tuple[str, str]:
    """Both in five digits, or in as many as show that they differ."""
    for digits in range(5, 17):
        shown = f"{value:.{digits}g}", f"{limit:.{digits}g}"
        if shown[0] != shown[1] or value == limit:
            break
    return shown


def dominates(one: Candidate, other: Candidate, objectives: Sequence[int]) -> bool:
    """Whether `one` beats `other` in these objectives, which both must know."""
    is_better = False
    for index in objectives:
        mine, its = one.objectives[index], other.objectives[index]
        if mine is None or its is None:
            raise ValueError(f"{OBJECTIVES[index]} is not known of both")
        if mine.value > its.value:
            return False
        is_better = is_better or (mine.value < its.value and not overlap(mine, its))
    return is_better


def pareto_front(candidates: Sequence[Candidate]) -> list[str]:
    """Case ids of those that no other dominates, in the order given. Objectives not known of all do not count."""
    shared = shared_objectives(candidates)
    return [one.case_id for one in candidates if not any(dominates(other, one, shared) for other in candidates)]


def shared_objectives(candidates: Sequence[Candidate]) -> list[int]:
    """Objectives that are known of all."""
    return [index for index in range(len(OBJECTIVES)) if all(one.objectives[index] is not None for one in candidates)]


def is_any_unmet(suite: BenchSuiteResult) -> bool:
    """Whether constraints are set that no measured case of a model meets."""
    asked = _limits(suite.constraints)
    return asked and any(one.best is None for one in suite.recommendations)


def _limits(constraints: Constraints) -> bool:
    """Whether any is set."""
    qualifiers = {"latency_percentile", "accuracy_metric", "accuracy_direction"}
    return any(value is not None for value in constraints.model_dump(exclude=qualifiers).values())


def recommend(results: Sequence[CaseResult], constraints: Constraints, baseline: str | None) -> list[Recommendation]:
    """One for each model, in the order of the results."""
    models = dict.fromkeys(result.case.model for result in results)
    return [
        _recommend(model, [result for result in results if result.case.model == model], constraints, baseline)
        for model in models
    ]


def _recommend(
    model: str, results: Sequence[CaseResult], constraints: Constraints, baseline: str | None
) -> Recommendation:
    excluded, fitting, missed = [], [], []
    for result in results:
        base = baseline_of(result, results, baseline)
        if (reason := _unfit(result)) is not None:
            excluded.append(Exclusion(case_id=result.case.case_id, reason=reason))
        elif bad := list(missed_constraints(result, base, constraints)):
            reason = "; ".join(_sentence(one) for one in bad)
            excluded.append(Exclusion(case_id=result.case.case_id, reason=reason, missed=bad))
            missed.append((max(_excess(one) for one in bad), result, reason))
        else:
            fitting.append((result, base))
    if not fitting:
        return _none_fits(model, excluded, missed)
    candidates = _candidates(fitting, constraints)
    front = pareto_front(candidates)
    best = max((result for result, _ in fitting if result.case.case_id in front), key=_speed)
    speed = _speed_within(best)
    ties = [one.case.case_id for one, _ in fitting if one is not best and overlap(_speed_within(one), speed)]
    of = "that meet the constraints" if _limits(constraints) else "that were measured"
    rate = in_significant_digits(best.items_per_second)
    why = [
        f"most items per second of the {len(fitting)} cases {of}: {rate} items/s",
        *_uncertain(best, constraints),
        *_not_counted(candidates),
    ]
    return Recommendation(model=model, best=best.case.case_id, ties=ties, front=front, excluded=excluded, why=why)


def missed_constraints(
    result: CaseResult, baseline: CaseResult | None, constraints: Constraints
) -> Iterator[MissedConstraint]:
    """Those of the constraints that were set which a case does not keep to, as far as it was measured."""
    which, metric, reasons = constraints.latency_percentile, constraints.accuracy_metric, result.reasons
    latency, most_ms = latency_of(result, which), constraints.max_latency_ms
    memory, most_bytes = memory_of(result), constraints.memory_limit_bytes
    loss = accuracy_loss(result, baseline, metric, constraints.accuracy_direction)
    why = reasons.get("accuracy")
    if result.accuracy is not None:
        why = result.accuracy.reasons.get(metric or "cosine", why)
    for what, value, limit, unit, reason in (
        (f"{which} latency", _value(latency), most_ms, "ms", reasons.get("latency")),
        ("memory", _billions(memory), _billions(most_bytes), "GB", reasons.get("memory")),
        (f"loss of {metric or 'cosine'}", loss, constraints.max_accuracy_loss, "", why),
        ("energy per item", _value(result.energy_per_item_j), constraints.max_energy_per_item_j, "J",
         reasons.get("energy_per_item_j")),
    ):  # fmt: skip
        if limit is not None and (value is None or value > limit):
            reason = reason if value is None else None
            yield MissedConstraint(what=what, value=value, limit=limit, unit=unit, reason=reason)


def _excess(missed: MissedConstraint) -> float:
    """How many times the limit; infinite for a limit of 0, or where it is not known."""
    return float("inf") if missed.value is None or missed.limit <= 0 else missed.value / missed.limit


def _sentence(missed: MissedConstraint) -> str:
    if missed.value is None:
        return f"{missed.what} {NOT_MEASURED}{f' ({missed.reason})' if missed.reason else ''}"
    value, limit = separable(missed.value, missed.limit)
    unit = f" {missed.unit}" if missed.unit else ""
    return f"{missed.what} {value}{unit} > {limit}{unit}"


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


def _billions(size: float | None) -> float | None:
    return None if size is None else size / 1e9


def _unfit(result: CaseResult) -> str | None:
    """Why a case cannot be taken whatever the constraints."""
    if result.status != "ok":
        return f"{result.status}: {result.reason}" if result.reason else result.status
    if gives_wrong_answers(result):
        return "wrong answer: outputs differ from the reference's beyond the tolerance"
    if result.items_per_second is None:
        return f"items per second {NOT_MEASURED}"
    return None


def _candidates(fitting: Sequence[tuple[CaseResult, CaseResult | None]], constraints: Constraints) -> list[Candidate]:
    """With the latency's percentile of the constraints, or the median where a case has too few iterations for it."""
    percentile = constraints.latency_percentile
    if any(latency_of(result, percentile) is None for result, _ in fitting):
        percentile = "p50"
    found = []
    for result, base in fitting:
        speed, memory = _speed_within(result), memory_of(result)
        negated = Estimate(
            value=-speed.value,
            low=None if speed.high is None else -speed.high,
            high=None if speed.low is None else -speed.low,
        )
        loss = accuracy_loss(result, base, constraints.accuracy_metric, constraints.accuracy_direction)
        exact = (None if value is None else Estimate.exact(value) for value in (memory, loss))
        latency, energy = _latency_within(result, percentile), result.energy_per_item_j
        found.append(Candidate(result.case.case_id, (negated, latency, next(exact), energy, next(exact))))
    return found


def _speed(result: CaseResult) -> float:
    assert result.items_per_second is not None, "of a case that fits"
    return result.items_per_second.value


def _speed_within(result: CaseResult) -> Estimate:
    """Items per second; without an interval, what the longest and the shortest iteration would give."""
    speed, latency = result.items_per_second, result.latency
    assert speed is not None, "of a case that fits"
    if speed.interval is not None or latency is None or latency.min <= 0:
        return speed
    low, high = (1e3 * result.case.batch_size / ms for ms in (latency.max, latency.min))
    return Estimate(value=speed.value, low=min(low, speed.value), high=max(high, speed.value))


def _latency_within(result: CaseResult, percentile: LatencyPercentile) -> Estimate | None:
    """A percentile of the latency; without an interval of its own, it lies between the shortest and the longest."""
    found, latency = latency_of(result, percentile), result.latency
    if found is None or found.interval is not None or latency is None:
        return found
    return Estimate(value=found.value, low=latency.min, high=latency.max)


def _none_fits(model: str, excluded: list[Exclusion], missed: list[tuple[float, CaseResult, str]]) -> Recommendation:
    known = [one for one in missed if one[0] != float("inf")]
    nearest = min(known or missed, key=lambda one: (one[0], -_speed(one[1])), default=None)
    if nearest is None:
        return Recommendation(model=model, excluded=excluded, why=["no case was measured"])
    _, result, reason = nearest
    why = [f"the nearest misses them by the smallest factor: {reason}"]
    return Recommendation(model=model, nearest=result.case.case_id, excluded=excluded, why=why)


def _uncertain(best: CaseResult, constraints: Constraints) -> Iterator[str]:
    """What is met by the value, though not by the whole interval."""
    latency = latency_of(best, constraints.latency_percentile)
    if constraints.max_latency_ms is None or latency is None:
        return
    figure = f"its {constraints.latency_percentile} is within the limit by the value"
    if latency.high is None:
        yield f"{figure}, but it has no interval{f': {latency.reason}' if latency.reason else ''}"
    elif latency.high > constraints.max_latency_ms:
        yield f"{figure}, but its interval reaches {latency.high:.3g} ms; measure more iterations"


def _not_counted(candidates: Sequence[Candidate]) -> Iterator[str]:
    shared = set(shared_objectives(candidates))
    some = [
        name
        for index, name in enumerate(OBJECTIVES)
        if index not in shared and any(one.objectives[index] is not None for one in candidates)
    ]
    if some:
        yield f"not known of all, so not part of the front: {', '.join(some)}"
