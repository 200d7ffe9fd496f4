"""Values of `pynvml` as JSON and back. Standard library only, so that it runs on a bare machine."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def device(uuid: str) -> dict[str, str]:
    """A device in a record, as an argument or as a value."""
    return {"device": uuid}


def to_json(value: Any, name_of: Callable[[Any], str | None] = lambda _: None) -> Any:
    """A value of `pynvml` as JSON: structures by their members, arrays as lists, devices by UUID.

    Args:
        name_of: the UUID of a device handle; None for anything else.
    """
    if (uuid := name_of(value)) is not None:
        return device(uuid)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, ctypes._SimpleCData):
        return to_json(value.value, name_of)
    if isinstance(value, (ctypes.Structure, ctypes.Union)):
        members = [member[0] for member in value._fields_ or ()]
        return {"struct": {name: to_json(getattr(value, name), name_of) for name in members}}
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [to_json(item, name_of) for item in value]
    if hasattr(value, "__dict__"):  # structures that pynvml converts to objects
        return {"struct": {name: to_json(item, name_of) for name, item in vars(value).items()}}
    return value


def from_json(value: Any, handle_of: Callable[[str], Any]) -> Any:
    """The inverse: structures become objects with the same attributes."""
    if isinstance(value, list):
        return [from_json(item, handle_of) for item in value]
    if isinstance(value, dict):
        if "device" in value:
            return handle_of(value["device"])
        return SimpleNamespace(**{name: from_json(item, handle_of) for name, item in value["struct"].items()})
    return value


def argument_key(function: str, arguments: list[Any]) -> str:
    """Key of a call's arguments."""
    return json.dumps([function, arguments], sort_keys=True)
