"""A path on a stack, prepared once for all its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfharness.recorder.events import Sink


@dataclass(eq=False, slots=True)
class Range:
    """A path on a stack; open at most once at a time.

    Attributes:
        owner: the block that closes it, or None.
        is_plain: `pop_range` without arguments needs no checks.
        is_inherited: begun before a fork; its events and counts belong to the parent process.
        children, batches: ranges inside it, by key or by the owning block.
        begin_ns: time of its begin, if it is timed.
        times: its durations, for metrics; None if they are off.
        push, pop, attributes, write_items: calls of the sink and their arguments; None if nothing records.
        is_active: whether push, pop or times is set.
    """

    parent: Range
    message: str
    domain: str | None = None
    color: int = 0
    owner: object = None
    is_batch: bool = False
    is_plain: bool = False
    is_inherited: bool = False
    category: str = ""
    index: int = 0
    items: int | None = None
    is_deleted: bool = False
    begin_ns: int = 0
    times: list[int] | None = None
    is_active: bool = False
    children: dict[Any, Range] = field(default_factory=dict)
    batches: dict[Any, Range] = field(default_factory=dict)
    sink: Sink | None = None
    push: Callable[[Any], object] | None = None
    pop: Callable[[], object] | None = None
    attributes: Any = None
    write_items: Callable[[int], object] | None = None

    def begin(self) -> None:
        """Write and time its begin."""
        if self.is_active:
            if self.push is not None:
                self.push(self.attributes)
            if self.times is not None:
                self.begin_ns = perf_counter_ns()

    def end(self) -> None:
        """Write and time its end."""
        if self.is_active:
            if self.times is not None:
                self.times.append(perf_counter_ns() - self.begin_ns)
            if self.pop is not None:
                self.pop()

    @property
    def label(self) -> str:
        """Name of the open range: `batch_3`, `stage`."""
        return f"{self.message}_{self.index}" if self.is_batch else self.message

    def __str__(self) -> str:
        return f"{'batch' if self.is_batch else 'range'} {self.label!r}"
