"""Every frame gets a new segment of shared memory, whose pages the kernel clears. Mended: one segment."""

from multiprocessing.shared_memory import SharedMemory

import numpy as np

from tests.faults.frame import MENDED, count, run, svd

FRAMES, BYTES = 3, 6 << 20
frame = np.random.default_rng(2).integers(0, 255, BYTES, np.uint8)


def make_segment():
    count()
    return SharedMemory(create=True, size=BYTES)  # fault


def publish_one(pixels):
    segment = kept if MENDED else make_segment()
    copy(segment, pixels)
    if not MENDED:
        segment.close()  # fault
        segment.unlink()  # fault


def copy(segment, pixels):
    view = np.ndarray(BYTES, np.uint8, segment.buf)
    if MENDED:
        view[:] = pixels
    else:
        view[:] = pixels  # fault


def capture(index):
    frame[:: 4096 + index] = index
    return frame


def publish(pixels):
    for _ in range(FRAMES):
        publish_one(pixels)


kept = make_segment()
run(30, FRAMES, capture=capture, publish=publish, detect=svd(80))
kept.close()
kept.unlink()
