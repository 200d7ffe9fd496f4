"""A recorder beyond the plain push and pop: finds stacks, prepares nodes, closes ranges."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from time import monotonic_ns  # a name of our own: a script may have the module's annotated

from perfharness import compiled_code, host_probe
from perfharness.errors import RecorderError
from perfharness.model import conventions
from perfharness.own_work import own_work
from perfharness.recorder import barrier, capture, collecting, compiling, startup, tasks
from perfharness.recorder.channels import Channel, lane_of
from perfharness.recorder.nvtx_channels import choose_sink, forget_definitions
from perfharness.recorder.spec import (
    USUAL_END,
    RangeKey,
    RangeSpec,
    check_category_part,
    check_index,
    check_items,
    check_name,
    color_to_argb,
)
from perfharness.recorder.stacks import Node, RangeStack, StackRegistry, ThreadStacks
from perfharness.recorder.thread_times import thread_times_ns
from perfharness.tracer import range_log

NEVER_NS = sys.maxsize
CLOCK_MARKS = 8
READING_NS, READ_AGAIN = 500_000, 3
"""A reading of a thread's times that takes longer is of another moment than its mark; it is read again so often."""
LOOKS = 64
"""Ends of a stage, one after the other, that come within `READY_TIME_EVERY_NS` of a reading: then it is let off."""

_HELD = object()
"""Part of the key of a batch that no push may find, so that each push of it passes the start barrier."""


claims: dict[str | None, str] = {}
"""The recorder of each NVTX domain, by name."""

_claiming = threading.RLock()  # as all locks here: a signal may call a handler that makes ranges while one is held


def claim_domain(domain: str | None, recorder: str) -> str | None:
    """The domain asked for, or `domain:recorder` where a recorder of another name has it already.

    NVTX keeps one stack for each thread and domain. Two recorders on one stack would end each other's ranges as soon as
    they do not nest, undetected; so each recorder has its own domain.
    """
    with _claiming:
        while claims.setdefault(domain, recorder) != recorder:
            domain = recorder if domain is None else f"{domain}:{recorder}"
        return domain


class _Token:
    """Lives in a thread's local storage and dies with the thread."""

    __slots__ = ("__weakref__",)


def core_named(name: str, domain: str | None) -> RecorderCore:
    """The recorder of that name in this process, made if there is none.

    Two `PerfRecorder` objects of one name are one recorder: their ranges have the same domain, and so the same NVTX
    stack, and the trace could not separate them.
    """
    with own_work.thread, _naming:
        core = recorders.get(name)
        if core is None or core.log is not range_log.active():
            core = recorders[name] = RecorderCore(name, domain)
        core.users += 1
        return core


recorders: weakref.WeakValueDictionary[str, RecorderCore] = weakref.WeakValueDictionary()
_naming = threading.RLock()


def _unlock_in_child() -> None:
    """In a forked child: another thread of the parent may have held a lock, and is not there to release it."""
    global _claiming, _naming
    _claiming, _naming = threading.RLock(), threading.RLock()
    for core in list(recorders.values()):
        core.unlock()


os.register_at_fork(after_in_child=_unlock_in_child)


class RecorderCore:
    """The stacks of a recorder and their sink."""

    def __init__(self, name: str, domain: str | None) -> None:
        check_category_part("recorder", name)
        name = conventions.printable(name)
        startup.process_startup.note("recorder")
        self.name = name
        self.domain = domain = claim_domain(None if domain is None else conventions.printable(domain), name)
        tasks.follow_asyncio()
        self.sink = choose_sink()
        self.log = range_log.active()
        self.registry = StackRegistry()
        self.barrier = barrier.active()
        self.capture = capture.active()
        self.gates: list[capture.Gate] = []
        """One a stack, where only some batches are recorded."""

        self.nothing_open = ThreadStacks().own
        self.local = threading.local()  # stack: the thread's own; token
        host_probe.start()
        self._lock = threading.RLock()
        self._announced: set[str | None] = set()
        self.users = 0
        """Number of `PerfRecorder` objects of this name that are not finalized."""

        self.write_counts: Callable[[], None] | None = None
        """Called periodically where the counts must be on disk before the process ends."""

        self._channel(self.add_thread(), domain)  # the trace then names the recorder, even if no range follows

    # ---- stacks ----

    def add_thread(self) -> RangeStack:
        """The stack of a new thread."""
        thread = ThreadStacks(self.name)
        host_probe.follow(thread.own, self.name)
        token = self.local.token = _Token()
        self.local.stack = thread.own
        with self._lock:
            self.registry.add(thread, token)
        return thread.own

    def stack_to_push(self) -> RangeStack:
        """The stack of the running thread or task; see `tasks`."""
        try:
            stack: RangeStack = self.local.stack
        except AttributeError:
            stack = self.add_thread()
        if tasks.running:
            return tasks.take_stack_of_task(stack)
        return stack

    def stack_to_pop(self) -> RangeStack:
        """The same; an empty stack where a task has nothing open."""
        try:
            stack: RangeStack = self.local.stack
        except AttributeError:
            stack = self.add_thread()
        if tasks.running:
            return tasks.stack_of_task(stack) or self.nothing_open
        return stack

    def _stack_of_owner(self, owner: object) -> RangeStack | None:
        """The stack on which `owner` has a range open: the running one, or that of another task of this thread.

        The event loop closes an abandoned asynchronous generator in a task of its own.
        """
        own: RangeStack | None = getattr(self.local, "stack", None)
        if own is None:
            return None
        for stack in (self.stack_to_pop(), own, *own.thread.of_task.values()):
            if any(node.owner is owner for node in stack.open_nodes()):
                return stack
        return None

    def open_ranges(self) -> list[str]:
        """Labels of the open ranges of all threads, outermost first, without those that were begun before a fork."""
        return [
            node.label
            for thread in self.registry.alive()
            for stack in thread.stacks()
            for node in reversed(stack.open_nodes())
            if node.count
        ]

    def unlock(self) -> None:
        """In a forked child: no other thread has the lock."""
        self._lock = threading.RLock()

    def forget_counts(self) -> None:
        """Reset the counts in a forked child: only the thread that forked survives, with its open ranges."""
        stack: RangeStack | None = getattr(self.local, "stack", None)
        self.registry.reset(stack.thread if stack is not None else None)
        if self.barrier is not None:
            self.barrier.forget_waits()
        self.gates = []
        forget_definitions()
        self._announced = set()
        for inherited in stack.thread.stacks() if stack is not None else ():
            inherited.forget_channels()

    # ---- nodes ----

    def add_node(self, stack: RangeStack, key: RangeKey, *, is_batch: bool = False) -> Node:
        """Prepare a range that is new on this stack, or a batch that has to pass the start barrier."""
        if compiled_code.tracing is None:
            compiled_code.find_tracing()  # PyTorch may have been imported since
        with own_work.thread:
            return self._add_node(stack, key, is_batch=is_batch)

    def _add_node(self, stack: RangeStack, key: RangeKey, *, is_batch: bool) -> Node:
        spec = RangeSpec.of(key)
        stack.prepared += 1
        if stack.prepared > stack.prune_at:
            stack.prune()
        if self.write_counts is not None:
            self.write_counts()
        if is_batch:
            startup.process_startup.note("batch")
        try:
            if is_batch and self.barrier is not None and not any(outer.is_batch for outer in stack.open_nodes()):
                return self._batch_at_barrier(stack, spec, key, self.barrier)
            node = self._prepare(stack, spec, is_batch=is_batch)
            (stack.node.batch_children if is_batch else stack.node.children)[key] = node
        except BaseException:
            _give_back_if_empty(stack)
            raise
        return node

    def _batch_at_barrier(
        self, stack: RangeStack, spec: RangeSpec, key: RangeKey, start_barrier: barrier.StartBarrier
    ) -> Node:
        """A batch that is not open yet: it waits where it is the first measured one.

        Until then its key is one that no push uses, so batches pay for the barrier only before it opens.
        """
        siblings = stack.node.batch_children
        held_key = (_HELD, key)
        try:
            node = siblings[held_key]
        except (KeyError, TypeError):
            node = self._prepare(stack, spec, is_batch=True)
            siblings[held_key] = node
        path = [outer.message for outer in reversed(stack.open_nodes())]
        loop = "/".join([self.name, *path, spec.message])
        if not start_barrier.is_open and start_barrier.is_first_measured(loop):
            with_workers = barrier.has_background_workers()
            waited_ns = start_barrier.wait(loop)
            if waited_ns:
                self._mark_wait(stack, waited_ns, with_workers=with_workers)
        if start_barrier.is_open:
            siblings[key] = siblings.pop(held_key)
        return node

    def _mark_wait(self, stack: RangeStack, waited_ns: int, *, with_workers: bool) -> None:
        """Mark the wait in the trace, so that it can be subtracted from the ranges around the batch."""
        channel = self._channel(stack, self.domain)
        if channel is not None:
            kind = conventions.WITH_WORKERS if with_workers else None
            category = conventions.category_name(self.name, kind, stack.lane)
            attributes = channel.attributes_with_value(conventions.MARK_BARRIER, color_to_argb(None, ""), category)
            channel.mark_value(attributes, waited_ns)

    def checked_index(self, stack: RangeStack, batch_idx: object, key: RangeKey) -> int:
        """The checked index of a batch to be pushed."""
        try:
            return check_index(batch_idx, RangeSpec.of(key).message)
        except RecorderError:
            _give_back_if_empty(stack)
            raise

    def _prepare(self, stack: RangeStack, spec: RangeSpec, *, is_batch: bool) -> Node:
        check_name("range", spec.message)
        message = conventions.printable(spec.message)
        category = None if spec.category is None else conventions.printable(str(spec.category))
        if category is not None:
            check_category_part(f"category of range {spec.message!r},", category)
        color = color_to_argb(spec.color, spec.message)
        is_stage = not is_batch and any(outer.is_batch for outer in stack.open_nodes())
        guarded = is_batch or is_stage or spec.domain is not None or (stack.lane > 0 and stack.node is stack.root)
        node = Node(stack.node, message, spec.domain, is_batch=is_batch, always_guarded=guarded)
        node.looks = LOOKS if is_stage else 0
        channel = self._channel(stack, self.domain if spec.domain is None else spec.domain)
        if channel is not None:
            node.channel, node.push, node.pop = channel, channel.push, channel.pop
            node.color = color
            node.category = conventions.category_name(self.name, category, stack.lane)
            prepare = channel.attributes_with_value if is_batch else channel.attributes
            node.attributes = prepare(message, color, node.category)
            if is_batch:
                node.ready_mark = channel.attributes_with_value(conventions.MARK_READY_TIME, color, node.category)
                node.queued_mark = channel.attributes_with_value(conventions.MARK_QUEUED, color, node.category)
                node.process_mark = channel.attributes_with_value(conventions.MARK_PROCESS_TIME, color, node.category)
                node.collecting_mark = channel.attributes_with_value(conventions.MARK_COLLECTING, color, node.category)
                node.compiling_mark = channel.attributes_with_value(conventions.MARK_COMPILING, color, node.category)
                node.crowded_mark = channel.attributes_with_value(conventions.MARK_CROWDED, color, node.category)
                collecting.follow()
        return node

    def _channel(self, stack: RangeStack, domain: str | None) -> Channel | None:
        try:
            return stack.channels[domain]
        except KeyError:
            pass
        # Another recorder's domain has its own NVTX stack, which must not hold this recorder's ranges.
        claimed = claim_domain(None if domain is None else conventions.printable(domain), self.name)
        channel = self.sink.channel(claimed)
        if channel is not None:
            with self._lock:
                new = domain not in self._announced
                self._announced.add(domain)
            if new:
                self._announce(channel, is_own=domain == self.domain)
            if stack.lane:
                channel = lane_of(channel)
            if self.capture is not None:
                channel = self._gate_of(stack, self.capture).channel(channel)
        stack.channels[domain] = channel
        return channel

    def _announce(self, channel: Channel, *, is_own: bool = True) -> None:
        """Name the recorder in a domain, and in its own tie the trace's clock to the machine's."""
        category = conventions.category_name(self.name)
        channel.mark(channel.attributes(conventions.MARK_RECORDER, color_to_argb(None, ""), category))
        if is_own:
            self._mark_clock_on(channel)

    def _gate_of(self, stack: RangeStack, wanted: capture.Capture) -> capture.Gate:
        if stack.gate is None:
            stack.gate = capture.Gate(wanted, self._announce)
            with self._lock:
                self.gates.append(stack.gate)
        return stack.gate

    def mark_clock(self) -> None:
        """Tie the trace's clock to the machine's again: clocks may drift over a run."""
        stack: RangeStack | None = getattr(self.local, "stack", None)
        channel = None if stack is None else self._channel(stack, self.domain)
        if channel is not None:
            self._mark_clock_on(channel)

    def _mark_clock_on(self, channel: Channel) -> None:
        """Each mark lies between its own reading and the next one's: the shortest interval of several is used."""
        category, color = conventions.category_name(self.name), color_to_argb(None, "")
        attributes = channel.attributes_with_value(conventions.MARK_CLOCK, color, category)
        mark, clock = channel.mark_value, time.monotonic_ns
        for _ in range(CLOCK_MARKS):
            mark(attributes, clock())

    def start_range(self, key: RangeKey) -> Callable[[], None]:
        """Start a range on a lane of its own; what is returned ends it, on any thread."""
        stack: RangeStack | None = getattr(self.local, "stack", None)
        thread = (stack or self.add_thread()).thread
        lane = thread.take_ended_lane()
        node = lane.root.children.get(key) or self.add_node(lane, key)
        node.count += 1
        channel, wanted = node.channel, self.capture
        if channel is not None and wanted is not None:
            if wanted.join_others():
                self._gate_of(lane, wanted).ranges += 1
            else:
                channel = None
        range_id = None if channel is None else channel.start(node.attributes)

        def end() -> None:
            ends = getattr(self.local, "ends", None)
            if ends is None:
                ends = self.local.ends = self.sink.channel(self.domain)
            if range_id is not None and ends is not None:
                ends.end(range_id)
            if range_id is not None and wanted is not None:
                wanted.leave()
            thread.ended.append(lane)

        return end

    # ---- push ----

    def push_batch(self, stack: RangeStack, key: RangeKey, batch_idx: object, owner: object) -> None:
        """Open a batch that `owner` will close."""
        if type(batch_idx) is int and 0 <= batch_idx < USUAL_END:
            index = batch_idx
        else:
            index = self.checked_index(stack, batch_idx, key)
        try:
            node = stack.node.batch_children[key]
        except (KeyError, TypeError):
            node = self.add_node(stack, key, is_batch=True)
        node.count += 1
        node.index = index
        node.owner = owner
        stack.node = node
        if node.channel is not None:
            node.channel.push_value(node.attributes, index)
            mark_ready_time(stack, node, node.channel)

    # ---- pop ----

    def checked_items(
        self, stack: RangeStack, domain: str | None, total_items: object, shared: bool = False
    ) -> int | None:
        """The checked items of the innermost range, after checking that it may be popped."""
        self._check_pop(stack, domain)
        node = stack.node
        if shared and not node.is_batch:
            raise RecorderError(
                f"shared=True was given for range {node.label!r}, which is not a batch; "
                "give it where the batch is popped"
            )
        if total_items is None:
            return None
        if not node.is_batch:
            raise RecorderError(_items_outside_batch(stack, total_items))
        return check_items(total_items, node.label)

    def _check_pop(self, stack: RangeStack, domain: str | None) -> None:
        node = stack.node
        if node is stack.root:
            raise RecorderError(
                f"recorder {self.name!r}: pop_range without a range that is open on this thread (or asyncio task); "
                "each pop needs a push before it, on the same thread or task"
            )
        if node.owner is not None:
            raise RecorderError(f"range {node.label!r} is closed by its own `with` or loop; remove this pop_range")
        pushed = self.domain if node.domain is None else node.domain
        popped = self.domain if domain is None else domain
        if pushed != popped:
            raise RecorderError(
                f"range {node.label!r} was pushed in the domain {pushed!r} but is popped in {popped!r}; give pop_range "
                "the domain of its push_range"
            )

    def close(self, stack: RangeStack, items: int | None, delete_range: bool, shared: bool = False) -> None:
        """Pop the innermost range: write its marks and its end, and add its counts to its parent."""
        node = stack.node
        parent = node.parent
        if node.channel is not None:
            if node.is_batch:
                mark_ready_time(stack, node, node.channel)
            elif node.looks:
                mark_at_end_of_stage(stack, node)
            _end(node, node.channel, items, delete_range, shared)
        stack.node = parent
        is_own = node.count > 0  # else it was begun before a fork: it is the parent process's
        if delete_range:
            stack.deleted += is_own
            node.batches = node.items = 0
        elif node.is_batch and is_own:
            parent.guard = True  # its pop has to add them to its own parent
            parent.batches += 1
            if items is not None:
                parent.items += items
        if node.batches:
            parent.guard = True
            parent.batches += node.batches
            parent.items += node.items
            node.batches = node.items = 0
        node.owner = None
        node.guard = node.always_guarded
        if stack.lane:
            _give_back_if_empty(stack)
        if self.write_counts is not None:
            self.write_counts()

    def leave(self, owner: object, items: int | None, failed: bool, delete_range: bool, shared: bool = False) -> None:
        """Close the range of `owner`, and the ranges inside that are still open.

        After an exception (`failed`) ranges pushed by hand are closed silently. Otherwise they are a mistake of the
        annotation, reported once all are closed.
        """
        stack = self.stack_to_pop()
        if stack.node.owner is owner:
            self.close(stack, items, delete_range, shared)
        else:
            self._unwind(owner, items, failed, delete_range, shared)

    def _unwind(self, owner: object, items: int | None, failed: bool, delete_range: bool, shared: bool) -> None:
        stack = self._stack_of_owner(owner)
        if stack is None:
            if failed:
                return  # already closed by an outer range that the same exception ended
            raise RecorderError(
                f"{owner} is not open on this thread or task; it must end where it began, before the ranges around it"
            )
        left_open = []
        while stack.node.owner is not owner:
            left_open.append(stack.node.label)
            self.close(stack, None, failed and stack.node.is_batch)
        label = stack.node.label
        self.close(stack, items, delete_range, shared)
        if left_open and not failed:
            raise RecorderError(
                f"range {label!r} ended while still open inside it: {', '.join(left_open)}; pop them before its end"
            )


def mark_ready_time(stack: RangeStack, batch: Node, channel: Channel) -> None:
    """Mark how long the thread has run or waited for a CPU until now, how long of that the latter, how long it has
    collected garbage, how long it has compiled, how long all threads of the process have run, and how long these kept
    it from running, where the last such mark is old enough.
    """
    thread, now_ns = stack.thread, monotonic_ns()
    if now_ns < thread.ready_time_due_ns:
        return
    times = thread_times_ns()
    for _ in range(READ_AGAIN):  # the thread may have lost its CPU between the reading and the mark
        if times is None or monotonic_ns() - now_ns < READING_NS:
            break
        now_ns = monotonic_ns()
        times = thread_times_ns()
    if times is None:
        thread.ready_time_due_ns = NEVER_NS
        return
    thread.ready_time_due_ns = now_ns + conventions.READY_TIME_EVERY_NS
    ran_ns, queued_ns = times
    channel.mark_value(batch.ready_mark, ran_ns + queued_ns)
    if queued_ns:
        channel.mark_value(batch.queued_mark, queued_ns)
    spent_ns = collecting.spent_ns()
    if spent_ns:
        channel.mark_value(batch.collecting_mark, spent_ns)
    compiling.follow()  # libraries may have been imported since
    if compiled_ns := compiling.spent_ns():
        channel.mark_value(batch.compiling_mark, compiled_ns)
    crowded_ns = thread.crowding.read(now_ns, queued_ns)
    channel.mark_value(batch.process_mark, thread.crowding.used_ns)
    if crowded_ns:
        channel.mark_value(batch.crowded_mark, crowded_ns)


def mark_at_end_of_stage(stack: RangeStack, node: Node) -> None:
    """The same at the end of a range inside of a batch. One that is too short for it again and again is let off."""
    if monotonic_ns() < stack.thread.ready_time_due_ns:
        node.looks -= 1
        if not node.looks:
            node.always_guarded = node.domain is not None
        return
    node.looks = LOOKS
    batch = node.parent
    while not batch.is_batch:
        batch = batch.parent
    if batch.channel is not None:
        mark_ready_time(stack, batch, batch.channel)


def _give_back_if_empty(stack: RangeStack) -> None:
    """Free the lane of a task with nothing open: its last range was closed, or its first one was refused."""
    if stack.lane and stack.node is stack.root:
        stack.thread.release_lane(stack)


def _end(node: Node, channel: Channel, items: int | None, delete_range: bool, shared: bool) -> None:
    if items is not None:
        if node.items_mark is None:
            node.items_mark = channel.attributes_with_value(conventions.MARK_ITEMS, node.color, node.category)
        channel.mark_value(node.items_mark, items)
    if shared:
        if node.shared_mark is None:
            node.shared_mark = channel.attributes(conventions.MARK_SHARED, node.color, node.category)
        channel.mark(node.shared_mark)
    if delete_range:
        channel.mark(channel.attributes(conventions.MARK_DELETE, node.color, node.category))
    channel.pop()


def _items_outside_batch(stack: RangeStack, total_items: object) -> str:
    batch = next((outer.label for outer in stack.open_nodes() if outer.is_batch), None)
    hint = f"give it where {batch!r} is popped" if batch else "push a batch first, by giving push_range a batch_idx"
    return f"total_items={total_items!r} was given for range {stack.node.label!r}, which is not a batch; {hint}"
