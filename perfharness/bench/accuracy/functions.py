"""User functions, named `module:function` or `file.py:function`."""

from __future__ import annotations

from typing import Any

from perfharness.backends.base import ModelSource
from perfharness.backends.models import named_function
from perfharness.errors import BackendError, UsageError


def user_function(text: str) -> Any:
    """The function or class. Raises `UsageError`."""
    module, colon, name = text.rpartition(":")
    if not colon or not module or not name.isidentifier():
        raise UsageError(f"{text!r} names no function; name it as module:function or file.py:function")
    try:
        return named_function(ModelSource(name, factory=text))
    except BackendError as error:
        raise UsageError(str(error).replace("; name one that makes the model", "")) from error
