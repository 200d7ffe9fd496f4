"""`--capture-batches`: record only batches FIRST to LAST of one loop.

The first thread or task to reach batch FIRST is captured. Enclosing ranges are opened again for the
tracer when the capture begins and closed when it ends, so paths are the same as without a capture.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from perfharness.model import conventions, environment

if TYPE_CHECKING:
    from perfharness.recorder.events import Sink
    from perfharness.recorder.stacks import Stack


class Capture:
    """The capture of a process. `loop`: stack of the loop during its capture."""

    def __init__(self, first: int, last: int) -> None:
        self.loop: Stack | None = None
        self._ranges = self._batches = 0  # including ranges that were opened again
        self._first, self._last = first, last
        self._seen: dict[Stack, int] = {}
        self._is_over = False
        self._lock = threading.Lock()
        self._nsys_range: Any = None

    def guard(self, sink: Sink, stack: Stack) -> None:
        """Let a sink write only while its stack is captured."""

        def guarded(call: Callable[..., object]) -> Callable[..., object]:
            return lambda *event: call(*event) if self.loop is stack else None

        for name in ("push", "push_value", "pop", "write"):
            setattr(sink, name, guarded(getattr(sink, name)))

    def begins(self, stack: Stack) -> bool:
        """Count a batch before it begins; return whether the capture begins with it."""
        if stack.is_in_batch:
            return False
        seen = self._seen[stack] = self._seen.get(stack, -1) + 1
        with self._lock:
            if self._is_over or self.loop is not None or not self._first <= seen < self._last:
                return False
            self.loop = stack
        if os.environ.get(environment.TRACER) == "nsys":
            import nvtx

            name = conventions.CAPTURE_RANGE  # nsys records while it is open
            self._nsys_range = nvtx.start_range(name, domain=name)
        self._ranges, self._batches = len(stack.open_ranges()) - stack.ranges, -stack.batches
        return True

    def end_after(self, stack: Stack) -> None:
        """End the capture after its last batch."""
        if stack is not self.loop or stack.is_in_batch or self._seen[stack] + 1 < self._last:
            return
        for node in stack.open_ranges():
            if node.sink is not None:
                node.sink.pop()
        self._ranges, self._batches = self._ranges + stack.ranges, self._batches + stack.batches
        self.loop, self._is_over = None, True
        if self._nsys_range is not None:
            import nvtx

            nvtx.end_range(self._nsys_range)

    def counts(self) -> dict[str, int]:
        """Return the numbers of recorded ranges and batches, for `recorder.json`."""
        ranges, batches = (0, 0) if self.loop is None else (self.loop.ranges, self.loop.batches)
        return {"ranges": self._ranges + ranges, "batches": self._batches + batches}


@cache
def active() -> Capture | None:
    """Return the capture of this process, or None if everything is recorded."""
    wanted = os.environ.get(environment.CAPTURE_BATCHES)
    if not wanted:
        return None
    first, _, last = wanted.partition(":")
    return Capture(int(first), int(last))
