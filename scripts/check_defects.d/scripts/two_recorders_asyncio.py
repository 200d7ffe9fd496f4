# ruff: noqa
"""Two recorders in one event loop, one after the other in time. A's stage takes 5 ms, B's 50 ms."""

import asyncio
from perfharness import PerfRecorder

A = PerfRecorder("fast")
B = PerfRecorder("slow")


async def one(P, i, s):
    with P.batch(i, total_items=1):
        with P.range("stage"):
            await asyncio.sleep(s)


async def main():
    for i in range(10):
        await asyncio.gather(asyncio.create_task(one(A, i, 0.005)), asyncio.create_task(one(B, i, 0.05)))


asyncio.run(main())
A.finalize()
B.finalize()
