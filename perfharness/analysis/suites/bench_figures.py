"""Figures of a case shared by tables, charts and recommendations: latency, memory, speed-up, accuracy loss."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from perfharness.model.bench import (
    BenchCase,
    CaseResult,
    Direction,
    Estimate,
    LatencyFigure,
    LatencyStats,
)

HIGHER_IS_BETTER = re.compile(
    r"cosine(_min)?|top\d+(_low|_high|_agreement)?|mean_class_accuracy|delta[123]|r2|(precision|recall|f1)_(macro|micro)"
)
"""Built-in metrics with 1 as perfect value."""

LOWER_IS_BETTER = re.compile(
    r"mae|mse|max_absolute|max_relative|abs_rel|sq_rel|rmse|rmse_log|(nan|inf|unordered)_count"
)
"""Built-in metrics with 0 as perfect value."""

TO_BASELINE = re.compile(r"top\d+_difference(_low|_high)?")
"""Built-in metrics that are differences from the baseline."""

MUCH_DRIFT_PERCENT = 5.0
"""Latency drift within a loop from which on it is shown."""

MUCH_CLOCK_DROP_PERCENT = 5.0
"""Drop of the SM clock during a case from which on it is shown."""

DEVIATION_PERCENT = 10.0
"""Largest difference between timed rounds and the same rounds with a sampler; 0 to 6 % on an H200."""


def cell_of(case: BenchCase) -> str:
    """`backend/mode/precision` and settings: the name used for baselines and references."""
    name = "/".join(part for part in (case.backend, case.mode, case.precision) if part)
    return f"{name} {case.variant}" if case.variant else name


def is_named(case: BenchCase, name: str) -> bool:
    """Whether `backend`, `backend/mode`, `backend/precision` or `backend/mode/precision` matches this case."""
    settings = (case.mode, case.precision, f"{case.mode}/{case.precision}")
    return name in {case.backend, *(f"{case.backend}/{one}" for one in settings), cell_of(case)}


def size_text(size: int) -> str:
    """`12 GiB`, `7.5 GB`: in the unit that gives a round number."""
    gib = size / 2**30
    return f"{gib:g} GiB" if gib == round(gib, 1) else f"{size / 1e9:.4g} GB"


def latency_of(result: CaseResult, figure: LatencyFigure) -> Estimate | None:
    """A figure of the latency, in milliseconds; None for too few iterations."""
    if result.latency is None:
        return None
    found: Estimate | None = getattr(result.latency, "median" if figure == "p50" else figure)
    return found


def memory_of(result: CaseResult) -> int | None:
    """Peak bytes of the device; on the CPU, of the process."""
    return result.memory.host_peak_bytes if result.case.device == "cpu" else result.memory.device_peak_bytes


def baseline_of(result: CaseResult, results: Sequence[CaseResult], baseline: str | None) -> CaseResult | None:
    """The baseline of a case: same model and batch size, on the same GPU, else on the other kind of device."""
    if baseline is None:
        return None
    found = [
        other
        for other in results
        if is_named(other.case, baseline)
        and (other.case.model, other.case.batch_size) == (result.case.model, result.case.batch_size)
    ]
    own = [one for one in found if (one.case.device, one.case.gpu) == (result.case.device, result.case.gpu)]
    others = [one for one in found if one.case.device != result.case.device]
    return next(iter(own or others), None)


def speedup(result: CaseResult, baseline: CaseResult | None) -> Estimate | None:
    """Items per second over the baseline's, with the widest interval that both intervals allow."""
    mine, base = result.items_per_second, baseline.items_per_second if baseline is not None else None
    if mine is None or base is None or base.value <= 0:
        return None
    ratio = mine.value / base.value
    if mine.interval is None or base.interval is None:
        return Estimate(value=ratio, reason=mine.reason or base.reason)
    (low, high), (base_low, base_high) = mine.interval, base.interval
    return Estimate(value=ratio, low=low / base_high, high=high / base_low if base_low > 0 else None)


def deviation_percent(timed: Estimate, again: float) -> float | None:
    """Difference of a second pass's rate from the timed rounds, in percent; None within their interval or
    `DEVIATION_PERCENT`. Beyond that, the interval of the timed rounds is too narrow, because it covers only their
    seconds.
    """
    if timed.value <= 0:
        return None
    inside = timed.interval is not None and timed.interval[0] <= again <= timed.interval[1]
    percent = 100 * (again - timed.value) / timed.value
    return None if inside or abs(percent) <= DEVIATION_PERCENT else round(percent, 3)


def direction_of(metric: str, declared: Direction | None = None) -> Direction | None:
    """Direction of better values: known for built-in metrics (of any output), else as declared."""
    name = _last_part(metric)
    if HIGHER_IS_BETTER.fullmatch(name) or TO_BASELINE.fullmatch(name):
        return "higher"
    return "lower" if LOWER_IS_BETTER.fullmatch(name) else declared


def _last_part(metric: str) -> str:
    return metric.rsplit(".", 1)[-1].lower()


def accuracy_of(result: CaseResult, metric: str | None) -> float | None:
    """A metric of the case; for None, the cosine of its outputs with the reference's."""
    if metric is not None:
        return None if result.accuracy is None else result.accuracy.metrics.get(metric)
    if result.equality is not None and result.equality.cosine is not None:
        return result.equality.cosine
    metrics = {} if result.accuracy is None else result.accuracy.metrics
    cosines = [value for name, value in metrics.items() if _last_part(name) == "cosine"]
    known = [value for value in cosines if value is not None]
    return min(known) if known and len(known) == len(cosines) else None


def accuracy_loss(
    result: CaseResult, baseline: CaseResult | None, metric: str | None, declared: Direction | None = None
) -> float | None:
    """Loss against the baseline, in the metric's unit; without a baseline value, against a perfect one. Without a
    metric: 1 - cosine with the reference. None if the direction (`declared` for user metrics) or the perfect value is
    unknown.
    """
    value = accuracy_of(result, metric)
    if value is None:
        return None
    if metric is None:  # compares with the reference, not with the baseline of speed-ups
        return 1.0 - value
    if TO_BASELINE.fullmatch(_last_part(metric)):  # negative if worse
        return -value
    direction = direction_of(metric, declared)
    base = None if baseline is None else accuracy_of(baseline, metric)
    if direction == "lower":
        return value - (0.0 if base is None else base)
    if base is None and direction_of(metric) == "higher":
        base = 1.0
    return None if direction is None or base is None else base - value


def gives_wrong_answers(result: CaseResult) -> bool:
    """Whether its outputs differ from the reference's beyond the tolerance."""
    return result.equality is not None and result.equality.equal is False


def overlap(one: Estimate, other: Estimate) -> bool:
    """Whether two numbers may be equal: their intervals overlap, or one has none."""
    if one.interval is None or other.interval is None:
        return True
    return one.interval[0] <= other.interval[1] and other.interval[0] <= one.interval[1]


def in_significant_digits(estimate: Estimate | None) -> str:
    """Format with three significant digits, or all digits before the decimal point."""
    if estimate is None:
        return "-"
    value = estimate.value
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def drift_line(latency: LatencyStats | None) -> str | None:
    """Sentence about a drifting latency; None for a small drift."""
    drift = None if latency is None else latency.drift_percent
    if drift is None or abs(drift) <= MUCH_DRIFT_PERCENT:
        return None
    return f"its latency drifted by {drift:+.0f} % from the first third of the iterations to the last"


def unsteady_speed(result: CaseResult) -> str | None:
    """Sentence about a telemetry pass whose speed differs from the timed rounds."""
    timed, again = result.items_per_second, result.telemetry_items_per_second
    if timed is None or again is None or (percent := deviation_percent(timed, again)) is None:
        return None
    rates = [in_significant_digits(rate) for rate in (timed, Estimate(value=again))]
    return (
        f"its speed was not reproducible: {rates[0]} items/s in the timed rounds, {rates[1]} ({percent:+.0f} %) in the "
        "telemetry pass"
    )


def cases_exit_code(statuses: Iterable[str], *, interrupted: bool, check_failed: bool = False) -> int:
    """1 if a process failed or the run was interrupted, 3 if nothing was measured or a check failed, else 0."""
    found = set(statuses)
    if interrupted or found & {"failed", "timeout", "not-run"}:
        return 1
    return 3 if check_failed or "ok" not in found else 0
