"""Frames go to a worker process and back, pickled. Mended: they lie in shared memory."""

import multiprocessing
from multiprocessing.sharedctypes import RawArray

import numpy as np

from tests.faults.frame import MENDED, count, run, squaring

SHAPE = (8, 1080, 960)
shared = RawArray("B", int(np.prod(SHAPE)))
frames = np.frombuffer(shared, dtype=np.uint8).reshape(SHAPE)


def work(pipe):
    while (message := pipe.recv()) is not None:
        if MENDED:
            frames.ravel()[message] += 1
        else:
            message[0, 0, 0] += 1
        pipe.send(message)


def grab(index):
    frames[index % SHAPE[0]] = index


def exchange(_):
    here.send(0 if MENDED else frames)  # fault
    answer = here.recv()  # fault
    count(8 if MENDED else answer.nbytes)


here, there = multiprocessing.Pipe()
worker = multiprocessing.get_context("fork").Process(target=work, args=(there,), daemon=True)
worker.start()
run(20, SHAPE[0], grab=grab, exchange=exchange, infer=squaring(200_000))
here.send(None)
worker.join(5)
