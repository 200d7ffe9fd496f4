"""Python's `nvtx` package, recorded: its functions write to the process's `RangeLog` instead of calling NVTX.

The package is changed as it is imported, so `from nvtx import …` gets the recording functions too.
Known to fit nvtx 0.2.8 to 0.2.17; what is not recorded here (counters, profiles) goes to the real package.
"""

from __future__ import annotations

import functools
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from perfharness.import_hook import ImportHook
from perfharness.model.range_log import (
    HAS_PAYLOAD,
    KEYS_REMEMBERED,
    MARK,
    OP_BITS,
    POP,
    PUSH,
    START,
    RangeAttributes,
    RangeLog,
)

PACKAGE = "nvtx"
DEFAULT_COLOR = "blue"


def install(log: RangeLog) -> None:
    """Have `nvtx` record into `log` from its first import on; what cannot be recorded is a diagnostic of the log."""
    ImportHook({PACKAGE}, lambda package, _: patch(package, log)).install()


def patch(package: ModuleType, log: RangeLog) -> None:
    """Replace the functions of an imported `nvtx` package; one that was disabled (NVTX_DISABLE) stays as it is."""
    enabled = getattr(package, "enabled", None)
    if enabled is not None and not enabled():
        return
    recording = _Recording(log, getattr(package, "get_domain", None))
    replacements = recording.replacements()
    for module in (package, sys.modules.get(f"{PACKAGE}.{PACKAGE}")):
        for name, replacement in replacements.items():
            if module is not None and hasattr(module, name):
                setattr(module, name, replacement)


class _Recording:
    """What all replaced functions share: the log and the domains by name."""

    def __init__(self, log: RangeLog, real_domain: Callable[..., Any] | None) -> None:
        self.log = log
        self.real_domain = real_domain
        self.domains: dict[str | None, RecordedDomain] = {}

    def domain(self, name: str | None = None) -> RecordedDomain:
        """The domain of that name, always the same object."""
        found = self.domains.get(name)
        if found is None:
            found = self.domains.setdefault(name, RecordedDomain(self, name))
        return found

    def payload_bits(self, payload: Any) -> tuple[int, int, bool]:
        """`(flag, 64 bits, whether they are a double)` of a payload; `(0, 0, False)` where it cannot be recorded."""
        if isinstance(payload, float):
            return HAS_PAYLOAD, struct.unpack("<q", struct.pack("<d", payload))[0], True
        try:
            return HAS_PAYLOAD, payload.__index__(), False
        except (AttributeError, TypeError):
            kind = f"nvtx payloads of type {type(payload).__name__}"
            self.log.diagnose(f"{kind} are not recorded by the embedded tracer; the ranges themselves are")
            return 0, 0, False

    def replacements(self) -> dict[str, Any]:
        """The replacements of the package's own functions, by name."""

        def recording(op: int, default_color: str | None) -> Callable[..., int | None]:
            def record(
                message: Any = None, color: Any = default_color, domain: Any = None, category: Any = None,
                payload: Any = None,
            ) -> int | None:  # fmt: skip
                return self.domain(domain).record(op, message, color, category, payload)

            return record

        start = recording(START, None)

        def start_range(*args: Any, **kwargs: Any) -> tuple[int | None, None]:
            """Mark the beginning of a process range."""
            return start(*args, **kwargs), None

        def end_range(range_id: Any, domain: Any = None) -> None:
            """Mark the end of a code range that was started with `start_range`."""
            if range_id is not None:
                self.domain(None).end_range(range_id[0])

        def pop_range(domain: Any = None) -> None:
            """Mark the end of a code range that was started with `push_range`."""
            self.domain(domain).pop_range()

        # Known by the package's own name, so that a pickled one is the real one in a process that is not traced.
        annotate = type("annotate", (_Annotate,), {"recording": self, "__module__": PACKAGE})
        return {
            "mark": recording(MARK, DEFAULT_COLOR), "push_range": recording(PUSH, DEFAULT_COLOR),
            "pop_range": pop_range, "start_range": start_range, "end_range": end_range,
            "annotate": annotate, "get_domain": self.domain, "Domain": _domain_type(self.domain),
        }  # fmt: skip


class _DomainType(type):
    """Makes `nvtx.Domain(name)` the lookup that it is in the package, and `isinstance` still true."""

    lookup: Callable[..., Any]

    def __call__(cls, name: str | None = None) -> Any:
        return cls.lookup(name)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, RecordedDomain)


def _domain_type(lookup: Callable[..., Any]) -> type:
    return _DomainType("Domain", (), {"lookup": staticmethod(lookup), "__doc__": "A domain of NVTX events."})


@dataclass(eq=False)
class RegisteredString:
    """Stands in for nvtx's registered string."""

    domain: Any
    string: str | None
    handle: None = None


class EventAttributes:
    """Stands in for nvtx's event attributes: what `get_event_attributes` returns; every attribute may be set."""

    __slots__ = ("category", "color", "message", "payload")

    def __init__(self, message: Any = None, color: Any = None, category: Any = None, payload: Any = None) -> None:
        self.message, self.color, self.category, self.payload = message, color, category, payload


class RecordedDomain:
    """Replaces `nvtx.Domain`; other attributes come from the real one."""

    def __init__(self, recording: _Recording, name: str | None) -> None:
        self.name = name
        self.handle = self
        self.categories: dict[str, int] = {}
        self._recording = recording
        self._log = recording.log
        self._keys: dict[tuple[Any, ...], int] = {}
        self._pop = self._log.key(RangeAttributes(name, "")) << OP_BITS | POP

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self._recording.real_domain is None:
            raise AttributeError(name)
        return getattr(self._recording.real_domain(self.name), name)

    def record(self, op: int, message: Any, color: Any, category: Any, payload: Any) -> int | None:
        """Write a push, a mark, or a start, whose id is returned; the clock is read last."""
        writer = self._log.writer()
        flag, bits, is_double = self._recording.payload_bits(payload) if payload is not None else (0, 0, False)
        try:
            key = self._keys[message, color, category, is_double]
        except KeyError:
            key = self._new_key(message, color, category, is_double)
            if len(self._keys) >= KEYS_REMEMBERED:
                self._keys.clear()
            self._keys[message, color, category, is_double] = key
        head = key << OP_BITS | op | flag
        if op == START:
            return writer.start_with_value(head, bits) if flag else writer.start(head)
        return writer.event_with_value(head, bits) if flag else writer.event(head)

    def _new_key(self, message: Any, color: Any, category: Any, is_double: bool) -> int:
        from nvtx.colors import color_to_hex

        text = message.string if isinstance(message, RegisteredString) else message
        if isinstance(category, int):
            category = next((name for name, number in self.categories.items() if number == category), category)
        named = isinstance(category, str)
        attributes = RangeAttributes(
            domain=self.name,
            message="" if text is None else text.decode() if isinstance(text, bytes) else str(text),
            category=category if named else None,
            color=color_to_hex(color),
            category_id=None if named or category is None else int(category),
            double_payload=is_double,
        )
        return self._log.key(attributes)

    def push_range(self, attributes: EventAttributes | None = None, **values: Any) -> None:
        """Begin a range on this thread's stack of this domain."""
        self._record(PUSH, attributes, values)

    def pop_range(self) -> None:
        """End the innermost range of this thread and domain."""
        self._log.writer().event(self._pop)

    def start_range(self, attributes: EventAttributes | None = None, **values: Any) -> int | None:
        """Begin a range that any thread may end; its id."""
        return self._record(START, attributes, values)

    def end_range(self, range_id: int) -> None:
        """End the range of that id."""
        self._log.writer().end(range_id)

    def mark(self, attributes: EventAttributes | None = None, **values: Any) -> None:
        """Mark a moment."""
        self._record(MARK, attributes, values)

    def _record(self, op: int, attributes: EventAttributes | None, values: dict[str, Any]) -> int | None:
        event = EventAttributes() if attributes is None else attributes
        if values:
            self.set_event_attributes(event, **values)
        return self.record(op, event.message, event.color, event.category, event.payload)

    def get_registered_string(self, string: str | None) -> RegisteredString:
        """A message in the form that attributes accept."""
        return RegisteredString(self, string)

    def get_category_id(self, name: str) -> int:
        """The category's number. It is recorded by name; the number is valid in this process only."""
        return self.categories.setdefault(name, len(self.categories) + 1)

    def get_event_attributes(
        self, message: Any = None, color: Any = None, category: Any = None, payload: Any = None
    ) -> EventAttributes:
        """Reusable attributes."""
        return EventAttributes(message, color, category, payload)

    def set_event_attributes(self, attributes: EventAttributes, **values: Any) -> None:
        """Change some of the attributes in place."""
        for name, value in values.items():
            setattr(attributes, name, value)


class _Annotate:
    """Replaces `nvtx.annotate`: a context manager and a decorator."""

    recording: _Recording

    def __init__(
        self, message: Any = None, color: Any = None, domain: Any = None, category: Any = None, payload: Any = None
    ) -> None:
        self.init_args = (message, color, domain, category, payload)
        self.domain = self.recording.domain(domain)
        self.attributes = EventAttributes(message, color, category, payload)

    def __reduce__(self) -> Any:
        return self.__class__, self.init_args

    def __enter__(self) -> _Annotate:
        event = self.attributes
        self.domain.record(PUSH, event.message, event.color, event.category, event.payload)
        return self

    def __exit__(self, *exception: object) -> None:
        self.domain.pop_range()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not self.attributes.message:
            self.attributes.message = function.__name__

        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return inner
