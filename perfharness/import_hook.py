"""Modules that are changed right after they were executed, before anything can be imported from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Apply = Callable[[ModuleType, str], None]
"""Changes an executed module, which is imported by that name."""


class ImportHook:
    """A finder that wraps the loaders of some modules, which the finders behind it find.

    Args:
        names: of the modules.
        apply: is called with each as it is imported, and at once with those that are imported already.
    """

    def __init__(self, names: set[str], apply: Apply) -> None:
        self._names = names
        self._apply = apply

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
        if name not in self._names:
            return None
        behind = [finder for finder in sys.meta_path[sys.meta_path.index(self) + 1 :] if hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in behind)), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            wrapped: Any = _Loader(spec.loader, self._apply)
            spec.loader = wrapped
        return spec


class _Loader:
    """Wraps a loader until the module is about to be executed; the module never sees it."""

    def __init__(self, original: Any, apply: Apply) -> None:
        self._original = original
        self._apply = apply

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._original
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        self._original.exec_module(module)
        self._apply(sys.modules.get(module.__name__, module), module.__name__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
