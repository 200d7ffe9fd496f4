"""Services with metrics, as programs: `python -m tests.support.metrics_service NAME [HOST:PORT]`.

Each prints what its recorders counted, and the text that Prometheus reads from its default registry.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable

import prometheus_client

from perfharness import PerfRecorder
from tests.support.recorder_programs import PROGRAMS

Counts = dict[str, dict[str, int]]


def loop(perf: PerfRecorder, count: int) -> None:
    with perf.range("pipeline"):
        for i in range(count):
            with perf.batch(i, total_items=3), perf.range("decode"):
                pass


def programs() -> Counts:
    """Every way to annotate, each with a recorder of its own."""
    counts = {}
    for name, program in PROGRAMS.items():
        perf = PerfRecorder(name, metrics=True)
        program.run(perf)
        counts[name] = perf.totals()
    return counts


def threads() -> Counts:
    """Four at a time, and after them a hundred that end at once."""
    perf = PerfRecorder("svc", metrics=True)
    for count, batches in ((4, 500), (100, 1)):
        running = [threading.Thread(target=loop, args=(perf, batches)) for _ in range(count)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    return {"svc": perf.totals()}


def tasks() -> Counts:
    perf = PerfRecorder("svc", metrics=True)

    async def request(number: int) -> None:
        for i in range(number % 7):
            with perf.batch(i, total_items=1):
                await asyncio.sleep(0)

    async def serve() -> None:
        await asyncio.gather(*map(request, range(50)))

    asyncio.run(serve())
    return {"svc": perf.totals()}


def names_with_ids() -> Counts:
    perf = PerfRecorder("svc", metrics=True)
    for i in range(9000):
        with perf.range(f"request {i}"):
            pass
    return {"svc": perf.totals()}


def children() -> Counts:
    """One that is forked and two of multiprocessing, which end at once; they do the same as this one."""
    perf = PerfRecorder("svc", metrics=True)
    loop(perf, 10)
    if (pid := os.fork()) == 0:
        loop(perf, 10)
        sys.exit()
    os.waitpid(pid, 0)
    context = multiprocessing.get_context("fork")
    for _ in range(2):
        child = context.Process(target=loop, args=(perf, 10))
        child.start()
        child.join()
    return {"svc": {name: 4 * count for name, count in perf.totals().items()}}


def many_children() -> Counts:
    """More than are kept as files of their own, twice; they end without exit functions once their files are written."""
    perf = PerfRecorder("svc", metrics=True)
    for _ in range(2):
        children = []
        for _ in range(20):
            if (pid := os.fork()) == 0:
                loop(perf, 1)
                prometheus_client.generate_latest()
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        prometheus_client.generate_latest()
    loop(perf, 1)
    return {"svc": {name: 41 * count for name, count in perf.totals().items()}}


def served() -> Counts:
    """A worker: makes 10 batches, and waits for its end."""
    perf = PerfRecorder("svc", metrics=sys.argv[2])
    loop(perf, 10)
    print("ready", flush=True)
    time.sleep(60)
    return {}


SERVICES: dict[str, Callable[[], Counts]] = {
    run.__name__: run for run in (programs, threads, tasks, names_with_ids, children, many_children, served)
}

if __name__ == "__main__":
    counted = SERVICES[sys.argv[1]]()
    print(json.dumps({"counts": counted, "text": prometheus_client.generate_latest().decode()}))
