"""NVTX by every API that the nvtx package had since 0.2.10, and the choice of a recorder's sink.

nvtx 0.2.12 and later: a domain's own calls; a domain that no tool records is a dummy. 0.2.10 and 0.2.11
have only module functions, which look everything up at each call; the C-level functions under them take prepared
attributes. Before 0.2.10 an event has no payload, so neither batch indices nor item counts can reach the trace.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from perfharness.errors import RecorderError
from perfharness.model import conventions, environment
from perfharness.recorder.channels import Channel, LogSink, SilentSink, Sink
from perfharness.tracer import range_log

INSTALL_HINT = "install it with: pip install 'nvtx>=0.2.10'"

_lock = threading.RLock()  # two threads naming a category concurrently could get the same id
_warned: set[str] = set()


def _unlock_in_child() -> None:
    """In a forked child: another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock_in_child)

# Some versions cache attributes objects by their arguments. One that is written to must not be shared; an unusual
# payload makes its arguments unique.
_unshared = itertools.count(-(1 << 62))

_flushes = itertools.count()


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
        return _silent_sink(f"{cause}: the recorder's ranges will be in no trace; {INSTALL_HINT}")
    if not nvtx.enabled():  # NVTX_DISABLE; a domain's own calls would ignore it
        return SilentSink()
    if hasattr(nvtx.nvtx.Domain, "push_range"):
        return NvtxSink(nvtx)
    if "payload" in inspect.signature(nvtx.push_range).parameters:
        return LegacyNvtxSink(nvtx)
    problem = "this nvtx is older than 0.2.10 and cannot carry batch indices and item counts into a trace"
    if os.environ.get(environment.TRACER) == "nsys":
        raise RecorderError(f"{problem}, so nothing could be reported per batch; {INSTALL_HINT}")
    return _silent_sink(f"{problem}: the recorder's ranges will be in none; {INSTALL_HINT}")


def _silent_sink(warning: str) -> SilentSink:
    if warning not in _warned:
        _warned.add(warning)
        warnings.warn(warning, RuntimeWarning, stacklevel=6)  # the line that makes the recorder
    return SilentSink()


def forget_definitions() -> None:
    """In a forked child: make nvtx define its domains and names again.

    The ids of a domain and its names were assigned in the parent. nsys (2023.4) restarts the ids in the child, and
    events with an id from before the fork get a wrong name or are lost.
    """
    module = sys.modules.get("nvtx.nvtx")
    for name in ("get_domain", "_get_domain_cached"):
        clear = getattr(getattr(module, name, None), "cache_clear", None)
        if clear is not None:
            clear()


def flush_nsys() -> None:
    """Before `os._exit`, by which workers of multiprocessing end: have nsys write the last events, which it loses then.

    nsys (2023.4) writes them with the first event that has a new name in the default domain; events of other domains,
    or time, do not make it (docs/internals/trace-conventions.md).
    """
    nvtx = sys.modules.get("nvtx")
    if nvtx is not None and os.environ.get(environment.TRACER) == "nsys":
        nvtx.mark(f"{conventions.MARK_END} {os.getpid()} {next(_flushes)}")


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
        return _channel(
            calls.get_event_attributes,
            calls.push_range, calls.pop_range, calls.start_range, calls.end_range, calls.mark,
        )  # fmt: skip


class LegacyNvtxSink:
    """nvtx 0.2.10 and 0.2.11, which do not report whether a tool records."""

    listening: bool | None = None

    def __init__(self, nvtx: Any) -> None:
        # These functions are private, but their versions are released and will not change any more.
        from nvtx import _lib

        self._annotate = nvtx.annotate
        self._calls = _lib

    def channel(self, domain: str | None) -> Channel:
        """A channel by way of `nvtx.annotate`, the one public class of these versions that prepares attributes."""
        annotate = self._annotate
        handle = annotate("", domain=domain).domain.handle
        push, pop, start, mark = (
            getattr(self._calls, name) for name in ("push_range", "pop_range", "start_range", "mark")
        )
        return _channel(
            lambda message, color, category, *payload: annotate(message, color, domain, category, *payload).attributes,
            push=lambda attributes: push(attributes, handle),
            pop=lambda: pop(handle),
            start=lambda attributes: start(attributes, handle),
            end=self._calls.end_range,
            mark=lambda attributes: mark(attributes, handle),
        )


def _channel(
    make_attributes: Callable[..., Any],
    push: Callable[[Any], Any],
    pop: Callable[[], Any],
    start: Callable[[Any], Any],
    end: Callable[[Any], Any],
    mark: Callable[[Any], Any],
) -> Channel:
    """A channel of calls that take prepared attributes: `make_attributes(message, color, category[, payload])`."""

    def attributes(message: str, color: int, category: str) -> Any:
        with _lock:
            return make_attributes(message, color, category)

    def attributes_with_value(message: str, color: int, category: str) -> Any:
        with _lock:
            return make_attributes(message, color, category, next(_unshared))

    return Channel(
        attributes=attributes,
        attributes_with_value=attributes_with_value,
        push=push,
        push_value=_with_value(push),
        pop=pop,
        start=start,
        start_value=_with_value(start),
        end=end,
        mark=mark,
        mark_value=_with_value(mark),
    )


def _with_value(call: Callable[[Any], Any]) -> Callable[[Any, int], Any]:
    """The call with a payload. The attributes belong to one stack of one thread, so no other thread writes them."""

    def call_with_value(attributes: Any, value: int) -> Any:
        attributes.payload = value
        return call(attributes)

    return call_with_value
