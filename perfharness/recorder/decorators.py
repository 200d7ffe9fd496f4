"""`@perf.annotate`: functions whose calls are ranges, and generators whose steps are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from perfharness import compiled_code
from perfharness.steps import async_generator_in_steps, generator_in_steps

Function = Callable[..., Any]
Block = AbstractContextManager[object]


def annotated(function: Function, name: str, block: Block) -> Function:
    """Wrap a function of any kind, each call or step in the block."""
    wrapper: Function
    if inspect.isasyncgenfunction(function):
        wrapper = async_generator_in_steps(function, lambda args, kwargs: block)
    elif inspect.isgeneratorfunction(function):
        wrapper = generator_in_steps(function, lambda args, kwargs: block)
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
