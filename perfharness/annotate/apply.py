"""Replacing named functions where they are defined: in a module, or in a class of it."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from perfharness.annotate.expressions import Target
from perfharness.annotate.runtime import Runtime
from perfharness.annotate.wrappers import MARK, annotate_callable


def apply_to_module(module: ModuleType, target: Target, runtime: Runtime) -> None:
    """Replace the function of `target` in an executed module; what keeps it from that is noted."""
    note = target.note
    note.imported = True
    try:
        owner: Any = module
        *path, name = target.annotation.qualname.split(".")
        for part in path:
            owner = getattr(owner, part)
        found = getattr(owner, name)
        if not isinstance(owner, ModuleType):  # a method as it stands in its class, not bound to it
            found = inspect.getattr_static(owner, name)
    except AttributeError as error:
        note.found, note.problem = False, str(error)
        return
    try:
        replacement = _replacement(found, target, runtime)
        if replacement is not None:
            setattr(owner, name, replacement)
    except (TypeError, AttributeError) as error:  # e.g. a class that is not written in Python
        note.problem = str(error)
        return
    note.found, note.problem = True, None


def _replacement(found: Any, target: Target, runtime: Runtime) -> Any:
    """What to put in the place of an attribute; None where it was replaced before."""
    function = found
    if isinstance(found, (staticmethod, classmethod)):
        function = found.__func__
    elif isinstance(found, property):
        function = found.fget
    other = getattr(function, MARK, None)
    if other == target.annotation.target:
        return None
    if other is not None:
        raise TypeError(f"it is the same function as {other}, which is annotated already")
    annotated = annotate_callable(function, target, runtime)
    if isinstance(found, (staticmethod, classmethod)):
        return type(found)(annotated)
    if isinstance(found, property):
        return property(annotated, found.fset, found.fdel, found.__doc__)
    return annotated
