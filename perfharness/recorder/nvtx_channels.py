"""NVTX by every API that the nvtx package had, and the choice of a recorder's sink.

nvtx 0.2.12 and later: a domain's own calls; a domain that no tool records is a dummy. 0.2.10 and 0.2.11
have only module functions, which look everything up at each call; the C-level functions under them take prepared
attributes. Before 0.2.10 an event has no payload, so neither batch indices nor item counts can reach the trace.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from perfharness.errors import RecorderError
from perfharness.model import environment, range_log
from perfharness.recorder.channels import Channel, LogSink, SilentSink, Sink

INSTALL_HINT = "install it with: pip install 'nvtx>=0.2.10'"

_lock = threading.Lock()  # two threads naming a category concurrently could get the same id
_warned: set[str] = set()

# Some versions cache attributes objects by their arguments. One that is written to must not be shared; an unusual
# payload makes its arguments unique.
_unshared = itertools.count(-(1 << 62))


def choose_sink() -> Sink:
    """The embedded tracer's log where one is installed, else NVTX, else nothing (with one warning)."""
    log = range_log.active()
    if log is not None:
        return LogSink(log)
    try:
        import nvtx
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        cause = "nvtx is not installed" if missing else f"nvtx cannot be imported ({error})"
        _warn_once(f"{cause}: the recorder's ranges will be in no trace; {INSTALL_HINT}")
        return SilentSink()
    if not nvtx.enabled():  # NVTX_DISABLE; a domain's own calls would ignore it
        return SilentSink()
    if hasattr(nvtx.nvtx.Domain, "push_range"):
        return NvtxSink(nvtx)
    return _legacy_sink(nvtx)


def _legacy_sink(nvtx: Any) -> Sink:
    payloads = "payload" in inspect.signature(nvtx.push_range).parameters
    if not payloads:
        problem = "this nvtx is older than 0.2.10 and cannot carry batch indices and item counts into a trace"
        if os.environ.get(environment.TRACER) == "nsys":
            raise RecorderError(f"{problem}, so nothing could be reported per batch; {INSTALL_HINT}")
        _warn_once(f"{problem}; {INSTALL_HINT}", frames_above=1)
    return LegacyNvtxSink(nvtx, payloads=payloads)


def forget_definitions(sink: Sink) -> bool:
    """In a forked child: make nvtx define its domains and names again; False where the sink does not write to NVTX.

    The ids of a domain and its names were assigned in the parent. nsys (2023.4) restarts the ids in the child, and
    events with an id from before the fork get a wrong name or are lost.
    """
    if not isinstance(sink, (NvtxSink, LegacyNvtxSink)):
        return False
    module = sys.modules.get("nvtx.nvtx")
    for name in ("get_domain", "_get_domain_cached"):
        clear = getattr(getattr(module, name, None), "cache_clear", None)
        if clear is not None:
            clear()
    return True


def _warn_once(message: str, *, frames_above: int = 0) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=6 + frames_above)  # the line that makes the recorder


class NvtxSink:
    """nvtx 0.2.12 and later."""

    def __init__(self, nvtx: Any) -> None:
        self._nvtx = nvtx
        self.listening: bool | None = False

    def channel(self, domain: str | None) -> Channel | None:
        """A channel of the domain, or None where no tool records it."""
        calls = self._nvtx.get_domain(domain)
        if not hasattr(calls, "handle"):  # the dummy
            return None
        self.listening = True

        def attributes(message: str, color: int, category: str) -> Any:
            with _lock:
                return calls.get_event_attributes(message, color, category)

        def attributes_with_value(message: str, color: int, category: str) -> Any:
            with _lock:
                return calls.get_event_attributes(message, color, category, next(_unshared))

        return Channel(
            attributes=attributes,
            attributes_with_value=attributes_with_value,
            push=calls.push_range,
            push_value=_with_value(calls.push_range),
            pop=calls.pop_range,
            start=calls.start_range,
            start_value=_with_value(calls.start_range),
            end=calls.end_range,
            mark=calls.mark,
            mark_value=_with_value(calls.mark),
        )


class LegacyNvtxSink:
    """nvtx before 0.2.12, which does not report whether a tool records."""

    listening: bool | None = None

    def __init__(self, nvtx: Any, *, payloads: bool) -> None:
        # These functions are private, but their versions are released and will not change any more.
        from nvtx._lib import end_range, mark, pop_range, push_range, start_range

        self._functions = push_range, pop_range, start_range, end_range, mark
        self._annotate = nvtx.annotate
        self._payloads = payloads

    def channel(self, domain: str | None) -> Channel:
        """A channel by way of `nvtx.annotate`, the one public class of these versions that prepares attributes."""
        annotate = self._annotate
        handle = annotate("", domain=domain).domain.handle
        push_range, pop_range, start_range, end_range, mark = self._functions

        def attributes(message: str, color: int, category: str) -> Any:
            with _lock:
                return annotate(message, color, domain, category).attributes

        def attributes_with_value(message: str, color: int, category: str) -> Any:
            with _lock:
                return annotate(message, color, domain, category, next(_unshared)).attributes

        def push(attributes: Any) -> object:
            return push_range(attributes, handle)

        def start(attributes: Any) -> Any:
            return start_range(attributes, handle)

        def mark_here(attributes: Any) -> object:
            return mark(attributes, handle)

        def push_value(attributes: Any, value: int) -> object:
            attributes.payload = value
            return push_range(attributes, handle)

        def start_value(attributes: Any, value: int) -> Any:
            attributes.payload = value
            return start_range(attributes, handle)

        def mark_value(attributes: Any, value: int) -> object:
            attributes.payload = value
            return mark(attributes, handle)

        channel = Channel(
            attributes=attributes,
            attributes_with_value=attributes_with_value,
            push=push,
            push_value=push_value,
            pop=lambda: pop_range(handle),
            start=start,
            start_value=start_value,
            end=end_range,
            mark=mark_here,
            mark_value=mark_value,
        )
        return channel if self._payloads else _without_values(channel)


def _without_values(channel: Channel) -> Channel:
    """The channel without payloads, which this version does not have."""
    return dataclasses.replace(
        channel,
        attributes_with_value=channel.attributes,
        push_value=lambda attributes, value: channel.push(attributes),
        start_value=lambda attributes, value: channel.start(attributes),
        mark_value=lambda attributes, value: channel.mark(attributes),
    )


def _with_value(call: Callable[[Any], Any]) -> Callable[[Any, int], Any]:
    """The call with a payload. The attributes belong to one stack of one thread, so no other thread writes them."""

    def call_with_value(attributes: Any, value: int) -> Any:
        attributes.payload = value
        return call(attributes)

    return call_with_value
