"""Charts of a report: stages, batches over time, distributions, and timelines of single batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfharness.analysis.ranks.results import RankFigures
from perfharness.analysis.stages.charts import Bar, BatchTimeline
from perfharness.model.result import path_text
from perfharness.render.charts.drawing import (
    GREY,
    LIGHT_GREY,
    PALETTE,
    Picture,
    Row,
    Sheet,
    Specification,
    layered,
    short_label,
    unit,
)
from perfharness.render.text import safe_line
from perfharness.runs.comparison.compared_figure import METRICS
from perfharness.runs.comparison.result import ComparedVersion
from perfharness.runs.report.model import LoopSeries, StageDistribution
from perfharness.runs.stage_lines import StageLine

WIDTH = 720
ROW_HEIGHT = 22
LABEL_LIMIT = 220
WARMUP, THROTTLED = "#efe3cb", "#f6c9b2"
CUT_FROM = 2.0
"""Times the longest measured batch: where warm-up took longer, its batches are cut, or the rest were a flat line."""

MAX_STAGES = 25
LABELLED = 0.04
"""Of the batch: shorter stages have no text in the timeline."""

ROOM = "max(1, scale('x', datum.end) - scale('x', datum.start) - 4)"
"""Of a bar's text, pixels, at every zoom and width: a longer name would cover those after it."""

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


def stage_picture(name: str, lines: Sequence[StageLine], labels: Sequence[str], *, has_gpu: bool) -> Picture | None:
    """Mean host time, projected and busy GPU time a batch of each stage; None where nothing is known."""
    sheet = Sheet(name)
    alt = sheet.alt
    kinds = {"CPU": PALETTE[0], **({"GPU": PALETTE[1], "GPU busy": PALETTE[2]} if has_gpu else {})}
    rows: list[Row] = []
    shown = list(zip(lines, labels, strict=True))[:MAX_STAGES]
    texts = _distinct([short_label(label, 40) for _, label in shown])
    for (line, _), text in zip(shown, texts, strict=True):
        of = {"CPU": line.cpu, "GPU": line.gpu, "GPU busy": line.gpu_busy}
        rows += [
            {"stage": text, "time": kind, "ms": found.mean}
            for kind in kinds
            if (found := of[kind]) is not None and found.mean is not None
        ]
    if not rows:
        return None
    if len(lines) > len(shown):
        sheet.notes.append(f"{len(lines) - len(shown)} more stages are in the table only")
    step = {"step": 9 if has_gpu else 16, "for": "offset" if has_gpu else "position"}
    chart = sheet.chart("stages", rows, width=WIDTH).mark_bar()
    y = alt.Y("stage:N", sort=texts, title=None, axis=alt.Axis(labelLimit=LABEL_LIMIT))
    encoded = chart.encode(
        x=alt.X("ms:Q", title="ms a batch"),
        y=y,
        color=sheet.colors("time", kinds, legend=has_gpu, orient="top"),
        tooltip=["stage:N", "time:N", alt.Tooltip("ms:Q", format=",.4~g")],
        **({"yOffset": alt.YOffset("time:N", sort=list(kinds))} if has_gpu else {}),
    )
    return sheet.made({**unit(encoded), "height": step}, "Mean time of a batch, by stage")


def ranks_picture(name: str, ranks: Sequence[RankFigures]) -> Picture:
    """Where the time of a batch goes in each rank: waiting for the last, communication otherwise, and all else."""
    sheet = Sheet(name)
    alt = sheet.alt
    kinds = {"other work": LIGHT_GREY, "communication": PALETTE[0], "waiting for the last rank": PALETTE[1]}
    rows: list[Row] = []
    for one in ranks:
        transfer = one.communication_ms if one.transfer_ms is None else one.transfer_ms
        parts = enumerate(zip(kinds, (one.other_ms, transfer, one.waiting_ms), strict=True))
        rows += [
            {"rank": f"rank {one.rank}", "time": kind, "ms": ms, "place": place}
            for place, (kind, ms) in parts
            if ms is not None
        ]
    if any(one.waiting_ms is None for one in ranks):
        sheet.notes.append("what ranks wait is not known everywhere, and then part of communication")
    names = [f"rank {one.rank}" for one in ranks]
    encoded = (
        sheet.chart("ranks", rows, width=WIDTH)
        .mark_bar()
        .encode(
            x=alt.X("sum(ms):Q", title="ms a batch"),
            y=alt.Y("rank:N", sort=names, title=None),
            color=sheet.colors("time", kinds, orient="top"),
            order=alt.Order("place:Q"),
            tooltip=["rank:N", "time:N", alt.Tooltip("ms:Q", format=",.4~g")],
        )
    )
    return sheet.made({**unit(encoded), "height": {"step": ROW_HEIGHT}}, "Time of a batch, by rank")


def _distinct(texts: Sequence[str]) -> list[str]:
    """Equal ones with a number behind them."""
    seen: dict[str, int] = {}
    found = []
    for text in texts:
        seen[text] = seen.get(text, 0) + 1
        found.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return found


def series_picture(name: str, found: LoopSeries) -> Picture:
    """Host time of batches in their order; warm-up and throttled batches are shaded."""
    sheet = Sheet(name)
    alt, series = sheet.alt, found.series
    size = series.batches_per_group
    domain = [0, max(series.batches, 1)]
    x = alt.X("batch:Q", title="batch", scale=alt.Scale(domain=domain, nice=False), axis=alt.Axis(tickMinStep=1))
    spans = {"excluded as warm-up": (WARMUP, series.warmup), "GPU throttled": (THROTTLED, series.throttled or [])}
    shades = {label: color for label, (color, own) in spans.items() if own}
    layers = [_shade(sheet, label, spans[label][1], x, shades) for label in shades]
    rows: list[Row] = [
        {"batch": first + (0.5 if size == 1 else size / 2), "ms": middle, "low": low, "high": high, "number": first}
        for first, low, middle, high in zip(series.first, series.min_ms, series.median_ms, series.max_ms, strict=True)
    ]
    longest = max(series.max_ms, default=0.0)
    top = series.longest_measured_ms or longest
    cuts = longest > CUT_FROM * top
    if cuts:
        sheet.notes.append(
            f"cut above {top:,.4g} ms, the longest batch outside of warm-up; in warm-up: {longest:,.4g} ms"
        )
    scale = alt.Scale(domain=[0, top], nice=False) if cuts else alt.Scale(zero=True)
    y = alt.Y("ms:Q", title="ms a batch", scale=scale)
    tooltip = [alt.Tooltip("number:Q", title="batch"), alt.Tooltip("ms:Q", format=",.5~g")]
    if size == 1:
        line = sheet.chart("batches", rows).mark_line(strokeWidth=1, color=PALETTE[0], point={"size": 14}, clip=cuts)
        layers.append(unit(line.encode(x=x, y=y, tooltip=tooltip)))
    else:
        sheet.notes.append(f"line: median of {size} neighbouring batches; grey: their smallest to their largest")
        area = sheet.chart("batches", rows).mark_area(color=GREY, opacity=0.45, interpolate="step", clip=cuts)
        layers.append(unit(area.encode(x=x, y=alt.Y("low:Q", title="ms a batch", scale=scale), y2="high:Q")))
        line = sheet.chart("batches", rows).mark_line(strokeWidth=1.2, color=PALETTE[0], clip=cuts)
        layers.append(unit(line.encode(x=x, y=y, tooltip=[*tooltip, "low:Q", "high:Q"])))
    if series.throttled is None:
        sheet.notes.append("throttling of the GPU is not known of these batches")
    title = f"{found.process}: {path_text(found.loop)}, {series.batches} batches"
    return sheet.made(layered(layers, WIDTH, 180), title)


def _shade(
    sheet: Sheet, label: str, spans: Sequence[tuple[int, int]], x: object, shades: Mapping[str, str]
) -> Specification:
    rows: list[Row] = [{"batch": start, "until": end, "shade": label} for start, end in spans]
    mark = sheet.chart(label.replace(" ", "_"), rows).mark_rect()
    return unit(mark.encode(x=x, x2="until:Q", color=sheet.colors("shade", shades, orient="top")))


def distribution_picture(name: str, found: StageDistribution) -> Picture:
    """A histogram of host times a batch."""
    sheet = Sheet(name)
    alt, values = sheet.alt, found.histogram
    rows: list[Row] = [
        {"from": low, "to": high, "batches": count}
        for low, high, count in zip(values.edges_ms, values.edges_ms[1:], values.counts, strict=False)
    ]
    if values.beyond:
        sheet.notes.append(f"{values.beyond} of {values.values} beyond, up to {values.max_ms:,.4g} ms")
    chart = sheet.chart("bins", rows, width=260, height=110).mark_bar(color=PALETTE[0], stroke="white", strokeWidth=0.5)
    scale = alt.Scale(nice=False, zero=False)
    encoded = chart.encode(
        x=alt.X("from:Q", bin="binned", title="ms a batch", scale=scale, axis=alt.Axis(tickCount=5, grid=False)),
        x2="to:Q",
        y=alt.Y("batches:Q", title="batches", axis=alt.Axis(tickCount=4, tickMinStep=1)),
        tooltip=[alt.Tooltip("from:Q", format=",.5~g"), alt.Tooltip("to:Q", format=",.5~g"), "batches:Q"],
    )
    return sheet.made(unit(encoded), path_text(found.path[1:]) or path_text(found.path))


def timeline_picture(name: str, found: BatchTimeline) -> Picture:
    """One batch: stages, CUDA calls and GPU operations over the time since it began; zoomable."""
    sheet = Sheet(name)
    alt = sheet.alt
    rows: list[Row] = [_bar_row(bar) for bar in found.bars]
    used = [kind for kind in KINDS if any(bar.kind == kind for bar in found.bars)]
    scale = alt.Scale(domain=[KINDS[kind][0] for kind in used], range=[KINDS[kind][1] for kind in used])
    zoom = alt.selection_interval(
        name="zoom", bind="scales", encodings=["x"], zoom="wheel![event.shiftKey || event.ctrlKey]"
    )
    x = alt.X(
        "start:Q", title="ms since the batch began", axis=alt.Axis(grid=True),
        scale=alt.Scale(domain=[0, found.end_ms], nice=False),
    )  # fmt: skip
    labels = [safe_line(row) for row in found.rows]
    y = alt.Y("row:N", sort=labels, title=None, axis=alt.Axis(labelLimit=LABEL_LIMIT))
    bars = sheet.chart("bars", rows).mark_bar(clip=True, strokeWidth=0.2, height={"band": 0.82})
    color = alt.Color("kind:N", title=None, scale=scale, legend=alt.Legend(orient="top"))
    tooltip = [
        "name:N", "kind:N",
        *(alt.Tooltip(f"{field}:Q", title=f"{field} (ms)", format=",.6~g") for field in ("start", "duration")),
    ]  # fmt: skip
    encoded = bars.encode(
        x=x,
        x2="end:Q",
        y=y,
        color=color,
        fillOpacity=alt.FillOpacity("filled:Q", scale=None, legend=None),
        stroke=alt.Stroke("kind:N", title=None, scale=scale, legend=alt.Legend(orient="top")),
        tooltip=tooltip,
    )
    layers = [unit(encoded.add_params(zoom))]
    texts: list[Row] = [
        row for row, bar in zip(rows, found.bars, strict=True)
        if bar.kind == "stage" and found.end_ms and bar.end_ms - bar.start_ms > LABELLED * found.end_ms
    ]  # fmt: skip
    if texts:
        mark = sheet.chart("names", texts).mark_text(
            clip=True, align="left", dx=3, fontSize=10, color="black", limit=alt.ExprRef(expr=ROOM)
        )
        layers.append(unit(mark.encode(x=x, y=y, text="short:N")))
    if found.gpu_reason is not None:
        sheet.notes.append(f"no GPU operations: {found.gpu_reason}")
    if found.joined_ms is not None:
        sheet.notes.append(f"events within {found.joined_ms:,.3g} ms of each other are one bar, pale as they pause")
    if found.streams_left_out:
        sheet.notes.append(f"{found.streams_left_out} GPU streams with less work are not shown")
    title = f"{found.which} batch: {found.cpu_ms:,.4g} ms on the host (batch {found.batch_index} of {found.process})"
    return sheet.made(layered(layers, WIDTH, ROW_HEIGHT * max(len(found.rows), 1)), title)


def _bar_row(bar: Bar) -> Row:
    return {
        "row": safe_line(bar.row),
        "name": _bar_name(bar),
        "short": short_label(safe_line(_bar_name(bar)), 48),
        "kind": KINDS[bar.kind][0],
        "filled": round(bar.filled, 3),
        "start": round(bar.start_ms, 6),
        "end": round(bar.end_ms, 6),
        "duration": round(bar.end_ms - bar.start_ms, 6),
    }


def _bar_name(bar: Bar) -> str:
    if bar.sum_ms is None:
        return bar.name
    return f"{bar.count} x {bar.name or 'different ones'}, {bar.sum_ms:,.4g} ms together"


VERDICT_COLORS = {
    "slower": PALETTE[5], "faster": PALETTE[2], "same": PALETTE[0], "undecided": PALETTE[1], "not-comparable": GREY,
}  # fmt: skip
MAX_COMPARED = 40
LEAST_CHANGE, MOST_TIMES = 10.0, 3.0
"""Of the chart: per cent, and so many times the largest change: one wide interval would make all else a dot."""


def comparison_picture(name: str, version: ComparedVersion, stages: Sequence[str]) -> Picture | None:
    """Change of every figure with its interval; None where none is known."""
    sheet = Sheet(name)
    alt = sheet.alt
    rows: list[Row] = []
    for row, stage in zip(version.rows, stages, strict=True):
        if row.ratio is None or len(rows) >= MAX_COMPARED:
            continue
        label = short_label(f"{stage} {METRICS[row.metric].label}", 40)
        judged = row.judged_by
        rows.append({
            "figure": label, "change": 100 * (row.ratio - 1), "verdict": row.verdict,
            "low": None if judged is None else 100 * (judged.low - 1),
            "high": None if judged is None else 100 * (judged.high - 1),
        })  # fmt: skip
    if not rows:
        return None
    most = MOST_TIMES * max(LEAST_CHANGE, *(abs(float(drawn["change"])) for drawn in rows))
    if any(drawn["high"] is not None and drawn["high"] > most for drawn in rows):
        sheet.notes.append(f"intervals are cut at {most:+,.0f} %, so that the changes can be seen")
    for drawn in rows:
        drawn["end"] = None if drawn["high"] is None else min(float(drawn["high"]), most)
    labels = _distinct([str(row["figure"]) for row in rows])
    for drawn, label in zip(rows, labels, strict=True):
        drawn["figure"] = label
    used = {one: color for one, color in VERDICT_COLORS.items() if any(row["verdict"] == one for row in rows)}
    color = sheet.colors("verdict", used, orient="top")
    y = alt.Y("figure:N", sort=labels, title=None, axis=alt.Axis(labelLimit=LABEL_LIMIT))
    title = "change of the new version (%)"
    x = alt.X("change:Q", title=title, scale=alt.Scale(zero=True))
    zero = unit(sheet.chart("zero", [{"change": 0}]).mark_rule(color=GREY).encode(x=x))
    bars = sheet.chart("intervals", [row for row in rows if row["low"] is not None]).mark_rule(strokeWidth=2)
    points = sheet.chart("points", rows).mark_point(filled=True, size=60, opacity=1)
    tooltip = ["figure:N", "verdict:N", *(alt.Tooltip(f"{end}:Q", format="+.3~g") for end in ("change", "low", "high"))]
    layers = [zero]
    if any(row["low"] is not None for row in rows):
        layers.append(unit(bars.encode(x=alt.X("low:Q", title=title), x2="end:Q", y=y, color=color)))
    layers.append(unit(points.encode(x=x, y=y, color=color, tooltip=tooltip)))
    sheet.notes.append("lines: the interval that the verdict rests on")
    left = sum(row.ratio is not None for row in version.rows) - len(rows)
    if left:
        sheet.notes.append(f"{left} more figures are in the table only")
    height = ROW_HEIGHT * len(rows)
    return sheet.made(layered(layers, WIDTH, height), f"{version.side.name} against the base")
