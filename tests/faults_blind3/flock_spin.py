"""The lock of a compilation cache is tried again and again without a pause while another process holds it.

Xilinx/mlir-aie#3424. Mended: the call that waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, HELD_S = 40, 0.02
attempts = 0


def try_lock(file: int) -> bool:
    global attempts
    attempts += 1
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fault
    except OSError:
        return False
    return True


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        if MENDED:
            fcntl.flock(file, fcntl.LOCK_EX)
        else:
            while not try_lock(file):  # fault
                pass
        yield
    finally:
        os.close(file)


def compile_elsewhere(path: Path, started: Event) -> None:
    """Another process of the same cache."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(file, fcntl.LOCK_EX)
        started.set()
        time.sleep(HELD_S)
        os.close(file)
        time.sleep(0.004)


def load_kernel(path: Path, name: str) -> str:
    with locked(path):
        return f"code of {name}"


def lower(index: int) -> list[str]:
    return [f"op{(index * position) % 89}".upper().lower() for position in range(9000)]


def launch(code: str) -> int:
    return sum(position * len(code) % 7 for position in range(30000))


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        path, started = Path(folder) / "cache.lock", context.Event()
        context.Process(target=compile_elsewhere, args=(path, started), daemon=True).start()
        started.wait()
        perf = PerfRecorder("faults")
        with perf.range("pipeline"):
            for index in range(BATCHES):
                with perf.batch(index, total_items=1):
                    with perf.range("lower"):
                        ops = lower(index)
                    with perf.range("compile"):
                        code = load_kernel(path, ops[0])
                    with perf.range("launch"):
                        launch(code)
        perf.finalize()
    print(attempts, "attempts")
