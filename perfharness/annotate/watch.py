"""Watching imports: the named functions are replaced right after their module was executed, before anyone has them."""

from __future__ import annotations

import importlib.abc
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from perfharness.annotate.apply import apply_to_module
from perfharness.annotate.runtime import Runtime
from perfharness.model.annotations import MAIN

TORCH_MODULE = "torch.nn.modules.module"
"""Where PyTorch defines `nn.Module` and the hooks on all modules."""


class ImportWatch:
    """A finder that finds nothing itself: it lets the others find, and looks at the module once it was executed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._watched = {target.annotation.module for target in runtime.targets} - {MAIN}
        if runtime.torch_note is not None:
            self._watched.add(TORCH_MODULE)
        self._searching = threading.local()

    def install(self) -> None:
        """Watch from now on; what is imported already is looked at now."""
        for name in sorted(self._watched & set(sys.modules)):
            self.apply(sys.modules[name], name)
        if self._watched:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a watched module with a loader that looks at it; None for everything else."""
        if name not in self._watched or getattr(self._searching, "name", None) == name:
            return None
        self._searching.name = name  # another finder of this kind may ask us in turn
        try:
            spec = next(filter(None, (_find(finder, name, path, target) for finder in list(sys.meta_path))), None)
        finally:
            self._searching.name = None
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, self)
        return spec

    def apply(self, module: ModuleType, name: str) -> None:
        """Replace what is annotated in an executed module; it may be known under other names too (`os.path`)."""
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
    """Stands in for a loader until the module is about to be executed; the module never sees it."""

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
