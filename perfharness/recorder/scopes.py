"""The `with` blocks, loops and decorators over a recorder's push and pop."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfharness import compiled_code
from perfharness.errors import RecorderError
from perfharness.recorder.spec import USUAL_END, RangeKey, RangeSpec, check_items
from perfharness.steps import async_generator_in_steps, generator_in_steps

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from perfharness.recorder.core import RecorderCore


class RangeScope:
    """A range as a `with` block. It has no state of its own, so it may be entered again while it is open."""

    __slots__ = ("_core", "_key")

    def __init__(self, core: RecorderCore, key: RangeKey) -> None:
        self._core = core
        self._key = key

    @property
    def name(self) -> str:
        """Of the range."""
        return RangeSpec.of(self._key).message

    def __str__(self) -> str:
        return f"range {self.name!r}"

    def __enter__(self) -> Self:
        core = self._core
        stack = core.stack_to_push()
        try:
            node = stack.node.children[self._key]
        except (KeyError, TypeError):
            node = core.add_node(stack, self._key)
        node.count += 1
        node.owner = self
        node.guard = True
        stack.node = node
        if node.push is not None:
            node.push(node.attributes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._core.leave(self, None, kind is not None, False)

    def abandon(self) -> None:
        """Close the range and exclude it from the results."""
        self._core.leave(self, None, True, True)


class BatchScope:
    """A batch as a `with` block.

    Attributes:
        batch_idx: index of the batch.
        total_items: how many items the batch had; may be set until the block ends.
        delete_range: set it to exclude the batch from the results.
        shared: whether other ranks work on the same items.
    """

    __slots__ = ("_core", "_key", "batch_idx", "delete_range", "shared", "total_items")

    def __init__(
        self, core: RecorderCore, key: RangeKey, batch_idx: int, total_items: int | None, shared: bool = False
    ) -> None:
        self._core = core
        self._key = key
        self.batch_idx = batch_idx
        self.total_items = total_items
        self.delete_range = False
        self.shared = shared

    def __str__(self) -> str:
        return f"batch {self._label!r}"

    @property
    def _label(self) -> str:
        return f"{RangeSpec.of(self._key).message}_{self.batch_idx}"

    def __enter__(self) -> Self:
        core = self._core
        self._checked_items()  # before anything is open
        core.push_batch(core.stack_to_push(), self._key, self.batch_idx, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and type(self.total_items) is int and 0 <= self.total_items < USUAL_END:
            self._core.leave(self, self.total_items, False, self.delete_range, self.shared)
            return
        # `break` in a loop over `batches` ends its generator this way; the batch did not fail.
        stopped = kind is not None and issubclass(kind, GeneratorExit)
        failed = kind is not None and not stopped
        try:
            items = self._checked_items()
        except RecorderError:
            self._core.leave(self, None, True, True)
            if failed:
                return  # the exception being raised matters more
            raise
        self._core.leave(self, items, kind is not None, self.delete_range or failed, self.shared)

    def _checked_items(self) -> int | None:
        items = self.total_items
        if items is None or (type(items) is int and 0 <= items < USUAL_END):
            return items
        return check_items(items, self._label)


def annotate_function(function: Callable[..., Any], scope: RangeScope) -> Any:
    """A function whose every call is a range; of a generator every step is."""
    step = _Step(scope)
    name = scope.name
    if inspect.isasyncgenfunction(function):
        return functools.wraps(function)(async_generator_in_steps(function, lambda args, kwargs: step))
    if inspect.isgeneratorfunction(function):
        return functools.wraps(function)(generator_in_steps(function, lambda args, kwargs: step))
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with scope:
                return await function(*args, **kwargs)

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if compiled_code.tracing is not None and compiled_code.tracing():
            compiled_code.note_range(name)
            return function(*args, **kwargs)
        with scope:
            return function(*args, **kwargs)

    return call


class _Step:
    """One step of a generator as a range. The last step, which yields nothing, is deleted."""

    def __init__(self, scope: RangeScope) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, (StopIteration, StopAsyncIteration)):
            self._scope.abandon()
        else:
            self._scope.__exit__(kind, error, trace)

    def set_result(self, result: object) -> None:
        """Not used."""
