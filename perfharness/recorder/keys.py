"""The static part of a range, which identifies it among its parent's children."""

from __future__ import annotations

from typing import Any, NamedTuple

from perfharness.recorder.colors import Color

RangeKey = Any
"""The message alone where nothing else is given (the fastest lookup), else the fields of a `RangeSpec`."""


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


def message_of(key: RangeKey) -> Any:
    """The message of a key."""
    return RangeSpec.of(key).message
