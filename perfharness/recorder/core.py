"""The slow paths of a recorder: stacks of threads and tasks, new ranges, batches, and ends with marks."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from perfharness import compiled_code, host_probe
from perfharness.errors import RecorderError
from perfharness.model import conventions
from perfharness.recorder import barrier, capture, events, journal, windows
from perfharness.recorder.names import (
    MOST_USUAL,
    RangeKey,
    argb_of,
    checked_integer,
    checked_items,
    checked_name,
    checked_part,
    parts_of,
)
from perfharness.recorder.ranges import Range
from perfharness.recorder.stacks import COUNTS, Stack, follow_asyncio

CLOCK_MARKS = 8
MOST_NAMED = 20
"""Most open ranges in a message; recorder.json names fifty times as many."""

MOST_KEPT = 4096
"""Most prepared ranges of a stack and most blocks of a recorder: names may contain ids."""

Push = Callable[[Any], object]
Pop = Callable[[], object]
RangeEnd = Callable[[Range, int, int | None, bool], None]
"""Called at the end of a range with the range, its nanoseconds, its items and whether it is deleted."""


class RangeTimer(Protocol):
    """Keeps the times of a recorder's ranges, for metrics."""

    def times_of(self, stack: Stack, node: Range) -> list[int]:
        """Return the list to which the times of a range are appended, in nanoseconds."""

    def item_counter(self, stack: Stack, node: Range) -> Pop:
        """Return a function that counts the items of a batch that has ended."""

    def begin_in_child(self) -> None:
        """Start at 0 in a forked child."""


class _OwnStack(threading.local):
    """The stack of each thread, made on first use."""

    def __init__(self, make: Callable[[], Stack]) -> None:
        self.stack = make()


class Core:
    """The stacks of a recorder, and its operations on them."""

    _users: int
    """Objects of this name that are not finalized."""

    def _begin(self, name: str, domain: str | None) -> None:
        compiled_code.find_tracing()
        journal.note_first("recorder")
        self.name = name
        self.domain = _claim_domain(domain, name)
        self.output = events.Output()
        self._users = 0
        self._running, self._current_task = follow_asyncio()
        self._journal = journal.active()
        self._barrier, self._capture = barrier.active(), capture.active()
        self._windows = windows.active()
        self._hook: RangeEnd | None = None
        self._timer: RangeTimer | None = None
        self._holds_batches = self._barrier is not None or self._capture is not None
        self._lock = threading.RLock()  # reentrant: a signal handler may call `os._exit`, which counts
        self._stacks: list[Stack] = []  # of threads that are alive or have open ranges
        self._threads = 0
        self._ended = Counter[str]()  # counts of threads that have ended
        self._announced: set[str | None] = set()
        self._nothing = Stack()
        host_probe.start()
        self._local = _OwnStack(self._new_stack)
        self._sink_of(self._local.stack, self.domain)  # the trace names the recorder, even if no range follows

    @property
    def is_finalized(self) -> bool:
        """Whether every object of this name is finalized."""
        return self._users == 0

    # ---- contents of recorder.json ----

    def counts(self) -> dict[str, Any]:
        """Count the written events, and name the open ranges."""
        found: dict[str, Any] = {"name": self.name, "domain": self.domain, **self.totals(), "threads": self._threads}
        if self._capture is not None:
            found["captured"] = self._capture.counts()
        named = self._open_ranges(with_daemons=True)[: 50 * MOST_NAMED]
        return {**found, "finalized": self.is_finalized, "open_ranges": named}

    def totals(self) -> dict[str, int]:
        """Count the written events of all threads."""
        with self._lock:
            found = self._ended.copy()
            for stack in self._all_stacks():
                found.update(stack.counts())
        return {name: found[name] for name in COUNTS}

    def _open_ranges(self, *, with_daemons: bool) -> list[str]:
        """Labels of the open ranges of all threads, outermost first, except those begun before a fork."""
        here = threading.current_thread()
        return [
            node.label
            for stack in self._all_stacks()
            if with_daemons or stack.thread is here or not stack.thread.daemon
            for node in reversed(stack.open_ranges())
            if not node.is_inherited
        ]

    # ---- stacks ----

    def _new_stack(self) -> Stack:
        """Make the stack of a new thread, and add up the counts of ended threads."""
        own = Stack()
        host_probe.follow(own, self.name)
        with self._lock:
            self._threads += 1
            kept = []
            for other in self._stacks:
                stacks = (other, *other.lanes)
                if other.thread.is_alive() or any(stack.node is not stack.root for stack in stacks):
                    kept.append(other)
                    continue
                for stack in stacks:
                    self._ended.update(stack.counts())
            self._stacks = [*kept, own]
        return own

    def _all_stacks(self) -> list[Stack]:
        return [stack for own in self._stacks for stack in (own, *own.lanes)]

    def _stack_to_push(self, own: Stack) -> Stack:
        """The stack of the running task (made if it has none), or the thread's own without a task."""
        task = self._current_task()
        return own if task is None else own.of_task.get(task) or own.take_lane(task, self.name)

    def _stack_to_pop(self, own: Stack) -> Stack:
        """The stack of the running task; an empty one if the task has none."""
        task = self._current_task()
        return own if task is None else own.of_task.get(task, self._nothing)

    def begin_window(self) -> None:
        """From now on, ask the windows before each batch."""
        self._announced = set()
        self._holds_batches = True

    def begin_in_child(self) -> None:
        """Start anew in a forked child, which has only the thread that forked."""
        self._lock = threading.RLock()
        self._stacks = [self._local.stack]
        self._threads, self._ended, self._announced = 1, Counter(), set()
        for stack in self._all_stacks():
            stack.begin_in_child()
        if self._timer is not None:
            self._timer.begin_in_child()

    # ---- new ranges ----

    def _prepare(self, stack: Stack, key: RangeKey, *, is_batch: bool = False, owner: object = None) -> Range:
        """Make a range that is new on this stack."""
        if compiled_code.tracing is None:
            compiled_code.find_tracing()  # PyTorch may have been imported since
        message, color, domain, category = parts_of(key)
        message = checked_name("range", message)
        if category is not None:
            category = checked_part(f"category of range {message!r}", str(category))
        argb = argb_of(color, message)
        node = Range(stack.node, message, domain, argb, owner, is_batch)
        node.is_plain = owner is None and domain is None and not is_batch
        node.category = conventions.category_name(self.name, category, stack.lane)
        self.connect(stack, node)
        if is_batch:
            journal.note_first("batch")
        stack.prepared += 1
        if stack.prepared > MOST_KEPT:
            stack.forget_prepared()
        (stack.node.batches if is_batch else stack.node.children)[key if owner is None or is_batch else owner] = node
        if self._journal is not None and not self._journal.is_claimed:
            self._journal.write()  # a forked child leaves its file with its first range
        if self._windows is not None:
            self._windows.listen()  # the same
        return node

    def connect(self, stack: Stack, node: Range) -> None:
        """Connect a range to what records its stack now. Its thread may pop it meanwhile."""
        push: Push | None = None
        pop: Pop | None = None
        sink = node.sink = self._sink_of(stack, node.domain or self.domain)
        if sink is not None:
            push, pop = sink.push, sink.pop
            node.attributes = sink.attributes(node.message, node.color, node.category, with_value=node.is_batch)
            if node.is_batch or node.parent.is_batch:
                own_category = conventions.category_name(self.name, None, stack.lane)
                push, pop = stack.marks.around(node, sink, own_category)
        node.write_items = sink.marker(conventions.MARK_ITEMS, node.category) if sink and node.is_batch else None
        if node.is_batch and self._capture is not None:
            pop = _then(pop, partial(self._capture.end_after, stack))
        if node.is_batch and self._windows is not None and self._windows.log_of(stack) is not None:
            pop = _then(pop, partial(self._windows.after_batch, self, stack))
        if node.is_batch and self._journal is not None:
            pop = _then(pop, self._journal.write_now_and_then)
        if stack.lane and node.parent is stack.root:
            pop = _then(pop, partial(self._local.stack.release, stack))
        knows_begin = node.begin_ns or stack.node is node.parent
        if self._hook is not None and knows_begin:
            push, pop = _call_at_end(node, self._hook, push, pop)
        if self._timer is not None and node.is_batch:
            pop = _then(pop, self._timer.item_counter(stack, node))
        if self._timer is not None and knows_begin:
            node.times = self._timer.times_of(stack, node)
        node.push, node.pop = push, pop
        node.is_active = push is not None or pop is not None or node.times is not None

    def _sink_of(self, stack: Stack, domain: str | None) -> events.Sink | None:
        if domain in stack.sinks:
            return stack.sinks[domain]
        log = self.output.log if self._windows is None else self._windows.log_of(stack)
        sink = self.output.sink(_claim_domain(domain, self.name), log, is_of_task=stack.lane > 0)
        if sink is not None and self._capture is not None:
            self._capture.guard(sink, stack)
        stack.sinks[domain] = sink
        self._announce(stack, domain, sink)
        return sink

    def _announce(self, stack: Stack, domain: str | None, sink: events.Sink | None) -> None:
        """Name the recorder in a domain of the trace, once."""
        if sink is None or (self._capture is not None and self._capture.loop is not stack):
            return
        with self._lock:
            is_new = domain not in self._announced
            self._announced.add(domain)
        if is_new:
            sink.mark(conventions.MARK_RECORDER, conventions.category_name(self.name))
            if domain == self.domain:
                self._mark_clock(sink)

    def _mark_clock(self, sink: events.Sink) -> None:
        """Write readings of the machine's clock into the trace. Each mark lies between its reading and the next; the
        closest two relate the clocks.
        """
        category, clock = conventions.category_name(self.name), time.monotonic_ns
        for _ in range(CLOCK_MARKS):
            sink.mark(conventions.MARK_CLOCK, category, clock())

    # ---- batches and ends ----

    def _push_batch(self, stack: Stack, key: RangeKey, index: int, owner: object = None) -> None:
        if type(index) is not int or index < 0 or index > MOST_USUAL:
            index = checked_integer(index, f"batch_idx of {parts_of(key)[0]!r}")
        if self._holds_batches:
            self._before_batch(stack, parts_of(key)[0])
        try:
            node = stack.node.batches[key]
        except (KeyError, TypeError):
            node = self._prepare(stack, key, is_batch=True)
        stack.ranges += 1
        node.index, node.owner = index, owner
        stack.node = node
        node.begin()

    def _before_batch(self, stack: Stack, message: object) -> None:
        """Begin a capture, and wait at the first measured batch of a loop.

        The wait is marked, and is excluded from the enclosing ranges.
        """
        start, is_inner = self._barrier, stack.is_in_batch
        if self._capture is not None and self._capture.begins(stack):
            self._announced.clear()
            for domain, sink in stack.sinks.items():
                self._announce(stack, domain, sink)
            stack.push_again()
        if self._windows is not None and not is_inner:
            self._windows.before_batch(self, stack)
        if start is None or start.is_open or is_inner:
            awaits = start is not None and not start.is_open
            records = self._windows is not None and self._windows.current is not None
            self._holds_batches = self._capture is not None or awaits or records
            return
        around = (outer.message for outer in reversed(stack.open_ranges()))
        loop = "/".join([self.name, *around, str(message)])
        if start.is_first_measured(loop):
            waited_ns = start.wait(loop)
            sink = self._sink_of(stack, self.domain)
            if waited_ns and sink is not None:
                sink.mark(conventions.MARK_BARRIER, conventions.category_name(self.name, None, stack.lane), waited_ns)

    def _pop(self, stack: Stack, domain: str | None, items: int | None, delete: bool, shared: bool) -> None:
        """Check the arguments of `pop_range`, and end the innermost range."""
        node = stack.node
        pushed, popped = node.domain or self.domain, domain or self.domain
        if node is stack.root:
            raise RecorderError(f"recorder {self.name!r}: pop_range without an open range on this thread or task")
        if node.owner is not None:
            raise RecorderError(f"{node} is closed by its own `with` or loop; remove this pop_range")
        if pushed != popped:
            raise RecorderError(f"{node} was pushed in the domain {pushed!r} but is popped in {popped!r}")
        if (items is not None or shared) and not node.is_batch:
            batch = next((f"give it where {one} is popped" for one in stack.open_ranges() if one.is_batch), None)
            what = "shared=True" if items is None else f"total_items={items!r}"
            raise RecorderError(f"{what} was given for {node}; {batch or 'give push_range a batch_idx'}")
        self._end(stack, checked_items(items, node), delete, shared)

    def _end(
        self, stack: Stack, items: int | None = None, delete: bool = False, shared: bool = False, failed: bool = False
    ) -> None:
        """Write the marks of the innermost range, and end it."""
        node, sink = stack.node, stack.node.sink
        if sink is not None:
            if items is not None and node.write_items is not None:
                node.write_items(items)
            if shared:
                sink.mark(conventions.MARK_SHARED, node.category)
            if delete:
                sink.mark(conventions.MARK_DELETE, node.category)
        if not node.is_inherited:
            if delete:
                stack.deleted_ranges += 1
            if failed:
                stack.failed_batches += 1
            if node.is_batch:
                stack.batches += 1
                stack.items += items or 0
        stack.node = node.parent
        node.items, node.is_deleted = items, delete
        node.end()
        node.is_deleted = False

    def _leave(
        self,
        stack: Stack,
        block: object,
        raised: bool,
        items: int | None = None,
        delete: bool = False,
        shared: bool = False,
        failed: bool = False,
    ) -> None:
        """End the range of a block and the open ranges inside it.

        Open ranges inside are an error, raised after all are closed, unless an exception ended the block. The range
        may belong to another task: the event loop closes an abandoned asynchronous generator in a new task.
        """
        if stack.node.owner is not block:
            own: Stack = self._local.stack
            stacks = (stack, own, *own.lanes)
            found = (one for one in stacks if any(node.owner is block for node in one.open_ranges()))
            other = next(found, None)
            if other is None and raised:
                return  # an outer range, ended by the same exception, closed it
            if other is None:
                raise RecorderError(f"{block} is not open on this thread or task; it must end where it began")
            stack = other
        left_open = []
        while (inner := stack.node).owner is not block:
            left_open.append(inner.label)
            self._end(stack, None, raised and inner.is_batch, failed=raised and inner.is_batch)
        self._end(stack, items, delete, shared, failed)
        if left_open and not raised:
            raise RecorderError(f"{inner} ended while still open inside it: {', '.join(left_open)}; pop them first")


def _then(pop: Pop | None, call: Pop) -> Pop:
    """A pop that is followed by a call."""

    def both() -> None:
        if pop is not None:
            pop()
        call()

    return both


def _call_at_end(node: Range, hook: RangeEnd, push: Push | None, pop: Pop | None) -> tuple[Push, Pop]:
    """A push that reads the clock, and a pop that calls the hook."""

    def noted(attributes: Any) -> None:
        node.begin_ns = time.perf_counter_ns()
        if push is not None:
            push(attributes)

    return noted, _then(pop, lambda: hook(node, time.perf_counter_ns() - node.begin_ns, node.items, node.is_deleted))


# ---- recorders of this process ----

recorders: dict[str, Core] = {}
_domains: dict[str | None, str] = {}
"""The recorder of each NVTX domain."""

lock = threading.RLock()


def default_recorder() -> str | None:
    """Name of the recorder with the default NVTX domain."""
    return _domains.get(conventions.DEFAULT_DOMAIN)


def _claim_domain(domain: str | None, recorder: str) -> str | None:
    """Return the domain, or `domain:recorder` if another recorder has it.

    NVTX has one stack per thread and domain; two recorders on it would end each other's ranges.
    """
    domain = None if domain is None else conventions.printable(domain)
    with lock:
        while _domains.setdefault(domain, recorder) != recorder:
            domain = recorder if domain is None else f"{domain}:{recorder}"
        return domain


def _begin_in_child() -> None:
    global lock
    lock = threading.RLock()  # another thread of the parent may have held it
    events.begin_in_child()
    for one in (barrier.active(), windows.active(), *recorders.values()):
        if one is not None:
            one.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
