"""A metric over the runs of the store, its levels, and the steps between them."""

from __future__ import annotations

from datetime import datetime, timezone
from itertools import pairwise

from perfharness.model.text import safe
from perfharness.render.charts.drawing import (
    LIMIT,
    PALETTE,
    Picture,
    Row,
    Sheet,
    layered,
    message,
    require_charts,
    unit,
)
from perfharness.render.terminal.stored_runs import commit_text
from perfharness.runs.store.trend import Trend

WIDTH, HEIGHT = 720, 300
TITLES = {
    "commit": "launches and repeats, by the date of their commit",
    "start": "launches and repeats, the oldest first",
}


def trend_picture(trend: Trend) -> Picture:
    """`trend`: a mark a point, a line a level, a labelled rule a step. Raises `ToolNotFoundError` without Altair."""
    require_charts("--chart")
    sheet = Sheet("trend")
    alt = sheet.alt
    points: list[Row] = [
        {
            "place": place,
            "value": point.value,
            "run": safe(point.run_id),
            "began": datetime.fromtimestamp(point.created_unix_ns // 10**9, timezone.utc).isoformat(sep=" "),
            "commit": commit_text(point),
            "launches": point.launches,
        }
        for place, point in enumerate(trend.points)
    ]
    scale = alt.Scale(domain=[-0.5, max(len(points), 1) - 0.5], nice=False, zero=False)
    x = alt.X("place:Q", title=TITLES[trend.order], axis=alt.Axis(format="d", tickMinStep=1), scale=scale)
    y = sheet.quantity(f"{trend.metric} ({trend.unit})", zero=False)
    tips = ["run:N", "began:N", "commit:N", "launches:Q", "value:Q"]
    layers = [
        unit(sheet.chart("levels", _levels(trend)).mark_line(color=PALETTE[1]).encode(x=x, y=y, detail="level:N")),
        unit(
            sheet.chart("points", points)
            .mark_point(filled=True, size=45, opacity=1, color=PALETTE[0])
            .encode(x=x, y=y, tooltip=tips)
        ),
    ]
    steps: list[Row] = [
        {
            "place": change.place - 0.5,
            "text": "changed" if change.ratio is None else f"{change.ratio - 1:+.1%}",
            "run": safe(change.run_id),
        }
        for change in trend.changes
    ]
    if steps:
        chart = sheet.chart("steps", steps)
        layers += [
            unit(chart.mark_rule(color=LIMIT, strokeDash=[4, 3]).encode(x=x, tooltip=["run:N", "text:N"])),
            unit(chart.mark_text(color=LIMIT, align="left", dx=4, dy=6).encode(x=x, y=alt.value(0), text="text:N")),
        ]
    sheet.notes += trend.remarks
    title = f"{safe(trend.stage) or 'whole run'}, {trend.setup_facts.get('script', '')}"
    return sheet.made(
        layered(layers, WIDTH, HEIGHT) if points else message("nothing was measured", WIDTH, HEIGHT), title
    )


def _levels(trend: Trend) -> list[Row]:
    """Both ends of each level, at its median."""
    ends = [0, *(change.place for change in trend.changes), len(trend.points)]
    medians = [trend.changes[0].before, *(change.after for change in trend.changes)] if trend.changes else []
    return [
        {"place": place, "value": median, "level": number}
        for number, ((begin, end), median) in enumerate(zip(pairwise(ends), medians, strict=False))
        for place in (begin - 0.5, end - 0.5)
    ]
