"""Replace named functions right after their module was executed, before they can be imported from it."""

from __future__ import annotations

import inspect
import types
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from perfharness import compiled_code
from perfharness.annotate.collectives import DISTRIBUTED_MODULE, follow_collectives
from perfharness.annotate.expressions import Target
from perfharness.annotate.functions import annotated
from perfharness.annotate.runtime import Runtime
from perfharness.annotate.torch_modules import TORCH_MODULE, follow_modules
from perfharness.import_hook import ImportHook
from perfharness.model.annotations import MAIN

METHODS = (types.FunctionType, staticmethod, classmethod, property)


def follow_imports(runtime: Runtime) -> None:
    """Annotate modules as they are imported."""
    changes: defaultdict[str, list[Callable[[ModuleType], None]]] = defaultdict(list)
    changes["torch"].append(compiled_code.find_tracing)
    for target in runtime.targets:
        if target.annotation.module != MAIN:
            changes[target.annotation.module].append(partial(_annotate, target, runtime))
    if runtime.annotations.torch_depth is not None:
        changes[TORCH_MODULE].append(partial(follow_modules, runtime, runtime.annotations.torch_depth))
    if runtime.annotations.collectives:
        changes[DISTRIBUTED_MODULE].append(partial(follow_collectives, runtime))

    def apply(module: ModuleType, name: str) -> None:
        """Change a module; it may be imported under another name (`os.path`)."""
        for change in changes[name]:
            change(module)

    ImportHook(set(changes), apply).install()


def _annotate(target: Target, runtime: Runtime, module: ModuleType) -> None:
    """Replace the function in its module or class, or note the problem."""
    note = target.note
    note.imported = True
    *path, name = target.annotation.qualname.split(".")
    owner: Any = module
    try:
        for part in path:
            owner = getattr(owner, part)
        # a method as stored in the class, not bound
        found = inspect.getattr_static(owner, name) if path else getattr(owner, name)
        if path and not isinstance(found, METHODS):
            raise TypeError(f"it is not a method written in Python but {type(found).__name__}")
        setattr(owner, name, annotated(found, target, runtime))
    except (TypeError, AttributeError) as error:
        note.problem = str(error)
    else:
        note.found, note.problem = True, None
