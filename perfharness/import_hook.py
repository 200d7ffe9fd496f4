"""Change modules right after their execution, before anything can be imported from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Apply = Callable[[ModuleType, str], None]
"""Changes an executed module, imported under this name."""


class ImportHook:
    """Finder that wraps the loaders that later finders return for some modules.

    Args:
        names: names of the modules.
        apply: called with each module on import, or at once if it is already imported.
    """

    def __init__(self, names: set[str], apply: Apply) -> None:
        self._names = names
        self._apply = apply

    def install(self) -> None:
        """Watch imports from now on."""
        for name in sorted(self._names & set(sys.modules)):
            self._apply(sys.modules[name], name)
        if self._names:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a watched module with a wrapped loader, else None."""
        if name not in self._names:
            return None
        later = [finder for finder in sys.meta_path[sys.meta_path.index(self) + 1 :] if hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in later)), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            wrapped: Any = _Loader(spec.loader, self._apply)
            spec.loader = wrapped
        return spec


class _Loader:
    """Wraps a loader, invisibly for the module."""

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
