"""How long each thread has compiled with torch.compile or JAX, by their own callbacks."""

from __future__ import annotations

import sys
from _thread import get_ident
from contextlib import suppress
from time import monotonic_ns  # a name of our own: a script may have the module's annotated
from typing import Any

JAX_STEPS = frozenset({"/jax/core/compile/jaxpr_to_mlir_module_duration", "/jax/core/compile/backend_compile_duration"})
"""Steps of a compilation that are never inside one another, as tracing is."""

_began: tuple[int, int] | None = None
_spent_ns: dict[int, int] = {}
_follows_jax = False


def follow() -> None:
    """Count from now on what the libraries compile that are imported by now; cheap, to be called again and again."""
    global _follows_jax
    torch, jax = sys.modules.get("torch._dynamo.callback"), sys.modules.get("jax.monitoring")
    with suppress(AttributeError):  # an older or newer library without them
        if torch is not None and _on_start not in torch.callback_handler.start_callbacks:  # torch.compiler.reset clears
            torch.callback_handler.register_start_callback(_on_start)
            torch.callback_handler.register_end_callback(_on_end)
        if jax is not None and not _follows_jax:
            _follows_jax = True
            jax.register_event_duration_secs_listener(_on_jax)


def spent_ns() -> int:
    """What compiling took so far on the calling thread (or on an ended one that had its ident), at least."""
    return _spent_ns.get(get_ident(), 0)


# PyTorch calls these when its first compilation begins and when no thread compiles any more.


def _on_start(_: Any) -> None:
    global _began
    _began = get_ident(), monotonic_ns()


def _on_end(_: Any) -> None:
    global _began
    if _began is not None and _began[0] == get_ident():
        _add(monotonic_ns() - _began[1])
    _began = None


def _on_jax(event: str, duration_s: float, **_: Any) -> None:
    if event in JAX_STEPS:
        _add(int(duration_s * 1e9))


def _add(spent: int) -> None:
    thread = get_ident()
    _spent_ns[thread] = _spent_ns.get(thread, 0) + spent
