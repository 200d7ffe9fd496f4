"""Another process keeps transactions of the same SQLite file open. Mended: a file for each process."""

import multiprocessing
import sqlite3
import tempfile
import time

from tests.faults.frame import MENDED, count, run

context = multiprocessing.get_context("fork")
started = context.Event()


def connect(path):
    connection = sqlite3.connect(path, timeout=10.0, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA journal_mode = MEMORY")
    connection.execute("CREATE TABLE IF NOT EXISTS answers (text TEXT)")
    return connection


def guard_rails(path):
    """Another process that writes what it thinks of answers, one transaction for each."""
    connection = connect(path)
    while True:
        connection.execute("BEGIN IMMEDIATE")
        started.set()
        time.sleep(0.015)
        connection.execute("INSERT INTO answers VALUES ('fine')")
        connection.execute("COMMIT")
        time.sleep(0.002)


def generate(index):
    return " ".join(f"word{(index * position) % 997}" for position in range(9000))


def moderate(text):
    sum(1 for word in text.split() if word[::-1].endswith("d"))
    return text[:200]


def store(text):
    began = time.monotonic()
    connection.execute("BEGIN IMMEDIATE")  # fault
    count(time.monotonic() - began > 0.0009)
    connection.execute("INSERT INTO answers VALUES (?)", (text,))
    connection.execute("COMMIT")


with tempfile.TemporaryDirectory() as folder:
    shared, other = f"{folder}/answers.sqlite", f"{folder}/rails.sqlite"
    context.Process(target=guard_rails, args=(other if MENDED else shared,), daemon=True).start()
    started.wait()
    connection = connect(shared)
    run(40, generate=generate, moderate=moderate, store=store)
