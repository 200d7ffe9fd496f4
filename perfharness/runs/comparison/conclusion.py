"""A comparison in one sentence: what changed by how much, or why that cannot be told and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from math import expm1, log, log1p

from perfharness.analysis.comparison.compare import Rule
from perfharness.runs.comparison.launches import LaunchFigures
from perfharness.runs.comparison.match import MatchedSides
from perfharness.runs.comparison.result import ComparedRow
from perfharness.runs.figures import METRICS

LEADING = ("throughput", "achieved_rate", "goodput", "loadgen_rate")
"""What a reader asks for first."""

FACTOR = 10
"""Changes beyond this are said as factors."""

WIDE = 3
"""An interval whose ends differ by more than this factor proves nothing."""

OWN_OPTIONS = ("--repeat", "-o", "--output-dir")
"""Options of a launch that `compare --run` gives itself."""


def conclude(matched: MatchedSides, rows: Sequence[ComparedRow], machine_ratio: float | None, rule: Rule) -> str:
    """One sentence, and where nothing is proven what to do next."""
    name = matched.new.short_name
    if matched.deciding:
        names = ", ".join(one.name for one in matched.deciding)
        return f"Cannot compare: {names} differ. If that is what you compare, add --allow {names.replace(', ', ',')}."
    judged = [row for row in rows if row.verdict != "not-comparable" and row.ratio is not None]
    if not judged:
        return "Cannot compare: the sides have no figure in common that both measured."
    lead = next((row for metric in LEADING for row in judged if row.metric == metric and not row.stage), judged[0])
    proven = [row for row in judged if row.verdict in ("faster", "slower")]
    if machine_ratio is not None and not _is_beyond_the_machine(proven, machine_ratio, rule):
        return f"Cannot tell: the machine was {_change(machine_ratio, 'slower', 'faster')} during {name}. " + (
            "Stop what else runs, and repeat." if matched.order == "in-turns" else _measure_in_turns(matched)
        )
    if proven:
        return _proven(name, lead, proven, len(judged))
    if all(row.verdict == "same" for row in judged):
        figures = f"all {len(judged)} figures are" if len(judged) > 1 else f"{figure_name(lead)} is"
        return f"No difference: {figures} the same within {100 * rule.min_effect:g} %."
    seen = _least_seen(lead)
    if seen is None:
        return f"Cannot tell: one launch per side is not enough. {_measure_in_turns(matched)}"
    if seen > WIDE - 1:
        return f"Cannot tell: the launches of each side differ too much in {figure_name(lead)}. " + (
            _more_launches(lead) if matched.order == "in-turns" else _measure_in_turns(matched)
        )
    return f"No difference found in {figure_name(lead)}; a difference above {100 * seen:.2g} % would have been seen."


def figure_name(row: ComparedRow) -> str:
    """`throughput`, or `decode CPU/item`."""
    stage = row.stage.rpartition("/")[2]
    return f"{stage} {METRICS[row.metric].label}".strip()


def _is_beyond_the_machine(proven: Sequence[ComparedRow], machine_ratio: float, rule: Rule) -> bool:
    """Whether what is proven is at least twice as large as the change of the machine, which may be its cause."""
    change = abs(log(machine_ratio))
    return change <= log1p(rule.min_effect) or any(abs(log(row.ratio)) >= 2 * change for row in proven if row.ratio)


def _proven(name: str, lead: ComparedRow, proven: Sequence[ComparedRow], judged: int) -> str:
    most = lead if lead in proven else max(proven, key=lambda row: abs(log(row.ratio or 1)))
    is_rate = METRICS[most.metric].more_is_better
    if is_rate:
        ratio = _change(most.ratio or 1, "faster", "slower")
        sentence = f"{name} is {ratio}{_interval(most)} in {figure_name(most)}"
    else:
        words = {"faster": "faster", "slower": "slower"}
        if most.unit != "ms":
            words = {"faster": "better", "slower": "worse"}
        change = _change(most.ratio or 1, "higher", "lower")
        sentence = f"{name} is {words[most.verdict]}: {figure_name(most)} is {change}{_interval(most)}"
    rest = [row for row in proven if row is not most]
    against = [row for row in rest if row.verdict != most.verdict]
    if against:
        names = ", ".join(figure_name(row) for row in against[:2])
        more = f" and {len(against) - 2} more" if len(against) > 2 else ""
        return f"{sentence}; {names}{more} became {against[0].verdict}."
    if not is_rate and rest:
        return f"{sentence}; {len(proven)} of {judged} figures are {most.verdict}."
    return f"{sentence}."


def _change(ratio: float, up: str, down: str) -> str:
    """`12 % faster`, `x14 slower`."""
    if ratio > FACTOR or ratio < 1 / FACTOR:
        return f"x{max(ratio, 1 / ratio):.3g} {up if ratio > 1 else down}"
    return f"{_percent(ratio)} {up if ratio > 1 else down}"


def _percent(ratio: float) -> str:
    return f"{100 * abs(ratio - 1):.2g} %" if abs(ratio - 1) < 1 else f"{100 * abs(ratio - 1):.0f} %"


def _interval(row: ComparedRow) -> str:
    """` (95 %: 9 to 15 %)`, of this figure alone."""
    one = row.interval
    if one is None or row.ratio is None:
        return ""
    ends = (one.low, one.high) if row.ratio > 1 else (one.high, one.low)
    near, far = (end if row.ratio > 1 else 1 / end for end in ends)
    confidence = f"{100 * one.confidence:g} %"
    if far > WIDE * near:
        return f" ({confidence}: at least x{near:.2g})"
    if far > FACTOR:
        return f" ({confidence}: x{near:.3g} to x{far:.3g})"
    low, high = (100 * abs(end - 1) for end in ends)
    return f" ({confidence}: {low:.2g} to {high:.2g} %)"


def _least_seen(row: ComparedRow) -> float | None:
    """The smallest difference that would have been found with this noise, nearly always; None: the noise is unknown."""
    if row.judged_by is None or row.threshold is None or row.judged_by.low <= 0:
        return None
    width = log(row.judged_by.high) - log(row.judged_by.low)
    return expm1(min(log1p(row.threshold) + width, 100.0))


def _more_launches(row: ComparedRow) -> str:
    number = f"with {row.launches_needed} launches" if row.launches_needed else "with more launches"
    return f"Measure each side {number}, on a quiet machine."


def _measure_in_turns(matched: MatchedSides) -> str:
    return f"Measure in turns: {in_turns(matched.base.used[0], matched.new.used[0])}"


def in_turns(base: LaunchFigures, new: LaunchFigures) -> str:
    """The command that measures both in turns, as far as it is known."""
    old, now = (_words(launch.command) for launch in (base, new))
    commits = [str(launch.environment.get("git commit") or "").partition(" ")[0] for launch in (base, new)]
    if not old or not now:
        return "perfharness compare --run … --run …"
    if old != now:
        return f"perfharness compare --run {shlex.quote(shlex.join(old))} --run {shlex.quote(shlex.join(now))}"
    if commits[0] and commits[0] != commits[1]:
        return f"perfharness compare --rev {commits[0][:10]} {shlex.join(now)}"
    return f"perfharness compare --run {shlex.quote(shlex.join(old))} --run …"


def _words(command: Sequence[str]) -> list[str]:
    """What stands behind `perfharness launch`, without what `compare --run` gives itself."""
    words = list(command[2:]) if list(command[:2]) == ["perfharness", "launch"] else []
    for option in OWN_OPTIONS:
        if option in words:
            place = words.index(option)
            del words[place : place + 2]
    return words
