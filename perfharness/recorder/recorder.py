"""`PerfRecorder`: what a pipeline calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast, overload

from perfharness import compiled_code
from perfharness.errors import RecorderError
from perfharness.model.conventions import DEFAULT_DOMAIN
from perfharness.recorder import journal, tasks
from perfharness.recorder.core import claims, core_named, mark_ready_time
from perfharness.recorder.scopes import BatchScope, RangeScope, annotate_function
from perfharness.recorder.spec import USUAL_END, Color, RangeKey, check_items, range_key

LABELS_SHOWN = 20
"""Most open ranges that a message names."""

SCOPES_KEPT = 4096

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class PerfRecorder:
    """Annotates a pipeline with ranges and batches.

    Ranges nest to any depth, batches inside batches too. Each thread and each asyncio task has its own stack.
    Inside a launch the recorder's counts are kept in `recorder.json`; outside one the ranges are plain NVTX.

    Args:
        name: what the results of this recorder are called.
        args: the arguments of the pipeline (a namespace or a mapping), noted in the results. Values whose names look
            like secrets are masked.
        domain: NVTX domain of the ranges. A second recorder of another name gets `domain:name`, for two recorders on
            one NVTX stack would end each other's ranges. A second object of the same name is the same recorder, in
            the domain of the first, and is finalized with the last of them.
        default_args: the name that CV-CUDA's `CvCudaPerf` gives to `args`.
    """

    def __init__(
        self,
        name: str,
        args: object = None,
        *,
        domain: str | None = DEFAULT_DOMAIN,
        default_args: object = None,
    ) -> None:
        compiled_code.find_tracing()
        self._core = core_named(name, domain)
        self._is_finalized = False
        self._local = self._core.local
        self._running = tasks.running
        self._scopes: dict[object, RangeScope] = {}
        journal.register(self._core, args if args is not None else default_args)

    @property
    def name(self) -> str:
        """What the results of this recorder are called."""
        return self._core.name

    # ---- CV-CUDA's calls ----
    #
    # push_range and pop_range inline the plain case and leave the rest to the core: each function call saved is a tenth
    # of what a range costs.

    def push_range(
        self,
        message: str,
        color: Color = None,
        domain: str | None = None,
        category: str | int | None = None,
        batch_idx: int | None = None,
    ) -> None:
        """Open a range; with `batch_idx` a batch, to which all ranges inside belong.

        Args:
            message: name of the range.
            color: in the timeline of Nsight Systems: a name, `#rrggbb` or an integer; blue where it is None.
            domain: NVTX domain, where it is not the recorder's; `pop_range` must name the same.
            category: shown by Nsight Systems.
            batch_idx: index of the batch.

        Raises:
            RecorderError: the name, the colour, the category or the index is invalid. Nothing is opened then.
        """
        if compiled_code.tracing is not None and compiled_code.tracing():
            compiled_code.note_range(message)
            return
        try:
            stack = self._local.stack
        except AttributeError:
            stack = self._core.add_thread()
        if self._running:
            stack = tasks.take_stack_of_task(stack)
        key: RangeKey = message
        if color is not None or domain is not None or category is not None:
            key = (message, color, domain, category)
        if batch_idx is not None:
            if not (type(batch_idx) is int and 0 <= batch_idx < USUAL_END):
                batch_idx = self._core.checked_index(stack, batch_idx, key)
            try:
                node = stack.node.batch_children[key]
            except (KeyError, TypeError):
                node = self._core.add_node(stack, key, is_batch=True)
            node.count += 1
            node.index = batch_idx
            stack.node = node
            if node.channel is not None:
                node.channel.push_value(node.attributes, batch_idx)
                mark_ready_time(stack, node, node.channel)
            return
        try:
            node = stack.node.children[key]
        except (KeyError, TypeError):
            node = self._core.add_node(stack, key)
        node.count += 1
        stack.node = node
        if node.push is not None:
            node.push(node.attributes)

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

        Raises:
            RecorderError: nothing is open, the domain is another, a `with` block will close the range, or the items are
                not a count or not a batch's. The range then stays open.
        """
        if compiled_code.tracing is not None and compiled_code.tracing():
            return
        try:
            stack = self._local.stack
        except AttributeError:
            stack = self._core.add_thread()
        if self._running:
            stack = tasks.stack_of_task(stack) or self._core.nothing_open
        node = stack.node
        if node.guard or domain is not None or total_items is not None or delete_range or shared:
            plain_batch = node.is_batch and node.owner is None and domain is node.domain
            if not (plain_batch and type(total_items) is int and 0 <= total_items < USUAL_END):
                total_items = self._core.checked_items(stack, domain, total_items, shared)
            self._core.close(stack, total_items, delete_range, shared)
            return
        stack.node = node.parent
        if node.pop is not None:
            node.pop()

    def finalize(self) -> None:
        """Declare the measurement over and, inside a launch, write `recorder.json`.

        Raises:
            RecorderError: a range is still open, on this thread or another.
        """
        core = self._core
        still_open = core.open_ranges()
        if still_open and (self._is_finalized or core.users <= 1):  # else they may belong to another object
            more = f" and {len(still_open) - LABELS_SHOWN} more" if len(still_open) > LABELS_SHOWN else ""
            raise RecorderError(
                f"recorder {self.name!r} cannot be finalized: these ranges are still open: "
                f"{', '.join(still_open[:LABELS_SHOWN])}{more}; pop them first"
            )
        core.mark_clock()
        if not self._is_finalized:
            self._is_finalized = True
            core.users -= 1
        journal.write()

    # ---- the same as blocks, loops and decorators ----

    def range(
        self,
        message: str,
        color: Color = None,
        domain: str | None = None,
        category: str | int | None = None,
    ) -> RangeScope:
        """`with perf.range("stage"):`; the object may be kept and entered again, nested and from several threads."""
        if compiled_code.tracing is not None and compiled_code.tracing():
            compiled_code.note_range(message)
            return cast("RangeScope", compiled_code.Unrecorded())
        key = range_key(message, color, domain, category)
        try:
            return self._scopes[key]
        except KeyError:
            if len(self._scopes) >= SCOPES_KEPT:
                self._scopes.clear()
            return self._scopes.setdefault(key, RangeScope(self._core, key))

    def batch(
        self,
        batch_idx: int,
        total_items: int | None = None,
        *,
        message: str = "batch",
        color: Color = None,
        domain: str | None = None,
        category: str | int | None = None,
        shared: bool = False,
    ) -> BatchScope:
        """`with perf.batch(i, total_items=n) as batch:`; `batch.total_items` may also be set inside.

        `shared=True`: other ranks work on the same items (tensor or pipeline parallel), so that they count once.
        A batch that ends by an exception did not process its items: it is deleted from the results.
        """
        if compiled_code.tracing is not None and compiled_code.tracing():
            compiled_code.note_range(message)
            return cast("BatchScope", compiled_code.Unrecorded())
        return BatchScope(self._core, range_key(message, color, domain, category), batch_idx, total_items, shared)

    def batches(
        self,
        iterable: Iterable[T],
        items: int | Callable[[T], int] | None = None,
        *,
        start: int = 0,
        message: str = "batch",
        color: Color = None,
        domain: str | None = None,
        category: str | int | None = None,
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
        if items is not None and not callable(items):
            check_items(items, message)
        return self._batches(iterable, items, start, range_key(message, color, domain, category), shared)

    def _batches(
        self, iterable: Iterable[T], items: Any, start: int, key: RangeKey, shared: bool
    ) -> Iterator[tuple[int, T]]:
        for index, element in enumerate(iterable, start):
            total_items = items(element) if callable(items) else items
            with BatchScope(self._core, key, index, total_items, shared):
                yield index, element

    @overload
    def annotate(self, message: F) -> F: ...

    @overload
    def annotate(
        self,
        message: str | None = None,
        color: Color = None,
        domain: str | None = None,
        category: str | int | None = None,
    ) -> Callable[[F], F]: ...

    def annotate(
        self,
        message: str | Callable[..., Any] | None = None,
        color: Color = None,
        domain: str | None = None,
        category: str | int | None = None,
    ) -> Any:
        """`@perf.annotate("stage")`, or bare `@perf.annotate`: each call of the function is a range.

        Coroutine functions too. Of a generator, plain or asynchronous, each step is a range, which excludes the time
        of the code that consumes it.
        """
        if callable(message):
            return annotate_function(message, self.range(_name_of(message)))

        def decorate(function: Callable[..., Any]) -> Any:
            return annotate_function(function, self.range(message or _name_of(function), color, domain, category))

        return decorate


def default_recorder() -> str | None:
    """The name of the recorder in the default domain; None: there is none yet."""
    return claims.get(DEFAULT_DOMAIN)


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
