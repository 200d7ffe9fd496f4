"""Frames go to a worker process and back through a pipe, pickled, copied and unpickled each time.

open-edge-platform/geti#4994, meta-pytorch/data#1089. Mended: they lie in shared memory, and a number goes through.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, SHAPE = 20, (8, 1080, 960)


def work(pipe: Connection, shared: Any) -> None:
    frames = np.frombuffer(shared, dtype=np.uint8)
    while (message := pipe.recv()) is not None:
        if MENDED:
            frames[message] += 1
            pipe.send(message)
        else:
            message[0, 0, 0] += 1
            pipe.send(message)


if __name__ == "__main__":
    bytes_sent = 0
    shared = RawArray("B", int(np.prod(SHAPE)))
    frames = np.frombuffer(shared, dtype=np.uint8).reshape(SHAPE)
    here, there = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=work, args=(there, shared), daemon=True)
    worker.start()
    perf = PerfRecorder("faults")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=SHAPE[0]):
                with perf.range("grab"):
                    frames[index % SHAPE[0]] = index
                with perf.range("exchange"):
                    here.send(0 if MENDED else frames)  # fault
                    answer = here.recv()  # fault
                    bytes_sent += 8 if MENDED else answer.nbytes
                with perf.range("infer"):
                    sum(value * value for value in range(200_000))
    here.send(None)
    worker.join(5)
    perf.finalize()
    print(bytes_sent, "bytes through the pipe")
