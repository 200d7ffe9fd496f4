"""Threads keep a connection of the pool while a model embeds; requests wait for one. Mended: only to write."""

import tempfile
import threading

from sqlalchemy import QueuePool, create_engine, text

from tests.faults.frame import MENDED, count, hashing, run, svd

CONNECTIONS = 2
stopping = threading.Event()


def embed_remotely():
    stopping.wait(0.03)  # a model elsewhere answers
    return 0.5


def index_documents():
    query = text("SELECT count(*) FROM documents WHERE rank > :value")
    while not stopping.is_set():
        if MENDED:
            value = embed_remotely()
            with engine.connect() as connection:
                connection.execute(query, {"value": value})
        else:
            with engine.connect() as connection:
                connection.execute(query, {"value": embed_remotely()})
        stopping.wait(0.001)


def find(question):
    count(engine.pool.checkedout() >= CONNECTIONS)
    with engine.connect() as connection:  # fault
        rows = connection.execute(
            text("SELECT body FROM documents WHERE rank > :rank LIMIT 20"), {"rank": question % 7 / 10}
        )
        return [row[0] for row in rows]


folder = tempfile.TemporaryDirectory()
engine = create_engine(
    f"sqlite:///{folder.name}/documents.sqlite",
    poolclass=QueuePool,
    pool_size=CONNECTIONS,
    max_overflow=0,
    connect_args={"check_same_thread": False},
)
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE documents (body TEXT, rank REAL)"))
    rows = [{"body": f"document {number}", "rank": number % 100 / 100} for number in range(400)]
    connection.execute(text("INSERT INTO documents VALUES (:body, :rank)"), rows)
threads = [threading.Thread(target=index_documents) for _ in range(CONNECTIONS)]
for thread in threads:
    thread.start()
run(30, understand=hashing(9000), find=find, rank=svd(70))
stopping.set()
for thread in threads:
    thread.join()
