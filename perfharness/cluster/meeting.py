"""Server on node 0: answers each node in a separate thread, and decides when all start.

Only nodes ask and only node 0 answers, so a slow or lost node delays no other.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from perfharness.cluster.join import Part
from perfharness.cluster.node import Node
from perfharness.cluster.wire import Wire, receive_files
from perfharness.errors import LaunchError, UsageError
from perfharness.files import reason_of

FILE_NAME = ".perfharness-nodes"
HANDSHAKE_S = 10.0
"""Timeout of the handshake."""

LEAD_NS = 300_000_000
"""Time from the decision to the common start, longer than the interval of the nodes' requests."""

ACCEPT_S = 0.2
BACKLOG = 256

Say = Callable[[str], None]


@dataclass
class Peer:
    """A node as node 0 knows it, with the folder of its results."""

    rank: int
    host: str
    state: Literal["running", "waiting", "ended", "gone", "done"] = "running"
    folder: Path | None = None


@dataclass
class Meeting:
    """The nodes of a launch.

    Args:
        timeout_s: longest wait for a node to join.
        inbox: folder for results of nodes without this file system.
    """

    node: Node
    folder: Path
    timeout_s: float
    say: Say
    launch: str = field(default_factory=lambda: secrets.token_hex(8))
    peers: dict[int, Peer] = field(default_factory=dict)
    inbox: Path | None = None
    ending: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _first_waiting: float | None = None
    _start_unix_ns: int | None = None
    _refused: set[str] = field(default_factory=set)
    _begin: float = field(default_factory=time.monotonic)

    def serve(self, listening: socket.socket, token: bytes) -> None:
        """Accept connections until the launch ends; the handshake refuses any without the token."""
        listening.settimeout(ACCEPT_S)
        while not self.ending:
            try:
                connected, (host, *_) = listening.accept()
            except TimeoutError:
                continue
            except OSError:  # too many open files
                time.sleep(ACCEPT_S)
                continue
            threading.Thread(target=self._admit, args=(connected, token, host), daemon=True).start()

    def _admit(self, connected: socket.socket, token: bytes, host: str) -> None:
        try:
            wire = Wire(connected, HANDSHAKE_S)
            wire.prove(token, listening=True)
            hello = wire.receive()
        except Exception as error:  # anything may connect
            connected.close()
            if host not in self._refused:
                self._refused.add(host)
                self.say(f"refused a connection from {host} ({type(error).__name__})")
            return
        peer: Peer | None = None
        with suppress(Exception):  # a lost node, or another version
            peer, refusal = self._join(hello)
            wire.send(refused=refusal, launch=self.launch)
            wire.limit(0)
            while peer is not None:
                wire.send(**self._answer(peer, wire.receive(), wire))
        wire.close()
        with self._changed:
            if peer is not None and peer.state != "done":
                peer.state = "gone"
                if peer.rank and not self.ending:
                    self.say(f"lost node {peer.rank} ({peer.host})")
            self._changed.notify_all()

    def _join(self, hello: dict[str, Any]) -> tuple[Peer | None, str | None]:
        """Return the joining node, or the reason to refuse it."""
        rank, count, host = int(hello["rank"]), int(hello["count"]), str(hello["host"])
        with self._changed:
            if count != self.node.count or not 0 <= rank < count:
                return None, f"node {rank} of {count} does not belong to this launch on {self.node.count} nodes"
            if (known := self.peers.get(rank)) is not None:
                if known.state in ("gone", "done"):
                    return None, f"node {rank} has left this launch; a launch on several nodes cannot be restarted"
                return None, f"node {rank} has already joined, on {known.host}; start one launch on each node"
            peer = self.peers[rank] = Peer(rank, host)
            self._changed.notify_all()
        if rank:
            self.say(f"node {rank} ({host}) joined")
        return peer, None

    def _answer(self, peer: Peer, message: dict[str, Any], wire: Wire) -> dict[str, Any]:
        match message["type"]:
            case "time":
                return {"unix_ns": time.time_ns()}
            case "waiting":
                return self._may_start(peer)
            case "ended":
                with self._changed:
                    peer.state = "ended"
                return {}
            case "results":
                self._take_results(peer, message, wire)
                return {"folder": str(self.folder), "host": socket.gethostname()}
        raise ValueError(f"unknown message: {message['type']}")

    def _may_start(self, peer: Peer) -> dict[str, Any]:
        """Return the time of the common start, or the missing nodes."""
        with self._changed:
            if peer.state == "running":
                peer.state = "waiting"
            now = time.monotonic()
            if self._first_waiting is None:
                self._first_waiting = now
            late = [rank for rank in range(self.node.count) if self._state(rank) in ("absent", "running")]
            if self._start_unix_ns is None and (not late or now - self._first_waiting >= self.timeout_s):
                self._start_unix_ns = time.time_ns() + LEAD_NS
            return {"start_unix_ns": self._start_unix_ns, "wait_for": late}

    def _state(self, rank: int) -> str:
        return self.peers[rank].state if rank in self.peers else "absent"

    def _take_results(self, peer: Peer, message: dict[str, Any], wire: Wire) -> None:
        folder = Path(message["folder"]).resolve()
        part = Part.read(folder) if folder.is_relative_to(self.folder.resolve()) else None
        is_shared = part is not None and part.manifest.run_id == message["run_id"]
        wire.send(send=not is_shared)
        if not is_shared:
            with self._changed:  # a node may be done before node 0 has its inbox
                self._changed.wait_for(lambda: self.inbox is not None or self.ending)
                if self.inbox is None:
                    raise ValueError("the launch has ended")
                folder = self.inbox / f".node_{peer.rank}"
            receive_files(wire, folder)
        with self._changed:
            peer.state, peer.folder = "done", folder
            self._changed.notify_all()

    def wait_for_results(self, inbox: Path) -> dict[int, Path]:
        """Wait for the other nodes; return the folders of their results, by rank."""
        named: list[int] = []
        with self._changed:
            self.inbox = inbox
            self._changed.notify_all()
            while missing := [rank for rank in range(1, self.node.count) if self._may_bring_results(rank)]:
                if missing != named:
                    self.say(f"waiting for the results of node {', '.join(map(str, missing))}")
                    named = missing
                self._changed.wait(ACCEPT_S)
            return {rank: one.folder for rank, one in sorted(self.peers.items()) if one.folder is not None}

    def _may_bring_results(self, rank: int) -> bool:
        is_late = time.monotonic() - self._begin >= self.timeout_s
        return self._state(rank) not in ("gone", "done", *(["absent"] if is_late else []))

    def why_missing(self, rank: int) -> str:
        """Explain why a node has no results."""
        peer = self.peers.get(rank)
        return f"it did not join within {self.timeout_s:g} s" if peer is None else f"its launch on {peer.host} was lost"


@contextmanager
def meeting(node: Node, folder: Path, timeout_s: float, say: Say) -> Iterator[tuple[Meeting, Node]]:
    """Serve a launch; yield the meeting, and node 0 with its address. Raises `UsageError`, `LaunchError`."""
    with ExitStack() as stack:
        listening = stack.enter_context(_listen(*(node.address or (own_address(), 0))))
        host, port = listening.getsockname()[:2]
        known = replace(node, address=(host, port), token=node.token or secrets.token_hex(32).encode())
        if node.address is None:
            stack.enter_context(_address_file(known, folder))
        met = Meeting(known, folder, timeout_s, say)
        thread = threading.Thread(target=met.serve, args=(listening, known.token), daemon=True)
        thread.start()
        try:
            yield met, known
        finally:
            met.ending = True
            thread.join()


def _listen(host: str, port: int) -> socket.socket:
    """Listen at an address, or on all interfaces if none of this machine has it (the name of a service)."""
    try:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL and not isinstance(error, socket.gaierror):
                raise
            return socket.create_server(("", port), backlog=BACKLOG)
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        kind, hint = (UsageError, "; start one launch on each node") if is_taken else (LaunchError, "")
        raise kind(f"--nodes: node 0 cannot listen at {host}:{port} ({reason_of(error)}){hint}.") from error


def file_of(folder: Path, node: Node) -> Path:
    """Path of node 0's address file."""
    return folder / "-".join(filter(None, (FILE_NAME, node.launch)))


@contextmanager
def _address_file(node: Node, folder: Path) -> Iterator[None]:
    path = file_of(folder, node)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LaunchError(f"-o {folder} cannot be written to: {reason_of(error)}") from error
    with os.fdopen(descriptor, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"--nodes: another launch to {folder} is node 0; start one launch on each node."
            ) from error
        os.fchmod(descriptor, 0o600)
        file.truncate()
        assert node.address is not None
        json.dump([*node.address, node.token.decode()], file)
        file.flush()
        yield
        path.unlink(missing_ok=True)


def own_address() -> str:
    """Return the address of this machine on its default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
