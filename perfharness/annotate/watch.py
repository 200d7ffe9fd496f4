"""Named functions are replaced right after their module was executed, before they can be imported."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from perfharness.annotate.collectives import DISTRIBUTED_MODULE, follow_collectives
from perfharness.annotate.expressions import Target
from perfharness.annotate.runtime import Runtime
from perfharness.annotate.torch_modules import follow_modules
from perfharness.annotate.wrappers import MARK, annotate_callable
from perfharness.import_hook import ImportHook
from perfharness.model.annotations import MAIN

TORCH_MODULE = "torch.nn.modules.module"
"""PyTorch's module with `nn.Module` and the global hooks."""


def watch_imports(runtime: Runtime) -> None:
    """Annotate from now on; modules that are imported already are annotated now."""

    def apply(module: ModuleType, name: str) -> None:
        """Its name may be another one than the module's own (`os.path`)."""
        for target in runtime.targets:
            if target.annotation.module == name:
                apply_to_module(module, target, runtime)
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


def apply_to_module(module: ModuleType, target: Target, runtime: Runtime) -> None:
    """Replace the function of `target` in an executed module, or note the reason why not."""
    note = target.note
    note.imported = True
    try:
        owner: Any = module
        *path, name = target.annotation.qualname.split(".")
        for part in path:
            owner = getattr(owner, part)
        found = getattr(owner, name)
        if not isinstance(owner, ModuleType):  # a method from the class's dictionary, not bound
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
    """The replacement of an attribute; None where it was replaced before."""
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
