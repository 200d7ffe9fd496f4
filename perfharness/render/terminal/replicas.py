"""Replicas under the same load, as a table."""

from __future__ import annotations

from perfharness.load.replicas.result import ReplicaCase, Replicas
from perfharness.model.text import NOT_MEASURED
from perfharness.render.terminal.console import Column, Console, print_table, say
from perfharness.render.terminal.series import over_launches_text

COLUMNS = {
    "answers/s": ("answers_per_second", 1.0),
    "items/s": ("items_per_second", 1.0),
    "in time/s": ("goodput", 1.0),
    "p50 ms": ("p50_ms", 1.0),
    "p99 ms": ("p99_ms", 1.0),
    "errors %": ("error_share", 100.0),
    "GPU busy %": ("gpu_busy_share", 100.0),
    "GPU MB each": ("gpu_memory_mb", 1.0),
    "MB each": ("memory_mb", 1.0),
}
"""Heading -> figure, and what it is multiplied by."""

DROPPED = {"items/s": 4, "errors %": 3, "MB each": 1, "GPU MB each": 2}
"""Priority for removal on a narrow terminal, the largest first."""


def print_replicas(console: Console, found: Replicas) -> None:
    """A row a case, how it stands against the best one, and which one to take."""
    count = max((len(case.launches) for case in found.cases), default=0)
    say(console, f"{found.target.name}: mean of {count} launches ± half of its 95 % interval")
    headings = [name for name, (figure, _) in COLUMNS.items() if any(_is_shown(case, figure) for case in found.cases)]
    if all(_text(case, "items/s") == _text(case, "answers/s") for case in found.cases):
        headings = [name for name in headings if name != "items/s"]
    columns = [Column("sharing", is_text=True, is_whole=True), Column("replicas")]
    columns += [Column(name, drop=DROPPED.get(name, 0)) for name in headings]
    columns += [Column("of the best's", is_text=True, drop=5), Column("is", is_text=True, is_whole=True)]
    rows = [
        [case.sharing, str(case.replicas), *(_text(case, name) for name in headings), _ratio(case), case.standing]
        for case in found.cases
    ]
    print_table(console, columns, rows)
    for case in found.cases:
        for remark in case.left_out:
            say(console, f" {case.name}/{remark}")
    if found.chosen is not None:
        say(console, f" take {found.chosen} ({'proven' if found.proven else 'not proven'}): {found.reason}")


def _is_shown(case: ReplicaCase, figure: str) -> bool:
    return figure in case.figures and case.figures[figure].mean is not None


def _text(case: ReplicaCase, heading: str) -> str:
    figure, factor = COLUMNS[heading]
    one = case.figures.get(figure)
    if one is None or one.mean is None:
        return NOT_MEASURED
    fields = ("mean", "low", "high", "std")
    scaled = one.model_copy(
        update={name: None if (value := getattr(one, name)) is None else value * factor for name in fields}
    )
    return over_launches_text(scaled)


def _ratio(case: ReplicaCase) -> str:
    if case.ratio is None:
        return NOT_MEASURED
    ends = "" if case.low is None or case.high is None else f" ({case.low:.2f} … {case.high:.2f})"
    return f"{case.ratio:.2f}{ends} {case.judged_by}"
