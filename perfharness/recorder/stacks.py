"""The open ranges of a thread or an asyncio task: a node in the tree of its paths."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, cast

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

    def open_ranges(self) -> list[Range]:
        """List the open ranges, innermost first."""
        found, node = [], self.node
        while node is not self.root:
            found.append(node)
            node = node.parent
        return found

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
