"""Flame graph of the sampled stacks of a batch, outermost function on top."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from perfharness.analysis.host_samples.frames import inside_library
from perfharness.analysis.host_samples.stacks import Stack
from perfharness.model.host_samples import Frame
from perfharness.render.charts.drawing import BAR_TEXT_WIDTH, LIGHT_GREY, PALETTE, Picture, Row, Specification
from perfharness.render.views.names import line_of

LEAST = 0.002
"""Smallest share of the total that is drawn."""

MAX_DEPTH = 40
ROW_HEIGHT = 18
KINDS = {"stage": PALETTE[4], "your code": PALETTE[1], "library": LIGHT_GREY}


@dataclass
class _Node:
    """Function with its callees."""

    kind: str
    ms: float = 0.0
    callees: dict[str, _Node] = field(default_factory=dict)


def flame_picture(name: str, of: str, stacks: Sequence[Stack]) -> Picture:
    """Draw stacks as bars, ms per batch.

    Args:
        name: name of the picture.
        of: process and batch, for the title.
        stacks: outermost frame first.
    """
    root = _Node("stage")
    for frames, ms in stacks:
        root.ms += ms
        node = root
        for frame in frames[:MAX_DEPTH]:
            called = f"{frame.function} ({line_of(frame)})" if frame.file else frame.function
            node = node.callees.setdefault(called, _Node(_kind(frame)))
            node.ms += ms
    rows = list(_bars(root, 0, 0.0, LEAST * root.ms))
    depth = max((row["depth"] for row in rows), default=0) + 1
    bar = {"type": "bar", "stroke": "white", "strokeWidth": 0.5, "height": {"band": 0.95}}
    text = {
        "type": "text",
        "align": "left",
        "dx": 3,
        "fontSize": 10,
        "color": "black",
        "limit": {"expr": BAR_TEXT_WIDTH},
    }
    x = {"field": "start", "type": "quantitative", "title": "ms per batch"}
    chart: Specification = {
        "width": 720,
        "height": ROW_HEIGHT * depth,
        "data": {"name": f"{name}_bars"},
        "encoding": {
            "x": {**x, "scale": {"domain": [0, root.ms], "nice": False}},
            "y": {"field": "depth", "type": "ordinal", "axis": None},
        },
        "layer": [
            {"mark": bar, "encoding": {"x2": {"field": "end"}, "color": _colors(), "tooltip": _tooltip()}},
            {"mark": {**text, "clip": True}, "encoding": {"text": {"field": "name"}}},
        ],
    }
    note = "sampled in the profiling pass; width: time of a function; below: its callees"
    return Picture(name, chart, {f"{name}_bars": rows}, title=f"Flame graph of {of}", notes=(note,))


def _kind(frame: Frame) -> str:
    return "stage" if not frame.file else "your code" if inside_library(frame.file) is None else "library"


def _bars(node: _Node, depth: int, start: float, least: float) -> Iterator[Row]:
    for name, callee in sorted(node.callees.items(), key=lambda one: -one[1].ms):
        if callee.ms >= least:
            bar = {"depth": depth, "name": name, "kind": callee.kind, "ms": callee.ms}
            yield {**bar, "start": round(start, 6), "end": round(start + callee.ms, 6)}
            yield from _bars(callee, depth + 1, start, least)
        start += callee.ms


def _colors() -> Specification:
    scale = {"domain": list(KINDS), "range": list(KINDS.values())}
    return {"field": "kind", "type": "nominal", "scale": scale, "legend": {"orient": "top", "title": None}}


def _tooltip() -> list[Specification]:
    names = [{"field": one, "type": "nominal"} for one in ("name", "kind")]
    return [*names, {"field": "ms", "type": "quantitative", "format": ",.4~g", "title": "ms per batch"}]
