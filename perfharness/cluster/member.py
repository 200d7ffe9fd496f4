"""Client on every node, node 0 too: join, measure the clock, wait for the start, send the results."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any, TypeVar

from perfharness.cluster.meeting import HANDSHAKE_S, LEAD_NS, Say, file_of
from perfharness.cluster.node import Node
from perfharness.cluster.wire import Wire, send_files
from perfharness.errors import LaunchError, UsageError
from perfharness.model.environment import NODES_TOKEN
from perfharness.model.manifest import NodeRecord
from perfharness_launcher.conditions import Run

RETRY_S = 0.1
SAY_AFTER_S = 2.0
CONNECT_S = 5.0
ROUND_TRIPS = 64
T = TypeVar("T")


@dataclass(frozen=True)
class ClockOffset:
    """UTC of the other node minus UTC of this node."""

    offset_ns: int
    error_ns: int


def measure_offset(ask: Callable[[], int], clock: Callable[[], int] = time.time_ns) -> ClockOffset:
    """Compare the clocks by the fastest of several round trips."""
    trips = []
    for _ in range(ROUND_TRIPS):
        before, other = clock(), ask()
        trips.append((clock() - before, before, other))
    length, before, other = min(trips)
    return ClockOffset(other - before - length // 2, abs(length) // 2 + 1)


SAME_CLOCK = ClockOffset(0, 0)


@dataclass
class Member:
    """A node that has joined. `lost` tells why node 0 was lost; `before` is the offset before the run."""

    node: Node
    launch: str
    say: Say
    _wire: Wire
    lost: str | None = None
    before: ClockOffset = SAME_CLOCK
    _after: ClockOffset | None = None
    _named: list[int] = field(default_factory=list)

    def may_go(self, awaited: Collection[str]) -> bool:
        """Whether the processes of all nodes may start; before True, sleep until the common start."""
        if awaited:
            return False
        answer = self._ask(type="waiting")
        if answer is None:
            return True
        if (start_unix_ns := answer["start_unix_ns"]) is not None:
            ahead_ns = start_unix_ns - self.before.offset_ns - time.time_ns()
            time.sleep(min(max(ahead_ns, 0), LEAD_NS) / 1e9)
            return True
        if answer["wait_for"] != self._named:
            self._named = answer["wait_for"]
            self.say(f"waiting for node {', '.join(map(str, self._named))} at the start barrier")
        return False

    @contextmanager
    def condition(self, run: Run) -> Iterator[None]:
        """Report the end of this node's processes, as a condition of the launch."""
        del run
        yield
        self._ask(type="ended")
        self._after = self.measure_clock()

    def record(self) -> NodeRecord:
        """Return the node and its clock offset, for the manifest."""
        both = [self.before, self._after or self.before]
        best, drift_ns = min(both, key=lambda one: one.error_ns), both[1].offset_ns - both[0].offset_ns
        return NodeRecord(
            rank=self.node.rank,
            count=self.node.count,
            launch=self.launch,
            clock_offset_ns=best.offset_ns,
            clock_error_ns=best.error_ns + abs(drift_ns),
            clock_drift_ns=drift_ns,
        )

    def hand_over(self, folder: Path, run_id: str) -> str | None:
        """Give a run to node 0; return the place of the joined results, or None if node 0 is lost."""

        def give() -> str:
            if self._wire.ask(type="results", folder=str(folder), run_id=run_id)["send"]:
                self.say("sending the results to node 0")
                send_files(self._wire, folder)
            taken = self._wire.receive()
            return f"{taken['folder']} (on {taken['host']})"

        return self._reach(give)

    def measure_clock(self) -> ClockOffset:
        """Measure the offset of node 0's clock."""
        if self.node.rank == 0:
            return SAME_CLOCK
        measured = self._reach(lambda: measure_offset(lambda: int(self._wire.ask(type="time")["unix_ns"])))
        return measured or self.before

    def close(self) -> None:
        """Leave the launch."""
        self._wire.close()

    def _ask(self, **message: Any) -> dict[str, Any] | None:
        return self._reach(lambda: self._wire.ask(**message))

    def _reach(self, act: Callable[[], T]) -> T | None:
        """Return the answer of node 0, or None if it is lost."""
        if self.lost is not None:
            return None
        try:
            return act()
        except (OSError, EOFError, ValueError) as error:
            self.lost = str(error) or type(error).__name__
            self.say("lost node 0; this node continues alone")
            return None


def join(node: Node, folder: Path, timeout_s: float, say: Say) -> Member:
    """Connect to node 0 at its address, or that in its file in the output folder, and measure the clock.

    Raises `LaunchError` if node 0 cannot be reached or has another token, `UsageError` if it refuses this node.
    """
    begin, has_said, why = time.monotonic(), False, ""
    while True:
        try:
            wire, answer = _hello(node, folder)
            break
        except AuthenticationError as error:
            if node.address is not None:
                raise LaunchError(f"node 0 has another {NODES_TOKEN} than this node.") from error
            why = "its address file is from an earlier launch"
        except (OSError, EOFError, ValueError, AssertionError) as error:
            why = str(error) or type(error).__name__
        waited_s = time.monotonic() - begin
        if waited_s > timeout_s:
            where = ":".join(map(str, node.address)) if node.address else str(file_of(folder, node))
            raise LaunchError(f"node {node.rank} could not reach node 0 at {where} within {timeout_s:g} s ({why}).")
        if not has_said and waited_s > SAY_AFTER_S:
            has_said = True
            say(f"waiting for node 0 ({why})")
        time.sleep(RETRY_S)
    if answer["refused"] is not None:
        raise UsageError(f"--nodes: {answer['refused']}.")
    wire.limit(0)
    member = Member(node, answer["launch"], say, wire)
    member.before = member.measure_clock()
    return member


def _hello(node: Node, folder: Path) -> tuple[Wire, dict[str, Any]]:
    if node.address is not None:
        address, token = node.address, node.token
    else:
        host, port, secret = json.loads(file_of(folder, node).read_text())
        address, token = (host, port), secret.encode()
    wire = Wire(socket.create_connection(address, CONNECT_S), HANDSHAKE_S)
    try:
        wire.prove(token, listening=False)
        return wire, wire.ask(type="hello", rank=node.rank, count=node.count, host=socket.gethostname())
    except BaseException:
        wire.close()
        raise
