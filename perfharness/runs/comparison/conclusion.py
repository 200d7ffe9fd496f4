"""Summarise a comparison in one sentence: the change, or why it is unknown and the next step."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from math import log

from perfharness.analysis.comparison.compare import Rule
from perfharness.model.findings import listed
from perfharness.runs.comparison.match import MatchedSides
from perfharness.runs.comparison.result import ComparedRow
from perfharness.runs.figures import METRICS

LEADING = ("throughput", "achieved_rate", "goodput", "loadgen_rate")
"""Metrics to name first."""

FACTOR = 10
"""Larger changes are written as factors."""

WIDE = 3
"""Ratio of the ends of an interval that is too wide to print."""

NARROW = 1.1
"""Ratio of the ends of an interval that needs no more launches."""

MANY_LAUNCHES = 100
"""Never advise more: the machine is too noisy."""

OWN_OPTIONS = ("--repeat", "-o", "--output-dir", "--format")
OWN_FLAGS = ("-q", "--quiet", "-v", "--verbose", "--explain", "--no-explain")
"""Options of a launch that `compare --run` does not take."""


def conclude(matched: MatchedSides, rows: Sequence[ComparedRow], machine_ratio: float | None, rule: Rule) -> str:
    """Return one sentence, and the next step if nothing is proven."""
    name = matched.new.short_name
    if matched.deciding:
        why = "; ".join(f"{one.name} ({one.values(' and ')})" for one in matched.deciding)
        names = ",".join(one.name for one in matched.deciding)
        return f"Cannot compare, the sides differ: {why}. To compare anyway, add --allow {names}."
    judged = [row for row in rows if row.verdict != "not-comparable" and row.ratio is not None]
    if not judged:
        return "Cannot compare: no figure was measured on both sides."
    lead = next((row for metric in LEADING for row in judged if row.metric == metric and not row.stage), judged[0])
    lead_name = figure_name(lead, judged)
    proven = [row for row in judged if row.is_proven]
    if machine_ratio is not None and not proven:
        return f"Cannot tell: the machine was {_change(machine_ratio, 'slower', 'faster')} during {name}. " + (
            "Stop other programs, and repeat." if matched.order == "in-turns" else measure_again(matched)
        )
    if proven:
        return _proven(name, lead, proven, judged)
    if all(row.verdict == "same" for row in judged):
        figures = f"all {len(judged)} figures are" if len(judged) > 1 else f"{lead_name} is"
        return f"No difference: {figures} the same within {100 * rule.min_effect:g} %."
    found = lead.judged_by
    if found is None:
        counts = f"{len(matched.base.used)} and {len(matched.new.used)}"
        return f"Cannot tell: too few launches ({counts}). {measure_again(matched)}"
    needed = lead.launches_needed or MANY_LAUNCHES
    number = f"with {needed} launches" if needed < MANY_LAUNCHES else "with more launches"
    more = f"Measure each side {number}, on a quiet machine."
    next_step = more if matched.order == "in-turns" else measure_again(matched)
    if found.high > WIDE * found.low:
        return f"Cannot tell: the launches of each side differ too much in {lead_name}. {next_step}"
    ends = " and ".join(_change(end, "higher", "lower") for end in (found.low, found.high))
    text = f"No change above {100 * rule.min_effect:g} % proven: {lead_name} of {name} is between {ends}."
    return text if found.high < NARROW * found.low else f"{text} {next_step}"


def figure_name(row: ComparedRow, rows: Sequence[ComparedRow]) -> str:
    """`throughput` or `decode wall/item`, with the path of the stage if its last name is ambiguous."""
    last = row.stage.rpartition("/")[2]
    is_only = all(other.stage == row.stage or other.stage.rpartition("/")[2] != last for other in rows)
    return f"{last if is_only else row.stage} {METRICS[row.metric].label}".strip()


def _proven(name: str, lead: ComparedRow, proven: Sequence[ComparedRow], judged: Sequence[ComparedRow]) -> str:
    """Describe the change of the rate, or else the largest change, and name opposite changes."""
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
        other = "slower" if most.verdict == "faster" else "faster"
        return f"{sentence}; {listed(against, most=2)} became {other}."
    if not is_rate and len(proven) > 1:
        return f"{sentence}; {len(proven)} of {len(judged)} figures are {most.verdict}."
    return f"{sentence}."


def _change(ratio: float, up: str, down: str) -> str:
    """`12 % faster`, `x14 slower`."""
    return f"{_size(ratio)} {up if ratio > 1 else down}"


def _size(ratio: float) -> str:
    if ratio > FACTOR or ratio < 1 / FACTOR:
        return f"x{max(ratio, 1 / ratio):.3g}"
    percent = 100 * abs(ratio - 1)
    return f"{percent:.2g} %" if percent < FACTOR else f"{percent:.0f} %"


def _interval(row: ComparedRow) -> str:
    """` (9 % to 15 %)`, or only the proven end of a wide interval."""
    found = row.judged_by
    if found is None or row.ratio is None:
        return ""
    near, far = (found.low, found.high) if row.ratio > 1 else (found.high, found.low)
    if found.high > WIDE * found.low:
        return f" (at least {_size(near)})"
    return f" ({_size(near)} to {_size(far)})"


def measure_again(matched: MatchedSides) -> str:
    """Command that measures both sides in turns, or else each side several times."""
    base, new = matched.base.used[0], matched.new.used[0]
    old, now = (_words(launch.command) for launch in (base, new))
    commit, new_commit = (launch.environment.get("git commit") for launch in (base, new))
    if not old or not now:
        folders = (f"{one.folder},{one.folder}_2,{one.folder}_3" for one in (base, new))
        return f"Measure each side several times in new folders, then: perfharness compare {shlex.join(folders)}"
    if old != now:
        runs = shlex.join(["--run", shlex.join(old), "--run", shlex.join(now)])
        return f"Measure in turns: perfharness compare {runs}"
    if commit and commit != new_commit and not commit.endswith("changes"):
        return f"Measure in turns: perfharness compare --rev {commit[:10]} {shlex.join(now)}"
    return f"Launch each version several times: perfharness launch --repeat 5 -o FOLDER {shlex.join(now)}"


def _words(command: Sequence[str]) -> list[str]:
    """Arguments of `perfharness launch`, without options that `compare --run` does not take."""
    words = list(command[2:]) if list(command[:2]) == ["perfharness", "launch"] else []
    for option in OWN_OPTIONS:
        if option in words:
            place = words.index(option)
            del words[place : place + 2]
    return [word for word in words if word not in OWN_FLAGS]
