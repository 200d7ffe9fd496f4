"""JSON messages over an authenticated connection; not pickle, which can run code from the other end."""

from __future__ import annotations

import json
import os
import socket
import struct
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

MAX_MESSAGE_BYTES = 1 << 24

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
