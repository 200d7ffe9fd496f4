"""The open ranges of a thread or of an asyncio task: a place in a tree of the paths that were ever open on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappush
from typing import TYPE_CHECKING, Any, cast

from perfharness.recorder.cpu_marks import CpuMarks

if TYPE_CHECKING:
    from perfharness.recorder.events import Sink

COUNTS = ("ranges", "batches", "items", "deleted_ranges", "failed_batches")
"""What a stack counts: events that it has written, so that a trace must hold at least as many."""


@dataclass(eq=False, slots=True)
class Range:
    """A path on a stack; open at most once at a time.

    Attributes:
        children, batches: the ranges below, by key or by the block that owns them.
        owner: the block that closes it, or None.
        is_inherited: begun before a fork; the events and counts are the parent process's.
        has_end: its end has more to do than to pop: a batch, the first range of a task, or one with a hook.
        is_checked: the same for `pop_range`, which must not end a block's range, nor one of another domain.
        push, pop, attributes, write_items: calls of the sink and what they take; None where nothing records.
    """

    parent: Range
    message: str
    domain: str | None = None
    is_batch: bool = False
    has_end: bool = False
    is_checked: bool = False
    is_inherited: bool = False
    owner: object = None
    category: str = ""
    index: int = 0
    begin_ns: int = 0
    children: dict[Any, Range] = field(default_factory=dict)
    batches: dict[Any, Range] = field(default_factory=dict)
    sink: Sink | None = None
    push: Callable[..., object] | None = None
    pop: Callable[[], object] | None = None
    attributes: Any = None
    write_items: Callable[[int], object] | None = None

    @property
    def label(self) -> str:
        """Name of the open range: `batch_3`, `stage`."""
        return f"{self.message}_{self.index}" if self.is_batch else self.message


def _root() -> Range:
    root = Range(cast("Range", None), "", is_checked=True)
    root.parent = root
    return root


@dataclass(eq=False, slots=True)
class Stack:
    """The open ranges of a thread (lane 0) or of one of its asyncio tasks (lane 1, 2, …), and what was counted.

    A task has a lane while it has ranges open. Lanes are used again, and keep what they have prepared.

    Attributes:
        own: of a lane, the thread's own stack, which has its `lanes`, and those that are `free`.
        task: of a lane, its holder.
        prepared: ranges made since the last `forget_prepared`.
    """

    own: Stack | None = None
    lane: int = 0
    marks: CpuMarks = field(default_factory=CpuMarks)
    thread: threading.Thread = field(default_factory=threading.current_thread)
    root: Range = field(default_factory=_root)
    node: Range = field(init=False)
    sinks: dict[str | None, Sink | None] = field(default_factory=dict)
    prepared: int = 0
    ranges: int = 0
    batches: int = 0
    items: int = 0
    deleted_ranges: int = 0
    failed_batches: int = 0
    task: object = None
    lanes: list[Stack] = field(default_factory=list)
    of_task: dict[object, Stack] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.node = self.root

    def open_ranges(self) -> list[Range]:
        """List the open ranges, innermost first."""
        found, node = [], self.node
        while node is not self.root:
            found.append(node)
            node = node.parent
        return found

    def forget_prepared(self) -> None:
        """Have every range prepared again; those that are open stay."""
        self.prepared = 0
        for node in (self.root, *self.open_ranges()):
            node.children, node.batches = {}, {}

    def begin_in_child(self) -> None:
        """Begin in a forked child, where the open ranges end without an event."""
        self.forget_prepared()
        self.sinks = {}
        for name in COUNTS:
            setattr(self, name, 0)
        for node in self.open_ranges():
            node.push = node.pop = node.sink = None
            node.is_inherited = True

    def release(self) -> None:
        """Free the lane of a task with nothing open."""
        if self.own is not None and self.task is not None and self.node is self.root:
            del self.own.of_task[self.task]
            self.task = None
            heappush(self.own.free, self.lane)
