"""Threads that index documents keep a connection of the pool while a model embeds; requests wait for one.

epam/statgpt-backend#174, LearningCircuit/local-deep-research#5202. Mended: they take a connection only to write.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
from sqlalchemy import QueuePool, create_engine, text

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, CONNECTIONS = 30, 2
folder = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, folder, ignore_errors=True)
engine = create_engine(
    f"sqlite:///{folder / 'documents.sqlite'}", poolclass=QueuePool, pool_size=CONNECTIONS, max_overflow=0,
    connect_args={"check_same_thread": False},
)  # fmt: skip
stopping = threading.Event()
exhausted = 0


def embed_remotely() -> float:
    stopping.wait(0.03)  # a model elsewhere answers
    return 0.5


def index_documents(thread: int) -> None:
    while not stopping.is_set():
        if MENDED:
            value = embed_remotely()
            with engine.connect() as connection:
                connection.execute(text("SELECT count(*) FROM documents WHERE rank > :value"), {"value": value})
        else:
            with engine.connect() as connection:
                value = embed_remotely()
                connection.execute(text("SELECT count(*) FROM documents WHERE rank > :value"), {"value": value})
        stopping.wait(0.001)


def find(question: int) -> list[str]:
    global exhausted
    exhausted += engine.pool.checkedout() >= CONNECTIONS  # type: ignore[attr-defined]
    with engine.connect() as connection:  # fault
        rows = connection.execute(
            text("SELECT body FROM documents WHERE rank > :rank LIMIT 20"), {"rank": question % 7 / 10}
        )
        return [row[0] for row in rows]


def understand(index: int) -> int:
    return sum(hash(f"{index}:{position}") & 7 for position in range(9000))


def rank(bodies: list[str]) -> float:
    values = np.random.default_rng(len(bodies)).standard_normal((70, 70))
    return float(np.linalg.svd(values, compute_uv=False)[0])


with engine.begin() as connection:
    connection.execute(text("CREATE TABLE documents (body TEXT, rank REAL)"))
    rows = [{"body": f"document {number}", "rank": number % 100 / 100} for number in range(400)]
    connection.execute(text("INSERT INTO documents VALUES (:body, :rank)"), rows)
threads = [threading.Thread(target=index_documents, args=(number,)) for number in range(CONNECTIONS)]
for thread in threads:
    thread.start()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("understand"):
                understand(index)
            with perf.range("find"):
                bodies = find(index)
            with perf.range("rank"):
                rank(bodies)
perf.finalize()
stopping.set()
for thread in threads:
    thread.join()
print(exhausted, "requests found the pool empty")
