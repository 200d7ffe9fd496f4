"""`PerfRecorder` writes ranges and batches as events of a tracer, and counts them.

Terms: a `Stack` (stacks.py) holds the open ranges of a thread or of an asyncio task. A `Range` (ranges.py) is a
path on a stack, prepared once: a push moves to a child, a pop to the parent. A `Sink` (events.py) writes the events. A
mark is an event without duration.
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
    In a launch, counts are written to `recorder.json`. Outside of a launch, the ranges are plain NVTX.

    Args:
        name: name in the results. Recorders with the same name are one recorder, finalized with the last of them.
        args: arguments of the pipeline (a namespace or a mapping), written to the results. Values whose names look
            like secrets are masked.
        domain: NVTX domain of the ranges. A recorder with another name gets `domain:name`, because two recorders on
            one NVTX stack would end each other's ranges.
        default_args: name of `args` in CV-CUDA's `CvCudaPerf`.
        metrics: time stages for Prometheus. True: in the default registry of prometheus_client. `HOST:PORT`: on an
            HTTP server. None: as PERFHARNESS_METRICS says. False: off.
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
        """Return the recorder with this name, new or existing."""
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
        """Start to time ranges for Prometheus. Raises `UsageError`; warns instead if the environment asked for it."""
        try:  # a layer above this one, and its library: loaded only with metrics
            self._timer = import_module("perfharness.metrics.endpoint").switch_on(self, where)
        except UsageError as error:
            if is_asked:
                raise
            warnings.warn(f"{environment.METRICS}: {error}", RuntimeWarning, stacklevel=3)
        for stack in self._all_stacks():
            stack.forget_prepared()

    # ---- CV-CUDA's calls: inlined, because each further call costs a tenth of a range ----

    def push_range(
        self,
        message: str,
        color: Color = None,
        domain: Domain = None,
        category: Category = None,
        batch_idx: int | None = None,
    ) -> None:
        """Open a range, or with `batch_idx` a batch.

        Args:
            message: name of the range.
            color: color in Nsight Systems: a name, `#rrggbb` or an integer; blue by default.
            domain: NVTX domain, if not the recorder's; give `pop_range` the same.
            category: NVTX category.
            batch_idx: index of the batch.

        Raises `RecorderError` if an argument is invalid, and opens nothing.
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
        """Close the innermost range of this thread or task.

        Args:
            domain: as given to `push_range`.
            total_items: items of the batch; only for batches.
            delete_range: exclude this range and the ranges inside it from the results.
            shared: other ranks work on the same items (tensor or pipeline parallel), which count once; only for
                batches.

        Raises `RecorderError` if no range is open, if a `with` block will close it, or if an argument does not apply
        to it. The range stays open.
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
        """End the measurement, and write `recorder.json` in a launch.

        Raises `RecorderError` if a range is open on this thread or on another that is not a daemon.
        """
        still_open = self._open_ranges(with_daemons=False)
        if still_open and self._users <= 1:  # they may belong to another object
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
        """`with perf.range("stage"):`. The object can be reused, nested, and shared by threads."""
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
        """`with perf.batch(i, total_items=n) as batch:`. `batch.total_items` can also be set inside.

        `shared=True`: other ranks work on the same items (tensor or pipeline parallel), which count once. A batch that
        ends with an exception is excluded from the results, and counted as failed.
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
        """`for i, x in perf.batches(loader, items=len):` makes each turn of the loop a batch.

        Args:
            iterable: elements of the loop. The time to yield one is outside the batch.
            items: items per element, or a function that counts them.
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
        """`@perf.annotate("stage")` or `@perf.annotate`: each call of the function is a range.

        Works for coroutine functions. For generators, each step is a range, without the time of the consumer. If
        nothing records, the function is returned unchanged.
        """

        def decorate(function: Callable[..., Any]) -> Any:
            name = message if isinstance(message, str) else getattr(function, "__name__", type(function).__name__)
            if self.output.listening is False and not (self._journal or self._windows or self._hook or self._timer):
                return function
            return annotated(function, name, self.range(name, color, domain, category))

        return decorate(message) if callable(message) else decorate

    def call_at_end(self, hook: core.RangeEnd) -> None:
        """Call a function at the end of every range from now on."""
        self._hook = hook
        for stack in self._all_stacks():
            stack.forget_prepared()


def _exposed_at(metrics: bool | str | None) -> str:
    """Address of the metrics: `1` (the registry) or `HOST:PORT`; empty if off."""
    if metrics is None:
        given = os.environ.get(environment.METRICS, "")
        return "" if given == "0" else given
    return metrics if isinstance(metrics, str) else "1" if metrics else ""
