"""The open ranges of a thread or an asyncio task: a node in the tree of its paths."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, cast

from perfharness import host_probe
from perfharness.recorder.cpu_marks import CpuMarks
from perfharness.recorder.ranges import Range

if TYPE_CHECKING:
    from perfharness.recorder.events import Sink

COUNTS = ("ranges", "batches", "items", "deleted_ranges", "failed_batches")
"""Counts of written events; a complete trace has at least as many."""


def _root() -> Range:
    root = Range(cast("Range", None), "")
    root.parent = root
    return root


@dataclass(eq=False, slots=True)
class Stack:
    """Open ranges and counts of a thread (lane 0) or of one of its asyncio tasks (lane 1, 2, …).

    Attributes:
        lanes, free, of_task: stacks for tasks, numbers of the free ones, stack by task (in lane 0 only).
        task: owner of a lane, from its first range to the end of its last.
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
    free: list[int] = field(default_factory=list)
    of_task: dict[object, Stack] = field(default_factory=dict)
    task: object = None

    def __post_init__(self) -> None:
        self.node = self.root

    @property
    def is_in_batch(self) -> bool:
        """Whether a batch is open."""
        return any(node.is_batch for node in self.open_ranges())

    def counts(self) -> Counter[str]:
        """Return `COUNTS`."""
        return Counter({name: getattr(self, name) for name in COUNTS})

    def open_ranges(self) -> list[Range]:
        """List the open ranges, innermost first."""
        found, node = [], self.node
        while node is not self.root:
            found.append(node)
            node = node.parent
        return found

    def push_again(self) -> None:
        """Write the begins of the open ranges, outermost first."""
        for node in reversed(self.open_ranges()):
            if node.sink is not None:
                node.sink.push(node.attributes)

    def take_lane(self, task: object, recorder: str) -> Stack:
        """Give a task the first free lane, or a new one."""
        if not self.free:
            self.lanes.append(Stack(len(self.lanes) + 1, self.marks))
            self.free.append(len(self.lanes))
            host_probe.follow(self.lanes[-1], recorder)
        lane = self.of_task[task] = self.lanes[heappop(self.free) - 1]
        lane.task = task
        return lane

    def release(self, lane: Stack) -> None:
        """Free a lane when the last range of its task ends."""
        del self.of_task[lane.task]
        lane.task = None
        heappush(self.free, lane.lane)

    def forget_prepared(self) -> None:
        """Have every range prepared again, except open ones."""
        self.prepared = 0
        for node in (self.root, *self.open_ranges()):
            node.children, node.batches = {}, {}

    def begin_in_child(self) -> None:
        """Begin in a forked child, where open ranges end without an event."""
        self.forget_prepared()
        self.sinks = {}
        for name in COUNTS:
            setattr(self, name, 0)
        for node in self.open_ranges():
            node.push = node.pop = node.sink = node.times = None
            node.is_active = False
            node.is_inherited = True


@cache
def follow_asyncio() -> tuple[Collection[object], Callable[[], object | None]]:
    """Import asyncio (30 to 100 ms).

    Returns a collection that is true while any thread runs a task, and a function that returns the running task, or
    None in plain code and callbacks of the loop. Until Python 3.13 the collection is asyncio's table of running tasks:
    its truth value takes a tenth of the time of a look-up. Later versions hide the table; there it is always true.
    """
    import asyncio

    get_loop: Callable[[], Any] = asyncio._get_running_loop
    if sys.version_info >= (3, 14):
        return ("perhaps",), lambda: None if get_loop() is None else asyncio.current_task()
    task_of_loop: dict[Any, object] = asyncio.tasks._current_tasks  # type: ignore[attr-defined]
    return task_of_loop, lambda: task_of_loop.get(get_loop())
