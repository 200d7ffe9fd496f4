"""Times of PyTorch modules in one inference, by hooks: CUDA events on a GPU, the clock on the CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from perfharness.backends.session import DeviceTimer, LayerTime
from perfharness.errors import BackendError

SLEEP_CYCLES_PER_NS = 2.0
"""Upper limit of GPU clocks; a slower GPU sleeps longer, which only costs time."""

WHOLE = "(model)"
"""Name of the outermost module, whose own work is outside its modules."""


def held_bytes(module: Any) -> int:
    """Bytes of a module's parameters and buffers, except quantised ones."""
    return sum(int(one.numel() * one.element_size()) for one in (*module.parameters(), *module.buffers()))


class EventTimer(DeviceTimer):
    """Time between two CUDA events of PyTorch in a stream."""

    def __init__(self, torch: Any, stream: Any) -> None:
        self._stream = stream
        self._first, self._last = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def start(self) -> None:
        """Record the first event."""
        self._first.record(self._stream)

    def stop(self) -> None:
        """Record the second event."""
        self._last.record(self._stream)

    def milliseconds(self) -> float:
        """Wait for the second event."""
        self._last.synchronize()
        return float(self._first.elapsed_time(self._last))


class _ClockTimer(DeviceTimer):
    def start(self) -> None:
        self._begin_ns = perf_counter_ns()

    def stop(self) -> None:
        self._end_ns = perf_counter_ns()

    def milliseconds(self) -> float:
        return (self._end_ns - self._begin_ns) / 1e6


@dataclass
class _Call:
    """One call of a module, and the calls inside."""

    name: str
    timer: DeviceTimer
    inside: list[_Call] = field(default_factory=list)


def layer_times(torch: Any, module: Any, infer: Callable[[], Any], stream: Any, rounds: int) -> list[LayerTime]:
    """Mean milliseconds of each module's own work over the rounds, in order of execution.

    Own work is a module's time minus that of called modules: functions in a block (such as a residual sum) belong to
    the block. Repeated calls of a module in an inference are added up; containers without own work are excluded.

    On a GPU, a sleep kernel first keeps the device busy until the host has started everything; otherwise the times
    between events would be the host's. This works for up to about a thousand launches, the length of the queue. Each
    event adds about a microsecond.
    """
    containers = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
    stack: list[_Call] = []
    finished: list[_Call] = []

    def before(name: str) -> None:
        stack.append(_Call(name, _ClockTimer() if stream is None else EventTimer(torch, stream)))
        stack[-1].timer.start()

    def after(*_: Any) -> None:
        call = stack.pop()
        call.timer.stop()
        if stack:
            stack[-1].inside.append(call)
        finished.append(call)

    def inferred() -> None:
        infer()
        if stream is not None:
            stream.synchronize()

    handles = []
    for name, each in module.named_modules():
        if type(each) not in containers:
            handles.append(each.register_forward_pre_hook(lambda *_, name=name or WHOLE: before(name)))
            handles.append(each.register_forward_hook(after))
    try:
        inferred()
        begin_ns = perf_counter_ns()
        inferred()
        taken_ns = perf_counter_ns() - begin_ns
        finished.clear()
        for _ in range(rounds):
            if stream is not None:
                torch.cuda._sleep(int(2 * taken_ns * SLEEP_CYCLES_PER_NS))
            inferred()
    finally:
        for handle in handles:
            handle.remove()
    if not finished:
        raise BackendError("no module was called; the model computes outside of its modules")
    total: defaultdict[str, float] = defaultdict(float)
    for call in finished:
        own = call.timer.milliseconds() - sum(each.timer.milliseconds() for each in call.inside)
        total[call.name] += max(own, 0.0)
    return [LayerTime(name, milliseconds / rounds) for name, milliseconds in total.items()]
