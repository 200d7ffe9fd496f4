"""A log handler posts its full buffer by HTTP, on the thread that logs. Mended: on a listener's thread."""

import http.client
import json
import logging
import queue
import time
from logging.handlers import QueueHandler, QueueListener

import numpy as np

from tests.faults.frame import MENDED, batches, count, serve, stage

DOCUMENTS, FULL = 24, 8
WEIGHTS = np.random.default_rng(2).normal(0, 0.1, (192, 192)).astype(np.float32)
log = logging.getLogger("ranker")


def answer(connection):
    stream = connection.makefile("rb")
    while stream.readline():
        stream.read(int(http.client.parse_headers(stream)["Content-Length"]))
        time.sleep(0.008)
        connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")


class CollectorHandler(logging.Handler):
    """Keeps records until there are `FULL` of them."""

    def __init__(self):
        super().__init__()
        self.connection = http.client.HTTPConnection(*serve(answer))
        self.lines = []

    def emit(self, record):
        self.lines.append(self.format(record))
        if len(self.lines) >= FULL:
            self.post()

    def post(self):
        count(not MENDED)
        self.connection.request("POST", "/logs", json.dumps(self.lines).encode())  # fault
        self.connection.getresponse().read()  # fault
        self.lines.clear()


def score(document):
    value = float(np.tanh(document @ WEIGHTS).mean())
    log.info("scored a document %s", value)  # fault
    return value


def retrieve(index):
    rng = np.random.default_rng(index)
    return [rng.normal(0, 1, (48, 192)).astype(np.float32) for _ in range(DOCUMENTS)]


handler = CollectorHandler()
records = queue.SimpleQueue()
listener = QueueListener(records, handler)
log.setLevel(logging.INFO)
log.propagate = False
log.addHandler(QueueHandler(records) if MENDED else handler)
listener.start()
for index in batches(50, DOCUMENTS):
    with stage("retrieve"):
        documents = retrieve(index)
    with stage("rank"):
        with stage("score"):
            scores = [score(document) for document in documents]
        with stage("order"):
            order = np.argsort(np.repeat(scores, 4000), kind="stable")
    with stage("answer"):
        ",".join(sorted(f"{position}:{score:.3f}" for score in scores for position in range(220)))
listener.stop()
