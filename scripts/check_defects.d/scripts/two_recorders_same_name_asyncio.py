# ruff: noqa
"""Two PerfRecorder objects of ONE name (two modules of one application), asyncio."""

import asyncio
from perfharness import PerfRecorder

A = PerfRecorder("app")
B = PerfRecorder("app")


async def short():
    for _ in range(3):
        with B.range("log"):
            await asyncio.sleep(0.002)


async def one(i):
    with A.batch(i, total_items=1):
        with A.range("stage"):
            await asyncio.sleep(0.05)


async def main():
    for i in range(10):
        await asyncio.gather(asyncio.create_task(one(i)), asyncio.create_task(short()))


asyncio.run(main())
A.finalize()
B.finalize()
