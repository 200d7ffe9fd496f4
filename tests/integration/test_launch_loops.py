"""Batches of threads, tasks, nested loops and worker processes, recorded by one real launch: which of them count."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from tests.integration.launches import environment, read, run_to_the_end

SCRIPT = """
import asyncio, multiprocessing, threading, time
from perfharness import PerfRecorder

def loop(perf, count):
    for index in range(count):
        with perf.batch(index, total_items=1):
            time.sleep(0.005 if index == 0 else 0.001)

def work(_number):
    perf = PerfRecorder("workers")
    loop(perf, 6)
    perf.finalize()

async def task(perf):
    for index in range(8):
        with perf.batch(index, total_items=1):
            await asyncio.sleep(0.001)

async def request(perf, index):
    with perf.batch(index, total_items=1):
        await asyncio.sleep(0.004)

async def tasks(perf):
    await asyncio.gather(*[task(perf) for _ in range(4)])

async def rounds(perf):
    for number in range(5):
        await asyncio.gather(*[request(perf, 4 * number + place) for place in range(4)])

async def server(perf):
    requests = []
    for index in range(80):
        requests.append(asyncio.create_task(request(perf, index)))
        await asyncio.sleep(0.001)
    await asyncio.gather(*requests)

def main():
    threads_recorder = PerfRecorder("threads")
    threads = [threading.Thread(target=loop, args=(threads_recorder, 6)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in (tasks, rounds, server):
        asyncio.run(run(PerfRecorder(run.__name__)))
    calls = PerfRecorder("calls")
    for count in (5, 20):
        with calls.range("pipeline"):
            loop(calls, count)
    nested = PerfRecorder("nested")
    for epoch in range(3):
        with nested.batch(epoch, message="epoch"):
            for video in range(3):
                with nested.batch(video, message="video"):
                    for frame in range(4):
                        with nested.batch(frame, total_items=1, message="frame"):
                            pass
    items = PerfRecorder("items")
    with items.range("pipeline"):
        for index in range(42):
            with items.batch(index, total_items=64 if index % 2 else 1):
                time.sleep(0.001)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("loops")
    (folder / "script.py").write_text(SCRIPT)
    options = ("--tracer", "embedded", "-w", 1, "-o", folder / "out")
    assert run_to_the_end((*options, folder / "script.py"), environment()).returncode == 0
    mean: dict[str, Any] = read(folder / "out", "benchmark_mean.json")
    return mean


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("threads/batch", 4 * 4),
        ("workers/batch", 4 * 4),
        ("tasks/batch", 4 * 6),
        ("rounds/batch", 18),
        ("server/batch", 78),
        ("calls/pipeline/batch", 5 + 20 - 2),
        ("items/pipeline/batch", 40),
        ("nested/epoch", 1),
        ("nested/epoch/video", 3),
        ("nested/epoch/video/frame", 12),
    ],
)
def test_the_first_and_last_batch_of_each_loop_are_excluded(measured: dict[str, Any], path: str, count: int) -> None:
    assert at(measured["stats_minus_warmup"], path)["cpu_time"]["count"] == count


def at(tree: dict[str, Any], path: str) -> dict[str, Any]:
    for name in path.split("/"):
        tree = tree[name]
    return tree


def test_time_per_item_is_time_over_items_and_no_mean_of_ratios(measured: dict[str, Any]) -> None:
    """Batches of 1 and of 64 items in turns, equally long: the mean of the ratios would be 16 times as much."""
    batch = at(measured["stats_minus_warmup"], "items/pipeline/batch")
    per_item = batch["cpu_time"]["mean"] / batch["total_items"]["mean"]
    assert batch["total_items"]["mean"] == statistics.mean([1, 64])
    assert batch["cpu_time_per_item"]["mean"] == pytest.approx(per_item, rel=1e-3)
    mean = at(measured["mean_data"], "items/pipeline/batch")
    assert mean["cpu_time_per_item"] == pytest.approx(mean["cpu_time"] / mean["total_items"], rel=1e-3)
