"""Functions that an annotation file names: a range around each call; of a generator, around each step."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from perfharness import compiled_code
from perfharness.annotate.expressions import Function, Target
from perfharness.annotate.runtime import Call, Runtime
from perfharness.steps import async_generator_in_steps, generator_in_steps

Open = Callable[[tuple[Any, ...], dict[str, Any]], Call]
"""Gives the range of a call with these arguments."""

MARK = "__perfharness_annotation__"
"""Attribute of each wrapper: the annotation."""

WRAPPABLE = (types.FunctionType, types.BuiltinFunctionType)
CYTHON_FUNCTION = "cython_function_or_method"


def annotated(function: Any, target: Target, runtime: Runtime) -> Any:
    """A wrapper of `function`, of the same kind.

    Raises:
        TypeError: why it cannot be annotated, as one sentence.
    """
    if isinstance(function, type):
        raise TypeError("it is a class; name one of its methods (__init__, __call__)")
    if not isinstance(function, WRAPPABLE) and type(function).__name__ != CYTHON_FUNCTION:
        raise TypeError(f"it is not a function but {type(function).__name__}; name the function that it calls")
    open_call: Open = functools.partial(runtime.open, target, function)
    if target.annotation.loop:
        wrapper = _loop(function, open_call)
    elif inspect.isasyncgenfunction(function):
        wrapper = async_generator_in_steps(function, open_call, Call.set_result)
    elif inspect.isgeneratorfunction(function):
        wrapper = generator_in_steps(function, open_call, Call.set_result)
    elif inspect.iscoroutinefunction(function):
        wrapper = _coroutine_function(function, open_call)
    else:
        wrapper = _plain(function, open_call, target.annotation.target)
    functools.update_wrapper(wrapper, function)
    setattr(wrapper, MARK, target.annotation.target)
    return wrapper


def _plain(function: Function, open_call: Open, name: str) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        if (compiled_code.tracing or compiled_code.find_tracing())():
            compiled_code.note_function(name)
            return function(*args, **kwargs)
        opened = open_call(args, kwargs)
        with opened:
            result = function(*args, **kwargs)
            opened.set_result(result)
        return result

    return call


def _coroutine_function(function: Function, open_call: Open) -> Function:
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        opened = open_call(args, kwargs)
        with opened:
            result = await function(*args, **kwargs)
            opened.set_result(result)
        return result

    return call_async


def _loop(function: Function, open_call: Open) -> Function:
    """The range is the caller's work on each element, not the time to yield it."""
    if inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
        raise TypeError("`loop` is for iterators of a plain `for`, and this is asynchronous")

    def elements(args: tuple[Any, ...], kwargs: dict[str, Any], iterator: Iterator[Any]) -> Iterator[Any]:
        try:
            for element in iterator:
                opened = open_call(args, kwargs)
                with opened:
                    opened.set_result(element)
                    yield element
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    return lambda *args, **kwargs: elements(args, kwargs, iter(function(*args, **kwargs)))
