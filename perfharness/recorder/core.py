"""What happens to a range beyond the plain push and pop: stacks found and made, nodes prepared, ranges closed."""

from __future__ import annotations

import sys
import threading
from typing import NamedTuple

from perfharness.errors import RecorderError
from perfharness.model import conventions
from perfharness.recorder import tasks
from perfharness.recorder.channels import Channel, lane_of
from perfharness.recorder.checks import check_category_part, check_index, check_items, check_name
from perfharness.recorder.colors import Color, color_to_argb
from perfharness.recorder.nvtx_channels import choose_sink
from perfharness.recorder.stacks import Node, RangeStack, StackRegistry, ThreadStacks


class RangeSpec(NamedTuple):
    """The static part of a range; its domain is None where it is the recorder's."""

    message: str
    color: Color = None
    domain: str | None = None
    category: str | int | None = None

    @property
    def key(self) -> object:
        """Names its node among the children of another: the message alone where nothing else is given."""
        return self.message if self[1:] == (None, None, None) else self


class _Token:
    """Lives in a thread's local storage, so that its end tells the end of the thread."""

    __slots__ = ("__weakref__",)


class RecorderCore:
    """The stacks of a recorder and where they write."""

    def __init__(self, name: str, domain: str | None) -> None:
        check_category_part("recorder", name)
        self.name = name
        self.domain = domain
        self.sink = choose_sink()
        self.registry = StackRegistry()
        self.local = threading.local()  # stack: the thread's own; token
        self._lock = threading.Lock()
        self._announced: set[str | None] = set()
        self._channel(self.add_thread(), domain)  # tells the trace of the recorder, even if no range follows

    # ---- stacks ----

    def add_thread(self) -> RangeStack:
        """The stack of a thread that is here for the first time."""
        thread = ThreadStacks()
        token = self.local.token = _Token()
        self.local.stack = thread.own
        with self._lock:
            self.registry.add(thread, token)
        return thread.own

    def stack(self, *, take_lane: bool) -> RangeStack:
        """The stack of the running thread or task; see `tasks.stack_of_task`."""
        try:
            stack: RangeStack = self.local.stack
        except AttributeError:
            stack = self.add_thread()
        if "asyncio" in sys.modules and tasks.running_loop() is not None:
            stack = tasks.stack_of_task(stack, take_lane=take_lane)
        return stack

    def stack_of_owner(self, owner: object) -> RangeStack | None:
        """The stack on which `owner` has a range open: the running one, or that of another task of this thread.

        The event loop closes an abandoned asynchronous generator in a task of its own.
        """
        stack = self.stack(take_lane=False)
        if stack.node.owner is owner:
            return stack
        thread = stack.thread
        for candidate in (stack, thread.own, *thread.of_task.values()):
            if any(node.owner is owner for node in candidate.open_nodes()):
                return candidate
        return None

    def open_ranges(self) -> list[str]:
        """What is open, outermost first, on whichever thread."""
        return [
            node.label
            for thread in self.registry.alive()
            for stack in thread.stacks()
            for node in reversed(stack.open_nodes())
        ]

    def forget_counts(self) -> None:
        """Start counting anew, in a forked child: only the thread that forked lives on, with what it has open."""
        self._lock = threading.Lock()
        stack: RangeStack | None = getattr(self.local, "stack", None)
        self.registry.reset(stack.thread if stack is not None else None)

    # ---- nodes ----

    def node(self, stack: RangeStack, spec: RangeSpec) -> Node:
        """The node of a range below the innermost open one."""
        try:
            return stack.node.children[spec.key]
        except (KeyError, TypeError):
            return self.add_node(stack, spec, spec.key)

    def add_node(self, stack: RangeStack, spec: RangeSpec, key: object, *, is_batch: bool = False) -> Node:
        """Prepare a range that was not yet pushed here."""
        try:
            node = self._prepare(stack, spec, is_batch=is_batch)
            stack.node.children[key] = node
        except BaseException:
            if stack.lane and stack.node is stack.root:
                stack.thread.give_back(stack)  # taken for a range that is not to be
            raise
        return node

    def _prepare(self, stack: RangeStack, spec: RangeSpec, *, is_batch: bool) -> Node:
        check_name("range", spec.message)
        category = None if spec.category is None else str(spec.category)
        if category is not None:
            check_category_part(f"category of range {spec.message!r},", category)
        color = color_to_argb(spec.color, spec.message)
        node = Node(stack.node, spec.message, spec.domain, is_batch=is_batch)
        node.guard = node.needs_guard(stack)
        channel = self._channel(stack, self.domain if spec.domain is None else spec.domain)
        if channel is not None:
            node.channel, node.push, node.pop = channel, channel.push, channel.pop
            node.color = color
            node.category = conventions.category_name(self.name, category, stack.lane)
            prepare = channel.attributes_with_value if is_batch else channel.attributes
            node.attributes = prepare(spec.message, color, node.category)
        return node

    def _channel(self, stack: RangeStack, domain: str | None) -> Channel | None:
        try:
            return stack.channels[domain]
        except KeyError:
            pass
        channel = self.sink.channel(domain)
        if channel is not None:
            with self._lock:
                new = domain not in self._announced
                self._announced.add(domain)
            if new:
                category = conventions.category_name(self.name)
                channel.mark(channel.attributes(conventions.MARK_RECORDER, color_to_argb(None, ""), category))
            if stack.lane:
                channel = lane_of(channel)
        stack.channels[domain] = channel
        return channel

    # ---- push ----

    def push(self, stack: RangeStack, spec: RangeSpec, owner: object | None = None) -> None:
        """Open a range; `owner` will close it."""
        node = self.node(stack, spec)
        node.count += 1
        if owner is not None:
            node.owner = owner
            node.guard = True
        stack.node = node
        if node.push is not None:
            node.push(node.attributes)

    def push_batch(self, stack: RangeStack, spec: RangeSpec, batch_idx: object, owner: object | None = None) -> None:
        """Open a batch; `owner` will close it."""
        key = (spec, "batch")  # a plain range of the same name is another node
        index = check_index(batch_idx, spec.message)
        try:
            node = stack.node.children[key]
        except (KeyError, TypeError):
            node = self.add_node(stack, spec, key, is_batch=True)
        node.count += 1
        node.index = index
        node.owner = owner
        stack.node = node
        if node.channel is not None:
            node.channel.push_value(node.attributes, index)

    # ---- pop ----

    def pop(self, stack: RangeStack, domain: str | None, total_items: object, *, delete_range: bool) -> None:
        """Close the innermost range once it is certain that this is what was meant; else nothing changes."""
        node = stack.node
        if node.parent is None:
            raise RecorderError(
                f"recorder {self.name!r}: pop_range without a range that is open on this thread (or asyncio task); "
                "each pop needs a push before it, on the same thread or task"
            )
        if node.owner is not None:
            raise RecorderError(f"range {node.label!r} is closed by its own `with` or loop; take this pop_range away")
        if self._domain_of(domain) != self._domain_of(node.domain):
            raise RecorderError(
                f"range {node.label!r} was pushed in the domain {self._domain_of(node.domain)!r} but is popped in "
                f"{self._domain_of(domain)!r}; give pop_range the domain of its push_range"
            )
        items = None
        if total_items is not None:
            if not node.is_batch:
                raise RecorderError(_items_outside_batch(stack, total_items))
            items = check_items(total_items, node.label)
        self.close(stack, items, delete_range=delete_range)

    def _domain_of(self, domain: str | None) -> str | None:
        return self.domain if domain is None else domain

    def close(self, stack: RangeStack, total_items: int | None, *, delete_range: bool) -> None:
        """Pop the innermost range: its marks, its end, and what it leaves to the range around it."""
        node, channel = stack.node, stack.node.channel
        parent = node.parent
        assert parent is not None, "the root is never closed"
        if channel is not None:
            if total_items is not None:
                if node.items_mark is None:
                    node.items_mark = channel.attributes_with_value(conventions.MARK_ITEMS, node.color, node.category)
                channel.mark_value(node.items_mark, total_items)
            if delete_range:
                channel.mark(channel.attributes(conventions.MARK_DELETE, node.color, node.category))
            channel.pop()
        stack.node = parent
        if delete_range:
            stack.deleted += 1
        else:
            parent.batches += node.batches + node.is_batch
            parent.items += node.items + (total_items or 0)
            if parent.batches:
                parent.guard = True
        node.batches = node.items = 0
        node.owner = node.index = None
        node.guard = node.needs_guard(stack)
        if stack.lane and parent is stack.root:
            stack.thread.give_back(stack)

    def leave(self, owner: object, total_items: int | None, *, failed: bool, delete_range: bool) -> None:
        """Close the range of `owner`, and those inside that nobody closed.

        An exception leaves ranges behind that were pushed by hand: `failed` closes them without a word. Otherwise they
        are a mistake of the annotation, and named once all is closed.
        """
        stack = self.stack_of_owner(owner)
        if stack is None:
            if failed:
                return  # an outer range that ended by the same exception has closed it
            raise RecorderError(
                f"{owner} is not open on this thread or task; it must end where it began, before the ranges around it"
            )
        left_open = []
        while stack.node.owner is not owner:
            left_open.append(stack.node.label)
            self.close(stack, None, delete_range=failed and stack.node.is_batch)
        label = stack.node.label
        self.close(stack, total_items, delete_range=delete_range)
        if left_open and not failed:
            raise RecorderError(
                f"range {label!r} ended while still open inside it: {', '.join(left_open)}; pop them before its end"
            )


def _items_outside_batch(stack: RangeStack, total_items: object) -> str:
    batch = next((outer.label for outer in stack.open_nodes() if outer.is_batch), None)
    cure = f"give it where {batch!r} is popped" if batch else "push a batch first, by giving push_range a batch_idx"
    return f"total_items={total_items!r} was given for range {stack.node.label!r}, which is not a batch; {cure}"
