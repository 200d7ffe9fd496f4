"""The arguments of a pipeline as JSON values, with what looks like a secret masked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perfharness.model.conventions import printable
from perfharness.model.secrets import MASK, is_secret, mask_arguments, mask_text

_LONGEST_REPR = 1000
_DEEPEST = 8


def arguments_to_json(args: object) -> dict[str, Any]:
    """A namespace, a mapping or any object with attributes as a JSON object; None is an empty one."""
    if args is None:
        return {}
    if isinstance(args, Mapping):
        return _mapping(args, 0)
    try:
        return _mapping(vars(args), 0)
    except TypeError:
        return {"args": _value(args, 0)}


def _mapping(values: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    return {
        printable(str(key)): MASK if value is not None and is_secret(str(key)) else _value(value, depth)
        for key, value in values.items()
    }


def _value(value: Any, depth: int) -> Any:
    # Exact types: json may convert a subclass (an enum, a numpy float) to another value.
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is str:
        return mask_text(printable(value))
    if type(value) is float:
        return value if math.isfinite(value) else repr(value)  # JSON has no NaN and no infinity
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return _mapping(value, depth + 1)
        if isinstance(value, (list, tuple)):
            if len(value) == 2 and type(value[0]) is type(value[1]) is str and is_secret(value[0]):
                return [printable(value[0]), MASK]  # a header
            if all(type(element) is str for element in value):
                return mask_arguments([printable(element) for element in value])
            return [_value(element, depth + 1) for element in value]
    try:
        text = mask_text(printable(repr(value)))
    except Exception as error:
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= _LONGEST_REPR else text[:_LONGEST_REPR] + "…"
