"""Run each step of a generator inside a block; values, sent values and exceptions are unchanged."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

Open = Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[Any]]
"""Returns the block of a step for the arguments of the call; `StopIteration` passes through the last one."""

Note = Callable[[Any, Any], object]
"""Takes the block of a step and the yielded element."""


def generator_in_steps(
    function: Callable[..., Generator[Any, Any, Any]], open_block: Open, note: Note = lambda block, element: None
) -> Callable[..., Generator[Any, Any, Any]]:
    """Wrap a generator function so that each step runs in a block."""

    def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        advance: Callable[[Any], Any] = generator.send
        value = None
        try:
            while True:
                with open_block(args, kwargs) as block:
                    element = advance(value)
                    note(block, element)
                try:
                    advance, value = generator.send, (yield element)
                except GeneratorExit:
                    raise
                except BaseException as error:
                    advance, value = generator.throw, error
        except StopIteration as end:
            return end.value
        finally:
            generator.close()

    return generate


def async_generator_in_steps(
    function: Callable[..., AsyncGenerator[Any, Any]], open_block: Open, note: Note = lambda block, element: None
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Wrap an asynchronous generator function in the same way."""

    async def generate(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        advance: Callable[[Any], Awaitable[Any]] = generator.asend
        value = None
        try:
            while True:
                with open_block(args, kwargs) as block:
                    element = await advance(value)
                    note(block, element)
                try:
                    advance, value = generator.asend, (yield element)
                except GeneratorExit:
                    raise
                except BaseException as error:
                    advance, value = generator.athrow, error
        except StopAsyncIteration:
            return
        finally:
            await generator.aclose()

    return generate
