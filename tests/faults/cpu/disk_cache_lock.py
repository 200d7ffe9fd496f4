"""A thread writes files under the lock that every look-up takes. Mended: it only renames them under it."""

import contextlib
import gzip
import tempfile
import threading
from pathlib import Path

import numpy as np

from tests.faults.frame import MENDED, count, run, spelling, svd

ANSWER = np.random.default_rng(5).integers(0, 9, 600_000, dtype=np.uint8).tobytes()
lock, stopping = threading.Lock(), threading.Event()


def look_up(index):
    count(lock.locked())
    with lock:  # fault
        return (folder / f"answer_{index % 8}").exists()


def put(key):
    beside = folder / f"{key}.part"
    with contextlib.nullcontext() if MENDED else lock, gzip.open(beside, "wb", 9) as out:  # fault
        out.write(ANSWER)
    with lock:
        beside.replace(folder / key)


def write_behind():
    number = 0
    while not stopping.wait(0.06 if MENDED else 0.001):
        put(f"answer_{number % 8}")
        number += 1


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    thread = threading.Thread(target=write_behind, name="write-behind")
    thread.start()
    run(40, 2, features=svd(80), look_up=look_up, summarize=spelling(9000))
    stopping.set()
    thread.join()
