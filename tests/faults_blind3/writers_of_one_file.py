"""Results go into an SQLite file in which another process keeps a transaction open, so that writers sleep and retry.

ogx-ai/ogx#4048, NovaSky-AI/SkyRL#1105. Mended: each process has a file of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sqlite3
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, OPEN_S = 40, 0.015
busy = 0


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=10.0, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA journal_mode = MEMORY")
    connection.execute("CREATE TABLE IF NOT EXISTS answers (request INTEGER, text TEXT)")
    return connection


def guard_rails(path: Path, started: Event) -> None:
    """Another process that writes what it thinks of answers, one transaction for each."""
    with contextlib.closing(connect(path)) as connection:
        while True:
            connection.execute("BEGIN IMMEDIATE")
            started.set()
            time.sleep(OPEN_S)
            connection.execute("INSERT INTO answers VALUES (0, 'fine')")
            connection.execute("COMMIT")
            time.sleep(0.002)


class Store:
    def __init__(self, path: Path) -> None:
        self.connection = connect(path)

    def write(self, request: int, text: str) -> None:
        global busy
        began = time.monotonic()
        self.connection.execute("BEGIN IMMEDIATE")  # fault
        busy += time.monotonic() - began > 0.0009
        self.connection.execute("INSERT INTO answers VALUES (?, ?)", (request, text))
        self.connection.execute("COMMIT")


def generate(index: int) -> str:
    return " ".join(f"word{(index * position) % 997}" for position in range(9000))


def moderate(text: str) -> int:
    return sum(1 for word in text.split() if word[::-1].endswith("d"))


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        shared, started = Path(folder) / "answers.sqlite", context.Event()
        other = Path(folder) / "rails.sqlite" if MENDED else shared
        context.Process(target=guard_rails, args=(other, started), daemon=True).start()
        started.wait()
        store = Store(shared)
        perf = PerfRecorder("faults")
        with perf.range("pipeline"):
            for index in range(BATCHES):
                with perf.batch(index, total_items=1):
                    with perf.range("generate"):
                        text = generate(index)
                    with perf.range("moderate"):
                        moderate(text)
                    with perf.range("store"):
                        store.write(index, text[:200])
        perf.finalize()
    print(busy, "times it was busy")
