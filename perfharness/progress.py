"""How far long work is: whoever does it reports, whoever shows it listens. Without a listener nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[str, int, int], None]
"""Takes the name of the step that begins, how many steps are done, and how many there are."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have the work of this block reported."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def step(name: str) -> None:
    """Report a step of unknown length."""
    if (listener := _listener.get()) is not None:
        listener(name, 0, 1)


def in_steps(items: Sequence[T], name: Callable[[T], str]) -> Iterator[T]:
    """Go through items, each of which is a step, but for a single one; steps of steps are not reported."""
    listener = _listener.get()
    for done, item in enumerate(items):
        if listener is not None and len(items) > 1:
            listener(name(item), done, len(items))
            _listener.set(None)
        try:
            yield item
        finally:
            _listener.set(listener)
