"""A CPU limit is used up at the beginning of each period, then all stands still. Mended: a limit of 8 CPUs."""

import os
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults.frame import MENDED, count, run

PERIOD_US = 100_000
QUOTA_US = 8 * PERIOD_US if MENDED else PERIOD_US // 10
PART = bytes(range(256)) * 8000
GROUP = Path("/sys/fs/cgroup") / f"faults_cpu_quota_{os.getpid()}"


def infer(_):
    other = pool.submit(compress_twice)
    return compress_twice() + other.result()


def compress_twice():
    return sum(len(zlib.compress(PART)) for _ in range(2))


(GROUP.parent / "cgroup.controllers").stat()  # version 2
GROUP.mkdir()
try:
    (GROUP.parent / "cgroup.subtree_control").write_text("+cpu")
    (GROUP / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))
    with ThreadPoolExecutor(2) as pool:
        run(20, infer=infer, wait=lambda _: time.sleep(0.04))  # that time is not the limit's
    count(int(dict(line.split() for line in (GROUP / "cpu.stat").open())["nr_throttled"]))
finally:
    (GROUP.parent / "cgroup.procs").write_text(str(os.getpid()))
    GROUP.rmdir()
