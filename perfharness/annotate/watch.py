"""Import hooks: named functions are replaced right after their module was executed, before they can be imported."""

from __future__ import annotations

import importlib.abc
import inspect
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from perfharness.annotate.expressions import Target
from perfharness.annotate.runtime import Runtime
from perfharness.annotate.wrappers import MARK, annotate_callable
from perfharness.model.annotations import MAIN

TORCH_MODULE = "torch.nn.modules.module"
"""PyTorch's module with `nn.Module` and the global hooks."""


class ImportWatch:
    """A finder that wraps the loaders of watched modules, which the other finders find."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._watched = {target.annotation.module for target in runtime.targets} - {MAIN}
        if runtime.torch_note is not None:
            self._watched.add(TORCH_MODULE)
        self._searching = threading.local()

    def install(self) -> None:
        """Watch from now on; modules that are imported already are annotated now."""
        for name in sorted(self._watched & set(sys.modules)):
            self.apply(sys.modules[name], name)
        if self._watched:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a watched module with a wrapped loader; None for everything else."""
        if name not in self._watched or getattr(self._searching, "name", None) == name:
            return None
        self._searching.name = name  # another finder of this kind may call us in turn
        try:
            spec = next(filter(None, (_find(finder, name, path, target) for finder in list(sys.meta_path))), None)
        finally:
            self._searching.name = None
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec

    def apply(self, module: ModuleType, name: str) -> None:
        """Replace the annotated functions of an executed module; it may have other names too (`os.path`)."""
        runtime = self._runtime
        for target in runtime.targets:
            if target.annotation.module == name:
                apply_to_module(module, target, runtime)
        if name == TORCH_MODULE and runtime.torch_note is not None:
            from perfharness.annotate.torch_modules import follow_modules

            follow_modules(module, runtime)


def _find(finder: Any, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    find: Any = getattr(finder, "find_spec", None)
    spec: ModuleSpec | None = find(name, path, target) if find is not None else None
    return spec


class _Loader(importlib.abc.Loader):
    """Wraps a loader until the module is about to be executed; the module never sees it."""

    def __init__(self, original: Any, watch: ImportWatch) -> None:
        self._original = original
        self._watch = watch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create = getattr(self._original, "create_module", None)
        module: ModuleType | None = create(spec) if create is not None else None
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._original
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        self._original.exec_module(module)
        self._watch.apply(sys.modules.get(module.__name__, module), module.__name__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


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
