"""Frames come through a pipe from a decoder that unpacks them in full size; the reader shrinks them afterwards.

lstein/PhotoMapAI#366, bml1g12/benchmarking_video_reading_python#1. Mended: the decoder is asked for small frames.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import IO

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np
from PIL import Image

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, FRAMES = 50, 2
FULL, SMALL = (1600, 900), (320, 180)
DECODER = """
import sys, zlib
width, height, frames = map(int, sys.argv[1:])
row = bytes(n * n % 251 for n in range(width * 3))
packed = zlib.compress(row * height, 1)
for number in range(frames):
    for _ in range(8):  # as many passes as a decoder makes
        frame = zlib.decompress(packed)
    sys.stdout.buffer.write(frame)
"""
slow = 0


class VideoReader:
    """Frames of a video, from a decoder process."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.size = size
        command = [sys.executable, "-c", DECODER, *map(str, size), str(BATCHES * FRAMES)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.stream: IO[bytes] = self.process.stdout

    def read(self) -> Image.Image:
        global slow
        if MENDED:
            data = self.stream.read(self.size[0] * self.size[1] * 3)
        else:
            data = self.stream.read(self.size[0] * self.size[1] * 3)  # fault
            slow += 1
        return Image.frombytes("RGB", self.size, data)

    def close(self) -> None:
        self.stream.close()
        self.process.wait()


def shrink(frame: Image.Image) -> np.ndarray:
    return np.asarray(frame if frame.size == SMALL else frame.reduce(5), dtype=np.float32) / 255


def detect(frames: np.ndarray, weights: np.ndarray) -> np.ndarray:
    states = np.resize(frames, (240, 240))
    for _ in range(24):
        states = np.tanh(states @ weights)
    return states.max(0)


def track(peaks: np.ndarray, tracks: dict[int, float]) -> None:
    for position, peak in enumerate(np.tile(peaks, 40).tolist()):
        tracks[position % 240] = 0.9 * tracks.get(position % 240, 0.0) + 0.1 * peak


reader = VideoReader(SMALL if MENDED else FULL)
weights = np.random.default_rng(17).normal(0, 0.1, (240, 240)).astype(np.float32)
tracks: dict[int, float] = {}
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=FRAMES):
            with perf.range("read"):
                frames = [reader.read() for _ in range(FRAMES)]
            with perf.range("shrink"):
                pixels = np.stack([shrink(frame) for frame in frames])
            with perf.range("detect"):
                peaks = detect(pixels, weights)
            with perf.range("track"):
                track(peaks, tracks)
reader.close()
perf.finalize()
print(slow, "frames in full size")
