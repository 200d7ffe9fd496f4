"""Every look-up scans a table of SQLite that has no index. Mended: it has one."""

import sqlite3

from tests.faults.frame import MENDED, count, run, svd

MEMORIES, SESSIONS, LOOKUPS = 24000, 6000, 6
database = sqlite3.connect(":memory:")


def last(session):
    query = "SELECT body FROM messages WHERE session = ?"
    count("SCAN" in str(database.execute("EXPLAIN QUERY PLAN " + query, (session,)).fetchone()))
    rows = database.execute(query, (session,)).fetchall()  # fault
    return [row[0] for row in rows]


def understand(index):
    return [f"user_{sum(map(ord, f'{index}:{position}')) * 37 % SESSIONS}" for position in range(1200)][:LOOKUPS]


def recall(sessions):
    return [body for session in sessions for body in last(session)]


database.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, session TEXT, body TEXT)")
rows = ((f"user_{number % SESSIONS}", f"message {number} " * 3) for number in range(MEMORIES))
database.executemany("INSERT INTO messages (session, body) VALUES (?, ?)", rows)
if MENDED:
    database.execute("CREATE INDEX by_session ON messages (session)")
run(40, LOOKUPS, understand=understand, recall=recall, rank=svd(64))
