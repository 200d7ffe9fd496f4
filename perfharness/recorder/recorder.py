"""`PerfRecorder`: ranges and batches become events of a tracer; the recorder counts what it writes.

Four words: a `Stack` (stacks.py) holds the open ranges of a thread or of an asyncio task. A `Range` (ranges.py) is a
path on a stack, prepared once with all that its events need: a push goes down to a child, a pop goes up to the parent.
A `Sink` (events.py) writes the events. A mark is an event without length.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from perfharness import compiled_code
from perfharness.errors import RecorderError, UsageError
from perfharness.model import conventions, environment
from perfharness.recorder import core
from perfharness.recorder.blocks import BatchBlock, RangeBlock, annotated
from perfharness.recorder.names import (
    MOST_USUAL,
    Category,
    Color,
    Domain,
    RangeKey,
    checked_items,
    checked_part,
    range_key,
)
from perfharness.tracer import range_log

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class PerfRecorder(core.Core):
    """Annotates a pipeline with ranges and batches.

    Ranges nest to any depth, batches inside batches too. Each thread and each asyncio task has its own stack.
    Inside a launch the recorder's counts are kept in `recorder.json`; outside one the ranges are plain NVTX.

    Args:
        name: what the results of this recorder are called. A second recorder of a name is the first one, and finalized
            with the last of them.
        args: the arguments of the pipeline (a namespace or a mapping), noted in the results. Values whose names look
            like secrets are masked.
        domain: NVTX domain of the ranges. A recorder of another name gets `domain:name`, because two recorders on one
            NVTX stack would end each other's ranges.
        default_args: the name that CV-CUDA's `CvCudaPerf` gives to `args`.
        metrics: time stages for Prometheus. True: in prometheus_client's default registry; `HOST:PORT`: an HTTP server
            there; None: what PERFHARNESS_METRICS says; False: not.
    """

    _blocks: dict[RangeKey, RangeBlock]

    def __new__(
        cls,
        name: str,
        args: object = None,
        *,
        domain: str | None = conventions.DEFAULT_DOMAIN,
        default_args: object = None,
        metrics: bool | str | None = None,
    ) -> Self:
        """Find the recorder of that name, or make it."""
        name = checked_part("recorder", name)
        with core.lock:
            self = core.recorders.get(name)
            if not isinstance(self, cls) or self.output.log is not range_log.active():
                self = super().__new__(cls)
                self._begin(name, domain)
                self._blocks = {}
                core.recorders[name] = self
            self._users += 1
        keeper = self._windows or self._journal
        if keeper is not None:
            keeper.add(self, args if args is not None else default_args)
        if self._timer is None and (where := _exposed_at(metrics)):
            self._expose(where, is_asked=metrics is not None)
        return self

    def _expose(self, where: str, *, is_asked: bool) -> None:
        """Time ranges for Prometheus from now on. Raises `UsageError`, but warns where the environment asked for it."""
        try:  # a layer above this one, and its library: loaded only where metrics are on
            self._timer = import_module("perfharness.metrics.endpoint").switch_on(self, where)
        except UsageError as error:
            if is_asked:
                raise
            warnings.warn(f"{environment.METRICS}: {error}", RuntimeWarning, stacklevel=3)
        for stack in self._all_stacks():
            stack.forget_prepared()

    # ---- CV-CUDA's calls: the plain case is inlined, because a call costs a tenth of a range ----

    def push_range(
        self,
        message: str,
        color: Color = None,
        domain: Domain = None,
        category: Category = None,
        batch_idx: int | None = None,
    ) -> None:
        """Open a range; with `batch_idx` a batch, to which all ranges inside belong.

        Args:
            message: name of the range.
            color: in the timeline of Nsight Systems: a name, `#rrggbb` or an integer; blue where it is None.
            domain: NVTX domain, where it is not the recorder's; `pop_range` must name the same.
            category: shown by Nsight Systems.
            batch_idx: index of the batch.

        Raises `RecorderError` if an argument is invalid. Nothing is opened then.
        """
        if compiled_code.tracing is not None and compiled_code.tracing():
            compiled_code.note_range(message)
            return
        stack = self._local.stack
        if self._running:
            stack = self._stack_to_push(stack)
        key: RangeKey = message
        if color is not None or domain is not None or category is not None:
            key = (message, color, domain, category)
        if batch_idx is not None:
            self._push_batch(stack, key, batch_idx)
            return
        try:
            node = stack.node.children[key]
        except (KeyError, TypeError):
            node = self._prepare(stack, key)
        stack.ranges += 1
        stack.node = node
        if node.is_active:
            if node.push is not None:
                node.push(node.attributes)
            if node.times is not None:
                node.begin_ns = perf_counter_ns()

    def pop_range(
        self,
        domain: str | None = None,
        total_items: int | None = None,
        delete_range: bool = False,
        shared: bool = False,
    ) -> None:
        """Close the range that was opened last on this thread or task.

        Args:
            domain: the one given to `push_range`.
            total_items: how many items a batch had; only where the range is a batch.
            delete_range: leave this range and all below it out of the results.
            shared: other ranks work on the items of this batch too (tensor or pipeline parallel), so that they count
                once; only where the range is a batch.

        Raises `RecorderError` if nothing is open, if a `with` block will close the range, or if an argument does not
        fit to it. The range stays open.
        """
        if compiled_code.tracing is not None and compiled_code.tracing():
            return
        stack = self._local.stack
        if self._running:
            stack = self._stack_to_pop(stack)
        node = stack.node
        if node.is_plain and domain is None and total_items is None and not delete_range and not shared:
            stack.node = node.parent
            if node.is_active:
                if node.times is not None:
                    node.times.append(perf_counter_ns() - node.begin_ns)
                if node.pop is not None:
                    node.pop()
        elif (  # a batch, which is inlined as well
            node.is_batch
            and node.owner is None
            and domain is node.domain
            and type(total_items) is int
            and 0 <= total_items <= MOST_USUAL
            and not delete_range
            and not shared
            and not node.is_inherited
        ):
            if node.write_items is not None:
                node.write_items(total_items)
            stack.node = node.parent
            stack.batches += 1
            stack.items += total_items
            node.items = total_items
            node.end()
        else:
            self._pop(stack, domain, total_items, delete_range, shared)

    def finalize(self) -> None:
        """Declare the measurement over and, inside a launch, write `recorder.json`.

        Raises `RecorderError` if a range is still open, on this thread or another that is not a daemon.
        """
        still_open = self._open_ranges(with_daemons=False)
        if still_open and self._users <= 1:  # else they may belong to another object
            named = ", ".join(still_open[: core.MOST_NAMED])
            raise RecorderError(
                f"recorder {self.name!r} cannot be finalized: {len(still_open)} range(s) are still open ({named}); pop "
                "them first"
            )
        if (sink := self._sink_of(self._local.stack, self.domain)) is not None:
            self._mark_clock(sink)  # again: clocks drift over a run
        self._users = max(self._users - 1, 0)
        if self._journal is not None:
            self._journal.finish("running")

    # ---- blocks, loops, decorators ----

    def range(self, message: str, color: Color = None, domain: Domain = None, category: Category = None) -> RangeBlock:
        """`with perf.range("stage"):`; the object may be kept and entered again, nested and from several threads."""
        if compiled_code.tracing is not None and compiled_code.tracing():
            compiled_code.note_range(message)
            return cast("RangeBlock", compiled_code.Unrecorded())
        key: RangeKey = message
        if color is not None or domain is not None or category is not None:
            key = (message, color, domain, category)
        try:
            return self._blocks[key]
        except KeyError:
            if len(self._blocks) >= core.MOST_KEPT:
                self._blocks.clear()
            return self._blocks.setdefault(key, RangeBlock(self, key))

    def batch(
        self,
        batch_idx: int,
        total_items: int | None = None,
        *,
        message: str = "batch",
        color: Color = None,
        domain: Domain = None,
        category: Category = None,
        shared: bool = False,
    ) -> BatchBlock:
        """`with perf.batch(i, total_items=n) as batch:`; `batch.total_items` may also be set inside.

        `shared=True`: other ranks work on the same items (tensor or pipeline parallel), so that they count once.
        A batch that ends by an exception did not process its items: it is deleted from the results, and counted.
        """
        if compiled_code.tracing is not None and compiled_code.tracing():
            compiled_code.note_range(message)
            return cast("BatchBlock", compiled_code.Unrecorded())
        return BatchBlock(self, range_key(message, color, domain, category), batch_idx, total_items, shared)

    def batches(
        self,
        iterable: Iterable[T],
        items: int | Callable[[T], int] | None = None,
        *,
        start: int = 0,
        message: str = "batch",
        color: Color = None,
        domain: Domain = None,
        category: Category = None,
        shared: bool = False,
    ) -> Iterator[tuple[int, T]]:
        """`for i, x in perf.batches(loader, items=len):`; the body of the loop is the batch.

        Args:
            iterable: what to loop over. The time it takes to yield an element is not the batch's.
            items: how many items an element has, or a function that counts them.
            start: index of the first batch.
            message: name of the batches.
            color, domain, category: as in `push_range`.
            shared: as in `batch`.
        """
        if compiled_code.tracing is not None and compiled_code.tracing():
            compiled_code.note_range(message)
            return enumerate(iterable, start)
        count = None if callable(items) else checked_items(items, f"the batches {message!r}")
        counted = items if callable(items) else lambda _: count
        key = range_key(message, color, domain, category)
        return self._batches(iterable, counted, start, key, shared)

    def _batches(
        self, iterable: Iterable[T], items: Callable[[T], Any], start: int, key: RangeKey, shared: bool
    ) -> Iterator[tuple[int, T]]:
        for index, element in enumerate(iterable, start):
            with BatchBlock(self, key, index, items(element), shared):
                yield index, element

    @overload
    def annotate(self, message: F) -> F: ...

    @overload
    def annotate(
        self, message: str | None = None, color: Color = None, domain: Domain = None, category: Category = None
    ) -> Callable[[F], F]: ...

    def annotate(
        self,
        message: str | Callable[..., Any] | None = None,
        color: Color = None,
        domain: Domain = None,
        category: Category = None,
    ) -> Any:
        """`@perf.annotate("stage")`, or bare `@perf.annotate`: each call of the function is a range.

        Coroutine functions too. Of a generator, plain or asynchronous, each step is a range, which excludes the time
        of the code that consumes it. Where nothing records, the function is returned as it is.
        """

        def decorate(function: Callable[..., Any]) -> Any:
            name = message if isinstance(message, str) else getattr(function, "__name__", type(function).__name__)
            if self.output.listening is False and not (self._journal or self._windows or self._hook or self._timer):
                return function
            return annotated(function, name, self.range(name, color, domain, category))

        return decorate(message) if callable(message) else decorate

    def call_at_end(self, hook: core.RangeEnd) -> None:
        """Have a function called at the end of every range from now on. Costs nothing where it is not used."""
        self._hook = hook
        for stack in self._all_stacks():
            stack.forget_prepared()


def _exposed_at(metrics: bool | str | None) -> str:
    """Where metrics are exposed, `1` or `HOST:PORT`; empty: nowhere."""
    if metrics is None:
        given = os.environ.get(environment.METRICS, "")
        return "" if given == "0" else given
    return metrics if isinstance(metrics, str) else "1" if metrics else ""
