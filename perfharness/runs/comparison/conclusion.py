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

NAMED = 2
"""Figures that the sentence names."""

MUCH = 0.1
"""Who misses differences of this size should measure in turns."""

OWN_OPTIONS = ("--repeat", "-o", "--output-dir", "--format")
OWN_FLAGS = ("-q", "--quiet", "-v", "--verbose", "--explain", "--no-explain")
"""Options of a launch that `compare --run` does not take."""


def conclude(matched: MatchedSides, rows: Sequence[ComparedRow], machine_ratio: float | None, rule: Rule) -> str:
    """One sentence, and where nothing is proven what to do next."""
    name = matched.new.short_name
    if matched.deciding:
        why = "; ".join(one.reason or one.name for one in matched.deciding)
        names = ",".join(one.name for one in matched.deciding)
        return f"Cannot compare: {why}. If that is what you compare, add --allow {names}."
    judged = [row for row in rows if row.verdict != "not-comparable" and row.ratio is not None]
    if not judged:
        return "Cannot compare: the sides have no figure in common that both measured."
    lead = next((row for metric in LEADING for row in judged if row.metric == metric and not row.stage), judged[0])
    lead_name = figure_name(lead, judged)
    proven = [row for row in judged if row.is_proven]
    if machine_ratio is not None and not proven:
        return f"Cannot tell: the machine was {_change(machine_ratio, 'slower', 'faster')} during {name}. " + (
            "Stop what else runs, and repeat." if matched.order == "in-turns" else _measure_in_turns(matched)
        )
    if proven:
        return _proven(name, lead, proven, judged)
    if all(row.verdict == "same" for row in judged):
        figures = f"all {len(judged)} figures are" if len(judged) > 1 else f"{lead_name} is"
        return f"No difference: {figures} the same within {100 * rule.min_effect:g} %."
    seen = _least_seen(lead)
    is_in_turns = matched.order == "in-turns"
    if seen is None:
        return f"Cannot tell: one launch per side is not enough. {_measure_in_turns(matched)}"
    if seen > WIDE - 1:
        why = f"Cannot tell: the launches of each side differ too much in {lead_name}."
        number = f"with {lead.launches_needed} launches" if lead.launches_needed else "with more launches"
        more = f"Measure each side {number}, on a quiet machine."
        return f"{why} {more if is_in_turns else _measure_in_turns(matched)}"
    found = f"No difference found in {lead_name}; a difference above {_digits(100 * seen)} % would have been seen."
    return found if is_in_turns or seen < MUCH else f"{found} {_measure_in_turns(matched)}"


def figure_name(row: ComparedRow, rows: Sequence[ComparedRow]) -> str:
    """`throughput`, or `decode CPU/item`; with the stage's path where others of these have its last name."""
    last = row.stage.rpartition("/")[2]
    is_only = all(other.stage == row.stage or other.stage.rpartition("/")[2] != last for other in rows)
    return f"{last if is_only else row.stage} {METRICS[row.metric].label}".strip()


def _proven(name: str, lead: ComparedRow, proven: Sequence[ComparedRow], judged: Sequence[ComparedRow]) -> str:
    """What is said of the rate, or else of the largest change, and which figures say the opposite."""
    most = lead if lead in proven else max(proven, key=lambda row: abs(log(row.ratio or 1)))
    figure, ratio = figure_name(most, judged), most.ratio or 1.0
    is_rate = METRICS[most.metric].more_is_better
    if is_rate:
        sentence = f"{name} is {_change(ratio, 'faster', 'slower')}{_interval(most)} in {figure}"
    else:
        word = most.verdict if most.unit == "ms" else "better" if most.verdict == "faster" else "worse"
        sentence = f"{name} is {word}: {figure} is {_change(ratio, 'higher', 'lower')}{_interval(most)}"
    against = [figure_name(row, judged) for row in proven if row.verdict != most.verdict]
    if against:
        more = f" and {len(against) - NAMED} more" if len(against) > NAMED else ""
        other = "slower" if most.verdict == "faster" else "faster"
        return f"{sentence}; {', '.join(against[:NAMED])}{more} became {other}."
    if not is_rate and len(proven) > 1:
        return f"{sentence}; {len(proven)} of {len(judged)} figures are {most.verdict}."
    return f"{sentence}."


def _change(ratio: float, up: str, down: str) -> str:
    """`12 % faster`, `x14 slower`."""
    is_large = ratio > FACTOR or ratio < 1 / FACTOR
    size = f"x{max(ratio, 1 / ratio):.3g}" if is_large else f"{_digits(100 * abs(ratio - 1))} %"
    return f"{size} {up if ratio > 1 else down}"


def _digits(value: float) -> str:
    """Two digits, or all of a whole number."""
    return f"{value:.2g}" if value < FACTOR else f"{value:.0f}"


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
    return f" ({confidence}: {_digits(low)} to {_digits(high)} %)"


def _least_seen(row: ComparedRow) -> float | None:
    """The smallest difference that would have been found with this noise, nearly always; None: the noise is unknown."""
    if row.judged_by is None or row.threshold is None or row.judged_by.low <= 0:
        return None
    width = log(row.judged_by.high) - log(row.judged_by.low)
    return expm1(min(log1p(row.threshold) + width, 100.0))


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
    """What stands behind `perfharness launch`, without what `compare --run` does not take."""
    words = list(command[2:]) if list(command[:2]) == ["perfharness", "launch"] else []
    for option in OWN_OPTIONS:
        if option in words:
            place = words.index(option)
            del words[place : place + 2]
    return [word for word in words if word not in OWN_FLAGS]
