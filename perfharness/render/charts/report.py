"""Charts of a report: stages, batches over time, distributions, timelines of batches, comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfharness.analysis.ranks.results import RankFigures
from perfharness.analysis.stages.charts import Bar, BatchTimeline
from perfharness.model.result import path_text
from perfharness.render.charts.drawing import (
    BAR_TEXT_WIDTH,
    GREY,
    LIGHT_GREY,
    PALETTE,
    WARMUP,
    Picture,
    Row,
    Sheet,
    alt,
    colors,
    fields,
    numbers,
    short_label,
)
from perfharness.render.text import safe_line
from perfharness.runs.comparison.result import ComparedVersion
from perfharness.runs.figures import METRICS
from perfharness.runs.report.model import LoopSeries, StageDistribution
from perfharness.runs.stage_lines import StageLine

WIDTH = 720
ROW_HEIGHT = 22
THROTTLED = "#f6c9b2"
CLIP_FROM = 2.0
"""Clip warm-up batches longer than this multiple of the longest measured batch."""

MAX_STAGES = 25
LABELLED = 0.04
"""Smallest share of the batch at which a stage in the timeline has a text."""

KINDS: Mapping[str, tuple[str, str]] = {
    "stage": ("stage", PALETTE[4]),
    "call": ("CUDA call", GREY),
    "kernel": ("kernel", PALETTE[0]),
    "copy": ("copy", PALETTE[1]),
    "memset": ("memset", PALETTE[3]),
    "graph": ("graph replay", PALETTE[2]),
    "other": ("GPU work of others", LIGHT_GREY),
}
"""Label and colour of each kind of bar."""

VERDICT_COLORS = {
    "slower": PALETTE[5],
    "faster": PALETTE[2],
    "same": PALETTE[0],
    "undecided": PALETTE[1],
    "not-comparable": GREY,
}
MAX_COMPARED = 40
LEAST_CHANGE, MOST_TIMES = 10.0, 3.0
"""Clip wide intervals at this multiple of the largest change, which is at least LEAST_CHANGE %."""


def stage_picture(name: str, lines: Sequence[StageLine], labels: Sequence[str], *, has_gpu: bool) -> Picture | None:
    """Draw mean wall, GPU and GPU busy time per batch of each stage; None without data."""
    sheet = Sheet(name)
    kinds = {"wall": PALETTE[0], **({"GPU": PALETTE[1], "GPU busy": PALETTE[2]} if has_gpu else {})}
    texts = _distinct([short_label(label, 40) for label in labels[:MAX_STAGES]])
    rows: list[Row] = [
        {"stage": text, "time": kind, "ms": found.mean}
        for line, text in zip(lines, texts, strict=False)
        for kind, found in (("wall", line.cpu), ("GPU", line.gpu), ("GPU busy", line.gpu_busy))
        if kind in kinds and found is not None and found.mean is not None
    ]
    if not rows:
        return None
    if len(lines) > len(texts):
        sheet.notes.append(f"{len(lines) - len(texts)} more stages are in the table only")
    step = alt.Step(9, **{"for": "offset"}) if has_gpu else alt.Step(16)
    chart = sheet.chart("stages", rows, width=WIDTH, height=step).mark_bar()
    chart = chart.encode(
        x=alt.X("ms:Q").title("ms per batch"),
        y=alt.Y("stage:N").sort(texts).title(None),
        color=colors("time", kinds, orient="top") if has_gpu else alt.value(PALETTE[0]),
        tooltip=[*fields("stage:N", "time:N"), *numbers("ms")],
    )
    if has_gpu:
        chart = chart.encode(yOffset=alt.YOffset("time:N").sort(list(kinds)))
    return sheet.made(chart, "Mean time of a batch, by stage")


def ranks_picture(name: str, ranks: Sequence[RankFigures]) -> Picture:
    """Draw the time of a batch per rank: waiting for the last rank, other communication, the rest."""
    sheet = Sheet(name)
    kinds = {"other work": LIGHT_GREY, "communication": PALETTE[0], "waiting for the last rank": PALETTE[1]}
    rows: list[Row] = []
    for one in ranks:
        transfer = one.communication_ms if one.transfer_ms is None else one.transfer_ms
        parts = zip(kinds, (one.other_ms, transfer, one.waiting_ms), strict=True)
        rows += [
            {"rank": f"rank {one.rank}", "time": kind, "ms": ms, "place": place}
            for place, (kind, ms) in enumerate(parts)
            if ms is not None
        ]
    if any(one.waiting_ms is None for one in ranks):
        sheet.notes.append("Ranks whose wait is not known: communication includes it.")
    chart = sheet.chart("ranks", rows, width=WIDTH, height=alt.Step(ROW_HEIGHT)).mark_bar()
    chart = chart.encode(
        x=alt.X("sum(ms):Q").title("ms per batch"),
        y=alt.Y("rank:N").sort([f"rank {one.rank}" for one in ranks]).title(None),
        color=colors("time", kinds, orient="top"),
        order="place:Q",
        tooltip=[*fields("rank:N", "time:N"), *numbers("ms")],
    )
    return sheet.made(chart, "Time of a batch, by rank")


def _distinct(texts: Sequence[str]) -> list[str]:
    """Number equal texts."""
    return [
        text if text not in texts[:place] else f"{text} ({texts[:place].count(text) + 1})"
        for place, text in enumerate(texts)
    ]


def series_picture(name: str, found: LoopSeries, *, has_gpu: bool) -> Picture:
    """Draw the wall time of batches in order; shade warm-up and throttled batches."""
    sheet, series = Sheet(name), found.series
    size = series.batches_per_group
    batch = alt.X("batch:Q").title("batch").axis(tickMinStep=1)
    x = batch.scale(domain=[0, max(series.batches, 1)], nice=False)
    longest = max(series.max_ms, default=0.0)
    top = series.longest_measured_ms or longest
    clip = longest > CLIP_FROM * top
    scale = {"domain": [0, top], "nice": False} if clip else {"zero": True}

    def y(field: str) -> object:
        return alt.Y(f"{field}:Q").title("ms per batch").scale(**scale)

    kinds = {"dropped as warm-up": (WARMUP, series.warmup), "GPU throttled": (THROTTLED, series.throttled)}
    spans: list[Row] = [
        {"batch": start, "until": end, "shade": label} for label, (_, own) in kinds.items() for start, end in own or []
    ]
    used = {label: color for label, (color, own) in kinds.items() if own}
    layers = []
    if spans:
        shades = sheet.chart("shades", spans).mark_rect()
        layers.append(shades.encode(x=x, x2="until:Q", color=colors("shade", used, orient="top")))
    rows: list[Row] = [
        {"batch": first + size / 2, "number": first, "ms": middle, "low": low, "high": high}
        for first, low, middle, high in zip(series.first, series.min_ms, series.median_ms, series.max_ms, strict=True)
    ]
    chart = sheet.chart("batches", rows)
    tooltip = [alt.Tooltip("number:Q", title="batch"), *numbers("ms")]
    if size == 1:
        line = chart.mark_line(strokeWidth=1, color=PALETTE[0], point={"size": 14}, clip=clip)
    else:
        area = chart.mark_area(color=GREY, opacity=0.45, interpolate="step", clip=clip)
        layers.append(area.encode(x=x, y=y("low"), y2="high:Q"))
        line = chart.mark_line(strokeWidth=1.2, color=PALETTE[0], clip=clip)
        tooltip += numbers("low", "high")
        sheet.notes.append(f"line: median of {size} consecutive batches; grey: their range")
    layers.append(line.encode(x=x, y=y("ms"), tooltip=tooltip))
    if clip:
        of_warmup = f"longest in warm-up: {longest:,.4g} ms"
        sheet.notes.append(f"clipped at the longest measured batch, {top:,.4g} ms; {of_warmup}")
    if series.throttled is None and has_gpu:
        sheet.notes.append("GPU throttling not known")
    title = f"{found.process}: {path_text(found.loop)}, {series.batches} batches"
    return sheet.made(alt.layer(*layers).properties(width=WIDTH, height=180), title)


def distribution_picture(name: str, found: StageDistribution) -> Picture:
    """Draw a histogram of the wall time per batch."""
    sheet, values = Sheet(name), found.histogram
    rows: list[Row] = [
        {"from": low, "to": high, "batches": count}
        for low, high, count in zip(values.edges_ms, values.edges_ms[1:], values.counts, strict=False)
    ]
    if values.beyond:
        sheet.notes.append(f"{values.beyond} of {values.values} are longer, up to {values.max_ms:,.4g} ms")
    chart = sheet.chart("bins", rows, width=260, height=110)
    ms = alt.X("from:Q").bin("binned").title("ms per batch").scale(nice=False, zero=False)
    chart = chart.mark_bar(color=PALETTE[0], stroke="white", strokeWidth=0.5).encode(
        x=ms.axis(tickCount=5, grid=False),
        x2="to:Q",
        y=alt.Y("batches:Q").title("batches").axis(tickCount=4, tickMinStep=1),
        tooltip=[*numbers("from", "to"), *fields("batches:Q")],
    )
    return sheet.made(chart, path_text(found.path[1:]) or path_text(found.path))


def timeline_picture(name: str, found: BatchTimeline, *, has_gpu: bool = True) -> Picture:
    """Draw stages, CUDA calls and GPU operations of one batch over time; zoomable."""
    sheet, rows = Sheet(name), [_bar_row(bar) for bar in found.bars]
    used = {label: color for kind, (label, color) in KINDS.items() if any(bar.kind == kind for bar in found.bars)}
    scale = {"domain": list(used), "range": list(used.values())}
    ms = alt.X("start:Q").title("ms since the batch began").axis(grid=True)
    x = ms.scale(domain=[0, found.end_ms], nice=False)
    y = alt.Y("row:N").sort([safe_line(row) for row in found.rows]).title(None)
    bars = sheet.chart("bars", rows).mark_bar(clip=True, strokeWidth=0.2, height={"band": 0.82})
    bars = bars.encode(
        x=x,
        x2="end:Q",
        y=y,
        color=colors("kind", used, orient="top"),
        stroke=alt.Stroke("kind:N").title(None).scale(**scale).legend(orient="top"),
        fillOpacity=alt.FillOpacity("filled:Q").scale(None).legend(None),
        tooltip=[*fields("name:N", "kind:N"), *numbers("start", "duration")],
    )
    wheel = "wheel![event.shiftKey || event.ctrlKey]"
    layers = [bars.add_params(alt.selection_interval(name="zoom", bind="scales", encodings=["x"], zoom=wheel))]
    texts = [
        row
        for row, bar in zip(rows, found.bars, strict=True)
        if bar.kind == "stage" and found.end_ms and bar.end_ms - bar.start_ms > LABELLED * found.end_ms
    ]
    if texts:
        limit = alt.ExprRef(expr=BAR_TEXT_WIDTH)
        text = sheet.chart("names", texts).mark_text(clip=True, align="left", dx=3, fontSize=10, limit=limit)
        layers.append(text.encode(x=x, y=y, text="short:N"))
    if found.gpu_reason is not None and has_gpu:
        sheet.notes.append(f"no GPU operations: {found.gpu_reason}")
    if found.joined_ms is not None:
        sheet.notes.append(f"events less than {found.joined_ms:,.3g} ms apart share a bar, paler with longer pauses")
    if found.streams_left_out:
        sheet.notes.append(f"not shown: {found.streams_left_out} GPU streams with less work")
    title = f"{found.which} batch: {found.cpu_ms:,.4g} ms on the host (batch {found.batch_index} of {found.process})"
    height = ROW_HEIGHT * max(len(found.rows), 1)
    return sheet.made(alt.layer(*layers).properties(width=WIDTH, height=height), title)


def _bar_row(bar: Bar) -> Row:
    name = bar.name
    if bar.sum_ms is not None:
        name = f"{bar.count} x {name or 'different events'}, {bar.sum_ms:,.4g} ms in total"
    return {
        "row": safe_line(bar.row),
        "name": name,
        "short": short_label(safe_line(name), 48),
        "kind": KINDS[bar.kind][0],
        "filled": round(bar.filled, 3),
        "start": round(bar.start_ms, 6),
        "end": round(bar.end_ms, 6),
        "duration": round(bar.end_ms - bar.start_ms, 6),
    }


def comparison_picture(name: str, version: ComparedVersion, stages: Sequence[str]) -> Picture | None:
    """Draw the change of each figure with its interval; None without data."""
    sheet = Sheet(name)
    known = [(row, stage) for row, stage in zip(version.rows, stages, strict=True) if row.ratio is not None]
    if not known:
        return None
    shown = known[:MAX_COMPARED]
    labels = _distinct([short_label(f"{stage} {METRICS[row.metric].label}", 40) for row, stage in shown])
    rows: list[Row] = []
    for (row, _), label in zip(shown, labels, strict=True):
        ends = (row.ratio, *((row.judged_by.low, row.judged_by.high) if row.judged_by else (None, None)))
        change, low, high = (None if end is None else 100 * (end - 1) for end in ends)
        rows.append({"figure": label, "verdict": row.verdict, "change": change, "low": low, "high": high})
    most = MOST_TIMES * max(LEAST_CHANGE, *(abs(row["change"]) for row in rows))
    intervals = [{**row, "end": min(row["high"], most)} for row in rows if row["high"] is not None]
    used = {one: color for one, color in VERDICT_COLORS.items() if any(row["verdict"] == one for row in rows)}
    color = colors("verdict", used, orient="top")
    y = alt.Y("figure:N").sort(labels).title(None)

    def x(field: str) -> object:
        return alt.X(f"{field}:Q").title("change of the new version (%)").scale(zero=True)

    layers = [sheet.chart("zero", [{"change": 0}]).mark_rule(color=GREY).encode(x=x("change"))]
    if intervals:
        bars = sheet.chart("intervals", intervals).mark_rule(strokeWidth=2)
        layers.append(bars.encode(x=x("low"), x2="end:Q", y=y, color=color))
        sheet.notes.append("lines: the interval that decides the verdict")
    points = sheet.chart("points", rows).mark_point(filled=True, size=60, opacity=1)
    tooltip = [*fields("figure:N", "verdict:N"), *numbers("change", "low", "high")]
    layers.append(points.encode(x=x("change"), y=y, color=color, tooltip=tooltip))
    if any(row["high"] > most for row in intervals):
        sheet.notes.append(f"intervals are clipped at {most:+,.0f} %")
    if len(known) > len(shown):
        sheet.notes.append(f"{len(known) - len(shown)} more figures are in the table only")
    chart = alt.layer(*layers).properties(width=WIDTH, height=ROW_HEIGHT * len(rows))
    return sheet.made(chart, f"{version.side.name} against the base")
