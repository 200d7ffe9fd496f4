"""Progress of long work: workers report steps to a listener, if any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[str, int, int], None]
"""Takes the name of the next step, the number of finished steps, and their total."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report the work of the block to a listener."""
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
    """Yield items and report each as a step, without steps inside; a single item is not a step."""
    listener = _listener.get()
    for done, item in enumerate(items):
        if listener is not None and len(items) > 1:
            listener(name(item), done, len(items))
            _listener.set(None)
        try:
            yield item
        finally:
            _listener.set(listener)
