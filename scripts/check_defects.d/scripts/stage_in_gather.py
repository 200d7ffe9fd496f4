import asyncio

from perfharness import PerfRecorder

perf = PerfRecorder("t")


@perf.annotate("fetch")
async def fetch(x):
    await asyncio.sleep(0.004)


async def main():
    with perf.range("pipeline"):
        for i in range(10):
            with perf.batch(i, total_items=8):
                await asyncio.gather(*[fetch(k) for k in range(8)])
                with perf.range("infer"):
                    await asyncio.sleep(0.002)


asyncio.run(main())
perf.finalize()
