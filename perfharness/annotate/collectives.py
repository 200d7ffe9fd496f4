"""Calls of `torch.distributed` as ranges of the category `communication`, in which ranks wait for each other.

Nothing here imports torch. The functions are replaced in the module that defines them, before `torch.distributed` takes
them over. Of calls inside each other the outermost is a range.
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
from perfharness.annotate.expressions import Function
from perfharness.annotate.functions import MARK
from perfharness.annotate.runtime import Runtime
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

Name = Callable[[tuple[Any, ...], dict[str, Any]], str]


def follow_collectives(distributed: ModuleType, runtime: Runtime) -> None:
    """Replace the functions of `torch.distributed.distributed_c10d`, just executed."""
    note = runtime.collectives_note
    assert note is not None
    note.imported = True
    ranks = _GroupRanks(distributed)
    inside = threading.local()
    for name in OPERATIONS:
        function = getattr(distributed, name, None)
        if inspect.isfunction(function) and not hasattr(function, MARK):
            setattr(distributed, name, _in_range(function, _naming(name, function, ranks), inside, runtime))
            note.found = True
    if not note.found:
        note.problem = "this PyTorch has no function that communicates; it was built without distributed support"
        return
    work: Any = getattr(distributed, "Work", None)
    if work is not None and not hasattr(work.wait, MARK):
        waiting = collective_name("wait", is_async=True)
        work.wait = _in_range(work.wait, lambda args, kwargs: waiting, inside, runtime)


def _naming(operation: str, function: Function, ranks: _GroupRanks) -> Name:
    signature = inspect.signature(function)

    def name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        try:
            given = signature.bind_partial(*args, **kwargs).arguments
        except TypeError:
            given = {}  # the function itself will complain
        return collective_name(operation, ranks.of(given.get("group")), is_async=bool(given.get("async_op")))

    return name


def _in_range(function: Function, name: Name, inside: threading.local, runtime: Runtime) -> Function:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if (compiled_code.tracing or compiled_code.find_tracing())() or getattr(inside, "call", False):
            return function(*args, **kwargs)
        inside.call = True
        try:
            with runtime.open_collective(name(args, kwargs)):
                return function(*args, **kwargs)
        finally:
            inside.call = False

    setattr(call, MARK, name)
    return call


class _GroupRanks:
    """The ranks of process groups; None for all ranks, and where they cannot be known."""

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        self._known: weakref.WeakKeyDictionary[Any, tuple[int, ...] | None] = weakref.WeakKeyDictionary()

    def of(self, group: Any) -> tuple[int, ...] | None:
        if group is None:
            return None
        try:
            if group not in self._known:
                ranks = tuple(self._distributed.get_process_group_ranks(group))
                self._known[group] = None if len(ranks) == self._distributed.get_world_size() else ranks
            return self._known[group]
        except Exception:  # whatever is wrong with the group, PyTorch itself will say
            return None
