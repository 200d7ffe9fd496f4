"""A container with a CPU limit, in which a library starts a thread for each CPU of the machine: the limit is used up at
the beginning of each period, and then all of the container stands still.

kserve/kserve#1031, ollama/ollama#17916. Mended: the limit is worth more CPUs than there are threads.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, THREADS, PERIOD_US = 20, 2, 100_000
QUOTA_US = 4 * THREADS * PERIOD_US if MENDED else PERIOD_US // 10
PART = bytes(range(256)) * 8000
GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def cpu_limit(quota_us: int) -> Iterator[Path]:
    """As `docker run --cpus`: this process in a control group of its own, which is removed again; its folder."""
    version_2 = (GROUPS / "cgroup.controllers").exists()
    trees = [GROUPS] if version_2 else list({(GROUPS / name).resolve() for name in ("cpu", "cpuacct")})
    groups = [tree / f"faults_cpu_quota_{os.getpid()}" for tree in trees]
    for group in groups:
        group.mkdir()
        if version_2:
            (GROUPS / "cgroup.subtree_control").write_text("+cpu")
            (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        elif (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield next(group for group in groups if (group / "cpu.stat").exists())
    finally:
        for group, tree in zip(groups, trees, strict=True):
            (tree / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()


def infer(pool: ThreadPoolExecutor) -> int:
    others = [pool.submit(compress_twice) for _ in range(THREADS - 1)]
    return compress_twice() + sum(other.result() for other in others)


def compress_twice() -> int:
    return sum(len(zlib.compress(PART)) for _ in range(2))


def main() -> None:
    perf = PerfRecorder("faults")
    with cpu_limit(QUOTA_US) as group, ThreadPoolExecutor(THREADS) as pool:
        with perf.range("pipeline"):
            for index in range(BATCHES):
                with perf.batch(index, total_items=1):
                    with perf.range("infer"):
                        infer(pool)
                    with perf.range("wait"):
                        time.sleep(0.04)  # its time is not the limit's
        counts = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    perf.finalize()
    print(counts["nr_throttled"], "periods of the limit used up")


if __name__ == "__main__":
    main()
