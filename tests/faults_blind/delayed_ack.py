"""A client writes the head of a request, then its body: the second write waits for the other side's delayed ACK.

alibaba/rtp-llm#1080, ray-project/ray#4318. Mended: head and body in one write, on a socket that does not wait.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, REQUESTS = 40, 2
SERVER = """
import socket, struct
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
stream = connection.makefile("rb")
while head := stream.read(4):
    body = stream.read(struct.unpack("!I", head)[0])
    connection.sendall(struct.pack("!I", len(body)) + body[::-1])
"""
stalls = 0


class Client:
    """Speaks with the embedding service."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.stream = self.socket.makefile("rb")
        if MENDED:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, body: bytes) -> None:
        head = struct.pack("!I", len(body))
        if MENDED:
            self.socket.sendall(head + body)
            return
        self.socket.sendall(head)
        self.socket.sendall(body)

    def answer(self) -> bytes:
        if MENDED:
            (length,) = struct.unpack("!I", self.stream.read(4))
        else:
            (length,) = struct.unpack("!I", self.stream.read(4))  # fault
        return self.stream.read(length)

    def embed(self, text: str) -> bytes:
        global stalls
        began = time.monotonic()
        self.send(text.encode())
        answer = self.answer()
        stalls += time.monotonic() - began > 0.035
        return answer


def rank(answers: list[bytes], index: np.ndarray) -> np.ndarray:
    queries = np.stack([np.resize(np.frombuffer(answer, np.uint8), index.shape[1]) for answer in answers])
    return np.argsort(queries @ index.T, axis=1)[:, :10]


def clean(text: str) -> str:
    return " ".join(sorted(set(text.lower().split()), key=len))


server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
assert server.stdout is not None
client = Client(int(server.stdout.readline()))
index_vectors = np.random.default_rng(1).normal(size=(4000, 64))
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=REQUESTS):
            with perf.range("clean"):
                texts = [
                    clean(" ".join(f"word{index * number % 977}" for number in range(12000)))[:400] for _ in range(2)
                ]
            with perf.range("embed"):
                answers = [client.embed(text) for text in texts]
            with perf.range("rank"):
                for _ in range(20):
                    rank(answers, index_vectors)
perf.finalize()
client.socket.shutdown(socket.SHUT_RDWR)
server.wait()
print(stalls, "stalled requests")
