"""A log handler posts its buffer to a collector by HTTP whenever it is full, on the thread that happened to log.

logdna/python#61, klynch/python-logstash-handler#3. Mended: a listener's thread posts.
"""

from __future__ import annotations

import http.client
import json
import logging
import multiprocessing
import os
import queue
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from logging.handlers import QueueHandler, QueueListener
from multiprocessing.connection import Connection

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, DOCUMENTS, FULL, INGEST_S = 50, 24, 8, 0.008
posted_while_serving = 0


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(INGEST_S)
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, pattern: str, *args: object) -> None:
        pass


def collect(ready: Connection) -> None:
    server = HTTPServer(("127.0.0.1", 0), Collector)
    ready.send(server.server_port)
    server.serve_forever()


class CollectorHandler(logging.Handler):
    """Keeps records until there are `FULL` of them."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
        if len(self.lines) >= FULL:
            self.flush()

    def flush(self) -> None:
        global posted_while_serving
        if not self.lines:
            return
        posted_while_serving += not MENDED
        self.connection.request("POST", "/logs", json.dumps(self.lines).encode())  # fault
        self.connection.getresponse().read()  # fault
        self.lines.clear()


log = logging.getLogger("ranker")


def score(document: np.ndarray) -> float:
    value = float(np.tanh(document @ WEIGHTS).mean())
    log.info("scored a document %s", value)  # fault
    return value


def retrieve(index: int) -> list[np.ndarray]:
    rng = np.random.default_rng(index)
    return [rng.normal(0, 1, (48, 192)).astype(np.float32) for _ in range(DOCUMENTS)]


def format_answer(scores: list[float]) -> str:
    parts = [f"{position}:{score:.3f}" for score in scores for position in range(220)]
    return ",".join(sorted(parts))


WEIGHTS = np.random.default_rng(2).normal(0, 0.1, (192, 192)).astype(np.float32)


def main() -> None:
    context = multiprocessing.get_context("fork")
    ready, sender = context.Pipe()
    collector = context.Process(target=collect, args=(sender,), daemon=True)
    collector.start()
    handler: logging.Handler = CollectorHandler(ready.recv())
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    listener = QueueListener(records, handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(QueueHandler(records) if MENDED else handler)
    listener.start()
    perf = PerfRecorder("faults")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=DOCUMENTS):
                with perf.range("retrieve"):
                    documents = retrieve(index)
                with perf.range("rank"):
                    with perf.range("score"):
                        scores = [score(document) for document in documents]
                    with perf.range("order"):
                        order = np.argsort(np.repeat(scores, 4000), kind="stable")
                with perf.range("answer"):
                    format_answer([scores[position % DOCUMENTS] for position in order[:DOCUMENTS]])
    perf.finalize()
    listener.stop()
    collector.terminate()
    collector.join()
    print(posted_while_serving, "posts while a batch waited")


if __name__ == "__main__":
    main()
