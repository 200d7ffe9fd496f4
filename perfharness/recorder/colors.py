"""Colours of ranges as NVTX wants them: one integer, ARGB."""

from __future__ import annotations

import importlib
import re

from perfharness.errors import RecorderError

Color = str | int | None

DEFAULT_COLOR = 0x0000FF

# The nvtx package's own names, repeated here because the embedded tracer works without nvtx.
_NAMED = {
    "blue": 0x0000FF,
    "cyan": 0x00FFFF,
    "darkgreen": 0x006400,
    "green": 0x008000,
    "orange": 0xFFA500,
    "purple": 0x800080,
    "rapids": 0x7400FF,
    "red": 0xFF0000,
    "white": 0xFFFFFF,
    "yellow": 0xFFFF00,
}
_HEX = re.compile(r"#[0-9a-fA-F]{6}\Z")


def color_to_argb(color: Color, range_name: str) -> int:
    """ARGB of a name, `#rrggbb`, an integer or any colour of matplotlib, where that is installed; None is blue."""
    if color is None:
        return DEFAULT_COLOR
    if isinstance(color, int):
        return color & 0xFFFFFFFF
    if isinstance(color, str) and color in _NAMED:
        return _NAMED[color]
    if isinstance(color, str) and _HEX.match(color):
        return int(color[1:], 16)
    try:
        hash(color)  # matplotlib accepts a list, but a list cannot be part of a range's key
        to_rgba = importlib.import_module("matplotlib.colors").to_rgba
        red, green, blue, alpha = (round(255 * float(part)) for part in to_rgba(color))
    except (ImportError, TypeError, ValueError):
        raise RecorderError(
            f"range {range_name!r}: the colour {color!r} is not known; give one of {', '.join(_NAMED)}, '#rrggbb' "
            "or an integer"
        ) from None
    return alpha << 24 | red << 16 | green << 8 | blue
