"""The range of one call. Unlike the recorder's own blocks it never raises into the pipeline."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perfharness.errors import RecorderError
from perfharness.own_work import own_work
from perfharness.recorder import PerfRecorder
from perfharness.recorder.names import checked_index, checked_items

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from perfharness.annotate.expressions import Expression, Target

CountWithin = Callable[[int], None]
"""Counts the open `within` ranges; called with 1 and -1."""


class StageCall:
    """A stage, open from the start.

    Args:
        count_within: given where it is the `within` range, inside of which all others are recorded.
    """

    __slots__ = ("_block", "_count_within")

    def __init__(
        self,
        recorder: PerfRecorder,
        name: str,
        count_within: CountWithin | None = None,
        *,
        category: str | None = None,
    ) -> None:
        self._block = recorder.range(name, category=category)
        self._count_within = count_within
        if count_within is not None:
            count_within(1)
        self._block.__enter__()

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
            with suppress(RecorderError):
                self._block.__exit__(kind, error, trace)
        finally:
            own.busy -= 1

    def set_result(self, result: object) -> None:
        """Ignored by a stage."""


class BatchCall:
    """A batch, open from the start, with the annotation's index and items; evaluated outside of it where possible."""

    __slots__ = ("_block", "_call", "_count_within", "_target")

    def __init__(
        self,
        recorder: PerfRecorder,
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
        self._block = recorder.batch(self._next_index(), items, message=target.annotation.name)
        if count_within is not None:
            count_within(1)
        self._block.__enter__()

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
            with suppress(RecorderError):
                self._block.__exit__(kind, error, trace)
        finally:
            own.busy -= 1

    def set_result(self, result: object) -> None:
        """Count the items, where their expression uses the result."""
        expression = self._target.items
        if expression is not None and expression.uses_result:
            with own_work.thread:
                self._block.total_items = self._count(expression, result)

    def _count(self, expression: Expression, result: object) -> int | None:
        try:
            return checked_items(expression.value(*self._call, result), "of this call")
        except Exception as error:
            self._note("items", expression, error)
            return None

    def _next_index(self) -> int:
        counted = next(self._target.indices)
        expression = self._target.index
        if expression is None:
            return counted
        try:
            return checked_index(expression.value(*self._call), "of this call")
        except Exception as error:
            self._note("index", expression, error)
            return counted

    def _note(self, what: str, expression: Expression, error: Exception) -> None:
        if self._target.note.items_problem is None:
            kind = "" if isinstance(error, RecorderError) else f"{type(error).__name__}: "
            self._target.note.items_problem = f"{what} = {expression.text!r}: {kind}{error}"


Scope = StageCall | BatchCall
