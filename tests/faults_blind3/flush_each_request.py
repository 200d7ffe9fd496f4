"""Each request ends with a flush of the tracing library, which waits until its exporter's thread has sent all spans.

cognizant-ai-lab/neuro-san#1217. Mended: the exporter sends them when it likes to, and is flushed once at the end.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, SPANS, ANSWER_S = 30, 5, 0.006
flushes = 0


def serve(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        while connection.recv(4096):
            time.sleep(ANSWER_S)
            connection.sendall(b"204\n")


class Tracing:
    """Spans are put into a queue; a thread sends them, one request each."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.spans: queue.Queue[str] = queue.Queue()
        self.connection = socket.create_connection(address)
        threading.Thread(target=self._export, name="exporter", daemon=True).start()

    def _export(self) -> None:
        while True:
            span = self.spans.get()
            self._post(span)
            self.spans.task_done()

    def _post(self, span: str) -> None:
        self.connection.sendall(span.encode())
        self.connection.recv(64)  # fault

    def add(self, span: str) -> None:
        self.spans.put(span)

    def flush(self) -> None:
        global flushes
        flushes += 1
        self.spans.join()  # fault


def plan(index: int) -> list[int]:
    return sorted(range(9000), key=lambda value: (value * 7919 + index) % 10007)


def call_tools(steps: list[int], tracing: Tracing) -> int:
    total = 0
    for span in range(SPANS):
        total += sum(steps[span::SPANS])
        tracing.add(f"span {span}: {total}")
    return total


def finish(tracing: Tracing) -> None:
    tracing.add("end of request")
    if not MENDED:
        tracing.flush()


with socket.create_server(("127.0.0.1", 0)) as listener:
    threading.Thread(target=serve, args=(listener,), name="collector", daemon=True).start()
    tracing = Tracing(listener.getsockname())
    perf = PerfRecorder("faults")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                with perf.range("plan"):
                    steps = plan(index)
                with perf.range("call"):
                    call_tools(steps, tracing)
                with perf.range("finish"):
                    finish(tracing)
    perf.finalize()
    tracing.flush()
print(flushes, "flushes")
