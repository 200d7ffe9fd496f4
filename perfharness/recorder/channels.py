"""Where the events of one stack go: NVTX, the embedded tracer's log, or nowhere.

A sink serves the process; a channel is one domain of it, for one stack of one thread. Attributes are prepared once per
range name and reused by each event, so that an event costs one call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from perfharness.tracer import range_log
from perfharness.tracer.range_log import HAS_PAYLOAD, OP_BITS, RangeAttributes, RangeLog


@dataclasses.dataclass(frozen=True)
class Channel:
    """The calls of one domain.

    Attributes:
        attributes: `(message, color, category name)` -> prepared attributes, for the other calls.
        attributes_with_value: the same for the `…_value` calls; never shared, for the payload is written into them.
        push, push_value, pop: nested ranges of a thread.
        start, start_value, end: ranges that may overlap; `end` takes what `start` returned.
        mark, mark_value: a point in time.
    """

    attributes: Callable[[str, int, str], Any]
    attributes_with_value: Callable[[str, int, str], Any]
    push: Callable[[Any], object]
    push_value: Callable[[Any, int], object]
    pop: Callable[[], object]
    start: Callable[[Any], Any]
    start_value: Callable[[Any, int], Any]
    end: Callable[[Any], object]
    mark: Callable[[Any], object]
    mark_value: Callable[[Any, int], object]


class Sink(Protocol):
    """What a recorder writes to; chosen when the recorder is made."""

    listening: bool | None
    """Whether a tool records the events; None where nvtx is too old to report it."""

    def channel(self, domain: str | None) -> Channel | None:
        """A channel for a stack of the calling thread; None where no tool records it, so that no call is made."""


class SilentSink:
    """Drops everything: nvtx is missing or switched off, and there is no log."""

    listening: bool | None = False

    def channel(self, domain: str | None) -> Channel | None:
        """None: nothing is recorded."""
        return None


def lane_of(channel: Channel) -> Channel:
    """Push and pop made of start/end ranges, for asyncio tasks: they interleave, and a thread has one NVTX stack."""
    start, start_value, end = channel.start, channel.start_value, channel.end
    open_ids: list[Any] = []

    def push(attributes: Any) -> None:
        open_ids.append(start(attributes))

    def push_value(attributes: Any, value: int) -> None:
        open_ids.append(start_value(attributes, value))

    def pop() -> None:
        end(open_ids.pop())

    return dataclasses.replace(channel, push=push, push_value=push_value, pop=pop)


class LogSink:
    """The embedded tracer's range log."""

    listening: bool | None = True

    def __init__(self, log: RangeLog) -> None:
        self.log = log

    def channel(self, domain: str | None) -> Channel:
        """A channel to the calling thread's writer."""
        writer = self.log.writer()
        event, event_with_value = writer.event, writer.event_with_value
        start, start_with_value = writer.start, writer.start_with_value
        # The key is shifted by OP_BITS, so an op can be added to it. PUSH is 0.
        op_start, op_mark = range_log.START, range_log.MARK
        op_push_value = range_log.PUSH | HAS_PAYLOAD
        op_start_value = range_log.START | HAS_PAYLOAD
        op_mark_value = range_log.MARK | HAS_PAYLOAD

        def attributes(message: str, color: int, category: str) -> int:
            return self.log.key(RangeAttributes(domain, message, category, color)) << OP_BITS

        return Channel(
            attributes=attributes,
            attributes_with_value=attributes,
            push=event,
            push_value=lambda key, value: event_with_value(key + op_push_value, value),
            pop=writer.popper(attributes_of_pop(self.log, domain)),
            start=lambda key: start(key + op_start),
            start_value=lambda key, value: start_with_value(key + op_start_value, value),
            end=writer.end,
            mark=lambda key: event(key + op_mark),
            mark_value=lambda key, value: event_with_value(key + op_mark_value, value),
        )


def attributes_of_pop(log: RangeLog, domain: str | None) -> int:
    """The record of a POP in that domain."""
    return log.key(RangeAttributes(domain, "")) << OP_BITS | range_log.POP
