"""Checks of a recorder's arguments: names, batch indices and item counts."""

from __future__ import annotations

import operator
import re

from perfharness.errors import RecorderError
from perfharness.model.conventions import LANE_SEPARATOR

INT64_END = 1 << 63
# An integer below it needs no further check: indices and counts are small, and such a comparison is fast.
USUAL_END = 1 << 30

_LIKE_A_LANE = re.compile(f"{LANE_SEPARATOR}[0-9]+\\Z")


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
    if isinstance(value, bool) or not hasattr(value, "__index__"):  # NumPy's integers have __index__, floats have not
        raise RecorderError(f"{what} must be an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:  # e.g. an array of several
        raise RecorderError(f"{what} must be an integer, got {value!r}") from None
