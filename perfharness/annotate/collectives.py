"""Make calls of `torch.distributed` ranges of category `communication`.

Torch is not imported here. Functions are replaced in their defining module, before `torch.distributed` imports them.
Only the outermost of nested calls becomes a range.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from perfharness import compiled_code
from perfharness.annotate.expressions import Function
from perfharness.annotate.runtime import Runtime
from perfharness.model.conventions import COMMUNICATION, collective_name

DISTRIBUTED_MODULE = "torch.distributed.distributed_c10d"

OPERATIONS = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_gather_single",
    "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv",
    "broadcast", "broadcast_object_list", "gather", "gather_object", "irecv", "isend", "monitored_barrier", "recv",
    "recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter",
    "scatter_object_list", "send", "send_object_list",
)  # fmt: skip
"""Communicating functions of PyTorch, some of which only exist in some versions."""


def follow_collectives(runtime: Runtime, distributed: ModuleType) -> None:
    """Replace functions of the newly executed `torch.distributed.distributed_c10d`."""
    note = runtime.collectives_note
    note.imported = True
    inside = threading.local()
    for operation in OPERATIONS:
        function = getattr(distributed, operation, None)
        if inspect.isfunction(function):
            name = functools.partial(_name, distributed, operation, inspect.signature(function))
            setattr(distributed, operation, _in_range(function, name, inside, runtime))
            note.found = True
    if not note.found:
        note.problem = "this PyTorch has no communicating functions; it was built without distributed support"
        return
    work: Any = distributed.Work
    waiting = collective_name("wait", is_async=True)
    work.wait = _in_range(work.wait, lambda *_args, **_kwargs: waiting, inside, runtime)


def _in_range(function: Function, name: Callable[..., str], inside: threading.local, runtime: Runtime) -> Function:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if compiled_code.is_traced() or getattr(inside, "call", False):
            return function(*args, **kwargs)
        inside.call = True
        try:
            with runtime.open_range(runtime.collectives_note, name(*args, **kwargs), COMMUNICATION):
                return function(*args, **kwargs)
        finally:
            inside.call = False

    return call


def _name(distributed: Any, operation: str, signature: inspect.Signature, /, *args: Any, **kwargs: Any) -> str:
    """Name of a call, with the ranks of its group unless these are all ranks."""
    ranks, is_async = None, False
    with contextlib.suppress(Exception):  # PyTorch itself reports wrong arguments
        given = signature.bind_partial(*args, **kwargs).arguments
        is_async = bool(given.get("async_op"))
        if (group := given.get("group")) is not None:
            members = distributed.get_process_group_ranks(group)
            ranks = members if len(members) < distributed.get_world_size() else None
    return collective_name(operation, ranks, is_async=is_async)
