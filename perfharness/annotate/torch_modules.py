"""PyTorch modules as stages: the forward call of each, down to a depth, by its dotted name in the outermost one.

Nothing here imports torch. PyTorch's global module hooks are used, so no model is changed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from perfharness import compiled_code
from perfharness.annotate.runtime import Runtime
from perfharness.annotate.scopes import Scope

COMPILED = "_orig_mod."
"""The prefix that torch.compile adds to the names of its model."""


def follow_modules(torch_module: ModuleType, runtime: Runtime) -> None:
    """Hook into `torch.nn.modules.module`, just executed."""
    note, depth = runtime.torch_note, runtime.annotations.torch_depth
    assert note is not None
    assert depth is not None
    note.imported = True
    tracker = ModuleTracker(runtime, depth)
    try:
        torch_module.register_module_forward_pre_hook(tracker.before)
        torch_module.register_module_forward_hook(tracker.after, always_call=True)
    except (AttributeError, TypeError) as error:
        note.problem = f"this PyTorch has no such hooks ({error}); 2.1 or newer has"
        return
    note.found = True


Call = tuple[Any, "Scope | None"]
"""A module in its forward call, and its range if it has one."""


class ModuleTracker:
    """Follows the forward calls of each thread. A range is open exactly while its module's call is.

    PyTorch calls both hooks for every module, most of which are below the depth: those have to be fast.
    """

    def __init__(self, runtime: Runtime, depth: int) -> None:
        self._runtime = runtime
        self._names = StageNames(depth)
        self._local = threading.local()  # calls: the outermost module's, and those of its stages

    def before(self, module: Any, _args: Any) -> None:
        """A forward call begins."""
        if (compiled_code.tracing or compiled_code.find_tracing())():
            return  # torch.compile traces this function with the model; the compiled code has no modules
        try:
            calls: list[Call] = self._local.calls
        except AttributeError:
            calls = self._local.calls = []
        if calls and calls[0][0] is module:
            _leave(calls, 0)  # ended by an interrupt, which calls no hook
        name = self._names.name(calls[0][0], module) if calls else _class_name(module)
        if name is None:
            return
        calls.append((module, self._runtime.open_module(name)))

    def after(self, module: Any, _args: Any, _result: Any) -> None:
        """A forward call ends, also by an exception; so do those inside it whose end called no hook."""
        if (compiled_code.tracing or compiled_code.find_tracing())():
            return
        calls: list[Call] = getattr(self._local, "calls", [])
        for position in range(len(calls) - 1, -1, -1):
            if calls[position][0] is module:
                _leave(calls, position)
                return


def _leave(calls: list[Call], position: int) -> None:
    while len(calls) > position:
        _, scope = calls.pop()
        if scope is not None:
            scope.__exit__(None, None, None)


def _class_name(outermost: Any) -> str:
    """The class of the model, also of one wrapped by torch.compile."""
    return type(getattr(outermost, COMPILED.rstrip("."), outermost)).__name__


class StageNames:
    """The dotted names of the modules inside the outermost one, down to a depth.

    Walking a model is slow, so each is walked once, and again for a module that was added since.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._of_outermost: dict[int, tuple[Any, dict[int, tuple[Any, str | None]]]] = {}

    def name(self, outermost: Any, module: Any) -> str | None:
        """The name; None where the module is deeper, or not in the outermost one."""
        reference, names = self._of_outermost.get(id(outermost), _NOT_WALKED)
        if reference() is not outermost:  # the address was another module's
            names = {}
            self._of_outermost[id(outermost)] = (weakref.ref(outermost), names)
        found, name = names.get(id(module), _NOT_FOUND)
        if found() is module:
            return name
        names.update(self._walk(outermost))
        found, name = names.get(id(module), _NOT_FOUND)
        if found() is not module:
            name = None
            names[id(module)] = (weakref.ref(module), None)
        return name

    def _walk(self, outermost: Any) -> Iterator[tuple[int, tuple[Any, str | None]]]:
        for dotted, module in outermost.named_modules():
            name = dotted.removeprefix(COMPILED)
            wanted = name and name.count(".") < self._depth
            yield id(module), (weakref.ref(module), name if wanted else None)


def _no_module() -> None:
    """Like a dead weak reference."""


_NOT_FOUND: tuple[Any, str | None] = (_no_module, None)
_NOT_WALKED: tuple[Any, dict[int, tuple[Any, str | None]]] = (_no_module, {})
