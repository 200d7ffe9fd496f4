"""Flame graphs as an SVG that stands alone, in light and in dark: the outermost frame on top, as wide as its time.

Numbers and places are in the tooltips (`<title>`) of the boxes. Names are of others: `xml.etree` escapes them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as Xml

from perfharness.analysis.host_samples.flame import Flame, FrameKind
from perfharness.model.text import safe_line
from perfharness.render.places import place_text
from perfharness.render.terminal.advice import milliseconds

WIDTH, MARGIN, ROW, TITLE_HEIGHT, GAP = 1200, 10, 18, 44, 24
CHARACTER = 6.65
"""Width of a character of the font, at most; units of the picture, as all lengths."""
LEAST_WIDTH = 0.5
"""A narrower box is not drawn, nor what it calls."""
LEAST_CHARACTERS = 3

COLORS = {
    FrameKind.STAGE: ("#9ec5e8", "#2f5d86"),
    FrameKind.OWN: ("#f5b26b", "#9a5a12"),
    FrameKind.LIBRARY: ("#e3dcc3", "#5d5844"),
    FrameKind.NATIVE: ("#a9d6b0", "#2f6b45"),
}
"""Of boxes in light and in dark; text on them is black and white, at a contrast of 4.5 or more (WCAG AA)."""
SHADES = (1.0, 0.86, 0.72)
"""Opacity of boxes, by the function's name, so that neighbours are told from each other."""

NOT_IN_XML = re.compile("[\ufffe\uffff]")


def svg(graphs: Sequence[tuple[str, Flame]]) -> str:
    """A picture of flame graphs below each other, each under its title."""
    heights = [TITLE_HEIGHT + ROW * graph.depth + GAP for _, graph in graphs]
    height = sum(heights) + ROW + 2 * MARGIN
    attributes = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH} {height}", "class": "flame"}
    root = Xml.Element("svg", attributes)
    Xml.SubElement(root, "style").text = _style()
    Xml.SubElement(root, "rect", {"class": "ground", "width": str(WIDTH), "height": str(height)})
    top = float(MARGIN)
    for (title, graph), own_height in zip(graphs, heights, strict=True):
        _draw(root, title, graph, top)
        top += own_height
    _draw_legend(root, top)
    return Xml.tostring(root, encoding="unicode")


def page(graphs: Sequence[tuple[str, Flame]], title: str) -> str:
    """An HTML page that holds the picture and loads nothing."""
    html = Xml.Element("html", {"lang": "en"})
    head = Xml.SubElement(html, "head")
    Xml.SubElement(head, "meta", {"charset": "utf-8"})
    Xml.SubElement(head, "meta", {"name": "color-scheme", "content": "light dark"})
    Xml.SubElement(head, "title").text = _text(title)
    Xml.SubElement(head, "style").text = "body{margin:0} svg{display:block;width:100%;height:auto}"
    body = Xml.SubElement(html, "body")
    picture = Xml.fromstring(svg(graphs))
    for element in picture.iter():
        element.tag = element.tag.partition("}")[2]  # HTML knows svg without its namespace
    body.append(picture)
    return "<!DOCTYPE html>\n" + Xml.tostring(html, encoding="unicode", method="html")


def _style() -> str:
    light = "".join(f".{_class(kind)}{{fill:{color}}}" for kind, (color, _) in COLORS.items())
    dark = "".join(f".{_class(kind)}{{fill:{color}}}" for kind, (_, color) in COLORS.items())
    return (
        "text{font:11px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#000;pointer-events:none}"
        ".heading{font-size:14px;font-weight:bold}"
        ".ground{fill:#fff} rect.box{stroke:#fff;stroke-width:1} rect.box:hover{stroke:#000}"
        f"{light}"
        "@media (prefers-color-scheme:dark){text{fill:#fff} .ground{fill:#1b1b1b}"
        f" rect.box{{stroke:#1b1b1b}} rect.box:hover{{stroke:#fff}} {dark}}}"
    )


def _class(kind: FrameKind) -> str:
    return kind.name.lower()


def _draw(root: Xml.Element, title: str, graph: Flame, top: float) -> None:
    _write(root, title, MARGIN, top + 16, "heading")
    _write(root, f"{milliseconds(graph.ms)} of host time a batch in the explaining pass", MARGIN, top + 34)
    for box, left, width, level in _boxes(graph, WIDTH - 2 * MARGIN):
        group = Xml.SubElement(root, "g")
        Xml.SubElement(group, "title").text = _text(_tooltip(box, graph.ms))
        y = top + TITLE_HEIGHT + ROW * level
        shade = SHADES[zlib.crc32(box.frame.function.encode("utf-8", "replace")) % len(SHADES)]
        place = {"x": f"{MARGIN + left:.2f}", "y": f"{y:.0f}", "width": f"{width:.2f}", "height": str(ROW - 1)}
        Xml.SubElement(group, "rect", {"class": f"box {_class(box.kind)}", **place, "fill-opacity": str(shade)})
        label = _fitting(_label(box), width)
        if label:
            _write(group, label, MARGIN + left + 3, y + 13)


def _boxes(graph: Flame, width: float) -> Iterator[tuple[Flame, float, float, int]]:
    """Each function that is wide enough to be seen: where it begins, its width, and how deep it lies."""
    if not graph.ms:
        return
    waiting = [(graph, 0.0, 0)]
    while waiting:
        box, left, level = waiting.pop()
        yield box, left, width * box.ms / graph.ms, level
        for callee in box.callees:
            own = width * callee.ms / graph.ms
            if own >= LEAST_WIDTH:
                waiting.append((callee, left, level + 1))
            left += own


def _label(box: Flame) -> str:
    return safe_line(box.frame.function)


def _tooltip(box: Flame, whole_ms: float) -> str:
    times = f"{milliseconds(box.ms)} a batch, {100 * box.ms / whole_ms:.1f} %; own {milliseconds(box.own_ms)}"
    return f"{place_text(box.frame)}\n{times}"


def _fitting(text: str, width: float) -> str:
    room = int((width - 6) / CHARACTER)
    if len(text) <= room:
        return text
    return f"{text[: room - 1]}…" if room >= LEAST_CHARACTERS else ""


def _draw_legend(root: Xml.Element, top: float) -> None:
    left = float(MARGIN)
    for kind in FrameKind:
        place = {"x": f"{left:.0f}", "y": f"{top:.0f}", "width": "12", "height": "12"}
        Xml.SubElement(root, "rect", {"class": f"box {_class(kind)}", **place})
        _write(root, kind.value, left + 18, top + 10)
        left += 40 + CHARACTER * len(kind.value)


def _write(parent: Xml.Element, text: str, x: float, y: float, style: str = "") -> None:
    place = {"x": f"{x:.2f}", "y": f"{y:.0f}", **({"class": style} if style else {})}
    Xml.SubElement(parent, "text", place).text = _text(text)


def _text(text: str) -> str:
    """Text that XML can hold; a tooltip keeps its line end."""
    return NOT_IN_XML.sub("?", "\n".join(safe_line(line) for line in text.split("\n")))
