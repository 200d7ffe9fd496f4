"""The arguments of a push: the key of a range among its parent's children, and the checks of each argument."""

from __future__ import annotations

import operator
import re
from typing import Any, NamedTuple

from perfharness.errors import RecorderError
from perfharness.model.conventions import LANE_SEPARATOR

Color = str | int | None
RangeKey = Any
"""The message alone where nothing else is given (the fastest lookup), else the fields of a `RangeSpec`."""

DEFAULT_COLOR = 0x0000FF
INT64_END = 1 << 63
# An integer below it needs no further check: indices and counts are small, and such a comparison is fast.
USUAL_END = 1 << 30

# The nvtx package's own names, repeated here because the embedded tracer works without nvtx.
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


class RangeSpec(NamedTuple):
    """The arguments of a push; domain None is the recorder's."""

    message: str
    color: Color = None
    domain: str | None = None
    category: str | int | None = None

    @classmethod
    def of(cls, key: RangeKey) -> RangeSpec:
        """The spec of a key."""
        return cls(*key) if type(key) is tuple and len(key) == len(cls._fields) else cls(key)


def range_key(message: str, color: Color, domain: str | None, category: str | int | None) -> RangeKey:
    """The key of a range."""
    if color is None and domain is None and category is None:
        return message
    return message, color, domain, category


def color_to_argb(color: Color, range_name: str) -> int:
    """ARGB of a name, `#rrggbb` or an integer; None is blue."""
    if color is None:
        return DEFAULT_COLOR
    if isinstance(color, int):
        return color & 0xFFFFFFFF
    if isinstance(color, str) and color in _COLORS:
        return _COLORS[color]
    if isinstance(color, str) and _HEX.match(color):
        return int(color[1:], 16)
    raise RecorderError(
        f"range {range_name!r}: the colour {color!r} is not known; give one of {', '.join(_COLORS)}, '#rrggbb' "
        "or an integer"
    )


def check_name(what: str, name: object) -> None:
    """A name: a string that is not empty. What NVTX cannot carry in it is escaped."""
    if not isinstance(name, str) or not name:
        raise RecorderError(f"a {what} needs a name, a string that is not empty; got {name!r}")


def check_category_part(what: str, name: str) -> None:
    """A name that goes into the category of a range, where the lane of a task may follow it."""
    check_name(what, name)
    if _LIKE_A_LANE.search(name):
        raise RecorderError(
            f"the {what} {name!r} ends in '#' and digits, as a lane of asyncio does, and would be mistaken for one; "
            "rename it"
        )


def check_index(batch_idx: object, message: object) -> int:
    """The index of a batch as an int."""
    index = _integer(batch_idx, f"batch {message!r}: batch_idx")
    if not -INT64_END <= index < INT64_END:
        raise RecorderError(f"batch {message!r}: batch_idx {index} does not fit into 64 bits")
    return index


def check_items(total_items: object, label: str) -> int:
    """The number of items of a batch as an int."""
    items = _integer(total_items, f"batch {label!r}: total_items")
    if not 0 <= items < INT64_END:
        raise RecorderError(f"batch {label!r}: total_items must be 0 or more (and fit into 64 bits), got {items}")
    return items


def _integer(value: object, what: str) -> int:
    # NumPy's integers have __index__, floats have not, and that of an array of several raises.
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise RecorderError(f"{what} must be an integer, got {value!r}")
