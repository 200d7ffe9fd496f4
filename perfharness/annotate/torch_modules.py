"""Make PyTorch modules stages: one per forward call, down to a depth, named by the dotted name in the outermost module.

Torch is not imported here. Models are not changed, because global module hooks are used.
"""

from __future__ import annotations

import threading
import weakref
from types import ModuleType
from typing import Any

from perfharness import compiled_code
from perfharness.annotate.runtime import Call, Runtime

TORCH_MODULE = "torch.nn.modules.module"
"""Module with `nn.Module` and the global hooks."""

COMPILED = "_orig_mod"
"""Attribute of a torch.compile module with the original model."""


def follow_modules(runtime: Runtime, depth: int, torch_module: ModuleType) -> None:
    """Register hooks in the newly executed `torch.nn.modules.module`."""
    note = runtime.torch_note
    note.imported = True
    hooks = _Hooks(runtime, depth)
    try:
        torch_module.register_module_forward_pre_hook(hooks.before)
        torch_module.register_module_forward_hook(hooks.after, always_call=True)
    except (AttributeError, TypeError) as error:
        note.problem = f"this PyTorch lacks module hooks ({error}); use 2.1 or newer"
    else:
        note.found = True


class _Hooks:
    """Follows forward calls per thread. A range is open exactly during its module's call.

    PyTorch calls both hooks for every module, so modules below the depth must be fast.
    """

    def __init__(self, runtime: Runtime, depth: int) -> None:
        self._runtime = runtime
        self._depth = depth
        self._open = _Open()
        self._names: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, str | None]]
        self._names = weakref.WeakKeyDictionary()

    def before(self, module: Any, _args: Any) -> None:
        """Handle the start of a forward call."""
        if compiled_code.is_traced():
            return  # torch.compile traces this function with the model, but compiled code has no modules
        calls = self._open.calls
        if calls and calls[0][0] is module:
            _leave(calls, 0)  # an interrupt ended it without a hook
        name = self._name(calls[0][0], module) if calls else type(getattr(module, COMPILED, module)).__name__
        if name is not None:
            calls.append((module, self._runtime.open_range(self._runtime.torch_note, name).__enter__()))

    def after(self, module: Any, _args: Any, _result: Any) -> None:
        """Handle the end of a forward call, including exceptions, and of inner calls that ended without a hook."""
        if compiled_code.is_traced():
            return
        calls = self._open.calls
        for position in range(len(calls) - 1, -1, -1):
            if calls[position][0] is module:
                _leave(calls, position)
                return

    def _name(self, outermost: Any, module: Any) -> str | None:
        """Name of a module inside the outermost one; None if it is deeper or not inside.

        Walking a model is slow, so it is done once, and again for modules added later.
        """
        try:
            return self._names[outermost][module]
        except KeyError:
            names = self._names.setdefault(outermost, weakref.WeakKeyDictionary())
        for dotted, inner in outermost.named_modules():
            name = dotted.removeprefix(f"{COMPILED}.")
            names[inner] = name if name and name.count(".") < self._depth else None
        return names.setdefault(module, None)


class _Open(threading.local):
    """Modules of a thread in forward calls, outermost first."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Call]] = []


def _leave(calls: list[tuple[Any, Call]], position: int) -> None:
    while len(calls) > position:
        calls.pop()[1].__exit__(None, None, None)
