"""Annotated frames go to a writer thread through a short queue; the thread encodes slower than frames come.

olibartfast/neuriplo-infer#49, huggingface/lerobot#4462. Mended: the writer takes a fast encoding.
"""

from __future__ import annotations

import queue
import sys
import threading

import cv2
import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, HEIGHT, WIDTH = 50, 480, 720
RNG = np.random.default_rng(21)
full = 0


class FrameWriter(threading.Thread):
    """Encodes frames beside the loop that makes them."""

    def __init__(self) -> None:
        super().__init__(name="writer")
        self.frames: queue.Queue[np.ndarray | None] = queue.Queue(maxsize=2)
        self.bytes_written = 0

    def encode(self, frame: np.ndarray) -> np.ndarray:
        if MENDED:
            _, data = cv2.imencode(".jpg", frame, [cv2.IMWRITE_JPEG_QUALITY, 80])
        else:
            _, data = cv2.imencode(".png", frame, [cv2.IMWRITE_PNG_COMPRESSION, 5])  # fault
        return np.asarray(data)

    def run(self) -> None:
        while (frame := self.frames.get()) is not None:
            self.bytes_written += len(self.encode(frame))

    def write(self, frame: np.ndarray) -> None:
        global full
        full += self.frames.full()
        self.frames.put(frame)  # fault


def detect(frame: np.ndarray) -> list[tuple[int, int]]:
    small = cv2.resize(frame, (240, 135)).astype(np.float32).mean(-1)
    peaks = np.argsort(small, axis=None)[-8:]
    return [(int(peak) % 240 * 4, int(peak) // 240 * 4) for peak in peaks]


def annotate(frame: np.ndarray, boxes: list[tuple[int, int]]) -> np.ndarray:
    for x, y in boxes:
        cv2.rectangle(frame, (x, y), (x + 40, y + 40), (0, 255, 0), 2)
    return frame


def camera() -> np.ndarray:
    return cv2.GaussianBlur(np.roll(SCENE, int(RNG.integers(50)), axis=1), (5, 5), 0)


cv2.setNumThreads(1)
SCENE = cv2.resize(RNG.integers(0, 240, (68, 120, 3), dtype=np.uint8), (WIDTH, HEIGHT))
SCENE = SCENE + RNG.integers(0, 12, SCENE.shape, dtype=np.uint8)
writer = FrameWriter()
writer.start()
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("capture"):
                frame = camera()
            with perf.range("detect"):
                boxes = detect(frame)
            with perf.range("output"):
                writer.write(annotate(frame, boxes))
writer.frames.put(None)
writer.join()
perf.finalize()
print(full, "times the queue was full")
