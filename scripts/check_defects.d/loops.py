"""Rows of the defect tables that concern loops of batches: warm-up, throughput, times per item.

With `--bias`, prints the whole table of the throughput's bias instead: loaders of 0 to 40 times a batch, 1 to 50
counted batches, 1 and 4 processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "launcher")]

Row = tuple[bool, str, str, str]
"""Whether it is right, the row, what came out, what is right."""


def launch(
    script: str, *options: str, arguments: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """Exit code, benchmark_mean.json, and the benchmark.json of each process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [
            sys.executable, "-m", "perfharness", "launch", "--tracer", "embedded", "-o", str(out), *options,
            str(HERE / "scripts" / script), *arguments,
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'launcher'}"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        mean = next(iter([*out.glob("benchmark_mean.json"), *out.parent.glob("*/benchmark_mean.json")]), None)
        if mean is None:
            return done.returncode, {}, []
        processes = [json.loads(path.read_text()) for path in sorted(mean.parent.glob("proc_*/benchmark.json"))]
        return done.returncode, json.loads(mean.read_text()), processes


def close(value: float | None, right: float, off: float = 0.1) -> bool:
    return value is not None and abs(value / right - 1) < off


# ---- bias ----

LOADERS = (0.0, 0.1, 1.0, 4.0, 9.0, 40.0)
COUNTS = (1, 2, 3, 5, 10, 50)


def bias(loader: float, count: int, processes: int, jitter: float, runs: int = 200) -> tuple[float | None, float, int]:
    """Mean and standard error of the relative error of the throughput, and of how many runs there is one.

    Batches of 10 ms with a loader so many times as long before each, both with jitter, processes at any phase.
    """
    from perfharness.analysis.throughput import throughput
    from perfharness.model.result import BatchLoop

    random = np.random.default_rng([int(10 * loader), count, processes, int(1000 * jitter)])
    found = []
    for _ in range(runs):
        loops = {}
        for process in range(processes):
            work = 10 * np.maximum(random.normal(1, jitter, count + 2), 0.1)
            load = 10 * loader * np.maximum(random.normal(1, jitter, count + 2), 0.1)
            start = np.cumsum(np.r_[random.uniform(0, 10 * (1 + loader)), (work + load)[:-1]])
            excluded = np.zeros(count + 2, dtype=np.bool_)
            excluded[[0, -1]] = True
            begin = (start * 1e6).astype(np.int64)
            end = begin + (work * 1e6).astype(np.int64)
            loops[str(process)] = [BatchLoop(("r", "batch"), begin, end, np.ones(count + 2), excluded)]
        rate = throughput(loops, True)["items_per_second"]
        if rate is not None:
            found.append(rate * 10 * (1 + loader) / 1000 / processes - 1)
    if not found:
        return None, 0.0, 0
    return float(np.mean(found)), float(np.std(found) / np.sqrt(len(found))), len(found)


def print_bias() -> None:
    """Bias in % ± standard error (share of the runs with a number); `-`: null in all of them."""
    for jitter in (0.0, 0.05, 0.2):
        for processes in (1, 4):
            print(f"jitter {jitter:.0%}, {processes} process{'es' if processes > 1 else ''}; bias in %")
            print("loader/batch" + "".join(f"{f'n={count}':>22}" for count in COUNTS))
            for loader in LOADERS:
                cells = []
                for count in COUNTS:
                    mean, error, given = bias(loader, count, processes, jitter)
                    cells.append("-" if mean is None else f"{100 * mean:+.2f} ± {100 * error:.2f} ({given / 2:.0f} %)")
                print(f"{loader:12g}" + "".join(f"{cell:>22}" for cell in cells))


def throughput_bias() -> Iterator[Row]:
    """sim_throughput.py: N batches take N periods."""
    worst, null, given_few = 0.0, 0, 0
    for jitter in (0.0, 0.05):
        for loader in LOADERS:
            for count in COUNTS:
                for processes in (1, 4):
                    mean, error, given = bias(loader, count, processes, jitter, runs=60)
                    given_few += given if count < 3 else 0
                    if mean is None:
                        null += 1
                    else:
                        worst = max(worst, max(0.0, abs(mean) - 3 * error))
    ok = worst < 0.01 and given_few == 0
    text = f"beyond three standard errors at most {100 * worst:.2f} %; {given_few} numbers from fewer than 3 periods"
    yield ok, "sim_throughput.py, loaders 0 to 40 x, 1 to 50 batches", text, "about 0; null below 3 periods"


# ---- launches ----


def prefetched() -> Iterator[Row]:
    for count in (10, 14, 20, 40, 100):
        _, mean, _ = launch("prefetch.py", "-np", "2", "-w", "2", arguments=(str(count),))
        rate = mean["throughput"]["items_per_second"]
        ok = close(rate, 100) if count == 100 else rate is None or close(rate, 100)
        yield ok, f"prefetch.py {count}, -np 2 -w 2", f"{rate}", "100, or null with the reason"


def two_calls() -> Iterator[Row]:
    _, mean, _ = launch("pipeline_twice.py", "-w", "1")
    rate = mean["throughput"]["items_per_second"]
    yield close(rate, 48), "pipeline_twice.py", f"{rate} items/s, {mean['throughput']['items']} items", "about 46"


def bursts() -> Iterator[Row]:
    _, mean, _ = launch("tasks.py", "-w", "1", arguments=("bursts",))
    found = mean["throughput"]
    right = 4 / 0.0205
    ok = close(found["items_per_second"], right, 0.05)
    yield ok, "asyncio, 5 rounds of 4 tasks, -w 1", f"{found['items_per_second']}, {found['items']} items", "about 195"


def of_batch(mean: dict[str, Any], *path: str) -> dict[str, Any]:
    tree = mean["stats_minus_warmup"]["t"]
    for name in path:
        tree = tree[name]
    return tree


def warmup() -> Iterator[Row]:
    _, mean, _ = launch("warmup_threads.py", "-w", "1")
    time = of_batch(mean, "batch")["cpu_time"]
    ok = time["count"] == 16 and time["max"] < 40
    yield ok, "warmup_threads.py -w 1", f"mean {time['mean']} of {time['count']}", "5.2 of 16"
    _, mean, _ = launch("pool_of_loops.py", "-w", "1", arguments=("spawn",))
    time = of_batch(mean, "batch")["cpu_time"]
    ok = time["count"] == 16 and time["p50"] < 20
    yield ok, "pool.py spawn -w 1", f"mean {time['mean']} of {time['count']}", "3.2 of 16"
    _, mean, _ = launch("tasks.py", "-w", "1", arguments=("loops",))
    time = of_batch(mean, "batch")["cpu_time"]
    ok = time["count"] == 24 and time["max"] < 90
    yield ok, "asyncio tasks with a loop each, -w 1", f"mean {time['mean']} of {time['count']}", "10.5 of 24"
    _, mean, _ = launch("tasks.py", "-w", "1", arguments=("server",))
    time = of_batch(mean, "batch")["cpu_time"]
    yield time["count"] == 78, "asyncio, a task for each of 80 requests", f"{time['count']} batches", "78"
    _, mean, _ = launch("nest3.py", "-w", "1")
    counts = [of_batch(mean, *path)["cpu_time"]["count"] for path in (("epoch",), ("epoch", "video"))]
    counts.append(of_batch(mean, "epoch", "video", "frame")["cpu_time"]["count"])
    yield counts == [1, 1, 2], "nest3.py -w 1", f"epochs, videos, frames left: {counts}", "[1, 1, 2]"


def per_item() -> Iterator[Row]:
    _, mean, _ = launch("per_item_mean_of_ratios.py", "-w", "1")
    batch = of_batch(mean, "pipeline", "batch")
    right = batch["cpu_time"]["mean"] / batch["total_items"]["mean"]
    found = batch["cpu_time_per_item"]["mean"]
    of_mean = mean["mean_data"]["t"]["pipeline"]["batch"]["cpu_time_per_item"]
    ok = close(found, right, 0.001) and close(of_mean, right, 0.1)
    yield ok, "per_item_mean_of_ratios.py", f"{found} ms, mean_data {of_mean} ms", "0.315"


def barrier_waits() -> Iterator[Row]:
    _, _, processes = launch("barrier_wait_other_thread.py", "-np", "2", "-w", "1")
    codes = {finding["code"] for process in processes for finding in process["meta"]["findings"]}
    pipeline = processes[0]["data"]["t"]["pipeline"]
    ok = "start-barrier-wait-of-other-threads" in codes
    yield (
        ok,
        "barrier_wait_other_thread.py -np 2",
        f"cpu_time {pipeline['cpu_time']}, {sorted(codes)}",
        "out, or reported",
    )


def nothing_left() -> Iterator[Row]:
    code, mean, _ = launch("crash_after_batches.py", "-w", "0")
    rate = (mean.get("throughput") or {}).get("items_per_second")
    yield (code, rate) == (1, None), "crash after 5 batches", f"exit {code}, {rate} items/s", "exit 1, null"
    code, _, _ = launch("per_item_mean_of_ratios.py", "-w", "5000")
    yield code == 3, "-w 5000 with 42 batches", f"exit {code}", "exit 3"


GROUPS: tuple[Callable[[], Iterator[Row]], ...] = (
    throughput_bias, prefetched, two_calls, bursts, warmup, per_item, barrier_waits, nothing_left,
)  # fmt: skip


def main() -> int:
    if "--bias" in sys.argv:
        print_bias()
        return 0
    bad = 0
    for group in GROUPS:
        for ok, row, came_out, right in group():
            print(f"{'ok ' if ok else 'BAD'}  {row}  {came_out}  (right: {right})", flush=True)
            bad += not ok
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
