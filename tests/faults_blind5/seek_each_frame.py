"""Every eighth frame of a video is wanted, and the reader seeks to each, which decodes from the last key frame on.

opencv/opencv#4511. Mended: frames are skipped by `grab`, in the order of the file.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import cv2
import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, FRAMES, EVERY, SIZE = 22, 4, 4, (480, 360)
folder = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, folder, ignore_errors=True)
cv2.setNumThreads(1)
seeks = 0


def record(path: Path) -> None:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 25, SIZE)
    noise = np.random.default_rng(3).integers(0, 255, (SIZE[1], SIZE[0], 3), np.uint8)
    for number in range(BATCHES * FRAMES * EVERY):
        writer.write(np.roll(noise, 3 * number, axis=1))
    writer.release()


class Clip:
    """Frames of a file by their number."""

    def __init__(self, path: Path) -> None:
        self.capture = cv2.VideoCapture(str(path))
        self.position = 0

    def frame(self, number: int) -> np.ndarray:
        global seeks
        if MENDED:
            while self.position < number:
                self.capture.grab()
                self.position += 1
            self.position += 1
            return self.capture.read()[1]
        seeks += 1
        self.capture.set(cv2.CAP_PROP_POS_FRAMES, number)  # fault
        return self.capture.read()[1]  # fault


def detect(frames: list[np.ndarray]) -> float:
    total = 0.0
    for frame in frames:
        grey = cv2.cvtColor(cv2.resize(frame, (96, 96)), cv2.COLOR_BGR2GRAY)
        total += float(np.linalg.svd(grey.astype(np.float32), compute_uv=False)[0])
    return total


def describe(index: int) -> str:
    return "".join(chr(97 + (index * position) % 26) for position in range(12000))


record(folder / "clip.mp4")
clip = Clip(folder / "clip.mp4")
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=FRAMES):
            with perf.range("frames"):
                frames = [clip.frame((index * FRAMES + number) * EVERY) for number in range(FRAMES)]
            with perf.range("detect"):
                detect(frames)
            with perf.range("describe"):
                describe(index)
perf.finalize()
print(seeks, "seeks")
