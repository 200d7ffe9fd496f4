"""Record Python's `nvtx` package: its functions write to the process's `RangeLog`.

The package is patched on import, so `from nvtx import …` gets recording functions too. Fits nvtx 0.2.8
to 0.2.17. Not recorded: counters, non-integer payloads, categories given by number.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from perfharness.import_hook import ImportHook
from perfharness.tracer.range_log import HAS_PAYLOAD, MARK, OP_BITS, POP, PUSH, START, RangeAttributes, RangeLog


def install(log: RangeLog) -> None:
    """Record `nvtx` into `log` from its first import on."""
    ImportHook({"nvtx"}, lambda package, _: _patch(package, log)).install()


def _patch(package: ModuleType, log: RangeLog) -> None:
    """Replace the functions of the `nvtx` package, unless NVTX_DISABLE is set."""
    enabled = getattr(package, "enabled", None)
    if enabled is not None and not enabled():
        return
    replacements = _replacements(log, getattr(package, "get_domain", None))
    for module in (package, sys.modules.get("nvtx.nvtx")):
        for name, replacement in replacements.items():
            if module is not None and hasattr(module, name):
                setattr(module, name, replacement)


def _replacements(log: RangeLog, real_domain: Callable[..., Any] | None) -> dict[str, Any]:
    """Replacements of the package's functions and classes, by name."""

    @functools.cache
    def domain_named(name: str | None = None) -> Domain:
        return Domain(log, name, real_domain)

    def recording(op: int, default_color: str | None) -> Callable[..., int | None]:
        def record(
            message: Any = None,
            color: Any = default_color,
            domain: str | None = None,
            category: Any = None,
            payload: Any = None,
        ) -> int | None:
            return domain_named(domain).record(op, message, color, category, payload)

        return record

    start = recording(START, None)

    def start_range(*args: Any, **kwargs: Any) -> tuple[int | None, None]:
        return start(*args, **kwargs), None

    def end_range(range_id: Any, domain: str | None = None) -> None:
        if range_id is not None:
            log.writer().end(range_id[0])

    def pop_range(domain: str | None = None) -> None:
        domain_named(domain).pop_range()

    return {
        "mark": recording(MARK, "blue"),
        "push_range": recording(PUSH, "blue"),
        "pop_range": pop_range,
        "start_range": start_range,
        "end_range": end_range,
        # nvtx's name, so that pickled objects load in processes without a tracer.
        "annotate": type("annotate", (_Annotate,), {"domain_named": domain_named, "__module__": "nvtx"}),
        "get_domain": domain_named,
        "Domain": domain_named,
    }


class EventAttributes:
    """Replaces the event attributes of nvtx; all of them may be set."""

    __slots__ = ("category", "color", "message", "payload")

    def __init__(self, message: Any = None, color: Any = None, category: Any = None, payload: Any = None) -> None:
        self.message, self.color, self.category, self.payload = message, color, category, payload


class Domain:
    """Replaces `nvtx.Domain`; other attributes come from the real domain."""

    get_event_attributes = EventAttributes

    def __init__(self, log: RangeLog, name: str | None, real_domain: Callable[..., Any] | None) -> None:
        self.name = name
        self.push_range = functools.partial(self._record, PUSH)
        self.start_range = functools.partial(self._record, START)
        self.mark = functools.partial(self._record, MARK)
        self._log, self._real_domain = log, real_domain
        self._keys: dict[tuple[Any, ...], int] = {}
        self._pop = log.key(RangeAttributes(name, "")) << OP_BITS | POP

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self._real_domain is None:
            raise AttributeError(name)
        return getattr(self._real_domain(self.name), name)

    def record(self, op: int, message: Any, color: Any, category: Any, payload: Any) -> int | None:
        """Write a push, mark or start, reading the clock last; return the ID of a start."""
        writer = self._log.writer()
        try:
            head = self._keys[message, color, category] << OP_BITS | op
        except KeyError:
            key = self._keys[message, color, category] = self._key(message, color, category)
            head = key << OP_BITS | op
        value = None if payload is None else _integer(payload)
        if value is None:
            return writer.start(head) if op == START else writer.event(head)
        head |= HAS_PAYLOAD
        return writer.start_with_value(head, value) if op == START else writer.event_with_value(head, value)

    def _key(self, message: Any, color: Any, category: Any) -> int:
        from nvtx.colors import color_to_hex

        text = "" if message is None else message.decode() if isinstance(message, bytes) else str(message)
        name = category if isinstance(category, str) else None
        return self._log.key(RangeAttributes(self.name, text, name, color_to_hex(color)))

    def pop_range(self) -> None:
        """End the innermost range of this thread and domain."""
        self._log.writer().event(self._pop)

    def end_range(self, range_id: int) -> None:
        """End the range with this ID."""
        self._log.writer().end(range_id)

    def _record(self, op: int, attributes: EventAttributes | None = None, **values: Any) -> int | None:
        event = EventAttributes() if attributes is None else attributes
        self.set_event_attributes(event, **values)
        return self.record(op, event.message, event.color, event.category, event.payload)

    def get_registered_string(self, string: str | None) -> str | None:
        """Return a message as attributes accept it."""
        return string

    def get_category_id(self, name: str) -> str:
        """Return a category as attributes accept it."""
        return name

    def set_event_attributes(self, attributes: EventAttributes, **values: Any) -> None:
        """Change attributes in place."""
        for name, value in values.items():
            setattr(attributes, name, value)


def _integer(payload: Any) -> int | None:
    try:
        return operator.index(payload)
    except TypeError:
        return None


class _Annotate:
    """Replaces `nvtx.annotate`, a context manager and decorator."""

    domain_named: Callable[[str | None], Domain]

    def __init__(
        self, message: Any = None, color: Any = None, domain: Any = None, category: Any = None, payload: Any = None
    ) -> None:
        self.init_args = (message, color, domain, category, payload)
        self.domain = type(self).domain_named(domain)
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
