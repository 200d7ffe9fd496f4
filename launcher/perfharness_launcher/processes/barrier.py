"""The launch's side of the start barrier: which processes have arrived, and when the gate opens.

The recorder's side, and why FIFOs: `perfharness.recorder.barrier`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from perfharness.model import environment
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import StartBarrierRecord

READ_BYTES = 65_536

LIMIT_MARGIN_S = 30
"""How much longer than the timeout of the launch a process waits before it continues by itself."""


@dataclass
class StartBarrier:
    """Holds the gate of one launch.

    Args:
        folder: where the FIFOs are.
        processes: folder name of each process by its index.
        timeout_s: how long to wait for the others once the first has arrived.
    """

    folder: Path
    processes: Mapping[int, str]
    timeout_s: float
    arrivals: int
    """Descriptor of the FIFO that arriving processes write to."""

    clock: Callable[[], float] = time.monotonic
    arrived_unix_ns: dict[int, int] = field(default_factory=dict)
    """When each process arrived, by its index; UTC."""

    ended: set[int] = field(default_factory=set)
    """Processes that ended before they arrived, while the gate was closed."""

    missing: set[int] = field(default_factory=set)
    """Processes that were running and had not arrived at the timeout."""

    opened_unix_ns: int | None = None
    _first_arrival: float | None = None
    _gate: int | None = None
    _unread: bytes = b""

    @property
    def is_open(self) -> bool:
        """Whether the gate is open."""
        return self._gate is not None

    def poll(self, over: Collection[int]) -> None:
        """Read the arrivals; open the gate when all processes that still can have arrived.

        Args:
            over: indices of the processes that have ended, or will never start.
        """
        self._read_arrivals()
        if self.is_open:
            return
        waiting = set(self.arrived_unix_ns) - set(over)
        outstanding = set(self.processes) - set(self.arrived_unix_ns)
        self.ended = outstanding & set(over)
        outstanding -= self.ended
        if not waiting:
            return
        now = self.clock()
        if self._first_arrival is None:
            self._first_arrival = now
        if outstanding and now - self._first_arrival < self.timeout_s:
            return
        self.missing = outstanding
        self.open()

    def open(self) -> None:
        """Release all processes, those that arrive later too."""
        if not self.is_open:
            self._gate = os.open(self.folder / environment.BARRIER_GATE, os.O_RDWR | os.O_CLOEXEC)
            os.write(self._gate, b"\n")
            self.opened_unix_ns = time.time_ns()

    def waits(self, index: int) -> bool:
        """Whether the process has arrived and the gate is closed."""
        return not self.is_open and index in self.arrived_unix_ns

    def close(self) -> None:
        """Close the FIFOs."""
        for descriptor in (self.arrivals, self._gate):
            if descriptor is not None:
                os.close(descriptor)

    def _read_arrivals(self) -> None:
        while True:
            try:
                text = os.read(self.arrivals, READ_BYTES)
            except BlockingIOError:  # a writer has it open and has written nothing
                break
            if not text:
                break
            self._unread += text
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            index, _pid, unix_ns, *_ = map(int, line.split())
            if index in self.processes:
                self.arrived_unix_ns.setdefault(index, unix_ns)

    def record(self) -> StartBarrierRecord:
        """The entry in the manifest."""
        return StartBarrierRecord(
            timeout_s=self.timeout_s,
            opened_unix_ns=self.opened_unix_ns,
            arrived_unix_ns={
                folder: self.arrived_unix_ns.get(index) for index, folder in sorted(self.processes.items())
            },
        )

    def findings(self) -> Iterator[Finding]:
        """What affects the throughput of this launch."""
        if not self.arrived_unix_ns:
            yield Finding(
                "start-barrier-not-reached",
                Severity.NOTE,
                "No process came to the start barrier, so nothing made their measured batches begin together; the"
                " barrier stands before the first batch of a recorder that is no warm-up",
                "annotate the batches with PerfRecorder (or --annotate); plain NVTX ranges cannot be held",
            )
            return
        for index in sorted(self.missing):
            yield Finding(
                "start-barrier-timeout",
                Severity.WARNING,
                f"The process had not come to its first measured batch {self.timeout_s:g} s after the first one, and"
                " the others went on without it",
                "a longer --barrier-timeout, or --no-barrier where the processes are not meant to run together",
                self.processes[index],
            )
        for index in sorted(self.ended):
            yield Finding(
                "start-barrier-missed",
                Severity.WARNING,
                "The process ended before its first measured batch, and the others did not wait for it",
                "",
                self.processes[index],
            )


@contextmanager
def start_barrier(
    control_dir: Path,
    processes: Mapping[int, str],
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[StartBarrier]:
    """A barrier for these processes, in a folder of its own."""
    folder = control_dir / "barrier"
    folder.mkdir()
    for name in (environment.BARRIER_ARRIVALS, environment.BARRIER_GATE):
        os.mkfifo(folder / name)
    arrivals = os.open(folder / environment.BARRIER_ARRIVALS, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    barrier = StartBarrier(folder, processes, timeout_s, arrivals, clock)
    try:
        yield barrier
    finally:
        barrier.close()
