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

COMPILED = "_orig_mod."
"""The prefix that torch.compile adds to the names of its model."""


def follow_modules(torch_module: ModuleType, runtime: Runtime) -> None:
    """Hook into `torch.nn.modules.module`, just executed."""
    note, depth = runtime.torch_note, runtime.annotations.torch_depth
    assert note is not None
    assert depth is not None
    note.imported = True
    tracker = _Tracker(runtime, depth)
    try:
        torch_module.register_module_forward_pre_hook(tracker.before)
        torch_module.register_module_forward_hook(tracker.after, always_call=True)
    except (AttributeError, TypeError) as error:
        note.problem = f"this PyTorch has no such hooks ({error}); 2.1 or newer has"
        return
    note.found = True


class _Tracker:
    """Follows the forward calls of each thread. A range is open exactly while its module's call is.

    PyTorch calls both hooks for every module, most of which are below the depth: those have to be fast.
    """

    def __init__(self, runtime: Runtime, depth: int) -> None:
        self._runtime = runtime
        self._names = _StageNames(depth)
        self._local = threading.local()  # calls: modules in their forward calls, outermost first

    def before(self, module: Any, _args: Any) -> None:
        """A forward call begins."""
        if (compiled_code.tracing or compiled_code.find_tracing())():
            return  # torch.compile traces this function with the model; the compiled code has no modules
        try:
            calls: list[tuple[Any, Call]] = self._local.calls
        except AttributeError:
            calls = self._local.calls = []
        if calls and calls[0][0] is module:
            _leave(calls, 0)  # an interrupt ended it without calling a hook
        name = self._names.find(calls[0][0], module) if calls else _class_name(module)
        if name is not None:
            call = self._runtime.open_module(name)
            call.__enter__()
            calls.append((module, call))

    def after(self, module: Any, _args: Any, _result: Any) -> None:
        """A forward call ends, also by an exception; so do calls inside it that ended without calling a hook."""
        if (compiled_code.tracing or compiled_code.find_tracing())():
            return
        calls: list[tuple[Any, Call]] = getattr(self._local, "calls", [])
        for position in range(len(calls) - 1, -1, -1):
            if calls[position][0] is module:
                _leave(calls, position)
                return


def _leave(calls: list[tuple[Any, Call]], position: int) -> None:
    while len(calls) > position:
        calls.pop()[1].__exit__(None, None, None)


def _class_name(outermost: Any) -> str:
    """The class of the model, also of one wrapped by torch.compile."""
    return type(getattr(outermost, COMPILED.rstrip("."), outermost)).__name__


class _StageNames:
    """The dotted names of the modules inside the outermost one, down to a depth.

    Walking a model is slow, so it is done once, and again for a module that was added since.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._inside: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, str | None]]
        self._inside = weakref.WeakKeyDictionary()

    def find(self, outermost: Any, module: Any) -> str | None:
        """The name; None where the module is deeper, or not in the outermost one."""
        try:
            return self._inside[outermost][module]
        except KeyError:
            names = self._inside.setdefault(outermost, weakref.WeakKeyDictionary())
        for dotted, inner in outermost.named_modules():
            name = dotted.removeprefix(COMPILED)
            names[inner] = name if name and name.count(".") < self._depth else None
        return names.setdefault(module, None)
