"""Times of PyTorch's modules in one inference, by hooks: CUDA events on a GPU, the clock on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from perfharness.backends.session import LayerTime
from perfharness.errors import BackendError

SLEEP_CYCLES_PER_NS = 2.0
"""GPUs run at up to about 2 GHz; a slower one sleeps longer, which costs only time."""

WHOLE = "(model)"
"""Name of the outermost module, whose own work is that outside of its modules."""


@dataclass
class _Call:
    """One call of a module: marks before and after it, and the calls inside."""

    name: str
    begin: Any
    end: Any = None
    inside: list[_Call] = field(default_factory=list)


def layer_times(torch: Any, module: Any, infer: Callable[[], Any], stream: Any, rounds: int) -> list[LayerTime]:
    """Mean milliseconds of each module's own work over so many rounds, in the order of execution.

    Own work is the time of a module less that of the modules that it calls: functions in a block (a residual sum, say)
    belong to the block. Calls of one module in an inference are added up; containers without own work are excluded.

    On a GPU a sleep kernel first keeps the device busy until the host has started everything, else the times between
    events would be the host's; this works up to the length of the launch queue, about a thousand. Each event adds about
    a microsecond.
    """
    containers = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
    named = [(name or WHOLE, each) for name, each in module.named_modules() if type(each) not in containers]
    finished: list[_Call] = []
    mark = _event_mark(torch, stream) if stream is not None else perf_counter_ns
    handles = _hooked(named, mark, finished)
    try:
        infer()
        begin = perf_counter_ns()
        infer()
        _wait(stream)
        took_ns = perf_counter_ns() - begin
        finished.clear()
        for _ in range(rounds):
            if stream is not None:
                torch.cuda._sleep(int(2 * took_ns * SLEEP_CYCLES_PER_NS))
            infer()
            _wait(stream)
    finally:
        for handle in handles:
            handle.remove()
    if not finished:
        raise BackendError("no module was called; the model computes without its modules")
    total: dict[str, float] = {}
    for call in finished:
        own = _milliseconds(call) - sum(_milliseconds(each) for each in call.inside)
        total[call.name] = total.get(call.name, 0.0) + max(own, 0.0)
    return [LayerTime(name, milliseconds / rounds) for name, milliseconds in total.items()]


def _hooked(named: list[tuple[str, Any]], mark: Callable[[], Any], finished: list[_Call]) -> list[Any]:
    """Hooks before and after each module; finished calls are appended to `finished`."""
    stack: list[_Call] = []

    def hooks(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def before(*_: Any) -> None:
            stack.append(_Call(name, mark()))

        def after(*_: Any) -> None:
            call = stack.pop()
            call.end = mark()
            if stack:
                stack[-1].inside.append(call)
            finished.append(call)

        return before, after

    handles = []
    for name, module in named:
        before, after = hooks(name)
        handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    return handles


def _milliseconds(call: _Call) -> float:
    """Of a call, including nested calls; marks are nanoseconds or CUDA events."""
    if isinstance(call.begin, int):
        return float(call.end - call.begin) / 1e6
    return float(call.begin.elapsed_time(call.end))


def _wait(stream: Any) -> None:
    if stream is not None:
        stream.synchronize()


def _event_mark(torch: Any, stream: Any) -> Callable[[], Any]:
    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    return mark
