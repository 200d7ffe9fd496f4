"""Generators with each step called through a function; values, sent values and exceptions are unchanged."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any

Step = Callable[..., Any]
"""`step(advance, *values)` returns `advance(*values)`."""

AsyncStep = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""`step(advance)` awaits `advance()`."""


class _Steps(Generator[Any, Any, Any]):
    """A generator with each step called through `step`. Closing it is no step."""

    def __init__(self, generator: Generator[Any, Any, Any], step: Step) -> None:
        self._generator = generator
        self._step = step

    def send(self, value: Any) -> Any:
        return self._step(self._generator.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._generator.throw, *error)

    def close(self) -> None:
        self._generator.close()


def generator_in_steps(
    function: Callable[..., Generator[Any, Any, Any]], step_of: Callable[..., Step]
) -> Callable[..., Generator[Any, Any, Any]]:
    """The generator function with each step called through `step_of(args, kwargs)`."""

    def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _Steps(function(*args, **kwargs), step_of(args, kwargs)))

    return generate


def async_generator_in_steps(
    function: Callable[..., AsyncGenerator[Any, Any]], step_of: Callable[..., AsyncStep]
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """The asynchronous generator function with each step called through `step_of(args, kwargs)`.

    Asynchronous generators have no `yield from`, so values and errors are passed on here.
    """

    async def generate(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        step = step_of(args, kwargs)
        advance: Callable[[], Awaitable[Any]] = generator.__anext__
        try:
            while True:
                try:
                    value = await step(advance)
                except StopAsyncIteration:
                    return
                try:
                    sent = yield value
                    advance = functools.partial(generator.asend, sent)
                except GeneratorExit:
                    raise
                except BaseException as error:
                    advance = functools.partial(generator.athrow, error)
        finally:
            await generator.aclose()

    return generate
