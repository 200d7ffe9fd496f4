"""PyTorch modules as stages: the forward call of each, down to a depth, by its dotted name in the outermost one.

Nothing here imports torch. PyTorch's global module hooks are used, so no model is changed.
"""

from __future__ import annotations

import threading
import weakref
from types import ModuleType
from typing import Any

from perfharness import compiled_code
from perfharness.annotate.runtime import Call, Runtime

TORCH_MODULE = "torch.nn.modules.module"
"""The module with `nn.Module` and the global hooks."""

COMPILED = "_orig_mod"
"""The attribute of a module made by torch.compile that has the model."""


def follow_modules(runtime: Runtime, depth: int, torch_module: ModuleType) -> None:
    """Hook into `torch.nn.modules.module`, just executed."""
    note = runtime.torch_note
    note.imported = True
    hooks = _Hooks(runtime, depth)
    try:
        torch_module.register_module_forward_pre_hook(hooks.before)
        torch_module.register_module_forward_hook(hooks.after, always_call=True)
    except (AttributeError, TypeError) as error:
        note.problem = f"this PyTorch has no such hooks ({error}); 2.1 or newer has"
    else:
        note.found = True


class _Hooks:
    """Follows the forward calls of each thread. A range is open exactly while its module's call is.

    PyTorch calls both hooks for every module, most of which are below the depth: those have to be fast.
    """

    def __init__(self, runtime: Runtime, depth: int) -> None:
        self._runtime = runtime
        self._depth = depth
        self._open = _Open()
        self._names: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, str | None]]
        self._names = weakref.WeakKeyDictionary()

    def before(self, module: Any, _args: Any) -> None:
        """A forward call begins."""
        if compiled_code.is_traced():
            return  # torch.compile traces this function with the model; the compiled code has no modules
        calls = self._open.calls
        if calls and calls[0][0] is module:
            _leave(calls, 0)  # an interrupt ended it without calling a hook
        name = self._name(calls[0][0], module) if calls else type(getattr(module, COMPILED, module)).__name__
        if name is not None:
            calls.append((module, self._runtime.open_range(self._runtime.torch_note, name).__enter__()))

    def after(self, module: Any, _args: Any, _result: Any) -> None:
        """A forward call ends, also by an exception; so do calls inside it that ended without calling a hook."""
        if compiled_code.is_traced():
            return
        calls = self._open.calls
        for position in range(len(calls) - 1, -1, -1):
            if calls[position][0] is module:
                _leave(calls, position)
                return

    def _name(self, outermost: Any, module: Any) -> str | None:
        """The name of a module inside the outermost one; None if it is deeper, or not in it.

        Walking a model is slow, so it is done once, and again for a module that was added since.
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
    """The modules of a thread that are in their forward calls, outermost first."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Call]] = []


def _leave(calls: list[tuple[Any, Call]], position: int) -> None:
    while len(calls) > position:
        calls.pop()[1].__exit__(None, None, None)
