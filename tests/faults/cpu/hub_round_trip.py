"""Every call asks a server whether the cached model is the newest, and waits for the answer. Mended: asked once."""

import socket
import time

from tests.faults.frame import MENDED, count, run, serve, sorting


def answer(connection):
    while connection.recv(64):
        time.sleep(0.03)
        connection.sendall(b"etag 1\n")


def load(index):
    if index == 0 or not MENDED:
        newest()
        count()


def newest():
    connection.sendall(b"HEAD model\n")
    return connection.recv(64)  # fault


with socket.create_connection(serve(answer)) as connection:
    run(20, load=load, infer=sorting(40000))
