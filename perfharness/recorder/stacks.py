"""The stacks of open ranges: one per thread, and one per asyncio task with open ranges.

A stack is a position in a tree of the paths that were ever open on it (`pipeline / batch / stage`). A push goes down
one node and a pop goes up one: nothing is allocated, and everything prepared for a range waits in its node. A node is
open at most once at a time, so the node also holds the state of the open range.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush  # names of our own: a script may have heapq's annotated
from typing import Any

from perfharness import host_probe
from perfharness.recorder.capture import Gate
from perfharness.recorder.channels import Channel
from perfharness.recorder.crowding import Crowding


class Node:
    """One path on one stack.

    `count` is how often it was pushed. `batches` and `items` are those completed below it since it was pushed; they
    move up when it is popped, and are dropped when it is deleted. `guard`: a pop has more to do than return to the
    parent: always for a batch, a range in another domain, the first of a task and the root (`always_guarded`), and
    while a block owns the range or a batch was popped into it. Of a stage also while it `looks` for its thread's times.
    """

    __slots__ = (
        "always_guarded",
        "attributes",
        "batch_children",
        "batches",
        "category",
        "channel",
        "children",
        "collecting_mark",
        "color",
        "compiling_mark",
        "count",
        "crowded_mark",
        "domain",
        "guard",
        "index",
        "is_batch",
        "items",
        "items_mark",
        "looks",
        "message",
        "owner",
        "parent",
        "pop",
        "process_mark",
        "push",
        "queued_mark",
        "ready_mark",
        "shared_mark",
    )

    def __init__(
        self,
        parent: Node | None,  # None makes a root
        message: str,
        domain: str | None = None,
        *,
        is_batch: bool = False,
        always_guarded: bool = True,
    ) -> None:
        self.parent: Node = parent or self
        self.message = message
        self.domain = domain  # None: the recorder's own
        self.is_batch = is_batch
        self.always_guarded = self.guard = always_guarded
        self.children: dict[Any, Node] = {}
        self.batch_children: dict[Any, Node] = {}  # separate: a plain range may have the same name
        self.index = 0  # of the batch that is open
        self.owner: object | None = None  # the `with` or loop that opened it and will close it
        self.count = 0
        self.batches = 0
        self.items = 0
        self.color = 0
        self.category = ""
        self.channel: Channel | None = None  # None where no tool records
        self.attributes: Any = None
        self.items_mark: Any = None  # its attributes, made with the first one
        self.shared_mark: Any = None
        self.looks = 0  # how often the end of a stage may still come too early for a reading of its thread's times
        self.ready_mark: Any = None  # of a batch
        self.queued_mark: Any = None  # of a batch
        self.process_mark: Any = None  # of a batch
        self.collecting_mark: Any = None  # of a batch
        self.compiling_mark: Any = None  # of a batch
        self.crowded_mark: Any = None  # of a batch
        # The channel's calls; None saves the call.
        self.push: Callable[[Any], object] | None = None
        self.pop: Callable[[], object] | None = None

    @property
    def label(self) -> str:
        """Name of the open range in messages and `recorder.json`: `batch_3`, `stage`."""
        return f"{self.message}_{self.index}" if self.is_batch else self.message

    def walk(self) -> Iterator[Node]:
        """The node itself and all below it."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            # Copies, for another thread or a signal's handler may be adding, even while a list of them is made.
            pending.extend(node.children.copy().values())
            pending.extend(node.batch_children.copy().values())


NODES_KEPT = 4096
"""Most prepared ranges that a stack keeps: names may be unbounded. Beyond it, those that are not open are dropped."""


class RangeStack:
    """A stack: the innermost open node of its tree, or the root.

    `lane` is 0 for the thread's own stack and otherwise the lane that a task holds while it has open ranges.
    """

    __slots__ = (
        "channels",
        "deleted",
        "gate",
        "lane",
        "node",
        "prepared",
        "prune_at",
        "pruned",
        "root",
        "task",
        "thread",
    )

    def __init__(self, thread: ThreadStacks, lane: int) -> None:
        self.thread = thread
        self.lane = lane
        self.task: object | None = None  # the holder of the lane
        self.root = Node(None, "")
        self.node = self.root
        self.channels: dict[str | None, Channel | None] = {}
        self.gate: Gate | None = None
        self.deleted = 0
        self.prepared = 0  # nodes made since the tree was last pruned
        self.prune_at = NODES_KEPT
        self.pruned = Totals()  # counts of nodes that were removed from the tree

    def prune(self) -> None:
        """Drop all nodes but the open ones; a later push makes them again. Their counts are kept.

        A signal may call a handler meanwhile that makes ranges: it must not come here too, nor change what is walked.
        """
        self.prepared = 0
        nodes = [self.root, *reversed(self.open_nodes())]
        self.prune_at = max(NODES_KEPT, len(nodes))
        kept = set(nodes)
        before = []
        for node in nodes:
            before += [node.children, node.batch_children]
            node.children = {key: child for key, child in node.children.copy().items() if child in kept}
            node.batch_children = {key: child for key, child in node.batch_children.copy().items() if child in kept}
        for children in before:
            for child in children.values():
                if child not in kept:
                    for node in child.walk():
                        self.pruned.add_node(node)

    def open_nodes(self) -> list[Node]:
        """The open ranges, innermost first."""
        nodes = []
        node = self.node
        while node is not self.root:
            nodes.append(node)
            node = node.parent
        return nodes

    def forget_channels(self) -> None:
        """Prepare every range again; ranges open now were begun in the parent process and end here without an event."""
        self.channels, self.gate = {}, None
        inside: dict[Any, Node] = {}
        for node in self.open_nodes():
            node.children, node.batch_children = inside, {}
            node.channel = node.push = node.pop = None
            inside = {_INHERITED: node}
        self.root.children, self.root.batch_children = inside, {}


_INHERITED = object()
"""The key of an open range that no push finds."""


class ThreadStacks:
    """The stacks of one thread: its own, and one for each task of its event loop that has open ranges.

    Stacks of tasks go back to a pool when they are empty, so there are as many as tasks were concurrently inside
    ranges, and each keeps its prepared ranges.
    """

    def __init__(self, recorder: str = "") -> None:
        self.recorder = recorder
        self.own = RangeStack(self, 0)
        self.ready_time_due_ns = 0
        self.crowding = Crowding()
        self.of_task: dict[object, RangeStack] = {}
        self.ended: deque[RangeStack] = deque()
        """Lanes whose range was ended, perhaps by another thread; they are free."""

        self._lanes: list[RangeStack] = []
        self._free: list[int] = []

    def take_lane(self, task: object) -> RangeStack:
        """A stack with the lowest free lane, for a task that has none."""
        if self._free:
            stack = self._lanes[heappop(self._free) - 1]
        else:
            stack = RangeStack(self, len(self._lanes) + 1)
            self._lanes.append(stack)
            host_probe.follow(stack, self.recorder)
        stack.task = task
        self.of_task[task] = stack
        return stack

    def release_lane(self, stack: RangeStack) -> None:
        """Free the lane of a stack whose last range was popped."""
        del self.of_task[stack.task]
        stack.task = None
        heappush(self._free, stack.lane)

    def take_ended_lane(self) -> RangeStack:
        """A lane for one range that may end on another thread; `ended` takes it back."""
        while self.ended:
            self.release_lane(self.ended.popleft())
        return self.take_lane(object())

    def stacks(self) -> list[RangeStack]:
        """All stacks of the thread."""
        return [self.own, *self._lanes]


class Totals:
    """Counts of stacks, added up."""

    def __init__(self) -> None:
        self.ranges = 0  # pushed, deleted ones included: the number in the trace
        self.batches = 0  # popped and not deleted
        self.items = 0  # of these batches
        self.deleted_ranges = 0  # popped with delete_range; those below one are not counted again

    def add(self, thread: ThreadStacks) -> None:
        """Add the stacks of a thread."""
        for stack in thread.stacks():
            self.deleted_ranges += stack.deleted
            self.ranges += stack.pruned.ranges
            self.batches += stack.pruned.batches
            self.items += stack.pruned.items
            for node in stack.root.walk():
                self.add_node(node)

    def add_node(self, node: Node) -> None:
        """Add what one node counts."""
        self.ranges += node.count
        self.batches += node.batches
        self.items += node.items


class StackRegistry:
    """The stacks of all threads of one recorder. Ended threads with nothing open are summed."""

    def __init__(self) -> None:
        self.threads = 0
        self._ended = Totals()
        self._alive: list[tuple[weakref.ref[Any], ThreadStacks]] = []

    def add(self, thread: ThreadStacks, token: object) -> None:
        """Register a new thread; `token` must live as long as the thread does. Call with the recorder's lock held."""
        self.threads += 1
        kept = []
        for reference, stacks in self._alive:
            if reference() is None and not any(stack.open_nodes() for stack in stacks.stacks()):
                self._ended.add(stacks)
            else:
                kept.append((reference, stacks))
        self._alive = [*kept, (weakref.ref(token), thread)]

    def reset(self, survivor: ThreadStacks | None) -> None:
        """Drop all threads but one, and reset its counts."""
        self._ended = Totals()
        self._alive = [(reference, stacks) for reference, stacks in self._alive if stacks is survivor]
        self.threads = len(self._alive)
        for stack in survivor.stacks() if survivor else ():
            stack.deleted = 0
            stack.pruned = Totals()
            for node in stack.root.walk():
                node.count = node.batches = node.items = 0

    def alive(self) -> list[ThreadStacks]:
        """The threads that may still push or have open ranges."""
        return [stacks for _, stacks in self._alive]

    def totals(self) -> Totals:
        """The counts of all threads until now."""
        totals = Totals()
        totals.__dict__.update(self._ended.__dict__)
        for thread in self.alive():
            totals.add(thread)
        return totals
