"""The client of a store reads its answers from the socket as the protocol names its fields: one or four bytes a call.

vertica/vertica-python#397. Mended: through a buffered file of the socket.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, ROWS = 40, 5000
ANSWER = b"".join(b"D" + struct.pack("!I", number) for number in range(ROWS))
calls = 0


def serve(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    while connection.recv(1, socket.MSG_WAITALL):
        connection.sendall(ANSWER)


class Client:
    """Rows of a query."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffered = connection.makefile("rb", buffering=1 << 17)

    def read(self, size: int) -> bytes:
        global calls
        if MENDED:
            return self.buffered.read(size)
        calls += 1
        return self.connection.recv(size, socket.MSG_WAITALL)  # fault

    def query(self) -> list[int]:
        self.connection.sendall(b"Q")
        rows = []
        for _ in range(ROWS):  # fault
            assert self.read(1) == b"D"
            rows.append(struct.unpack("!I", self.read(4))[0])
        return rows


def plan(index: int) -> int:
    return sum((index * position) % 13 for position in range(16000))


def fit(rows: list[int]) -> float:
    values = np.resize(np.array(rows, np.float64), (110, 110)) + np.eye(110)
    return float(np.linalg.svd(values, compute_uv=False)[0])


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = multiprocessing.get_context("fork").Process(target=serve, args=(listener,), daemon=True)
    server.start()
    client = Client(socket.create_connection(listener.getsockname()))
    perf = PerfRecorder("faults")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=ROWS):
                with perf.range("plan"):
                    plan(index)
                with perf.range("fetch"):
                    rows = client.query()
                with perf.range("fit"):
                    fit(rows)
    perf.finalize()
    server.terminate()
    server.join()
    print(calls, "calls for a field")


if __name__ == "__main__":
    main()
