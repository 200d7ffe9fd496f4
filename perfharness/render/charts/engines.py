"""Charts of a comparison of engines: maps, latency boxes with a table, GPU telemetry."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.analysis.suites.bench_names import in_groups
from perfharness.bench.engines.model import EngineComparison
from perfharness.bench.engines.views import Tile, gpu_line, latency_boxes, map_tiles
from perfharness.render.blocks import cell_text
from perfharness.render.charts.drawing import (
    LINE_PALETTE,
    NUMBERS,
    OWN,
    Picture,
    Points,
    Row,
    Sheet,
    alt,
    fields,
    message,
    wrapped,
)
from perfharness.render.views.engines import speed_table

ENGINES_PAGE = "compare_engines"
TILE, MAX_PIXELS = 230, 520
"""Width of a bitmap in the picture, and its largest width and height in pixels."""

NAME_WIDTH, ROW = 34, 40
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])

GPU_PANELS = (
    ("gpu_utilization_percent", "compute (%)", 1.0),
    ("memory_utilization_percent", "memory access (%)", 1.0),
    ("memory_used_bytes", "memory (MB)", 1e-6),
    ("sm_clock_mhz", "SM clock (MHz)", 1.0),
)
"""Metric, label and scale of each panel."""

COLORS = {
    "viridis": (
        "440154470e61481a6c482575472f7d443a834144873d4e8a39568c35608d31688e2d708e2a788e27818e23888e21918d1f988b1fa08822"
        "a8842ab07f35b77943bf7154c56866cc5d7ad1518fd744a5db36bcdf27d2e21be9e51afde725"
    ),
    "magma": (
        "0000040404130b0924150e3720114b2c11603b0f704a107957157e651a80721f817f24828c29819a2e80a8327db6377ac43c75d1426fde"
        "4968e95462f1605df76f5cfa7f5efc8f65fe9f6dfeaf78febf84fece91fddea0fcedaffcfdbf"
    ),
}
"""Vega's colour schemes, from low to high."""


def engine_pictures(comparison: EngineComparison, folder: Path) -> list[Picture]:
    """Draw all pictures. Raises `ResultError` if files cannot be read."""
    return [maps_picture(comparison, folder), speed_picture(comparison, folder), gpu_picture(comparison, folder)]


# ---- maps ----


def maps_picture(comparison: EngineComparison, folder: Path) -> Picture:
    """Draw the image, the ground truth, and each engine's map, error and difference to the first engine."""
    rows = map_tiles(comparison, folder)
    shapes = [tile.values.shape for row in rows for tile in row if not isinstance(tile.values, str)]
    height = round(min(2.0, max(0.3, shapes[0][0] / shapes[0][1])) * TILE) if shapes else TILE
    tiles = [_tile(tile, height) for row in rows for tile in row]
    title = f"{comparison.settings.image.name}: maps, each normalized separately"
    return Sheet("depth_comparison").made(alt.concat(*tiles, columns=len(rows[0])).resolve_scale(**OWN), title)


def _tile(tile: Tile, height: int) -> Any:
    caption = "" if isinstance(tile.values, str) else tile.caption
    title = alt.TitleParams(wrapped(tile.title, 38).split("\n"), subtitle=wrapped(caption, 44).split("\n"), fontSize=11)
    if isinstance(tile.values, str):
        return message(tile.values, TILE, height).properties(title=title)
    shown = bitmap(tile.values, "viridis" if tile.top is None else "magma", tile.top)
    place = {"x": alt.value(TILE / 2), "y": alt.value(height / 2)}
    image = alt.Chart(alt.InlineData(values=[{}])).mark_image(url=shown, width=TILE, height=height).encode(**place)
    layers = [image]
    if tile.top is not None:  # a transparent mark for the legend
        ends = alt.InlineData(values=[{"value": 0}, {"value": tile.top}])
        color = alt.Color("value:Q").scale(scheme="magma", domain=[0, tile.top])
        color = color.legend(title=None, gradientLength=height, format=".2~g")
        layers.append(alt.Chart(ends).mark_point(opacity=0).encode(color=color, **place))
    return alt.layer(*layers).properties(width=TILE, height=height, title=title)


def bitmap(values: npt.NDArray[Any], colors: str, top: float | None) -> str:
    """Data URL of a PNG; a map is coloured from its smallest to its largest value, or from 0 to `top`."""
    from PIL import Image

    pixels = values
    if values.ndim == 2:
        finite = values[np.isfinite(values)]
        low, high = (0.0, top) if top is not None else (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        share = np.clip((values - low) / ((high - low) or 1.0), 0, 1)
        anchors = np.frombuffer(bytes.fromhex(COLORS[colors]), dtype=np.uint8).reshape(-1, 3)
        where = np.linspace(0, 1, len(anchors))
        pixels = np.stack([np.interp(share, where, anchors[:, channel]) for channel in range(3)], axis=-1)
        pixels = np.where(np.isfinite(values)[..., np.newaxis], pixels, 255).astype(np.uint8)
    image = Image.fromarray(pixels)
    image.thumbnail((MAX_PIXELS, MAX_PIXELS))
    content = io.BytesIO()
    image.save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


# ---- speed ----


def speed_picture(comparison: EngineComparison, folder: Path) -> Picture:
    """Draw a box of the timed iterations and a row of figures per engine."""
    sheet, engines = Sheet("speed_benchmark"), comparison.engines
    found = latency_boxes(comparison, folder)
    names = {one.name: wrapped(one.name, NAME_WIDTH) for one in engines}
    palette = {one.name: LINE_PALETTE[place % len(LINE_PALETTE)] for place, one in enumerate(engines)}
    boxes: list[Row] = [{"engine": names[one], "color": palette[one], **figures} for one, figures in found.items()]
    means: list[Row] = [
        {"engine": names[one.name], **one.latency.mean.model_dump(include={"value", "low", "high"})}
        for one in engines
        if one.latency is not None
    ]
    states: list[Row] = [{"engine": names[one.name], "status": one.status} for one in engines if one.name not in found]
    speeds = speed_table(engines)
    figures: list[Row] = [
        {"engine": name, "column": column.heading, "text": cell_text(cell, column.kind)}
        for name, row in zip(names.values(), speeds.rows, strict=True)
        for column, cell in zip(speeds.columns[1:], row[1:], strict=True)
    ]
    height = ROW * len(engines)
    engine = alt.Y("engine:N").sort([*names.values()]).title(None).scale(domain=[*names.values()])
    y = engine.axis(ticks=False, domain=False)

    def x(field: str) -> Any:
        return alt.X(f"{field}:Q").title("ms").scale(zero=True).axis(format=NUMBERS, tickCount=6)

    box, mean = sheet.chart("boxes", boxes).encode(y=y), sheet.chart("means", means).encode(y=y)
    status = sheet.chart("states", states).mark_text(align="left", dx=6, color="#666666")
    diamond = mean.mark_point(shape="diamond", size=60, fill="white", stroke="black", opacity=1)
    chart = alt.layer(
        status.encode(y=y, x=alt.value(0), text="status:N"),
        box.mark_rule(color="#555555").encode(x=x("p5"), x2="p95:Q"),
        box.mark_bar(height=18, opacity=0.7).encode(x=x("q1"), x2="q3:Q", color=alt.Color("color:N").scale(None)),
        box.mark_tick(color="black", thickness=2, height=18).encode(x=x("median")),
        mean.mark_rule(color="black", strokeWidth=3).encode(x=x("low"), x2="high:Q"),
        diamond.encode(x=x("value"), tooltip=fields("engine:N", "value:Q", "low:Q", "high:Q")),
    )
    column = alt.X("column:N").sort(None).title(None).axis(orient="top", labelAngle=0, ticks=False, domain=False)
    table = sheet.chart("table", figures, width=56 * (len(speeds.columns) - 1), height=height).mark_text()
    table = table.encode(x=column, y=engine.axis(None), text="text:N")
    about = "box: quartiles; line: median; whiskers: p5, p95; diamond: mean with its 95 % interval; table: ms"
    sheet.notes += [about, *(f"{one.name}: {one.status}: {one.reason}" for one in engines if one.status != "ok")]
    size = " x ".join(map(str, comparison.settings.input_size))
    device = "GPU" if comparison.gpu_uuid else "CPU"
    title = f"latency of one image of {size} on the {device}: copy in, execute, copy out, synchronize"
    return sheet.made(alt.hconcat(chart.properties(width=380, height=height), table).resolve_scale(**OWN), title)


# ---- GPU ----


def gpu_picture(comparison: EngineComparison, folder: Path) -> Picture:
    """Draw one panel per metric, with one line per engine; without a GPU, draw the reason."""
    title = "no GPU was sampled"
    if comparison.gpu_uuid:
        where = f"GPU {comparison.gpu_index} {comparison.gpu_uuid}"
        title = f"{where}: second pass with the sampler, after the timed rounds"
    styles = {
        wrapped(one.name): (LINE_PALETTE[place % len(LINE_PALETTE)], DASHES[place // len(LINE_PALETTE) % len(DASHES)])
        for place, one in enumerate(comparison.engines)
    }
    sheet = Sheet("gpu_utilization")
    charts = []
    missing: list[tuple[str, str]] = []
    for metric, label, scale in GPU_PANELS:
        points: dict[str, Points] = {}
        for one, shown in zip(comparison.engines, styles, strict=True):
            line = gpu_line(comparison, one, folder, metric, scale)
            if isinstance(line, str):
                missing.append((line, f"{one.name}, {label}"))
            else:
                points[shown] = line[0].tolist(), line[1].tolist()
        if points:
            y = alt.Y("value:Q").title(label).axis(format=NUMBERS).scale(zero=True)
            chart = sheet.lines(label, points, styles, "step-after", width=760, height=140)
            charts.append(chart.encode(x=alt.X("seconds:Q").title("seconds since its rounds began"), y=y))
    notes = [f"not drawn: {'; '.join(what)}: {reason}" for reason, what in in_groups(missing)]
    if not charts:
        return sheet.made(message(comparison.gpu_reason or "; ".join(notes), 820, 120), title)
    sheet.notes = notes
    return sheet.made(alt.vconcat(*charts).resolve_scale(**OWN, x="shared"), title)
