"""Every frame goes into a segment of shared memory of its own, whose pages the kernel clears and frees again.

gloobsters/gloobie#48. Mended: a segment is used again.
"""

from __future__ import annotations

import functools
import sys
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, FRAMES, BYTES = 30, 3, 6 << 20
frame = np.random.default_rng(2).integers(0, 255, BYTES, np.uint8)
segments = 0


def make_segment() -> SharedMemory:
    global segments
    segments += 1
    return SharedMemory(create=True, size=BYTES)  # fault


kept = functools.lru_cache(make_segment)


class Publisher:
    """Where other processes look for frames."""

    def __init__(self) -> None:
        self.checksum = 0

    def publish(self, pixels: np.ndarray) -> None:
        segment = kept() if MENDED else make_segment()
        self.copy(segment, pixels)
        if not MENDED:
            segment.close()  # fault
            segment.unlink()  # fault

    def copy(self, segment: SharedMemory, pixels: np.ndarray) -> None:
        view: np.ndarray = np.ndarray(BYTES, np.uint8, segment.buf)
        if MENDED:
            view[:] = pixels
        else:
            view[:] = pixels  # fault
        self.checksum += int(view[-1])


publisher = Publisher()


def capture(index: int) -> np.ndarray:
    frame[:: 4096 + index] = index
    return frame


def detect(index: int) -> float:
    values = np.random.default_rng(index).standard_normal((80, 80))
    return float(np.linalg.svd(values, compute_uv=False)[0])


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=FRAMES):
            with perf.range("capture"):
                pixels = capture(index)
            with perf.range("publish"):
                for _ in range(FRAMES):
                    publisher.publish(pixels)
            with perf.range("detect"):
                detect(index)
perf.finalize()
if MENDED:
    kept().close()
    kept().unlink()
print(segments, "segments made")
