"""PyTorch modules as stages: the forward call of each, down to a depth, named as the outermost one names it.

Nothing here imports torch. Its own hooks on all modules are used, so no model is changed.
"""

from __future__ import annotations

import sys
import threading
import weakref
from types import ModuleType
from typing import Any

from perfharness.annotate.runtime import Runtime
from perfharness.annotate.scopes import Scope

COMPILED = "_orig_mod."
"""What torch.compile puts before the names of the model that it was given."""


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


class ModuleTracker:
    """Follows the forward calls of each thread. A range is open exactly while its module's call is."""

    def __init__(self, runtime: Runtime, depth: int) -> None:
        self._runtime = runtime
        self._depth = depth
        self._names = ModuleNames()
        self._local = threading.local()

    def before(self, module: Any, _args: Any) -> None:
        """A forward call begins."""
        if is_compiling():
            return  # the compiler reads this function along with the model; the compiled code has no modules
        calls = self._calls()
        if calls and calls[0][0] is module:
            self._leave(calls, 0)  # an interrupt, which PyTorch's hooks do not hear of, ended it
        name = self._names.name(calls[0][0], module) if calls else _class_name(module)
        depth = 0 if not calls else len(name.split(".")) if name else None
        scope: Scope | None = None
        if name and depth is not None and depth <= self._depth:
            scope = self._runtime.open_module(name)
        if scope is not None:
            scope.__enter__()
        calls.append((module, scope))

    def after(self, module: Any, _args: Any, _result: Any) -> None:
        """A forward call ends, by an exception too; so do those inside it that ended unheard."""
        if is_compiling():
            return
        calls = self._calls()
        for position in range(len(calls) - 1, -1, -1):
            if calls[position][0] is module:
                self._leave(calls, position)
                return

    def _leave(self, calls: list[tuple[Any, Scope | None]], position: int) -> None:
        while len(calls) > position:
            _, scope = calls.pop()
            if scope is not None:
                scope.__exit__(None, None, None)

    def _calls(self) -> list[tuple[Any, Scope | None]]:
        calls: list[tuple[Any, Scope | None]] | None = getattr(self._local, "calls", None)
        if calls is None:
            calls = self._local.calls = []
        return calls


class ModuleNames:
    """The dotted names of modules inside the outermost one. Walking a model is slow, so each is walked once."""

    def __init__(self) -> None:
        self._of_outermost: dict[int, tuple[Any, dict[int, tuple[Any, str | None]]]] = {}

    def name(self, outermost: Any, module: Any) -> str | None:
        """The name; None where the outermost module does not hold it."""
        reference, names = self._of_outermost.get(id(outermost), (None, {}))
        if reference is None or reference() is not outermost:
            names = {}
            self._of_outermost[id(outermost)] = (weakref.ref(outermost), names)
        found = names.get(id(module))
        if found is None or found[0]() is not module:  # walked before it was added, or another had its address
            names.update(
                (id(inner), (weakref.ref(inner), name.removeprefix(COMPILED)))
                for name, inner in outermost.named_modules()
                if name
            )
            found = names.get(id(module))
            if found is None or found[0]() is not module:
                found = names[id(module)] = (weakref.ref(module), None)
        return found[1]


def _class_name(outermost: Any) -> str:
    """The class of the model, also where torch.compile stands around it."""
    return type(getattr(outermost, COMPILED.rstrip("."), outermost)).__name__


def is_compiling() -> bool:
    """Whether torch.compile is reading along; it knows this call, and takes it for a constant."""
    torch: Any = sys.modules.get("torch")
    compiler = getattr(torch, "compiler", None)
    return compiler is not None and bool(compiler.is_compiling())
