"""Coroutines ask a server by a blocking socket, so that the loop stands still and the requests wait for each other.

sgl-project/sglang#30770, openJiuwen-ai/agent-core#763. The server answers after 12 ms. Mended: asyncio's own streams.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import sys
import threading
import time

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, REQUESTS, ANSWER_S = 16, 4, 0.012
blocking_calls = 0


def answer(connection: socket.socket) -> None:
    with connection:
        while connection.recv(64):
            time.sleep(ANSWER_S)
            connection.sendall(b"answer\n")


def serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


async def ask(address: tuple[str, int]) -> bytes:
    global blocking_calls
    if MENDED:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"question\n")
        line = await reader.readline()
        writer.close()
        return line
    blocking_calls += 1
    with socket.create_connection(address) as connection:
        connection.sendall(b"question\n")
        return connection.recv(64)  # fault


async def main(address: tuple[str, int]) -> None:
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=REQUESTS):
                with perf.range("fetch"):
                    await asyncio.gather(*(ask(address) for _ in range(REQUESTS)))
                with perf.range("infer"):
                    sorted(range(60000), key=lambda value: value * 7919 % 10007)


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        multiprocessing.get_context("fork").Process(target=serve, args=(listener,), daemon=True).start()
        perf = PerfRecorder("faults")
        asyncio.run(main(listener.getsockname()))
    perf.finalize()
    print(blocking_calls, "blocking calls")
