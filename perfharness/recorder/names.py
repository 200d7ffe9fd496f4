"""Arguments of a range: their key and their checks."""

from __future__ import annotations

import operator
import re
from typing import Any

from perfharness.errors import RecorderError
from perfharness.model.conventions import LANE_SEPARATOR, printable

Color = str | int | None
Domain = str | None
Category = str | int | None
RangeKey = Any
"""Message, colour, domain and category; the message alone (a faster lookup) if the others are None."""

MOST_USUAL = (1 << 30) - 1
"""Integers from 0 to here need no further check. Small integers compare fast."""

_INT64_END = 1 << 63
_DEFAULT_COLOR = 0x0000FF
_COLORS = {
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
_LIKE_A_LANE = re.compile(f"{LANE_SEPARATOR}[0-9]+\\Z")


def range_key(message: str, color: Color, domain: Domain, category: Category) -> RangeKey:
    """Return the key of a range."""
    return message if color is None and domain is None and category is None else (message, color, domain, category)


def parts_of(key: RangeKey) -> tuple[Any, Any, Any, Any]:
    """Message, colour, domain and category of a key."""
    return key if type(key) is tuple and len(key) == 4 else (key, None, None, None)


def argb_of(color: Color, message: str) -> int:
    """Convert a colour name, `#rrggbb` or an integer; None is blue."""
    if color is None:
        return _DEFAULT_COLOR
    if isinstance(color, int):
        return color & 0xFFFFFFFF
    if isinstance(color, str) and color in _COLORS:
        return _COLORS[color]
    if isinstance(color, str) and _HEX.match(color):
        return int(color[1:], 16)
    known = ", ".join(_COLORS)
    raise RecorderError(f"range {message!r}: unknown colour {color!r}; use {known}, '#rrggbb' or an integer")


def checked_name(what: str, name: object) -> str:
    """Check a name, and escape characters that NVTX cannot hold."""
    if not isinstance(name, str) or not name:
        raise RecorderError(f"a {what} needs a name, a non-empty string; got {name!r}")
    return printable(name)


def checked_part(what: str, name: object) -> str:
    """Check a name that becomes part of a category; categories of tasks end in `#` and a number."""
    text = checked_name(what, name)
    if _LIKE_A_LANE.search(text):
        raise RecorderError(f"{what} {text!r}: must not end in '#' and digits (reserved for asyncio tasks)")
    return text


def checked_integer(value: Any, what: str, least: int = -_INT64_END) -> int:
    """Check the index or the number of items of a batch."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # NumPy's integers have __index__
    except TypeError:
        number = None
    if number is None or not least <= number < _INT64_END:
        wanted = "a 64-bit integer" if least else "a 64-bit integer, 0 or more"
        raise RecorderError(f"{what} must be {wanted}, got {value!r}")
    return number


def checked_items(items: int | None, batch: object) -> int | None:
    """Check the number of items of a batch, or None if unknown."""
    if items is None or (type(items) is int and 0 <= items <= MOST_USUAL):
        return items
    return checked_integer(items, f"total_items of {batch}", least=0)
