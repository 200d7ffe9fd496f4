"""The table of a trend: a row a point, and the steps."""

from __future__ import annotations

from datetime import datetime, timezone

from rich.console import Console

from perfharness.render.terminal.console import Column, print_table, say
from perfharness.render.terminal.stored_runs import commit_text, number_text
from perfharness.runs.store.trend import Trend, TrendChange

MAX_ROWS = 60
"""The newest; the others are only counted."""

ORDERS = {"commit": "by the date of the commit", "start": "by the start of the launch"}


def print_trend(console: Console, trend: Trend) -> None:
    """Print the newest points, with a mark where the level changes, then each step with what else changed there."""
    say(console, f"{trend.stage or 'whole run'}, {trend.metric} ({trend.unit}), {ORDERS[trend.order]}")
    steps = {change.place: change for change in trend.changes}
    columns = [
        Column("began (UTC)", is_text=True, is_whole=True),
        Column("run", is_text=True, is_whole=True, drop=2),
        Column("commit", is_text=True, drop=1),
        Column("launches", drop=3),
        Column(trend.metric),
        Column("step", is_text=True, is_whole=True),
    ]
    if trend.order == "commit":
        columns.insert(0, Column("committed (UTC)", is_text=True, is_whole=True))
    begin = max(0, len(trend.points) - MAX_ROWS)
    rows = [
        [
            *([_time(point.committed_unix_s or 0)] if trend.order == "commit" else []),
            _time(point.created_unix_ns // 10**9),
            point.run_id,
            commit_text(point),
            str(point.launches),
            number_text(point.value),
            "" if place not in steps else _change_text(steps[place]),
        ]
        for place, point in enumerate(trend.points[begin:], begin)
    ]
    print_table(console, columns, rows)
    if begin:
        say(console, f"and {begin} older points (--format json has all)")
    for change in trend.changes:
        where = f"step at {change.run_id}: {number_text(change.before)} to {number_text(change.after)} {trend.unit}"
        facts = "; ".join(f"{fact.name} {fact.before or '-'} -> {fact.after or '-'}" for fact in change.facts)
        say(
            console,
            f"{where}, {_change_text(change)} (p {change.p_value:.2g}); changed there: {facts or 'nothing known'}",
        )
    if not trend.changes:
        say(console, f"no step of {trend.min_effect:.0%} or more was found")
    for remark in trend.remarks:
        say(console, remark)


def _change_text(change: TrendChange) -> str:
    return "changed" if change.ratio is None else f"{change.ratio - 1:+.1%}"


def _time(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M")
