"""`@perf.annotate`: functions whose calls are ranges, and generators whose steps are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

from perfharness import compiled_code

Function = Callable[..., Any]
Block = AbstractContextManager[object]


def annotated(function: Function, name: str, block: Block) -> Function:
    """Wrap a function of any kind, each call or step in the block."""
    if inspect.isasyncgenfunction(function):
        wrapper = _in_async_steps(function, block)
    elif inspect.isgeneratorfunction(function):
        wrapper = _in_steps(function, block)
    elif inspect.iscoroutinefunction(function):
        wrapper = _in_coroutine(function, block)
    else:
        wrapper = _in_call(function, name, block)
    return functools.wraps(function)(wrapper)


def _in_call(function: Function, name: str, block: Block) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        if compiled_code.tracing is not None and compiled_code.tracing():
            compiled_code.note_range(name)
            return function(*args, **kwargs)
        with block:
            return function(*args, **kwargs)

    return call


def _in_coroutine(function: Function, block: Block) -> Function:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with block:
            return await function(*args, **kwargs)

    return call


def _in_steps(function: Function, block: Block) -> Function:
    def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        advance: Callable[[], Any] = functools.partial(next, generator)
        try:
            while True:
                with block:
                    try:
                        value = advance()
                    except StopIteration as end:
                        return end.value
                try:
                    advance = functools.partial(generator.send, (yield value))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    advance = functools.partial(generator.throw, error)
        finally:
            generator.close()

    return generate


def _in_async_steps(function: Function, block: Block) -> Function:
    async def generate(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        generator = function(*args, **kwargs)
        advance: Callable[[], Awaitable[Any]] = generator.__anext__
        try:
            while True:
                with block:
                    try:
                        value = await advance()
                    except StopAsyncIteration:
                        return
                try:
                    advance = functools.partial(generator.asend, (yield value))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    advance = functools.partial(generator.athrow, error)
        finally:
            await generator.aclose()

    return generate
