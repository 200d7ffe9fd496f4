"""Outputs of a recorder: NVTX, or the range log of the embedded tracer.

A `Sink` is one NVTX domain of one stack. Attributes are prepared once per path, so an event is one call.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfharness.model import conventions, environment
from perfharness.recorder.names import argb_of
from perfharness.tracer import range_log
from perfharness.tracer.range_log import HAS_PAYLOAD, MARK, OP_BITS, POP, START, RangeAttributes, RangeLog

INSTALL_HINT = "install it with: pip install 'nvtx>=0.2.11'"
_lock = threading.Lock()  # threads that name categories concurrently could get the same id
_unshared = itertools.count(-(1 << 62))  # some versions of nvtx cache attributes by arguments
_flushes = itertools.count()
_warned: set[str] = set()

Call = Callable[[Any], object]


class Sink:
    """Calls of a domain. Attributes made `with_value` have a `payload`, to be set before each event.

    Attributes:
        push, push_value: begin a nested range, without and with a payload; `pop` ends it.
        start: begin a range that may overlap others; returns the argument of `end`.
        write: write a mark.
    """

    push: Call
    push_value: Call
    pop: Callable[[], object]
    start: Call
    end: Call
    write: Call

    def __init__(self, *, is_of_task: bool) -> None:
        """Use start/end ranges for a task, because tasks of a thread interleave."""
        self._marks: dict[tuple[str, str, bool], Any] = {}
        if is_of_task:
            open_ids: list[Any] = []
            self.push = self.push_value = lambda attributes: open_ids.append(self.start(attributes))
            self.pop = lambda: self.end(open_ids.pop())

    def attributes(self, message: str, color: int | None, category: str | None, *, with_value: bool = False) -> Any:
        """Return the attributes of an event."""
        raise NotImplementedError

    def marker(self, name: str, category: str) -> Callable[[int], object]:
        """Return a function of a value that writes a frequent mark."""
        write, attributes = self.write, self._mark_attributes(name, category, with_value=True)

        def mark(value: int) -> None:
            attributes.payload = value
            write(attributes)

        return mark

    def mark(self, name: str, category: str, value: int | None = None) -> None:
        """Write a mark."""
        key = name, category, value is not None
        attributes = self._marks.get(key)
        if attributes is None:
            attributes = self._marks[key] = self._mark_attributes(name, category, with_value=value is not None)
        if value is not None:
            attributes.payload = value
        self.write(attributes)

    def _mark_attributes(self, name: str, category: str, *, with_value: bool) -> Any:
        return self.attributes(name, argb_of(None, name), category, with_value=with_value)


class NvtxSink(Sink):
    """NVTX, by the methods of the domain (nvtx 0.2.12 and later) or the functions below them."""

    def __init__(self, domain: Any, *, is_of_task: bool) -> None:
        self._domain = domain
        if hasattr(domain, "push_range"):
            self.push, self.pop, self.write = domain.push_range, domain.pop_range, domain.mark
            self.start, self.end = domain.start_range, domain.end_range
        else:
            from nvtx import _lib  # public functions of nvtx 0.2.11 keep an object per payload

            def in_domain(call: Callable[..., object]) -> Call:
                return lambda attributes: call(attributes, handle)

            handle, pop = domain.handle, _lib.pop_range
            self.push, self.start, self.write = map(in_domain, (_lib.push_range, _lib.start_range, _lib.mark))
            self.pop, self.end = lambda: pop(handle), _lib.end_range
        self.push_value = self.push
        super().__init__(is_of_task=is_of_task)

    def attributes(self, message: str, color: int | None, category: str | None, *, with_value: bool = False) -> Any:
        """Return an object of nvtx, not shared if its payload changes."""
        with _lock:
            payload = next(_unshared) if with_value else None
            return self._domain.get_event_attributes(message, color, category, payload)


@dataclass(slots=True)
class _Valued:
    """Attributes with a payload."""

    key: int
    payload: int = 0


class LogSink(Sink):
    """The range log, by the calling thread's writer. Attributes are a key of the log or a `_Valued`."""

    def __init__(self, log: RangeLog, domain: str | None, *, is_of_task: bool) -> None:
        self._log, self._domain = log, domain
        writer = self._writer = log.writer()
        self.push, self.pop, self.end = writer.event, writer.popper(self._key("", None, None) + POP), writer.end
        self.push_value = lambda attributes: writer.event_with_value(attributes.key + HAS_PAYLOAD, attributes.payload)
        self.start, self.write = self._start, self._write
        super().__init__(is_of_task=is_of_task)

    def attributes(self, message: str, color: int | None, category: str | None, *, with_value: bool = False) -> Any:
        """Return a key, or a `_Valued`."""
        key = self._key(message, color, category)
        return _Valued(key) if with_value else key

    def _key(self, message: str, color: int | None, category: str | None) -> int:
        return self._log.key(RangeAttributes(self._domain, message, category, color)) << OP_BITS

    def _start(self, attributes: int | _Valued) -> int:
        if isinstance(attributes, int):
            return self._writer.start(attributes + START)
        return self._writer.start_with_value(attributes.key + START + HAS_PAYLOAD, attributes.payload)

    def _write(self, attributes: int | _Valued) -> None:
        if isinstance(attributes, int):
            self._writer.event(attributes + MARK)
        else:
            self._writer.event_with_value(attributes.key + MARK + HAS_PAYLOAD, attributes.payload)


class Output:
    """The output of a recorder: the range log if installed, else NVTX, else nothing.

    Attributes:
        listening: whether a tool records, or None if nvtx is too old to know.
        is_disabled: whether NVTX_DISABLE is set.
    """

    def __init__(self) -> None:
        self.log = range_log.active()
        self.listening: bool | None = self.log is not None
        self.is_disabled = False
        self._nvtx = None if self.log is not None else self._import_nvtx()

    def sink(self, domain: str | None, log: RangeLog | None, *, is_of_task: bool) -> Sink | None:
        """Return a sink for a stack of the calling thread, or None if nothing records."""
        if log is not None:
            return LogSink(log, domain, is_of_task=is_of_task)
        if self._nvtx is None:
            return None
        calls = self._nvtx.nvtx.get_domain(domain)
        if not hasattr(calls, "handle"):  # a dummy
            return None
        self.listening = True if hasattr(calls, "push_range") else None
        return NvtxSink(calls, is_of_task=is_of_task)

    def _import_nvtx(self) -> Any:
        try:
            import nvtx

            if hasattr(nvtx.nvtx, "get_domain"):
                self.is_disabled = not nvtx.enabled()
                return None if self.is_disabled else nvtx
            problem = "nvtx is older than 0.2.11"
        except ImportError as error:
            problem = f"nvtx cannot be imported ({error})"
        if problem not in _warned:
            _warned.add(problem)
            text = f"{problem}; ranges will not be recorded. To record them, {INSTALL_HINT}"
            warnings.warn(text, RuntimeWarning, stacklevel=5)  # at the caller of PerfRecorder
        return None


def begin_in_child() -> None:
    """Have nvtx define domains and names again in a forked child.

    nsys (2023.4) numbers them anew there; events with an old number are lost or misnamed.
    """
    global _lock
    _lock = threading.Lock()  # maybe held by another thread of the parent
    module = sys.modules.get("nvtx.nvtx")
    for name in ("get_domain", "_get_domain_cached"):
        clear = getattr(getattr(module, name, None), "cache_clear", None)
        if clear is not None:
            clear()


def flush_nsys() -> None:
    """Have nsys write its last events before an exit without exit functions.

    nsys (2023.4) writes them with the next event of a new name in the default domain
    (docs/internals/trace-conventions.md).
    """
    nvtx = sys.modules.get("nvtx")
    if nvtx is not None and os.environ.get(environment.TRACER) == "nsys":
        nvtx.mark(f"{conventions.MARK_END} {os.getpid()} {next(_flushes)}")
