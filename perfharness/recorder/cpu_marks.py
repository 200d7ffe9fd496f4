"""CPU accounting of a thread as marks in the trace, at most one reading per 5 ms.

Read before and after each batch, and after each of its direct stages. Readings lie outside the
range they follow: 5 to 10 us each, up to 170 us with cold caches after a sleep.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from contextlib import suppress
from ctypes import PyDLL, create_string_buffer  # a `PyDLL` keeps the interpreter lock, a `CDLL` releases it
from os import O_CLOEXEC, O_RDONLY
from time import monotonic_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

from perfharness.model import conventions

if TYPE_CHECKING:
    from perfharness.recorder.events import Call, Sink
    from perfharness.recorder.ranges import Range

MAX_SKIPPED_READINGS = 64
"""Stop trying for a stage after this many ends too soon for a reading."""

SLOW_READING_NS, MAX_READINGS = 500_000, 4
"""A slower reading was interrupted: its values and its mark differ in time. Repeat it."""

_NEVER_NS = sys.maxsize
_c = PyDLL(None)
_compiled_ns: dict[int, int] = {}
_compile_began: tuple[int, int] | None = None


class CpuMarks:
    """Readings of a thread."""

    __slots__ = ("due_ns",)

    def __init__(self) -> None:
        self.due_ns = 0
        """Monotonic time of the next reading."""

    def around(self, node: Range, sink: Sink, category: str) -> tuple[Call, Callable[[], object]]:
        """Return push and pop, with readings, of a batch or of a direct stage of a batch."""
        push, pop, skipped = sink.push_value, sink.pop, 0
        most_skipped = sys.maxsize if node.is_batch else MAX_SKIPPED_READINGS

        def push_batch(attributes: Any) -> None:
            if monotonic_ns() >= self.due_ns:
                self.write(sink, category)
            attributes.payload = node.index
            push(attributes)

        def pop_and_read() -> None:
            nonlocal skipped
            pop()
            if skipped < most_skipped:
                skipped += 1
                if monotonic_ns() >= self.due_ns:
                    self.write(sink, category)
                    skipped = 0

        return push_batch if node.is_batch else sink.push, pop_and_read

    def write(self, sink: Sink, category: str) -> None:
        """Read the counters and write the marks."""
        for _ in range(MAX_READINGS):
            now_ns = monotonic_ns()
            queued_ns = _queued_ns()
            ran_ns = thread_time_ns()
            if monotonic_ns() - now_ns < SLOW_READING_NS:
                break
        if queued_ns is None:
            self.due_ns = _NEVER_NS  # not counted by this kernel
            return
        self.due_ns = now_ns + conventions.READY_TIME_EVERY_NS
        _follow_compiler()
        sink.mark(conventions.MARK_READY_TIME, category, ran_ns + queued_ns)
        if queued_ns:
            sink.mark(conventions.MARK_QUEUED, category, queued_ns)
        if compiled_ns := _compiled_ns.get(get_ident(), 0):
            sink.mark(conventions.MARK_COMPILING, category, compiled_ns)


def _queued_ns() -> int | None:
    """Time that the calling thread has waited for a CPU, or None if the kernel does not count it.

    `os.read` would release the interpreter lock and wait 5 ms or more for it if other threads compute.
    """
    file = _c.open(b"/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)
    if file < 0:
        return None
    found = create_string_buffer(64)
    _c.read(file, found, 63)
    _c.close(file)
    with suppress(ValueError, IndexError):
        return int(found.value.split()[1])
    return None


def _follow_compiler() -> None:
    """Register for compilations of torch.compile, again after each `torch.compiler.reset`."""
    module = sys.modules.get("torch._dynamo.callback")
    if module is not None:
        with suppress(AttributeError):  # an older or newer PyTorch
            if _on_compile_start not in module.callback_handler.start_callbacks:
                module.callback_handler.register_start_callback(_on_compile_start)
                module.callback_handler.register_end_callback(_on_compile_end)


def _on_compile_start(_: Any) -> None:
    global _compile_began
    _compile_began = get_ident(), monotonic_ns()


def _on_compile_end(_: Any) -> None:
    """Add the time since the first compilation began, when the last one ends."""
    global _compile_began
    thread = get_ident()
    if _compile_began is not None and _compile_began[0] == thread:
        _compiled_ns[thread] = _compiled_ns.get(thread, 0) + monotonic_ns() - _compile_began[1]
    _compile_began = None
