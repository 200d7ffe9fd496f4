"""Every call asks a server whether the cached model is still the newest, and waits for the answer.

ml-explore/mlx-lm#1649. The server is a thread of another process, which answers after 30 ms. Mended: asked once.
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
import time

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, ANSWER_S = 20, 0.03


def serve(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        while connection.recv(64):
            time.sleep(ANSWER_S)
            connection.sendall(b"etag 1\n")


def newest(connection: socket.socket) -> bytes:
    connection.sendall(b"HEAD model\n")
    return connection.recv(64)  # fault


if __name__ == "__main__":
    asked = 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = multiprocessing.get_context("fork").Process(target=serve, args=(listener,), daemon=True)
        server.start()
        address = listener.getsockname()
    perf = PerfRecorder("faults")
    with socket.create_connection(address) as connection, perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                with perf.range("load"):
                    if index == 0 or not MENDED:
                        newest(connection)
                        asked += 1
                with perf.range("infer"):
                    sorted(range(40000), key=lambda value: value * 7919 % 10007)
    server.join(5)
    perf.finalize()
    print(asked, "requests")
