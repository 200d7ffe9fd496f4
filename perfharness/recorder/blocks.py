"""Ranges and batches as `with` blocks, and functions with each call in a range."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from perfharness import compiled_code
from perfharness.errors import RecorderError
from perfharness.recorder.names import RangeKey, checked_items, parts_of
from perfharness.steps import async_generator_in_steps, generator_in_steps

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from perfharness.recorder.core import Core

Function = Callable[..., Any]


class RangeBlock:
    """A range as a `with` block, without state: it can be entered again while open."""

    __slots__ = ("_key", "_recorder")

    def __init__(self, recorder: Core, key: RangeKey) -> None:
        self._recorder, self._key = recorder, key

    def __str__(self) -> str:
        return f"range {parts_of(self._key)[0]!r}"

    def __enter__(self) -> Self:
        recorder = self._recorder
        stack = recorder._local.stack
        if recorder._running:
            stack = recorder._stack_to_push(stack)
        try:
            node = stack.node.children[self]
        except KeyError:
            node = recorder._prepare(stack, self._key, owner=self)
        stack.ranges += 1
        stack.node = node
        if node.is_active:
            if node.push is not None:
                node.push(node.attributes)
            if node.times is not None:
                node.begin_ns = perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        recorder = self._recorder
        stack = recorder._local.stack
        if recorder._running:
            stack = recorder._stack_to_pop(stack)
        node = stack.node
        if node.owner is self:
            stack.node = node.parent
            if node.is_active:
                if node.times is not None:
                    node.times.append(perf_counter_ns() - node.begin_ns)
                if node.pop is not None:
                    node.pop()
        else:
            recorder._leave(stack, self, kind is not None)


class BatchBlock:
    """A batch as a `with` block.

    Attributes:
        batch_idx: index of the batch.
        total_items: items of the batch; can be set until the block ends.
        delete_range: whether to exclude the batch from the results.
        shared: whether other ranks work on the same items.
    """

    __slots__ = ("_key", "_recorder", "batch_idx", "delete_range", "shared", "total_items")

    def __init__(self, recorder: Core, key: RangeKey, batch_idx: int, total_items: int | None, shared: bool) -> None:
        self._recorder, self._key = recorder, key
        self.batch_idx, self.total_items, self.delete_range, self.shared = batch_idx, total_items, False, shared

    def __str__(self) -> str:
        return f"batch '{parts_of(self._key)[0]}_{self.batch_idx}'"

    def __enter__(self) -> Self:
        checked_items(self.total_items, self)  # before the batch is opened
        recorder = self._recorder
        stack = recorder._local.stack
        if recorder._running:
            stack = recorder._stack_to_push(stack)
        recorder._push_batch(stack, self._key, self.batch_idx, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # `break` in a loop over `batches` raises GeneratorExit in its generator: the batch did not fail.
        raised, failed = kind is not None, kind is not None and not issubclass(kind, GeneratorExit)
        recorder = self._recorder
        stack = recorder._local.stack
        if recorder._running:
            stack = recorder._stack_to_pop(stack)
        try:
            items = checked_items(self.total_items, self)
        except RecorderError:
            recorder._leave(stack, self, True, None, True, False, failed)
            if failed:
                return  # keep the exception in flight
            raise
        recorder._leave(stack, self, raised, items, self.delete_range or failed, self.shared, failed)


def annotated(function: Function, name: str, block: RangeBlock) -> Function:
    """Wrap a function: each call, or step of a generator, runs in the block."""
    wrapper: Function
    if inspect.isasyncgenfunction(function):
        wrapper = async_generator_in_steps(function, lambda args, kwargs: block)
    elif inspect.isgeneratorfunction(function):
        wrapper = generator_in_steps(function, lambda args, kwargs: block)
    elif inspect.iscoroutinefunction(function):

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with block:
                return await function(*args, **kwargs)

    else:

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if compiled_code.tracing is not None and compiled_code.tracing():
                compiled_code.note_range(name)
                return function(*args, **kwargs)
            with block:
                return function(*args, **kwargs)

    return functools.wraps(function)(wrapper)
