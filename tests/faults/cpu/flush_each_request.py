"""Each request waits until the exporter's thread has sent all spans. Mended: it does not wait."""

import queue
import socket
import threading
import time

from tests.faults.frame import MENDED, count, run

SPANS = 5
spans = queue.Queue()


def collect():
    connection, _ = listener.accept()
    while connection.recv(4096):
        time.sleep(0.006)
        connection.sendall(b"204\n")


def export():
    while True:
        post(spans.get())
        spans.task_done()


def post(span):
    connection.sendall(span.encode())
    connection.recv(64)  # fault


def flush():
    count()
    spans.join()  # fault


def plan(index):
    return sorted(range(9000), key=lambda value: (value * 7919 + index) % 10007)


def call(steps):
    total = 0
    for span in range(SPANS):
        total += sum(steps[span::SPANS])
        spans.put(f"span {span}: {total}")


def finish(_):
    spans.put("end of request")
    if not MENDED:
        flush()


listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=collect, name="collector", daemon=True).start()
connection = socket.create_connection(listener.getsockname())
threading.Thread(target=export, name="exporter", daemon=True).start()
run(30, plan=plan, call=call, finish=finish)
flush()
