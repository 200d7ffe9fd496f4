"""`loops`: four asyncio tasks with a loop each, whose first batch is cold. `server`: a task for each of 80 requests.

`bursts`: five rounds of four requests.
"""

import asyncio
import sys

from perfharness import PerfRecorder

perf = PerfRecorder("t")


async def loop():
    for i in range(8):
        with perf.batch(i, total_items=1):
            await asyncio.sleep(0.1 if i == 0 else 0.01)


async def request(i):
    with perf.batch(i, total_items=1):
        await asyncio.sleep(0.02)


async def main():
    if sys.argv[1] == "loops":
        await asyncio.gather(*[loop() for _ in range(4)])
        return
    if sys.argv[1] == "bursts":
        for k in range(5):
            await asyncio.gather(*[request(4 * k + j) for j in range(4)])
        return
    requests = []
    for i in range(80):
        requests.append(asyncio.create_task(request(i)))
        await asyncio.sleep(0.005)
    await asyncio.gather(*requests)


asyncio.run(main())
perf.finalize()
