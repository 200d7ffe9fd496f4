"""Times of PyTorch's modules in one inference, by hooks: CUDA events on a GPU, the clock on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from perfharness.backends.base import LayerTime
from perfharness.errors import BackendError

Mark = Callable[[], Any]

SLEEP_CYCLES_PER_NS = 2.0
"""GPUs run at up to about 2 GHz; a slower one sleeps longer, which costs only time."""


def layer_times(torch: Any, module: Any, infer: Callable[[], Any], stream: Any, rounds: int) -> list[LayerTime] | str:
    """Mean milliseconds of each module without children over so many rounds, in the order of their first calls.

    A module that is called several times in an inference counts in sum. On a GPU the device is first kept busy for as
    long as the host needs to start everything: without that, times between events would be those of the host.
    """
    leaves = [(name, each) for name, each in module.named_modules() if name and not list(each.children())]
    if not leaves:
        return "this model has no modules in it that could be timed"
    marks: list[tuple[str, Any, Any]] = []
    begun: dict[str, list[Any]] = {}
    mark = _event_mark(torch, stream) if stream is not None else perf_counter_ns
    handles = [handle for name, each in leaves for handle in _hooked(each, name, mark, begun, marks)]
    try:
        begin = perf_counter_ns()
        infer()
        if stream is not None:
            stream.synchronize()
        longest_ns = perf_counter_ns() - begin
        marks.clear()
        for _ in range(rounds):
            if stream is not None:
                torch.cuda._sleep(int(2 * longest_ns * SLEEP_CYCLES_PER_NS))
            infer()
            if stream is not None:
                stream.synchronize()
    finally:
        for handle in handles:
            handle.remove()
    total: dict[str, float] = {}
    for name, first, last in marks:
        took = (last - first) / 1e6 if stream is None else first.elapsed_time(last)
        total[name] = total.get(name, 0.0) + float(took)
    if not total:
        raise BackendError("no module was called; the model computes without its modules")
    return [LayerTime(name, milliseconds / rounds) for name, milliseconds in total.items()]


def _hooked(
    module: Any, name: str, mark: Mark, begun: dict[str, list[Any]], marks: list[tuple[str, Any, Any]]
) -> list[Any]:
    """Hooks before and after the module; a module may call itself, so begins are kept as a stack."""

    def before(*_: Any) -> None:
        begun.setdefault(name, []).append(mark())

    def after(*_: Any) -> None:
        marks.append((name, begun[name].pop(), mark()))

    return [module.register_forward_pre_hook(before), module.register_forward_hook(after)]


def _event_mark(torch: Any, stream: Any) -> Mark:
    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    return mark
