"""The memory of an assistant is a table of SQLite without an index on the column that every look-up asks for.

mem0ai/mem0#5009, chroma-core/chroma#849. Mended: it has one.
"""

from __future__ import annotations

import os
import sqlite3
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, MEMORIES, SESSIONS, LOOKUPS = 40, 24000, 6000, 6
database = sqlite3.connect(":memory:")
scans = 0


class Memory:
    """Messages of earlier sessions."""

    def __init__(self) -> None:
        database.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, session TEXT, body TEXT)")
        rows = ((f"user_{number % SESSIONS}", f"message {number} " * 3) for number in range(MEMORIES))
        database.executemany("INSERT INTO messages (session, body) VALUES (?, ?)", rows)
        if MENDED:
            database.execute("CREATE INDEX by_session ON messages (session)")

    def last(self, session: str) -> list[str]:
        global scans
        query = "SELECT body FROM messages WHERE session = ?"
        plan = "EXPLAIN QUERY PLAN " + query
        scans += "SCAN" in str(database.execute(plan, (session,)).fetchone())
        rows = database.execute(query, (session,)).fetchall()  # fault
        return [row[0] for row in rows]


memory = Memory()


def understand(index: int) -> list[str]:
    return [f"user_{sum(map(ord, f'{index}:{position}')) * 37 % SESSIONS}" for position in range(1200)][:LOOKUPS]


def recall(sessions: list[str]) -> list[str]:
    return [body for session in sessions for body in memory.last(session)]


def rank(bodies: list[str]) -> list[str]:
    values = np.random.default_rng(len(bodies)).standard_normal((64, 64))
    return sorted(bodies, key=len)[: int(abs(np.linalg.det(values)) % 3)]


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=LOOKUPS):
            with perf.range("understand"):
                sessions = understand(index)
            with perf.range("recall"):
                bodies = recall(sessions)
            with perf.range("rank"):
                rank(bodies)
perf.finalize()
print(scans, "scans of the whole table")
