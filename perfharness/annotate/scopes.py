"""The range of one call. Unlike the recorder's own blocks it never raises into the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from perfharness.errors import RecorderError
from perfharness.own_work import own_work
from perfharness.recorder.checks import check_index, check_items
from perfharness.recorder.scopes import BatchScope, RangeScope

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from perfharness.annotate.expressions import Target
    from perfharness.recorder.core import RecorderCore

ENDS = (StopIteration, StopAsyncIteration)
"""A call that ends by one of these yielded nothing; its range is deleted."""


class Scope(Protocol):
    """A range, entered once."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def set_result(self, result: object) -> None:
        """Pass on what the call returned."""


class StageCall(RangeScope):
    """A stage. One object per call, so that none can close the range of another task or thread."""

    __slots__ = ()

    def __enter__(self) -> Self:
        own = own_work.thread
        own.busy = True
        try:
            return RangeScope.__enter__(self)
        finally:
            own.busy = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own = own_work.thread
        before, own.busy = own.busy, True  # already busy where an unreferenced generator is closed
        try:
            self._core.leave(self, None, True, kind is not None and issubclass(kind, ENDS))
        finally:
            own.busy = before

    def set_result(self, result: object) -> None:
        """Ignored by a stage."""


class WithinCall(StageCall):
    """The `within` range, inside of which all others are recorded."""

    __slots__ = ("_enter_within",)

    def __init__(self, core: RecorderCore, name: str, enter_within: Callable[[int], None]) -> None:
        super().__init__(core, name)
        self._enter_within = enter_within

    def __enter__(self) -> Self:
        self._enter_within(1)
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._enter_within(-1)
        super().__exit__(kind, error, trace)


class BatchCall(BatchScope):
    """A batch with the annotation's index and items, evaluated outside of the range where possible."""

    __slots__ = ("_args", "_enter_within", "_function", "_kwargs", "_target")

    def __init__(
        self,
        core: RecorderCore,
        target: Target,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        enter_within: Callable[[int], None] | None,
    ) -> None:
        self._target = target
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._enter_within = enter_within
        items = target.fixed_items
        if target.items is not None and not target.items.uses_result:
            items = self._count(None)
        super().__init__(core, target.annotation.name, self._next_index(), items)

    def __enter__(self) -> Self:
        own = own_work.thread
        own.busy = True
        try:
            if self._enter_within is not None:
                self._enter_within(1)
            return super().__enter__()
        finally:
            own.busy = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own = own_work.thread
        before, own.busy = own.busy, True
        try:
            if self._enter_within is not None:
                self._enter_within(-1)
            stopped = kind is None or issubclass(kind, GeneratorExit)
            self._core.leave(self, self.total_items, True, not stopped)
        finally:
            own.busy = before

    def set_result(self, result: object) -> None:
        """Count the items, where their expression uses the result."""
        if self._target.items is None or not self._target.items.uses_result:
            return
        own = own_work.thread
        own.busy = True
        try:
            self.total_items = self._count(result)
        finally:
            own.busy = False

    def _count(self, result: object) -> int | None:
        expression = self._target.items
        assert expression is not None
        try:
            return check_items(expression.value(self._function, self._args, self._kwargs, result), "of this call")
        except Exception as error:
            self._note(f"items = {expression.text!r}", error)
            return None

    def _next_index(self) -> int:
        counted = next(self._target.indices)
        expression = self._target.index
        if expression is None:
            return counted
        try:
            return check_index(expression.value(self._function, self._args, self._kwargs), "of this call")
        except Exception as error:
            self._note(f"index = {expression.text!r}", error)
            return counted

    def _note(self, what: str, error: Exception) -> None:
        if self._target.note.items_problem is None:
            kind = "" if isinstance(error, RecorderError) else f"{type(error).__name__}: "
            self._target.note.items_problem = f"{what}: {kind}{error}"
