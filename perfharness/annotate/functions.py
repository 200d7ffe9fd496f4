"""Wrap functions named in an annotation file: a range per call, or per step of a generator."""

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
"""Returns the range of a call with these arguments."""

MARK = "__perfharness_annotation__"
"""Attribute of wrappers with the annotation."""

WRAPPABLE = (types.FunctionType, types.BuiltinFunctionType)
CYTHON_FUNCTION = "cython_function_or_method"


def annotated(found: Any, target: Target, runtime: Runtime) -> Any:
    """Wrap a function, a method as stored in its class, or a property.

    Raises `TypeError` with one sentence if it cannot be annotated.
    """
    if isinstance(found, property):
        return property(annotated(found.fget, target, runtime), found.fset, found.fdel, found.__doc__)
    if isinstance(found, (staticmethod, classmethod)):
        return type(found)(annotated(found.__func__, target, runtime))
    other = getattr(found, MARK, None)
    if other == target.annotation.target:
        return found  # executed again, or imported under another name
    if other is not None:
        raise TypeError(f"it is the same function as {other}, which is already annotated")
    if isinstance(found, type):
        raise TypeError("it is a class; name one of its methods (__init__, __call__)")
    if not isinstance(found, WRAPPABLE) and type(found).__name__ != CYTHON_FUNCTION:
        raise TypeError(f"it is not a function but {type(found).__name__}; name the function that it calls")
    wrapper = functools.update_wrapper(_wrapper(found, target, runtime), found)
    setattr(wrapper, MARK, target.annotation.target)
    return wrapper


def _wrapper(function: Function, target: Target, runtime: Runtime) -> Function:
    open_call: Open = functools.partial(runtime.open_call, target, function)
    is_async = inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function)
    if target.annotation.loop and is_async:
        raise TypeError("`loop` needs an iterator for a plain `for`, but this is asynchronous")
    if target.annotation.loop:
        return lambda *args, **kwargs: _elements(open_call, args, kwargs, iter(function(*args, **kwargs)))
    if inspect.isasyncgenfunction(function):
        return async_generator_in_steps(function, open_call, Call.set_result)
    if inspect.isgeneratorfunction(function):
        return generator_in_steps(function, open_call, Call.set_result)
    return _coroutine_function(function, open_call) if is_async else _plain(function, open_call, target)


def _plain(function: Function, open_call: Open, target: Target) -> Function:
    @compiled_code.not_compiled
    def note_compiled() -> None:
        target.note.compiled = True

    def call(*args: Any, **kwargs: Any) -> Any:
        if compiled_code.is_traced():
            note_compiled()
            return function(*args, **kwargs)
        with open_call(args, kwargs) as opened:
            result = function(*args, **kwargs)
            opened.set_result(result)
        return result

    return call


def _coroutine_function(function: Function, open_call: Open) -> Function:
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        with open_call(args, kwargs) as opened:
            result = await function(*args, **kwargs)
            opened.set_result(result)
        return result

    return call_async


def _elements(open_call: Open, args: Any, kwargs: Any, iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield elements; the range is the caller's work on each, not the time to produce it."""
    try:
        for element in iterator:
            with open_call(args, kwargs) as opened:
                opened.set_result(element)
                yield element
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
