"""A reader seeks to every fourth frame, and decodes from the last key frame on. Mended: it skips by `grab`."""

import tempfile

import cv2
import numpy as np

from tests.faults.frame import MENDED, count, run, spelling

BATCHES, FRAMES, EVERY, SIZE = 22, 4, 4, (480, 360)


def record(path):
    writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"mp4v"), 25, SIZE)
    noise = np.random.default_rng(3).integers(0, 255, (SIZE[1], SIZE[0], 3), np.uint8)
    for number in range(BATCHES * FRAMES * EVERY):
        writer.write(np.roll(noise, 3 * number, axis=1))
    writer.release()


def frame(number):
    if MENDED:
        for _ in range(EVERY - 1):
            capture.grab()
        return capture.read()[1]
    count()
    capture.set(cv2.CAP_PROP_POS_FRAMES, number)  # fault
    return capture.read()[1]  # fault


def frames(index):
    return [frame((index * FRAMES + number) * EVERY) for number in range(FRAMES)]


def detect(found):
    for one in found:
        grey = cv2.cvtColor(cv2.resize(one, (96, 96)), cv2.COLOR_BGR2GRAY)
        np.linalg.svd(grey.astype(np.float32), compute_uv=False)


cv2.setNumThreads(1)
with tempfile.TemporaryDirectory() as folder:
    record(f"{folder}/clip.mp4")
    capture = cv2.VideoCapture(f"{folder}/clip.mp4")
    run(BATCHES, FRAMES, frames=frames, detect=detect, describe=spelling(12000))
