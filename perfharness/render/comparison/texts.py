"""How figures, ratios and verdicts of a comparison are written, everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from perfharness.analysis.comparison.compare import Interval
from perfharness.render.text import NOT_MEASURED
from perfharness.runs.comparison.compared_figure import METRICS
from perfharness.runs.comparison.limits import LimitResult
from perfharness.runs.comparison.result import (
    ComparedRow,
    ComparedSide,
    ComparedVersion,
    EnvironmentDifference,
    UnmatchedStage,
    Verdict,
)

MORE_OR_LESS = {"slower": "more", "faster": "less"}
"""What a verdict is called where the figure is no time and no rate."""

ORDER: tuple[Verdict, ...] = ("slower", "faster", "undecided", "not-comparable", "same")
"""Of verdicts, what a reader asks for first."""

LEAST_FIXED = 1e-3
"""Below, five decimals are fewer than three digits."""

NAMED = 3
"""Figures that a note names; the others are counted."""

ORDERS = {
    "in-turns": "measured in turns",
    "one-after-the-other": "one measured after the other",
    "unknown": "measured in an order that is not known",
}


def verdict_text(row: ComparedRow) -> str:
    """The verdict, with how many more launches would decide it."""
    is_rate_or_time = row.unit in ("ms", "items/s", "requests/s")
    text = row.verdict if is_rate_or_time else MORE_OR_LESS.get(row.verdict, row.verdict)
    if row.verdict == "undecided" and row.launches_needed is not None:
        return f"{text} (try {row.launches_needed} launches per side)"
    return text


def figure_text(row: ComparedRow) -> str:
    """The figure's name, with the unit."""
    metric = METRICS[row.metric]
    unit = {"bytes": "MB"}.get(metric.unit, metric.unit)
    return f"{metric.label}, {unit}"


def amount(value: float | None, unit: str) -> str:
    """A number in the unit of `figure_text`; four digits that mean something."""
    if value is None:
        return NOT_MEASURED
    if unit == "bytes":
        value /= 1e6
    size = abs(value)
    if 0 < size < LEAST_FIXED:
        return f"{value:.4g}"
    return f"{value:.{0 if size >= 10_000 else 1 if size >= 1000 else 2 if size >= 100 else 3 if size >= 0.1 else 5}f}"


def side_amount(row: ComparedRow, *, is_new: bool) -> str:
    """The mean of a side, with the spread between its launches."""
    side = row.new if is_new else row.base
    spread = "" if side.spread is None else f" ±{100 * side.spread:.1f}%"
    return amount(side.mean, row.unit) + spread


def change(ratio: float | None) -> str:
    """`+10.0 %`."""
    return NOT_MEASURED if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def interval(found: Interval | None) -> str:
    """`+8.1 … +12.0 %`; what is more than ten times is a factor, and more than a thousand times tells nothing."""
    if found is None:
        return NOT_MEASURED
    if found.high > 1000:
        return "beyond x1000"
    if found.high > 10:
        return f"x{found.low:.2g} … x{found.high:.3g}"
    return f"{100 * (found.low - 1):+.1f} … {100 * (found.high - 1):+.1f} %"


def counts(rows: Iterable[ComparedRow]) -> str:
    """`2 slower, 5 same`."""
    found = Counter(row.verdict for row in rows)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in ORDER if found[verdict]) or "nothing to compare"


def headline(base: ComparedSide, version: ComparedVersion) -> str:
    """Both sides, their launches and their order."""
    sides = " against ".join(f"{side.name} ({_launches(side)})" for side in (version.side, base))
    return f"{sides}, {ORDERS[version.order]}"


def _launches(side: ComparedSide) -> str:
    return f"{side.used} launch{'es' if side.used != 1 else ''}"


def difference_text(one: EnvironmentDifference) -> str:
    """What differs, and what that means."""
    sides = " -> ".join(" or ".join(value or "not recorded" for value in side) for side in (one.base, one.new))
    mark = "" if not one.decides else ", allowed" if one.allowed else f": not comparable ({one.reason})"
    return f"{one.name}: {sides}{mark}"


def limit_text(result: LimitResult) -> str:
    """What became of a limit."""
    outcome = "FAILED" if result.failed else "kept"
    if result.value is None:
        return f"{outcome}: {result.limit}: {result.reason} ({result.version})"
    unit = "MB" if result.unit == "bytes" else result.unit
    value = f"{result.value:+.1f}" if unit == "%" else amount(result.value, result.unit or "")
    return f"{outcome}: {result.limit}: {value} {unit}, mean of {result.launches} ({result.version})"


def _stage_time(one: UnmatchedStage) -> str:
    times = [("CPU", one.cpu_ms), ("GPU", one.gpu_ms)]
    text = ", ".join(f"{amount(value, 'ms')} ms {name}" for name, value in times if value)
    return f"{one.stage} ({text})" if text else one.stage


def notes(version: ComparedVersion) -> list[str]:
    """What a reader must know: differences, what was not compared, remarks."""
    found = [f"differs: {difference_text(one)}" for one in version.differences]
    for side, name in (("base", "the base"), ("new", version.side.name)):
        stages = [_stage_time(one) for one in version.unmatched if one.side == side]
        if stages:
            hint = " (--map OLD=NEW for stages with a new name)" if side == "base" else ""
            found.append(f"only in {name}: {', '.join(stages)}{hint}")
    missing: dict[str, list[str]] = {}
    for one in version.not_compared:
        missing.setdefault(one.reason, []).append(f"{one.stage}.{one.metric}" if one.stage else one.metric)
    for reason, names in missing.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        found.append(f"not compared: {', '.join(names[:NAMED])}{more}: {reason}")
    reasons = Counter(row.reason for row in version.rows if row.reason and row.launches_needed is None)
    found += [f"{count} undecided or not comparable: {reason}" for reason, count in reasons.items()]
    return [*found, *version.remarks]
