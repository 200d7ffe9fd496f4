"""Threads, tasks of asyncio, a generator, nested batches and a library with ranges of its own, in one process."""

import asyncio
import threading
import time
from collections.abc import Iterator

import nvtx

from perfharness import PerfRecorder

perf = PerfRecorder("mixed", args={"model": "tiny"})


def thread(number: int) -> None:
    with perf.range(f"worker_{number}"):
        for index in range(6):
            with perf.batch(index, total_items=number + 1), perf.range("resize"):
                time.sleep(0.002 * (number + 1))


async def task(number: int) -> None:
    for index in range(6):
        with perf.batch(index, total_items=1, message=f"task_{number}"), perf.range("ask"):
            await asyncio.sleep(0.003 * (number + 1))


async def tasks() -> None:
    await asyncio.gather(task(0), task(1))


@perf.annotate("load")
def load() -> Iterator[int]:
    for step in range(3):
        time.sleep(0.001)
        yield step


def library() -> None:
    with nvtx.annotate("library_call", domain="library"):
        time.sleep(0.001)


def nested() -> None:
    with perf.range("serve"):
        for request in range(6):
            with perf.batch(request, total_items=1, message="request"):
                for _ in load():
                    library()
                for token in range(3 + request % 2):
                    with perf.batch(token, total_items=1, message="token"), perf.range("step"):
                        time.sleep(0.002)


threads = [threading.Thread(target=thread, args=(number,)) for number in range(2)]
for each in threads:
    each.start()
for each in threads:
    each.join()
asyncio.run(tasks())
nested()
perf.finalize()
