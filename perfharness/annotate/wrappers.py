"""Wrappers of functions: a range around each call; of a generator, around each step."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from perfharness import compiled_code
from perfharness.steps import Open, async_generator_in_steps, generator_in_steps

if TYPE_CHECKING:
    from perfharness.annotate.expressions import Target
    from perfharness.annotate.runtime import Runtime

MARK = "__perfharness_annotation__"
"""Attribute of every wrapper: its annotation."""

Function = Callable[..., Any]


def annotate_callable(function: Function, target: Target, runtime: Runtime) -> Any:
    """A wrapper of `function`, of the same kind.

    Raises:
        TypeError: the reason why it cannot be annotated, one sentence.
    """
    open_range: Open = functools.partial(runtime.open, target, function)
    if isinstance(function, type):
        raise TypeError("it is a class; name one of its methods (__init__, __call__)")
    if not callable(function):
        raise TypeError(f"it is no function, but {type(function).__name__}")
    if target.annotation.loop:
        wrapped = _loop(function, open_range)
    elif inspect.isasyncgenfunction(function):
        wrapped = async_generator_in_steps(function, open_range)
    elif inspect.isgeneratorfunction(function):
        wrapped = generator_in_steps(function, open_range)
    elif inspect.iscoroutinefunction(function):
        wrapped = _coroutine_function(function, open_range)
    else:
        wrapped = _plain(function, open_range, target.annotation.target)
    if not isinstance(function, types.FunctionType):
        return CallableProxy(function, wrapped, target.annotation.target)
    functools.update_wrapper(wrapped, function)
    setattr(wrapped, MARK, target.annotation.target)
    return wrapped


class CallableProxy:
    """Proxy of a callable that is no Python function: only the call is intercepted."""

    def __init__(self, original: Function, call: Function, annotation: str) -> None:
        own = {"__wrapped__": original, "_call": call, MARK: annotation}
        names = {name: getattr(original, name) for name in functools.WRAPPER_ASSIGNMENTS if hasattr(original, name)}
        self.__dict__.update(names | own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original, in a range."""
        return self._call(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None or not hasattr(type(self.__wrapped__), "__get__"):
            return self
        return types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["__wrapped__"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__wrapped__, name, value)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce_ex__(self, protocol: Any) -> Any:
        name = getattr(self.__wrapped__, "__qualname__", None)
        return name or self.__wrapped__.__reduce_ex__(
            protocol
        )  # a name: pickled as the module's attribute of that name

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__wrapped__)  # so that `isinstance` gives the original's answer


def _plain(function: Function, open_range: Open, name: str) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        if (compiled_code.tracing or compiled_code.find_tracing())():
            compiled_code.note_function(name)
            return function(*args, **kwargs)
        scope = open_range(args, kwargs)
        if scope is None:
            return function(*args, **kwargs)
        with scope:
            result = function(*args, **kwargs)
            scope.set_result(result)
        return result

    return call


def _coroutine_function(function: Function, open_range: Open) -> Function:
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        scope = open_range(args, kwargs)
        if scope is None:
            return await function(*args, **kwargs)
        with scope:
            result = await function(*args, **kwargs)
            scope.set_result(result)
        return result

    return call_async


def _loop(function: Function, open_range: Open) -> Function:
    """The range is the caller's work on each element, not the time to yield it."""
    if inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
        raise TypeError("`loop` is for iterators of a plain `for`, and this is asynchronous")

    def elements(iterable: Iterable[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
        iterator = iter(iterable)
        try:
            for element in iterator:
                scope = open_range(args, kwargs)
                if scope is None:
                    yield element
                    continue
                with scope:
                    scope.set_result(element)
                    yield element
        finally:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    def call(*args: Any, **kwargs: Any) -> Any:
        return elements(function(*args, **kwargs), args, kwargs)

    return call
