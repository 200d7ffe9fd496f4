"""Collectives that C++ code calls (DDP in the backward pass, functional collectives, compiled code), as ranges.

All of them pass PyTorch's dispatcher as operators of the library `c10d`. For a key at which they have no kernel of
their own we add one: it starts a range, calls the kernel below, and the future of the call ends the range. Tensors on a
GPU never come here, for the kernels of their collectives are in the trace.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from perfharness import compiled_code
from perfharness.annotate.runtime import Runtime
from perfharness.model.conventions import collective_name

OPERATIONS = {
    "_allgather_base_": "all_gather_into_tensor",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather_coalesced",
    "allgather_into_tensor_coalesced_": "all_gather_coalesced",
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "barrier": "barrier",
    "broadcast_": "broadcast",
    "gather_": "gather",
    "reduce_": "reduce",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "scatter_": "scatter",
}
"""Operators of `c10d`, and what they are called in `torch.distributed`."""

GROUP = "process_group"
KEY = "BackendSelect"
"""Asked before the kernels of a device, for tensors of every kind."""

KEY_BESIDE_GPU = "AutogradCPU"
"""Where there is a GPU or another accelerator: for tensors on the CPU, but not in inference mode nor in functional
collectives."""


class DispatchedCollectives:
    """The kernels of one process.

    Args:
        is_inside: whether this thread is inside of a call that is a range already.
        ranks_of: the ranks of a group; None: all.
    """

    def __init__(
        self, runtime: Runtime, is_inside: Callable[[], bool], ranks_of: Callable[[Any], tuple[int, ...] | None]
    ) -> None:
        self._runtime = runtime
        self._is_inside = is_inside
        self._ranks_of = ranks_of
        self._library: Any = None  # its kernels live as long as it does

    def install(self) -> None:
        """Add the kernels, once; a PyTorch that cannot is noted."""
        if self._library is not None:
            return
        try:
            torch: Any = sys.modules["torch"]
            c10d: Any = sys.modules["torch._C._distributed_c10d"]
            unbox = (c10d.Work.unbox, c10d.ProcessGroup.unbox)
            self._library = torch.library.Library("c10d", "IMPL")
            others = getattr(torch, "accelerator", None)
            has_gpu = torch.cuda.is_available() or (others is not None and others.is_available())
            key = KEY_BESIDE_GPU if has_gpu else KEY
            below = _keys_below(torch._C, key)
            for name, operation in OPERATIONS.items():
                operator = getattr(getattr(torch.ops.c10d, name, None), "default", None)
                if operator is not None:
                    self._library.impl(name, self._kernel(operator, operation, unbox, below), key, with_keyset=True)
        except Exception as error:  # whatever a PyTorch of another version lacks
            self._note(error)

    def _kernel(self, operator: Any, operation: str, unbox: tuple[Any, Any], below: Any) -> Callable[..., Any]:
        unbox_work, unbox_group = unbox
        names = [argument.name for argument in operator._schema.arguments]
        place = names.index(GROUP) if GROUP in names else None
        redispatch = operator.redispatch

        def start(args: tuple[Any, ...]) -> Callable[[], None] | None:
            if self._is_inside() or (compiled_code.tracing or compiled_code.find_tracing())():
                return None
            ranks = self._ranks_of(unbox_group(args[place])) if place is not None and place < len(args) else None
            return self._runtime.start_collective(collective_name(operation, ranks))

        def call(keys: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                end = start(args)
            except Exception as error:
                self._note(error)
                end = None
            result = redispatch(below(keys), *args, **kwargs)
            if end is not None:
                try:
                    work = unbox_work(result[-1] if isinstance(result, (tuple, list)) else result)
                    work.get_future().add_done_callback(lambda future: end())
                except Exception as error:  # of a backend whose calls have no future
                    end()
                    self._note(error)
            return result

        return call

    def _note(self, error: Exception) -> None:
        note = self._runtime.collectives_note
        if note is not None and note.unseen_problem is None:
            note.unseen_problem = f"{type(error).__name__}: {error}"


def _keys_below(torch_c: Any, key: str) -> Callable[[Any], Any]:
    """From the keys of a call to those of the kernels below that key: in a set, a key of a kernel that is asked earlier
    is a higher bit.
    """
    kind = torch_c.DispatchKeySet
    if key == KEY_BESIDE_GPU:
        only = kind(torch_c.DispatchKey.CPU)
        return lambda keys: only
    bits = kind(getattr(torch_c.DispatchKey, key)).raw_repr() - 1
    return lambda keys: kind.from_raw_repr(keys.raw_repr() & bits)
