"""JSON messages and files over an authenticated connection; not pickle, which can run code from the other end."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path, PurePosixPath
from typing import Any

from perfharness_launcher.staging import PREVIOUS_NAME

MAX_MESSAGE_BYTES = 1 << 24
CHUNK_BYTES = 1 << 20

KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
"""Notice a lost machine after 30 s."""


class Wire:
    """One end of a connection between nodes. Methods raise `OSError` or `EOFError` if the other end is lost."""

    def __init__(self, connected: socket.socket, timeout_s: float) -> None:
        self._socket = connected
        connected.settimeout(None)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.limit(timeout_s)
        self._connection = Connection(os.dup(connected.fileno()))

    def limit(self, seconds: float) -> None:
        """Limit the time of a read or write; 0 is no limit."""
        value = struct.pack("ll", int(seconds), round(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, value)

    def prove(self, token: bytes, *, listening: bool) -> None:
        """Check that both ends know the token. Raises `AuthenticationError`; any error if the other is not a node."""
        steps = (deliver_challenge, answer_challenge)
        for step in steps if listening else reversed(steps):
            step(self._connection, token)

    def send(self, **message: Any) -> None:
        """Send a message."""
        self._connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> dict[str, Any]:
        """Return the next message. Raises `ValueError` if it is not a JSON object."""
        message = json.loads(self._connection.recv_bytes(MAX_MESSAGE_BYTES))
        if not isinstance(message, dict):
            raise ValueError("a message must be an object")
        return message

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a message, and return the answer."""
        self.send(**message)
        return self.receive()

    def send_bytes(self, content: bytes) -> None:
        """Send part of a file."""
        self._connection.send_bytes(content)

    def receive_bytes(self) -> bytes:
        """Receive part of a file."""
        return self._connection.recv_bytes(MAX_MESSAGE_BYTES)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
        self._socket.close()


# ---- run folders, for nodes that share no file system with node 0 ----


def send_files(wire: Wire, folder: Path) -> None:
    """Send all regular files of a run. Raises `OSError` if the connection or a file is lost."""
    for path in files_of(folder):
        with path.open("rb") as file:
            left = os.fstat(file.fileno()).st_size
            wire.send(file=path.relative_to(folder).as_posix(), bytes=left)
            while left:
                content = file.read(min(left, CHUNK_BYTES))
                if not content:
                    raise OSError(f"{path} became shorter")
                wire.send_bytes(content)
                left -= len(content)
    wire.send(file=None)


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the regular files of a run."""
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != PREVIOUS_NAME and not name.startswith(".")]
        paths = [Path(above, name) for name in names]
        yield from (path for path in paths if path.is_file() and not path.is_symlink())


def receive_files(wire: Wire, folder: Path) -> None:
    """Write the files from `send_files` into a new folder. Raises `ValueError` if a name leads out of it."""
    folder.mkdir(parents=True)
    while (header := wire.receive())["file"] is not None:
        path, left = path_in(folder, header["file"]), int(header["bytes"])
        with path.open("wb") as file:
            while left > 0:
                left -= file.write(wire.receive_bytes())


def path_in(folder: Path, name: str) -> Path:
    """Make the parent folder of a file in a run; return its path. Raises `ValueError` if it leads out of the run."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name} is not a file in the run")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    return folder / path
