"""An embedding worker awaits the answer to each prompt before it sends the next one.

ai-dynamo/dynamo#10117, n24q02m/wet-mcp#1354. Mended: all prompts of a batch are under way at once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, PROMPTS, ANSWER_S = 50, 8, 0.006
serial = 0


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        await asyncio.sleep(ANSWER_S)
        writer.write(b"%d\n" % (len(line) % 97))
        await writer.drain()
    writer.close()


async def run_server(ready: Connection) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def serve(ready: Connection) -> None:
    asyncio.run(run_server(ready))


class Engine:
    """One connection a prompt of a batch, as a client's pool has them."""

    def __init__(self) -> None:
        self.connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def connect(self, port: int) -> None:
        for _ in range(PROMPTS):
            self.connections.append(await asyncio.open_connection("127.0.0.1", port))

    async def encode(self, number: int, prompt: str) -> int:
        reader, writer = self.connections[number]
        writer.write(prompt.encode() + b"\n")
        return int(await reader.readline())


async def embed(engine: Engine, prompts: list[str]) -> list[int]:
    global serial
    if MENDED:
        return await asyncio.gather(*(engine.encode(number, prompt) for number, prompt in enumerate(prompts)))
    codes = []
    for number, prompt in enumerate(prompts):  # fault
        codes.append(await engine.encode(number, prompt))
        serial += 1
    return codes


def write_prompts(index: int) -> list[str]:
    return [" ".join(f"w{index * position % 911}" for position in range(1500)) for _ in range(PROMPTS)]


def cluster(codes: list[int]) -> float:
    points = np.resize(np.array(codes, np.float32), (128, 128))
    for _ in range(60):
        points = np.tanh(points @ points.T / 1e4)
    return float(points.sum())


async def pipeline(port: int) -> None:
    engine = Engine()
    await engine.connect(port)
    perf = PerfRecorder("faults")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=PROMPTS):
                with perf.range("prompts"):
                    prompts = write_prompts(index)
                with perf.range("embed"):
                    codes = await embed(engine, prompts)
                with perf.range("cluster"):
                    cluster(codes)
    perf.finalize()
    for _, writer in engine.connections:
        writer.close()


def main() -> None:
    context = multiprocessing.get_context("fork")
    ready, sender = context.Pipe()
    server = context.Process(target=serve, args=(sender,), daemon=True)
    server.start()
    asyncio.run(pipeline(ready.recv()))
    server.terminate()
    server.join()
    print(serial, "prompts one after the other")


if __name__ == "__main__":
    main()
