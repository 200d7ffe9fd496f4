"""A worker awaits each answer before it sends the next prompt. Mended: all at once."""

import asyncio
import time

import numpy as np

from tests.faults.frame import MENDED, count, run_async, serve

PROMPTS = 8
connections = []


def answer(connection):
    for line in connection.makefile():
        time.sleep(0.006)
        connection.sendall(b"%d\n" % (len(line) % 97))


async def encode(number, prompt):
    """On one of the connections of a client's pool."""
    reader, writer = connections[number]
    writer.write(prompt.encode() + b"\n")
    return int(await reader.readline())


async def embed(prompts):
    if MENDED:
        return await asyncio.gather(*(encode(number, prompt) for number, prompt in enumerate(prompts)))
    codes = []
    for number, prompt in enumerate(prompts):  # fault
        codes.append(await encode(number, prompt))
        count()
    return codes


def write_prompts(index):
    return [" ".join(f"w{index * position % 911}" for position in range(1500)) for _ in range(PROMPTS)]


def cluster(codes):
    points = np.resize(np.array(codes, np.float32), (128, 128))
    for _ in range(60):
        points = np.tanh(points @ points.T / 1e4)


async def main():
    connections.extend([await asyncio.open_connection(*address) for _ in range(PROMPTS)])
    await run_async(50, PROMPTS, prompts=write_prompts, embed=embed, cluster=cluster)


address = serve(answer)
asyncio.run(main())
