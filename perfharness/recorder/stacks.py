"""The open ranges of a thread or of an asyncio task: a place in a tree of the paths that were ever open on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from perfharness.recorder.cpu_marks import CpuMarks

if TYPE_CHECKING:
    from perfharness.recorder.events import Sink

COUNTS = ("ranges", "batches", "items", "deleted_ranges", "failed_batches")
"""What a stack counts: events that it has written, so that a trace must hold at least as many."""


@dataclass(eq=False, slots=True)
class Range:
    """A path on a stack; open at most once at a time.

    Attributes:
        owner: the block that closes it, or None.
        is_plain: pop_range has nothing to check or to do but to pop.
        is_inherited: begun before a fork; the events and counts are the parent process's.
        children, batches: the ranges below, by key or by the block that owns them.
        push, pop, attributes, write_items: calls of the sink and what they take; None where nothing records.
    """

    parent: Range
    message: str
    domain: str | None = None
    owner: object = None
    is_batch: bool = False
    is_plain: bool = False
    is_inherited: bool = False
    category: str = ""
    index: int = 0
    items: int | None = None
    is_deleted: bool = False
    begin_ns: int = 0
    children: dict[Any, Range] = field(default_factory=dict)
    batches: dict[Any, Range] = field(default_factory=dict)
    sink: Sink | None = None
    push: Callable[[Any], object] | None = None
    pop: Callable[[], object] | None = None
    attributes: Any = None
    write_items: Callable[[int], object] | None = None

    @property
    def label(self) -> str:
        """Name of the open range: `batch_3`, `stage`."""
        return f"{self.message}_{self.index}" if self.is_batch else self.message

    def __str__(self) -> str:
        return f"{'batch' if self.is_batch else 'range'} {self.label!r}"


def _root() -> Range:
    root = Range(cast("Range", None), "")
    root.parent = root
    return root


@dataclass(eq=False, slots=True)
class Stack:
    """The open ranges of a thread (lane 0) or of one of its asyncio tasks (lane 1, 2, …), and what was counted.

    Attributes:
        lanes: the stacks for tasks of the thread's own stack.
        of_task: those that have a task, by its id.
        task: of a lane, its task. It keeps the lane until another task needs one and it has nothing open.
        prepared: ranges made since the last `forget_prepared`.
    """

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
    lanes: list[Stack] = field(default_factory=list)
    of_task: dict[int, Stack] = field(default_factory=dict)
    task: ref[Any] | None = None

    def __post_init__(self) -> None:
        self.node = self.root

    def open_ranges(self) -> list[Range]:
        """List the open ranges, innermost first."""
        found, node = [], self.node
        while node is not self.root:
            found.append(node)
            node = node.parent
        return found

    def take_lane(self, task: object) -> tuple[Stack, bool]:
        """Give a task the first lane with nothing open; return also whether the lane is new."""
        lane = next((one for one in self.lanes if one.node is one.root), None)
        is_new = lane is None
        if lane is None:
            lane = Stack(len(self.lanes) + 1, self.marks)
            self.lanes.append(lane)
        elif lane.task is not None and (former := lane.task()) is not None:
            self.of_task.pop(id(former), None)
        of_task, key = self.of_task, id(task)
        lane.task = ref(task, lambda _: of_task.pop(key, None))
        of_task[key] = lane
        return lane, is_new

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
