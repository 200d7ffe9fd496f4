"""The in-process log of ranges: what the recorder fills and the embedded tracer drains.

The embedded tracer installs a log before the script starts; a recorder that finds one writes there instead of calling
NVTX. A thread has a buffer of its own, a flat list of integers, `RECORD_WIDTH` a record, so that recording costs one
clock reading and one list extension and nothing is decoded while the pipeline runs:

    buffer += (key << OP_BITS | op, time.perf_counter_ns(), payload, range_id)

`key` is what `RangeLog.key()` returned for the static part (domain, message, category, color). A POP carries any key of
its domain, for there is a stack for each thread and domain, as in NVTX; an END carries 0. `payload` counts only where
the op carries `HAS_PAYLOAD`; `range_id` only for START and END, where it pairs them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

PUSH, POP, START, END, MARK = range(5)
HAS_PAYLOAD = 8
OP_BITS = 4
RECORD_WIDTH = 4


@dataclass(frozen=True)
class RangeAttributes:
    """The static part of an event; None where NVTX has none."""

    domain: str | None
    message: str
    category: str | None = None
    color: int | None = None


class RangeLog:
    """Buffers of all threads of one process. Attributes are interned once; buffers are appended to without a lock."""

    def __init__(self) -> None:
        self.attributes: list[RangeAttributes] = []
        self.buffers: list[tuple[int, list[int]]] = []  # (native thread id, records)
        self._keys: dict[RangeAttributes, int] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    def key(self, attributes: RangeAttributes) -> int:
        """Number of these attributes, the same for equal ones."""
        with self._lock:
            key = self._keys.get(attributes)
            if key is None:
                key = self._keys[attributes] = len(self.attributes)
                self.attributes.append(attributes)
            return key

    def buffer(self) -> list[int]:
        """The calling thread's buffer; made at its first call."""
        buffer: list[int] | None = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = []
            with self._lock:
                self.buffers.append((threading.get_native_id(), buffer))
        return buffer

    def forget_buffers(self) -> None:
        """Drop what was recorded and hold no lock: for a forked child, which inherits both from its parent."""
        self._lock = threading.Lock()
        self._local = threading.local()
        self.buffers = []


_active: RangeLog | None = None
_left_untraced = False


def install(log: RangeLog | None) -> None:
    """Make `log` the one that recorders made from now on write to; None: back to NVTX."""
    global _active, _left_untraced
    _active, _left_untraced = log, False


def leave_untraced() -> None:
    """No recorder made from now on writes anywhere: the process is traced no more, and `nvtx` was replaced in it."""
    global _left_untraced
    install(None)
    _left_untraced = True


def left_untraced() -> bool:
    """Whether `leave_untraced` was called."""
    return _left_untraced


def active() -> RangeLog | None:
    """The installed log, or None outside the embedded tracer."""
    return _active
