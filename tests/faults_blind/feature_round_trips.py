"""A ranking service asks the feature store for one item after the other, a round trip each.

feast-dev/feast#1759, featureform/featureform#1370. Mended: one request for all.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, ITEMS = 50, 16
STORE = """
import asyncio, json

async def serve(reader, writer):
    while line := await reader.readline():
        await asyncio.sleep(0.003)
        keys = json.loads(line)
        writer.write(json.dumps({key: [len(key), 0.5, 1.5] for key in keys}).encode() + b"\\n")
        await writer.drain()
    writer.close()
    asyncio.get_running_loop().stop()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

try:
    asyncio.run(main())
except RuntimeError:
    pass
"""
trips = 0


class FeatureClient:
    """A connection to the store."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def connect(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def get(self, keys: list[str]) -> dict[str, list[float]]:
        global trips
        trips += 1
        self.writer.write(json.dumps(keys).encode() + b"\n")
        await self.writer.drain()
        answer: dict[str, list[float]] = json.loads(await self.reader.readline())
        return answer

    async def one_by_one(self, keys: list[str]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for key in keys:  # fault
            found.update(await self.get([key]))
        return found


def features(loop: asyncio.AbstractEventLoop, client: FeatureClient, keys: list[str]) -> np.ndarray:
    return np.array(list(loop.run_until_complete(client.one_by_one(keys)).values()), np.float32)  # fault


def features_of_all(loop: asyncio.AbstractEventLoop, client: FeatureClient, keys: list[str]) -> np.ndarray:
    return np.array(list(loop.run_until_complete(client.get(keys)).values()), np.float32)


def candidates(user: int) -> list[str]:
    scored = sorted((user * item % 7919, item) for item in range(20_000))
    return [f"item-{item}" for _, item in scored[:ITEMS]]


def rank(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    states = np.resize(rows, (128, 256))
    for _ in range(40):
        states = np.tanh(states @ weights)
    return np.argsort(states[:, 0])


store = subprocess.Popen([sys.executable, "-c", STORE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
assert store.stdout is not None
loop = asyncio.new_event_loop()
client = FeatureClient(int(store.stdout.readline()))
loop.run_until_complete(client.connect())
weights = np.random.default_rng(18).normal(0, 0.1, (256, 256)).astype(np.float32)
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=ITEMS):
            with perf.range("candidates"):
                keys = candidates(index + 1)
            with perf.range("features"):
                rows = (features_of_all if MENDED else features)(loop, client, keys)
            with perf.range("rank"):
                order = rank(rows, weights)
client.writer.close()
store.kill()
store.wait()
loop.close()
perf.finalize()
print(trips, "round trips")
