"""Launcher side of the start barrier: note arrivals, then let all processes go.

Recorder side, and the reason for FIFOs: `perfharness.recorder.barrier`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from perfharness.model import environment
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import StartBarrierRecord

READ_BYTES = 65_536

LIMIT_MARGIN_S = 30
"""A process continues by itself this long after the launch should have opened the barrier."""

MayGo = Callable[[Collection[str]], bool]
"""Called at every poll with the awaited folders. One of several machines decides, and waits for the others twice as
long as for its own processes.
"""


class StartBarrier:
    """Start barrier of one launch, in a new folder.

    Args:
        processes: folder names by process index.
        timeout_s: longest wait for the others after the first arrival.
        may_go: decides when all may go (default: when all have arrived).

    Attributes:
        arrivals: descriptor of the FIFO that arriving processes write to.
        ended, missing: processes that ended before they arrived, and that had not arrived at the timeout.
        limit_s: time after which a process continues by itself.
    """

    def __init__(
        self,
        folder: Path,
        processes: Mapping[int, str],
        timeout_s: float,
        may_go: MayGo | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.processes, self.timeout_s = folder, processes, timeout_s
        self.arrived_unix_ns: dict[int, int] = {}
        self.ended: set[int] = set()
        self.missing: Collection[int] = ()
        self.opened_unix_ns: int | None = None
        self.limit_s = timeout_s * (1 if may_go is None else 2) + LIMIT_MARGIN_S
        self._may_go, self._clock = may_go or (lambda awaited: not awaited), clock
        self._first_arrival: float | None = None
        self._gate: int | None = None
        self._unread = b""
        folder.mkdir()
        for name in (environment.BARRIER_ARRIVALS, environment.BARRIER_GATE):
            os.mkfifo(folder / name)
        self.arrivals = os.open(folder / environment.BARRIER_ARRIVALS, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def variables(self) -> dict[str, str]:
        """Environment of the processes."""
        limit_s = str(math.ceil(self.limit_s))
        return {environment.START_BARRIER: str(self.folder), environment.START_BARRIER_LIMIT: limit_s}

    @property
    def is_open(self) -> bool:
        """Whether the processes may go."""
        return self._gate is not None

    def poll(self, over: Collection[int]) -> None:
        """Read the arrivals; open the barrier when all may go, or at the timeout.

        `over`: indices of the processes that have ended or will not start.
        """
        self._read_arrivals()
        if self.is_open:
            return
        self.ended |= (self.processes.keys() & set(over)) - self.arrived_unix_ns.keys()
        if not self.arrived_unix_ns.keys() - set(over):
            return
        if self._first_arrival is None:
            self._first_arrival = self._clock()
        awaited = self.processes.keys() - self.arrived_unix_ns.keys() - self.ended
        if self._clock() - self._first_arrival >= self.timeout_s:
            self.missing, awaited = sorted(awaited), set()
        if self._may_go([self.processes[index] for index in awaited]):
            self.open()

    def open(self) -> None:
        """Let all processes go, and those that arrive later."""
        if not self.is_open:
            self._gate = os.open(self.folder / environment.BARRIER_GATE, os.O_RDWR | os.O_CLOEXEC)
            os.write(self._gate, b"\n")
            self.opened_unix_ns = time.time_ns()

    def holds(self, index: int) -> bool:
        """Whether the process waits at the barrier."""
        return not self.is_open and index in self.arrived_unix_ns

    def close(self) -> None:
        """Close the FIFOs."""
        for descriptor in (self.arrivals, self._gate):
            if descriptor is not None:
                os.close(descriptor)

    def _read_arrivals(self) -> None:
        try:
            while text := os.read(self.arrivals, READ_BYTES):
                self._unread += text
        except BlockingIOError:  # open, but nothing written
            pass
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            index, _pid, unix_ns, *_ = map(int, line.split())
            if index in self.processes:
                self.arrived_unix_ns.setdefault(index, unix_ns)

    def record(self) -> StartBarrierRecord:
        """The entry in the manifest."""
        arrived = {name: self.arrived_unix_ns.get(index) for index, name in sorted(self.processes.items())}
        return StartBarrierRecord(timeout_s=self.timeout_s, opened_unix_ns=self.opened_unix_ns, arrived_unix_ns=arrived)

    def findings(self) -> Iterator[Finding]:
        """Report processes that did not start together with the others."""
        if not self.arrived_unix_ns:
            message = "No process reached the start barrier, so their measured batches did not begin together."
            hint = "Annotate the batches with PerfRecorder or --annotate; plain NVTX ranges cannot be held."
            yield Finding("start-barrier-missed", Severity.NOTE, message, hint)
            return
        for index in self.missing:
            message = f"The process was not at the start barrier after {self.timeout_s:g} s; the others went on."
            hint = "Use a longer --barrier-timeout, or --no-barrier."
            yield Finding("start-barrier-missed", Severity.WARNING, message, hint, self.processes[index])
        for index in sorted(self.ended):
            message = "The process ended before its first measured batch; the others did not wait for it."
            yield Finding("start-barrier-missed", Severity.WARNING, message, "", self.processes[index])
