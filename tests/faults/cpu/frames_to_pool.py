"""Frames are pickled for a pool of processes, and masks back. Mended: they lie in shared memory."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from tests.faults.frame import MENDED, count, run

FRAMES, SHAPE = 4, (720, 1280, 3)
memory = SharedMemory(create=True, size=FRAMES * int(np.prod(SHAPE)))
shared = np.ndarray((FRAMES, *SHAPE), np.uint8, memory.buf)
pool = ProcessPoolExecutor(2, multiprocessing.get_context("fork"))


def brighten(frame):
    frame[::8, ::8] |= 3
    return frame


def brighten_shared(number):
    brighten(shared[number])
    return number


def preprocess(frames):
    if MENDED:
        return [shared[number] for number in pool.map(brighten_shared, range(FRAMES))]
    count(FRAMES)
    futures = [pool.submit(brighten, frame) for frame in frames]  # fault
    return [future.result() for future in futures]  # fault


def capture(index):
    for number in range(FRAMES):
        shared[number, ::3, ::3] = (index * number) % 251
    return list(shared)


def infer(frames):
    small = np.stack([frame[::12, ::12, 0] for frame in frames]).reshape(FRAMES * 60, -1).astype(np.float32)
    for _ in range(40):
        small = np.tanh(small @ small.T @ small / 1e7)


preprocess(capture(0))
run(25, FRAMES, capture=capture, preprocess=preprocess, infer=infer)
pool.shutdown()
memory.unlink()
