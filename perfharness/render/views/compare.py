"""Comparison of versions: conclusion, figures and notes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from perfharness.analysis.suites.bench_names import in_groups
from perfharness.model.findings import listed
from perfharness.render.blocks import Block, Chart, Column, Details, Items, Paragraph, Span, Style, Table
from perfharness.render.numbers import NOT_MEASURED, change, milliseconds, number, percent, scaled
from perfharness.runs.comparison.conclusion import FACTOR, MANY_LAUNCHES, WIDE
from perfharness.runs.comparison.limits import PERCENT, LimitResult
from perfharness.runs.comparison.result import (
    ComparedRow,
    ComparedVersion,
    Comparison,
    EnvironmentDifference,
    GradedAdvice,
    UnmatchedStage,
    Verdict,
)
from perfharness.runs.figures import METRICS

ORDER: tuple[Verdict, ...] = ("slower", "faster", "undecided", "not-comparable", "same")
"""Verdicts, most interesting first."""

WORDS = {"undecided": "not proven", "not-comparable": "not comparable"}
STYLES: dict[str, Style] = {"slower": "error", "faster": "good", "undecided": "warning", "not-comparable": "warning"}

RATES_AND_TIMES = ("ms", "items/s", "requests/s")
MORE_OR_LESS = {"slower": "more", "faster": "less"}
"""Words for figures that are neither times nor rates."""

COMMIT = re.compile(r"\b([0-9a-f]{10})[0-9a-f]{30}\b")

CODE = ("git commit", "script's digest")
"""Differences that can come from following advice."""

NAMED = 3
"""Figures named in a note; others are counted."""

ORDERS = {
    "in-turns": "measured in turns",
    "one-after-the-other": "not measured in turns",
    "unknown": "measured in an unknown order",
}

COLUMNS = (
    Column("stage"),
    Column("figure"),
    Column("base ± std", "number", "geometric mean and standard deviation of the launches", drop=2),
    Column("new ± std", "number", "geometric mean and standard deviation of the launches", drop=1),
    Column("change", "number"),
    Column("interval", "number", "decides the verdict; corrected for the number of rows", drop=3),
    Column("verdict"),
)


def compare_view(comparison: Comparison, *, fold: bool, charts: bool = False) -> list[Block]:
    """One table per version.

    Args:
        fold: show changed figures and fold the others.
        charts: add a chart of the changes.
    """
    blocks: list[Block] = []
    for place, version in enumerate(comparison.versions):
        if blocks and not fold:
            blocks.append(Paragraph(""))
        blocks += _version(comparison, version, fold=fold)
        if charts:
            from perfharness.render.charts.report import comparison_picture  # slow to import

            picture = comparison_picture(f"comparison_{place}", version, [_stage(row) for row in version.rows])
            blocks += [] if picture is None else [Chart(picture)]
    if comparison.limits:
        blocks.append(Items([Span(_limit(one), "error" if one.failed else "") for one in comparison.limits]))
    return blocks


def _stage(row: ComparedRow) -> str:
    if not row.stage:
        return "(run)"
    return row.stage if row.new_stage is None else f"{row.stage} -> {row.new_stage}"


def _version(comparison: Comparison, version: ComparedVersion, *, fold: bool) -> Iterator[Block]:
    yield Paragraph(Span(version.conclusion, "bold"))
    name = f"comparison with {version.side.name}"
    if fold:
        changed = [row for row in version.rows if row.is_proven]
        rest = [row for row in version.rows if row not in changed]
        if changed:
            yield Table(name, COLUMNS, _rows(version, sorted(changed, key=lambda row: ORDER.index(row.verdict))))
        if rest:
            yield Details(_counts(rest), [Table(name, COLUMNS, _rows(version, rest))])
    elif version.rows:
        yield Table(name, COLUMNS, _rows(version, version.rows, once=True))
    sides = " and ".join(f"{side.used} of {side.name}" for side in (comparison.base, version.side))
    rule = f"Changes below {percent(comparison.rule.min_effect)} are ignored"
    if comparison.rows_tested:
        rule = f"{rule}; risk of any false alarm {percent(comparison.rule.alpha)}"
    yield Paragraph(f"Launches: {sides}, {ORDERS[version.order]}. {rule}.", "note")
    is_other_code = any(one.name in CODE for one in version.differences)
    graded = [one for one in version.advice if one.is_proven and (one.got_ms > 0 or is_other_code)]
    if notes := [*map(_advice, graded[:NAMED]), *_notes(version)]:
        yield Items(notes)


def _rows(version: ComparedVersion, rows: Sequence[ComparedRow], *, once: bool = False) -> list[list[str | Span]]:
    """One row per figure; with `once`, consecutive rows of a stage name it once."""
    return [
        [
            "" if once and place and rows[place - 1].stage == row.stage else _stage(row),
            f"{METRICS[row.metric].label}, {_unit(METRICS[row.metric].unit)}",
            _amount(row.base.mean, row.unit) + _spread(row.base.spread),
            _amount(row.new.mean, row.unit) + _spread(row.new.spread),
            _change(row.ratio),
            _interval(row),
            Span(_verdict(row), STYLES.get(row.verdict, "")),
        ]
        for place, row in enumerate(rows)
    ]


def _unit(unit: str | None) -> str:
    return "MB" if unit == "bytes" else unit or ""


def _amount(value: float | None, unit: str | None) -> str:
    return number(scaled(value, 1e6 if unit == "bytes" else 1.0))


def _spread(spread: float | None) -> str:
    return "" if spread is None else f" ±{percent(spread, 1)}"


def _change(ratio: float | None) -> str:
    if ratio is None or 1 / FACTOR <= ratio <= FACTOR:
        return change(ratio)
    return f"x{ratio:.3g}"


def _interval(row: ComparedRow) -> str:
    """`+8.1 to +12.0 %`; for a wide interval, only its proven end."""
    found = row.judged_by
    if found is None or (found.high > WIDE * found.low and not row.is_proven):
        return NOT_MEASURED
    if found.high > WIDE * found.low:
        return f"at least {_change(found.low if found.low > 1 else found.high)}"
    if found.high > FACTOR or found.low < 1 / FACTOR:
        return f"x{found.low:.3g} to x{found.high:.3g}"
    return f"{100 * (found.low - 1):+.1f} to {100 * (found.high - 1):+.1f} %"


def _verdict(row: ComparedRow) -> str:
    text = WORDS.get(row.verdict, row.verdict)
    if row.unit not in RATES_AND_TIMES:
        text = MORE_OR_LESS.get(text, text)
    if row.may_be_the_machine:
        return f"{text} (or the machine changed)"
    if row.verdict != "undecided" or row.launches_needed is None:
        return text
    if row.launches_needed > MANY_LAUNCHES:
        return f"{text} (too much noise)"
    return f"{text} (try {row.launches_needed} launches per side)"


def _counts(rows: Iterable[ComparedRow]) -> str:
    """`2 slower, 5 same`."""
    found = Counter(row.verdict for row in rows)
    texts = [f"{found[verdict]} {WORDS.get(verdict, verdict)}" for verdict in ORDER if found[verdict]]
    return ", ".join(texts) or "nothing to compare"


def _advice(one: GradedAdvice) -> str:
    got = f"saved {milliseconds(one.got_ms)}" if one.got_ms >= 0 else f"takes {milliseconds(-one.got_ms)} more"
    what = one.cause if one.advice.startswith("Launch with --explain") else one.advice[0].lower() + one.advice[1:]
    stage = one.stage.rpartition("/")[2]
    return f"advice for {stage}: {what}: predicted up to {milliseconds(one.promised_ms)}, {got}"


def _limit(result: LimitResult) -> str:
    outcome = "FAILED" if result.failed else "kept"
    if result.value is None:
        return f"{outcome}: {result.limit}: {result.reason} ({result.version})"
    value = f"{result.value:+.1f}" if result.unit == PERCENT else _amount(result.value, result.unit)
    of = f"mean of {result.launches}" if result.launches > 1 else "one launch"
    return f"{outcome}: {result.limit}: {value} {_unit(result.unit)}, {of} ({result.version})"


def _notes(version: ComparedVersion) -> list[str]:
    found = [f"differs: {_difference(one)}" for one in version.differences]
    for side, name in (("base", "the base"), ("new", version.side.name)):
        stages = [_stage_time(one) for one in version.unmatched if one.side == side]
        if stages:
            hint = " (--map OLD=NEW for stages with a new name)" if side == "base" else ""
            found.append(f"only in {name}: {', '.join(stages)}{hint}")
    missing = ((one.reason, f"{one.stage}.{one.metric}" if one.stage else one.metric) for one in version.not_compared)
    found += [f"not compared: {listed(names, NAMED)}: {reason}" for reason, names in in_groups(missing)]
    if not version.deciding:  # else in the conclusion
        unknown = [row for row in version.rows if row.reason and row.launches_needed is None]
        reasons = Counter((WORDS[row.verdict], row.reason) for row in unknown)
        found += [f"{count} {word}: {reason}" for (word, reason), count in reasons.items()]
    return [*found, *version.remarks]


def _difference(one: EnvironmentDifference) -> str:
    mark = "" if not one.decides else ", allowed" if one.allowed else f": not comparable ({one.reason})"
    return f"{one.name}: {COMMIT.sub(lambda found: found[1], one.values(' -> '))}{mark}"


def _stage_time(one: UnmatchedStage) -> str:
    times = [("wall", one.cpu_ms), ("GPU", one.gpu_ms)]
    text = ", ".join(f"{milliseconds(value)} {name}" for name, value in times if value)
    return f"{one.stage} ({text})" if text else one.stage
