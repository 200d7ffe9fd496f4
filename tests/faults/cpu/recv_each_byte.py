"""A client reads each field from its socket by a call. Mended: through a buffer."""

import socket
import struct

from tests.faults.frame import MENDED, count, run, serve, svd

ROWS = 5000
ANSWER = b"".join(b"D" + struct.pack("!I", number) for number in range(ROWS))


def answer(connection):
    while connection.recv(1):
        connection.sendall(ANSWER)


def read(size):
    if MENDED:
        return buffered.read(size)
    count()
    return connection.recv(size, socket.MSG_WAITALL)  # fault


def fetch(_):
    connection.sendall(b"Q")
    rows = []
    for _ in range(ROWS):  # fault
        assert read(1) == b"D"
        rows.append(struct.unpack("!I", read(4))[0])
    return rows


def plan(index):
    return sum((index * position) % 13 for position in range(16000))


connection = socket.create_connection(serve(answer))
buffered = connection.makefile("rb", buffering=1 << 17)
run(40, ROWS, plan=plan, fetch=fetch, fit=svd(110))
