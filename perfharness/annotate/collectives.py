"""Calls of `torch.distributed` as ranges of the category `communication`, in which ranks wait for each other.

Nothing here imports torch. The functions are replaced in the module that defines them, before `torch.distributed` takes
them over.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from perfharness import compiled_code
from perfharness.annotate.dispatched import DispatchedCollectives
from perfharness.annotate.runtime import Runtime
from perfharness.annotate.wrappers import MARK
from perfharness.model.conventions import collective_name

DISTRIBUTED_MODULE = "torch.distributed.distributed_c10d"

OPERATIONS = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_gather_single",
    "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv",
    "broadcast", "broadcast_object_list", "gather", "gather_object", "irecv", "isend", "monitored_barrier", "recv",
    "recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter",
    "scatter_object_list", "send", "send_object_list",
)  # fmt: skip
"""Functions of PyTorch that communicate; which of them there are depends on its version."""

WAIT = "wait"
"""The range of waiting for a call that was asynchronous."""


def follow_collectives(distributed: ModuleType, runtime: Runtime) -> None:
    """Replace the functions of `torch.distributed.distributed_c10d`, just executed."""
    note = runtime.collectives_note
    assert note is not None
    note.imported = True
    calls = _Calls(distributed, runtime)
    replaced = 0
    for name in OPERATIONS:
        function = getattr(distributed, name, None)
        if inspect.isfunction(function) and not hasattr(function, MARK):
            setattr(distributed, name, calls.annotated(name, function))
            replaced += 1
    if not replaced:
        note.problem = "this PyTorch has no function that communicates; it was built without distributed support"
        return
    note.found = True
    work: Any = getattr(distributed, "Work", None)
    if work is not None and not hasattr(work.wait, MARK):
        work.wait = calls.annotated_wait(work.wait)
    initialize = getattr(distributed, "init_process_group", None)
    if initialize is not None and not hasattr(initialize, MARK):
        dispatched = DispatchedCollectives(runtime, calls.is_inside, calls.ranks_of)
        vars(distributed)["init_process_group"] = _first(dispatched.install, initialize)


def _first(install: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        install()
        return function(*args, **kwargs)

    setattr(call, MARK, install)
    return call


class _Calls:
    """What the calls of one process share. Only the outermost of nested calls is a range."""

    def __init__(self, distributed: ModuleType, runtime: Runtime) -> None:
        self._distributed = distributed
        self._runtime = runtime
        self._local = threading.local()  # inside: a call is open
        self._members: weakref.WeakKeyDictionary[Any, tuple[int, ...] | None] = weakref.WeakKeyDictionary()

    def is_inside(self) -> bool:
        """Whether a call of this thread is open."""
        return getattr(self._local, "inside", False)

    def annotated(self, operation: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, each call of which is a range."""
        signature = inspect.signature(function)

        def name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
            try:
                given = signature.bind_partial(*args, **kwargs).arguments
            except TypeError:
                given = {}  # the function itself will complain
            return collective_name(operation, self.ranks_of(given.get("group")), is_async=bool(given.get("async_op")))

        return self._in_range(function, name)

    def annotated_wait(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`Work.wait`, each call of which is a range."""
        waiting = collective_name(WAIT, is_async=True)
        return self._in_range(function, lambda args, kwargs: waiting)

    def _in_range(
        self, function: Callable[..., Any], name: Callable[[tuple[Any, ...], dict[str, Any]], str]
    ) -> Callable[..., Any]:
        local, runtime = self._local, self._runtime

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if (compiled_code.tracing or compiled_code.find_tracing())() or self.is_inside():
                return function(*args, **kwargs)
            local.inside = True
            try:
                scope = runtime.open_collective(name(args, kwargs))
                if scope is None:
                    return function(*args, **kwargs)
                with scope:
                    return function(*args, **kwargs)
            finally:
                local.inside = False

        setattr(call, MARK, name)
        return call

    def ranks_of(self, group: Any) -> tuple[int, ...] | None:
        """The ranks of a group; None for all, and where they cannot be known."""
        if group is None:
            return None
        try:
            if group not in self._members:
                distributed: Any = self._distributed
                ranks = tuple(distributed.get_process_group_ranks(group))
                self._members[group] = None if len(ranks) == distributed.get_world_size() else ranks
            return self._members[group]
        except Exception:  # whatever is wrong with the group, PyTorch itself will say
            return None
