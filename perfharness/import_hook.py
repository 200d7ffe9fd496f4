"""Modules that are changed right after they were executed, before anything can be imported from them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Apply = Callable[[ModuleType, str], None]
"""Changes an executed module, which is imported by that name."""


class ImportHook:
    """A finder that wraps the loaders of some modules, which the other finders find.

    Args:
        names: of the modules.
        apply: is called with each as it is imported, and at once with those that are imported already.
    """

    def __init__(self, names: set[str], apply: Apply) -> None:
        self._names = names
        self._apply = apply
        self._searching = threading.local()

    def install(self) -> None:
        """Watch from now on."""
        for name in sorted(self._names & set(sys.modules)):
            self._apply(sys.modules[name], name)
        if self._names:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a watched module with a wrapped loader; None for everything else."""
        if name not in self._names or getattr(self._searching, "name", None) == name:
            return None
        self._searching.name = name  # another finder of this kind may call us in turn
        try:
            finders: list[Any] = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
            specs = (finder.find_spec(name, path, target) for finder in finders)
            spec: ModuleSpec | None = next(filter(None, specs), None)
        finally:
            self._searching.name = None
        if spec is not None and hasattr(spec.loader, "exec_module"):
            wrapped: Any = _Loader(spec.loader, self._apply)
            spec.loader = wrapped
        return spec


class _Loader:
    """Wraps a loader until the module is about to be executed; the module never sees it."""

    def __init__(self, original: Any, apply: Apply) -> None:
        self._original = original
        self._apply = apply

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        create = getattr(self._original, "create_module", None)
        module: ModuleType | None = create(spec) if create is not None else None
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._original
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        self._original.exec_module(module)
        self._apply(sys.modules.get(module.__name__, module), module.__name__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
