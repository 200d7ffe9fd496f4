"""How long each thread has run Python's garbage collector, by the collector's own callbacks."""

from __future__ import annotations

import gc
from _thread import get_ident
from time import monotonic_ns  # a name of our own: a script may have the module's annotated

_began_ns: dict[int, int] = {}
_spent_ns: dict[int, int] = {}


def follow() -> None:
    """Count from now on; a second call changes nothing."""
    if _on_collection not in gc.callbacks:
        gc.callbacks.append(_on_collection)


def spent_ns() -> int:
    """What the collections took so far that ran on the calling thread (or on an ended one that had its ident)."""
    return _spent_ns.get(get_ident(), 0)


def _on_collection(phase: str, _: dict[str, int]) -> None:
    thread, now_ns = get_ident(), monotonic_ns()
    if phase == "start":
        _began_ns[thread] = now_ns
    elif (began_ns := _began_ns.pop(thread, None)) is not None:
        _spent_ns[thread] = _spent_ns.get(thread, 0) + now_ns - began_ns
