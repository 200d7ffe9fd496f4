"""Coroutines ask a server by a blocking socket, so the requests wait for each other. Mended: asyncio's streams."""

import asyncio
import socket
import time

from tests.faults.frame import MENDED, count, run_async, serve, sorting


def answer(connection):
    while connection.recv(64):
        time.sleep(0.012)
        connection.sendall(b"answer\n")


async def ask():
    if MENDED:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"question\n")
        await reader.readline()
        writer.close()
        return
    count()
    with socket.create_connection(address) as connection:
        connection.sendall(b"question\n")
        connection.recv(64)  # fault


async def fetch(_):
    await asyncio.gather(*(ask() for _ in range(4)))


address = serve(answer)
asyncio.run(run_async(16, 4, fetch=fetch, infer=sorting(60000)))
