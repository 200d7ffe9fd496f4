"""The range of one call. Unlike the recorder's own blocks it never raises into the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfharness.errors import RecorderError
from perfharness.own_work import own_work
from perfharness.recorder.scopes import BatchScope, RangeScope
from perfharness.recorder.spec import RangeKey, check_index, check_items

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from perfharness.annotate.expressions import Expression, Target
    from perfharness.recorder.core import RecorderCore

ENDS = (StopIteration, StopAsyncIteration)
"""A call that ends by one of these yielded nothing; its range is deleted."""

CountWithin = Callable[[int], None]
"""Counts the open `within` ranges; called with 1 and -1."""


class StageCall(RangeScope):
    """A stage, open from the start. One object per call, so that none can close the range of another task or thread.

    Args:
        count_within: given where it is the `within` range, inside of which all others are recorded.
    """

    __slots__ = ("_count_within",)

    def __init__(self, core: RecorderCore, key: RangeKey, count_within: CountWithin | None = None) -> None:
        self._core = core
        self._key = key
        self._count_within = count_within
        if count_within is not None:
            count_within(1)
        RangeScope.__enter__(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own = own_work.thread
        own.busy += 1  # as `with own`, without its calls
        try:
            if self._count_within is not None:
                self._count_within(-1)
            self._core.leave(self, None, True, kind is not None and issubclass(kind, ENDS))
        finally:
            own.busy -= 1

    def set_result(self, result: object) -> None:
        """Ignored by a stage."""


class BatchCall(BatchScope):
    """A batch, open from the start, with the annotation's index and items; evaluated outside of it where possible."""

    __slots__ = ("_call", "_count_within", "_target")

    def __init__(
        self,
        core: RecorderCore,
        target: Target,
        call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]],
        count_within: CountWithin | None,
    ) -> None:
        self._target = target
        self._call = call
        self._count_within = count_within
        items = target.fixed_items
        if target.items is not None and not target.items.uses_result:
            items = self._count(target.items, None)
        super().__init__(core, target.annotation.name, self._next_index(), items)
        if count_within is not None:
            count_within(1)
        BatchScope.__enter__(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own = own_work.thread
        own.busy += 1
        try:
            if self._count_within is not None:
                self._count_within(-1)
            stopped = kind is None or issubclass(kind, GeneratorExit)
            self._core.leave(self, self.total_items, True, not stopped)
        finally:
            own.busy -= 1

    def set_result(self, result: object) -> None:
        """Count the items, where their expression uses the result."""
        expression = self._target.items
        if expression is not None and expression.uses_result:
            with own_work.thread:
                self.total_items = self._count(expression, result)

    def _count(self, expression: Expression, result: object) -> int | None:
        try:
            return check_items(expression.value(*self._call, result), "of this call")
        except Exception as error:
            self._note("items", expression, error)
            return None

    def _next_index(self) -> int:
        counted = next(self._target.indices)
        expression = self._target.index
        if expression is None:
            return counted
        try:
            return check_index(expression.value(*self._call), "of this call")
        except Exception as error:
            self._note("index", expression, error)
            return counted

    def _note(self, what: str, expression: Expression, error: Exception) -> None:
        if self._target.note.items_problem is None:
            kind = "" if isinstance(error, RecorderError) else f"{type(error).__name__}: "
            self._target.note.items_problem = f"{what} = {expression.text!r}: {kind}{error}"


Scope = StageCall | BatchCall
