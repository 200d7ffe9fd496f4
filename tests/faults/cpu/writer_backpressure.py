"""A writer thread encodes slower than frames come, and its queue is full. Mended: a fast encoding."""

import queue
import threading

import cv2
import numpy as np

from tests.faults.frame import MENDED, count, run

HEIGHT, WIDTH = 480, 720
RNG = np.random.default_rng(21)
frames = queue.Queue(maxsize=2)


def encode(frame):
    if MENDED:
        cv2.imencode(".jpg", frame, [cv2.IMWRITE_JPEG_QUALITY, 80])
    else:
        cv2.imencode(".png", frame, [cv2.IMWRITE_PNG_COMPRESSION, 5])  # fault


def write():
    while (frame := frames.get()) is not None:
        encode(frame)


def capture(_):
    return cv2.GaussianBlur(np.roll(SCENE, int(RNG.integers(50)), axis=1), (5, 5), 0)


def detect(frame):
    small = cv2.resize(frame, (240, 135)).astype(np.float32).mean(-1)
    peaks = np.argsort(small, axis=None)[-8:]
    return frame, [(int(peak) % 240 * 4, int(peak) // 240 * 4) for peak in peaks]


def output(found):
    frame, places = found
    for x, y in places:
        cv2.rectangle(frame, (x, y), (x + 40, y + 40), (0, 255, 0), 2)
    count(frames.full())
    frames.put(frame)  # fault


cv2.setNumThreads(1)
SCENE = cv2.resize(RNG.integers(0, 240, (68, 120, 3), dtype=np.uint8), (WIDTH, HEIGHT))
SCENE = SCENE + RNG.integers(0, 12, SCENE.shape, dtype=np.uint8)
thread = threading.Thread(target=write, name="writer")
thread.start()
run(50, capture=capture, detect=detect, output=output)
frames.put(None)
thread.join()
