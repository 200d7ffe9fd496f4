"""Where events go: NVTX, or the range log of the embedded tracer.

A `Sink` is one NVTX domain for one stack. Attributes are prepared once per range and path, so an event costs one call.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from perfharness.errors import RecorderError
from perfharness.model import conventions, environment
from perfharness.recorder.names import argb_of
from perfharness.tracer import range_log
from perfharness.tracer.range_log import HAS_PAYLOAD, MARK, OP_BITS, POP, START, RangeAttributes, RangeLog

INSTALL_HINT = "install it with: pip install 'nvtx>=0.2.11'"
_lock = threading.Lock()  # two threads that name a category at the same time could get the same id
_unshared = itertools.count(-(1 << 62))  # some versions of nvtx cache attributes by their arguments
_flushes = itertools.count()
_warned: set[str] = set()


class Sink:
    """The calls of a domain.

    Attributes:
        push, push_value, pop: nested ranges; `push_value(attributes, value)` has an int64 payload.
        end: ends what `start` returned, on any thread with NVTX, on its own thread in the log.
    """

    push: Callable[[Any], object]
    push_value: Callable[[Any, int], object]
    pop: Callable[[], object]
    end: Callable[[Any], object]

    def __init__(self, *, in_lane: bool) -> None:
        """Replace the nested calls by start/end ranges for a task: tasks interleave on one NVTX stack per thread."""
        self._marks: dict[tuple[str, str, bool], Any] = {}
        if in_lane:
            open_ids: list[Any] = []
            self.push = lambda attributes: open_ids.append(self.start(attributes))
            self.push_value = lambda attributes, value: open_ids.append(self.start(attributes, value))
            self.pop = lambda: self.end(open_ids.pop())

    def attributes(self, message: str, color: int, category: str, *, with_value: bool = False) -> Any:
        """Prepare the attributes of an event."""
        raise NotImplementedError

    def start(self, attributes: Any, value: int | None = None) -> Any:
        """Start a range that may overlap others; `end` takes what is returned."""
        raise NotImplementedError

    def marker(self, name: str, category: str) -> Callable[[int], object]:
        """Make the call `(value)` for a mark that is written often."""
        attributes = self.attributes(name, argb_of(None, name), category, with_value=True)
        return lambda value: self._mark(attributes, value)

    def mark(self, name: str, category: str, value: int | None = None) -> None:
        """Write a point in time."""
        key = name, category, value is not None
        attributes = self._marks.get(key)
        if attributes is None:
            attributes = self.attributes(name, argb_of(None, name), category, with_value=value is not None)
            self._marks[key] = attributes
        self._mark(attributes, value)

    def _mark(self, attributes: Any, value: int | None) -> None:
        raise NotImplementedError


class NvtxSink(Sink):
    """NVTX, by the calls of nvtx 0.2.12 and later, or those below its functions in 0.2.11."""

    def __init__(self, domain: Any, *, in_lane: bool) -> None:
        self._domain = domain
        if hasattr(domain, "push_range"):
            self.push, self.pop, self.end = domain.push_range, domain.pop_range, domain.end_range
            self._start, self._write_mark = domain.start_range, domain.mark
        else:
            from nvtx import _lib

            handle = domain.handle
            self.push, self.pop = lambda attributes: _lib.push_range(attributes, handle), lambda: _lib.pop_range(handle)
            self._start = lambda attributes: _lib.start_range(attributes, handle)
            self._write_mark = lambda attributes: _lib.mark(attributes, handle)
            self.end = _lib.end_range
        push = self.push

        def push_value(attributes: Any, value: int) -> None:
            attributes.payload = value
            push(attributes)

        self.push_value = push_value
        super().__init__(in_lane=in_lane)

    def attributes(self, message: str, color: int, category: str, *, with_value: bool = False) -> Any:
        """Make an object of nvtx, not shared where a value is written into it."""
        with _lock:
            payload = next(_unshared) if with_value else None
            return self._domain.get_event_attributes(message, color, category, payload)

    def start(self, attributes: Any, value: int | None = None) -> Any:
        """Return nvtx's id of the range."""
        if value is not None:
            attributes.payload = value
        return self._start(attributes)

    def _mark(self, attributes: Any, value: int | None) -> None:
        if value is not None:
            attributes.payload = value
        self._write_mark(attributes)


class LogSink(Sink):
    """The range log, by the calling thread's writer."""

    def __init__(self, log: RangeLog, domain: str | None, *, in_lane: bool) -> None:
        self._log, self._domain, self._writer = log, domain, log.writer()
        self.push, self.end = self._writer.event, self._writer.end
        self.push_value = lambda key, value: self._writer.event_with_value(key + HAS_PAYLOAD, value)
        self.pop = self._writer.popper(self.attributes("", None, None) + POP)
        super().__init__(in_lane=in_lane)

    def attributes(self, message: str, color: int | None, category: str | None, *, with_value: bool = False) -> int:
        """Return the key of these attributes in the log."""
        return self._log.key(RangeAttributes(self._domain, message, category, color)) << OP_BITS

    def start(self, attributes: int, value: int | None = None) -> int:
        """Return the log's id of the range."""
        if value is None:
            return self._writer.start(attributes + START)
        return self._writer.start_with_value(attributes + START + HAS_PAYLOAD, value)

    def _mark(self, attributes: int, value: int | None) -> None:
        if value is None:
            self._writer.event(attributes + MARK)
        else:
            self._writer.event_with_value(attributes + MARK + HAS_PAYLOAD, value)


class Output:
    """What recorders write to: the range log where one is installed, else NVTX, else nothing.

    Attributes:
        listening: whether a tool records; None where nvtx is too old to tell.
        is_disabled: whether NVTX_DISABLE switches nvtx off.
    """

    def __init__(self) -> None:
        self.log = range_log.active()
        self.listening: bool | None = self.log is not None
        self.is_disabled = False
        self._nvtx = None if self.log is not None else self._import_nvtx()

    def sink(self, domain: str | None, *, in_lane: bool = False) -> Sink | None:
        """Make a sink for a stack of the calling thread; None where nothing records, which saves the calls."""
        if self.log is not None:
            return LogSink(self.log, domain, in_lane=in_lane)
        if self._nvtx is None:
            return None
        calls = self._nvtx.nvtx.get_domain(domain)
        if not hasattr(calls, "handle"):  # a dummy
            return None
        self.listening = True if hasattr(calls, "push_range") else None
        return NvtxSink(calls, in_lane=in_lane)

    def _import_nvtx(self) -> Any:
        try:
            import nvtx
        except ImportError as error:
            missing = isinstance(error, ModuleNotFoundError)
            cause = "nvtx is not installed" if missing else f"nvtx cannot be imported ({error})"
            return _warn(f"{cause}: the recorder's ranges will be in no trace; {INSTALL_HINT}")
        if not nvtx.enabled():
            self.is_disabled = True
            return None
        if not hasattr(nvtx.nvtx, "get_domain"):
            problem = "this nvtx is older than 0.2.11 and cannot carry batch indices and item counts into a trace"
            if os.environ.get(environment.TRACER) == "nsys":
                raise RecorderError(f"{problem}, so nothing could be reported per batch; {INSTALL_HINT}")
            return _warn(f"{problem}; {INSTALL_HINT}")
        return nvtx


def _warn(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=6)  # the line that makes the recorder


def begin_in_child() -> None:
    """Have nvtx define its domains and names again in a forked child.

    nsys (2023.4) numbers them anew in the child: with a number from before the fork events are lost or named wrongly.
    """
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    module = sys.modules.get("nvtx.nvtx")
    for name in ("get_domain", "_get_domain_cached"):
        clear = getattr(getattr(module, name, None), "cache_clear", None)
        if clear is not None:
            clear()


def flush_nsys() -> None:
    """Have nsys write the last events of a process that is about to leave without exit functions.

    nsys (2023.4) loses them otherwise, and writes them with the first event that has a new name in the default domain
    (docs/internals/trace-conventions.md).
    """
    nvtx = sys.modules.get("nvtx")
    if nvtx is not None and os.environ.get(environment.TRACER) == "nsys":
        nvtx.mark(f"{conventions.MARK_END} {os.getpid()} {next(_flushes)}")
