"""The launch's side of the start barrier: which processes have arrived, and when all may go.

The recorder's side, and why FIFOs: `perfharness.recorder.barrier`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from perfharness.model import environment
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import StartBarrierRecord

READ_BYTES = 65_536

LIMIT_MARGIN_S = 30
"""How much longer than the timeout of the launch a process waits before it continues by itself."""


class Everyone(Protocol):
    """Decides when the processes of a launch may go; where they run on several machines, one of them decides."""

    def arrived(self, folder: str) -> None:
        """The process of this folder is at the barrier, or has ended and will not come."""

    def may_go(self) -> bool:
        """Whether all processes have arrived; asked at every poll."""
        ...


class OneMachine:
    """All processes are on this machine."""

    def __init__(self, folders: Collection[str]) -> None:
        self._outstanding = set(folders)

    def arrived(self, folder: str) -> None:
        """Note it."""
        self._outstanding.discard(folder)

    def may_go(self) -> bool:
        """Whether none is outstanding."""
        return not self._outstanding


@dataclass
class StartBarrier:
    """Holds the processes of one launch.

    Args:
        folder: where the FIFOs are.
        processes: folder name of each process by its index.
        timeout_s: how long to wait for the others once the first has arrived.
        arrivals: descriptor of the FIFO that arriving processes write to.
        everyone: decides when all may go.

    Attributes:
        arrived_unix_ns: when each process arrived, by its index.
        ended: processes that ended before they arrived.
        missing: processes that were running and had not arrived at the timeout.
        opened_unix_ns: when the barrier opened.
    """

    folder: Path
    processes: Mapping[int, str]
    timeout_s: float
    arrivals: int
    everyone: Everyone
    clock: Callable[[], float] = time.monotonic
    arrived_unix_ns: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    opened_unix_ns: int | None = None
    _first_arrival: float | None = None
    _gate: int | None = None
    _unread: bytes = b""

    @property
    def is_open(self) -> bool:
        """Whether the processes may go."""
        return self._gate is not None

    def poll(self, over: Collection[int]) -> None:
        """Read the arrivals; open the barrier when all may go, or at the timeout.

        Args:
            over: indices of the processes that have ended, or will never start.
        """
        self._read_arrivals()
        if self.is_open:
            return
        for index in (set(over) & self.processes.keys()) - self.arrived_unix_ns.keys() - self.ended:
            self.ended.add(index)
            self.everyone.arrived(self.processes[index])
        if not self.arrived_unix_ns.keys() - set(over):
            return
        if self._first_arrival is None:
            self._first_arrival = self.clock()
        if self.everyone.may_go():
            self.open()
        elif self.clock() - self._first_arrival >= self.timeout_s:
            self.missing = self.processes.keys() - self.arrived_unix_ns.keys() - self.ended
            self.open()

    def open(self) -> None:
        """Let all processes go, also those that arrive later."""
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
        except BlockingIOError:  # a writer has it open and has written nothing
            pass
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            index, _pid, unix_ns, *_ = map(int, line.split())
            if index in self.processes and index not in self.arrived_unix_ns:  # one arrival per process
                self.arrived_unix_ns[index] = unix_ns
                self.everyone.arrived(self.processes[index])

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
                "No process reached the start barrier, so their measured batches did not begin together. The barrier"
                " stands before the first batch after the warm-up of a recorder",
                "annotate the batches with PerfRecorder (or --annotate); plain NVTX ranges cannot be held",
            )
        for index in sorted(self.missing):
            yield Finding(
                "start-barrier-timeout",
                Severity.WARNING,
                f"The process had not reached its first measured batch {self.timeout_s:g} s after the first one did;"
                " the others went on without it",
                "a longer --barrier-timeout, or --no-barrier if the processes need not run together",
                self.processes[index],
            )
        for index in sorted(self.ended if self.arrived_unix_ns else ()):
            yield Finding(
                "start-barrier-missed",
                Severity.WARNING,
                "The process ended before its first measured batch; the others did not wait for it",
                "",
                self.processes[index],
            )


@contextmanager
def start_barrier(
    folder: Path,
    processes: Mapping[int, str],
    timeout_s: float,
    everyone: Everyone | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[StartBarrier]:
    """A barrier for these processes, in a new folder."""
    folder.mkdir()
    for name in (environment.BARRIER_ARRIVALS, environment.BARRIER_GATE):
        os.mkfifo(folder / name)
    arrivals = os.open(folder / environment.BARRIER_ARRIVALS, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    barrier = StartBarrier(folder, processes, timeout_s, arrivals, everyone or OneMachine(processes.values()), clock)
    try:
        yield barrier
    finally:
        barrier.close()
