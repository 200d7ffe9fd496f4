"""Head and body of a request are two writes; the second waits for a delayed ACK. Mended: one write."""

import socket
import struct
import time

import numpy as np

from tests.faults.frame import MENDED, count, run, serve

VECTORS = np.random.default_rng(1).normal(size=(4000, 64))


def answer(connection):
    stream = connection.makefile("rb")
    while head := stream.read(4):
        body = stream.read(struct.unpack("!I", head)[0])
        connection.sendall(struct.pack("!I", len(body)) + body[::-1])


def send(body):
    head = struct.pack("!I", len(body))
    if MENDED:
        connection.sendall(head + body)
    else:
        connection.sendall(head)
        connection.sendall(body)


def receive():
    if MENDED:
        (length,) = struct.unpack("!I", stream.read(4))
    else:
        (length,) = struct.unpack("!I", stream.read(4))  # fault
    return stream.read(length)


def ask(text):
    began = time.monotonic()
    send(text.encode())
    found = receive()
    count(time.monotonic() - began > 0.035)
    return found


def clean(index):
    text = " ".join(f"word{index * number % 977}" for number in range(12000))
    return [" ".join(sorted(set(text.lower().split()), key=len))[:400] for _ in range(2)]


def embed(texts):
    return [ask(text) for text in texts]


def rank(answers):
    queries = np.stack([np.resize(np.frombuffer(one, np.uint8), 64) for one in answers])
    for _ in range(20):
        np.argsort(queries @ VECTORS.T, axis=1)[:, :10]


connection = socket.create_connection(serve(answer))
stream = connection.makefile("rb")
if MENDED:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
run(40, 2, clean=clean, embed=embed, rank=rank)
