"""Named functions are replaced right after their module was executed, before they can be imported from it."""

from __future__ import annotations

import inspect
import types
from types import ModuleType
from typing import Any

from perfharness.annotate.collectives import DISTRIBUTED_MODULE, follow_collectives
from perfharness.annotate.expressions import Target
from perfharness.annotate.functions import MARK, annotated
from perfharness.annotate.runtime import Runtime
from perfharness.annotate.torch_modules import TORCH_MODULE, follow_modules
from perfharness.import_hook import ImportHook
from perfharness.model.annotations import MAIN


def follow_imports(runtime: Runtime) -> None:
    """Annotate modules as they are imported."""

    def apply(module: ModuleType, name: str) -> None:
        """Annotate a module; its name may be another one than its own (`os.path`)."""
        for target in runtime.targets:
            if target.annotation.module == name:
                _annotate(module, target, runtime)
        if name == TORCH_MODULE and runtime.torch_note is not None:
            follow_modules(module, runtime)
        if name == DISTRIBUTED_MODULE and runtime.collectives_note is not None:
            follow_collectives(module, runtime)

    watched = {target.annotation.module for target in runtime.targets} - {MAIN}
    if runtime.torch_note is not None:
        watched.add(TORCH_MODULE)
    if runtime.collectives_note is not None:
        watched.add(DISTRIBUTED_MODULE)
    ImportHook(watched, apply).install()


def _annotate(module: ModuleType, target: Target, runtime: Runtime) -> None:
    """Replace the function in its module or class, or note why not."""
    note = target.note
    note.imported = True
    *path, name = target.annotation.qualname.split(".")
    try:
        owner: Any = module
        for part in path:
            owner = getattr(owner, part)
        # a method as it stands in the class, not bound
        found = inspect.getattr_static(owner, name) if path else getattr(owner, name)
        replacement = _replacement(found, target, runtime, in_class=bool(path))
        if replacement is not None:
            setattr(owner, name, replacement)
    except (TypeError, AttributeError) as error:
        note.problem = str(error)
        return
    note.found, note.problem = True, None


def _replacement(found: Any, target: Target, runtime: Runtime, *, in_class: bool) -> Any:
    """What takes the place of an attribute; None where it was replaced before."""
    function = found
    if isinstance(found, (staticmethod, classmethod)):
        function = found.__func__
    elif isinstance(found, property):
        function = found.fget
    elif in_class and not isinstance(found, types.FunctionType):
        raise TypeError(f"it is not a method written in Python but {type(found).__name__}")
    other = getattr(function, MARK, None)
    if other == target.annotation.target:
        return None
    if other is not None:
        raise TypeError(f"it is the same function as {other}, which is annotated already")
    wrapper = annotated(function, target, runtime)
    if isinstance(found, property):
        return property(wrapper, found.fset, found.fdel, found.__doc__)
    return type(found)(wrapper) if function is not found else wrapper
