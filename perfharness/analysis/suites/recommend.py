"""Recommend a case: most items per second within the user's limits; and why the others are excluded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from perfharness.analysis.suites.bench_figures import (
    accuracy_loss,
    baseline_of,
    gives_wrong_answers,
    in_significant_digits,
    latency_of,
    memory_of,
    overlap,
    size_text,
)
from perfharness.model.bench import CaseResult, Estimate
from perfharness.model.bench_suite import BenchSuiteResult, Constraints, Exclusion, MissedConstraint, Recommendation

NOT_MEASURED = "was not measured"
GB = 1e9


def separable(value: float, limit: float) -> tuple[str, str]:
    """Format both with five digits, or as many as show that they differ."""
    for digits in range(5, 17):
        shown = f"{value:.{digits}g}", f"{limit:.{digits}g}"
        if shown[0] != shown[1] or value == limit:
            break
    return shown


def is_any_unmet(suite: BenchSuiteResult) -> bool:
    """Whether no measured case of some model meets the limits."""
    return _has_limits(suite.constraints) and any(one.best is None for one in suite.recommendations)


def _has_limits(constraints: Constraints) -> bool:
    qualifiers = {"latency_percentile", "accuracy_metric", "accuracy_direction"}
    return any(value is not None for value in constraints.model_dump(exclude=qualifiers).values())


def recommend(results: Sequence[CaseResult], constraints: Constraints, baseline: str | None) -> list[Recommendation]:
    """One recommendation per model, in the order of the results."""
    models = dict.fromkeys(result.case.model for result in results)
    return [
        _recommend(model, [result for result in results if result.case.model == model], constraints, baseline)
        for model in models
    ]


def _recommend(
    model: str, results: Sequence[CaseResult], constraints: Constraints, baseline: str | None
) -> Recommendation:
    excluded, fitting, missing = [], [], []
    for result in results:
        reason, missed = _unfit(result), list[MissedConstraint]()
        if reason is None:
            missed = list(_missed(result, baseline_of(result, results, baseline), constraints))
            reason = "; ".join(map(_sentence, missed))
        if not reason:
            fitting.append(result)
            continue
        excluded.append(Exclusion(case_id=result.case.case_id, reason=reason, missed=missed))
        if missed:
            factors = [inf if one.value is None or one.limit <= 0 else one.value / one.limit for one in missed]
            missing.append((max(factors), -_speed(result).value, result.case.case_id, reason))
    if fitting:
        best = max(fitting, key=lambda result: _speed(result).value)
        ties = [one.case.case_id for one in fitting if one is not best and overlap(_speed(one), _speed(best))]
        is_alone, has_limits = len(fitting) == 1, _has_limits(constraints)
        which = "the only case" if is_alone else f"most items per second of the {len(fitting)} cases"
        singular, plural, rest = ("meets", "meet", "the constraints") if has_limits else ("was", "were", "measured")
        rate = in_significant_digits(best.items_per_second)
        why = [f"{which} that {singular if is_alone else plural} {rest}: {rate} items/s"]
        why += _margins(best, constraints)
        return Recommendation(model=model, best=best.case.case_id, ties=ties, excluded=excluded, why=why)
    if not missing:
        return Recommendation(model=model, excluded=excluded, why=["no case was measured"])
    _, _, nearest, reason = min(missing)
    why = [f"the nearest case misses them by the smallest factor: {reason}"]
    return Recommendation(model=model, nearest=nearest, excluded=excluded, why=why)


def _unfit(result: CaseResult) -> str | None:
    """Reason to exclude a case regardless of limits."""
    if result.status != "ok":
        return f"{result.status}: {result.reason}" if result.reason else result.status
    if gives_wrong_answers(result):
        return "wrong answer: outputs differ from the reference's beyond the tolerance"
    return f"items per second {NOT_MEASURED}" if result.items_per_second is None else None


def _missed(result: CaseResult, baseline: CaseResult | None, constraints: Constraints) -> Iterator[MissedConstraint]:
    """Limits that a case exceeds, or that were not measured."""
    percentile, metric, memory = constraints.latency_percentile, constraints.accuracy_metric, memory_of(result)
    latency, energy = latency_of(result, percentile), result.energy_per_item_j
    most_bytes, reasons = constraints.memory_limit_bytes, result.reasons
    of_accuracy = {} if result.accuracy is None else result.accuracy.reasons
    for what, value, limit, unit, reason in (
        (f"{percentile} latency", _value(latency), constraints.max_latency_ms, "ms", reasons.get("latency")),
        ("memory", memory and memory / GB, most_bytes and most_bytes / GB, "GB", reasons.get("memory")),
        (
            f"loss of {metric or 'cosine'}",
            accuracy_loss(result, baseline, metric, constraints.accuracy_direction),
            constraints.max_accuracy_loss,
            "",
            of_accuracy.get(metric or "cosine", reasons.get("accuracy")),
        ),
        (
            "energy per item",
            _value(energy),
            constraints.max_energy_per_item_j,
            "J",
            reasons.get("energy_per_item_j"),
        ),
    ):
        if limit is not None and (value is None or value > limit):
            why = reason if value is None else None
            yield MissedConstraint(what=what, value=value, limit=limit, unit=unit, reason=why)


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


def _sentence(missed: MissedConstraint) -> str:
    if missed.value is None:
        return f"{missed.what} {NOT_MEASURED}{f' ({missed.reason})' if missed.reason else ''}"
    value, limit = separable(missed.value, missed.limit)
    unit = f" {missed.unit}" if missed.unit else ""
    return f"{missed.what} {value}{unit} > {limit}{unit}"


def _speed(result: CaseResult) -> Estimate:
    """Items per second; without an interval, bounded by the longest and shortest iteration."""
    speed, latency = result.items_per_second, result.latency
    assert speed is not None, "of a case that was measured"
    if speed.interval is not None or latency is None or latency.min <= 0:
        return speed
    low, high = (1e3 * result.case.batch_size / ms for ms in (latency.max, latency.min))
    return Estimate(value=speed.value, low=min(low, speed.value), high=max(high, speed.value))


def _margins(best: CaseResult, constraints: Constraints) -> Iterator[str]:
    """Share of the memory used, and a latency limit inside the interval."""
    memory, whole = memory_of(best), best.memory.device_total_bytes
    limit = constraints.memory_limit_bytes or best.memory.limit_bytes
    if memory is not None and limit is not None:
        yield f"its memory is {100 * memory / limit:.0f} % of the {size_text(limit)} limit"
    elif memory is not None and whole is not None:
        yield f"its memory is {100 * memory / whole:.0f} % of the GPU's {size_text(whole)}"
    latency = latency_of(best, constraints.latency_percentile)
    if constraints.max_latency_ms is None or latency is None:
        return
    figure = f"its {constraints.latency_percentile} is within the limit"
    if latency.high is None:
        yield f"{figure}, but it has no interval{f': {latency.reason}' if latency.reason else ''}"
    elif latency.high > constraints.max_latency_ms:
        yield f"{figure}, but its 95 % interval reaches {latency.high:.3g} ms; measure more iterations"
