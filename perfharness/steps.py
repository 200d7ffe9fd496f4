"""Generators with each step inside a context; values, sent values and exceptions are unchanged."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Protocol


class Scope(Protocol):
    """The context of one step."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> None: ...

    def set_result(self, result: object) -> None:
        """Called with what the step yields."""


Open = Callable[[tuple[Any, ...], dict[str, Any]], "Scope | None"]
"""The context of a step of a call with these arguments; None: the step has none."""


class _Steps(Generator[Any, Any, Any]):
    """A generator with each step inside `open_scope()`. Closing it is no step."""

    def __init__(self, generator: Generator[Any, Any, Any], open_scope: Callable[[], Scope | None]) -> None:
        self._generator = generator
        self._open_scope = open_scope

    def send(self, value: Any) -> Any:
        return self._step(self._generator.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._generator.throw, *error)

    def close(self) -> None:
        self._generator.close()

    def _step(self, advance: Callable[..., Any], *values: Any) -> Any:
        scope = self._open_scope()
        if scope is None:
            return advance(*values)
        with scope:
            element = advance(*values)
            scope.set_result(element)
        return element


def generator_in_steps(
    function: Callable[..., Generator[Any, Any, Any]], open_scope: Open
) -> Callable[..., Generator[Any, Any, Any]]:
    """The generator function with each step in its scope."""

    def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _Steps(function(*args, **kwargs), lambda: open_scope(args, kwargs)))

    return generate


def async_generator_in_steps(
    function: Callable[..., AsyncGenerator[Any, Any]], open_scope: Open
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """The asynchronous generator function with each step in its scope.

    Asynchronous generators have no `yield from`, so values and errors are passed on here.
    """

    async def generate(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        advance: Callable[[], Awaitable[Any]] = generator.__anext__
        try:
            while True:
                try:
                    scope = open_scope(args, kwargs)
                    if scope is None:
                        value = await advance()
                    else:
                        with scope:
                            value = await advance()
                            scope.set_result(value)
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
