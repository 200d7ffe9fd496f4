"""A cache has one lock file, and who finds it taken sleeps 50 ms and tries again. Mended: one per key."""

import multiprocessing
import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from tests.faults.frame import MENDED, count, network, run


@contextmanager
def locked(key):
    file = folder / (f"{key}.lock" if MENDED else "lock")
    while not make(file):
        count()
        time.sleep(0.05)  # fault
    yield
    file.unlink()


def make(file):
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def other_process():
    while True:
        with locked("theirs"):
            time.sleep(0.010)
        time.sleep(0.015)


def get_kernel(key):
    with locked(key):
        file = folder / f"{key}.bin"
        if not file.exists():
            file.write_bytes(os.urandom(4096))
        return file.read_bytes()


def trace(index):
    source = "\n".join(f"v{position} = v{position // 2} * {index}" for position in range(9000))
    return [f"kernel-{len(source) % 3}-{number}" for number in range(3)]


def kernels(keys):
    return [get_kernel(key) for key in keys]


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    other = multiprocessing.get_context("fork").Process(target=other_process, daemon=True)
    other.start()
    run(50, trace=trace, kernels=kernels, execute=network(64, 192, 80))
    other.kill()
    other.join()
