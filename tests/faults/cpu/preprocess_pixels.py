"""Frames are turned into grey values pixel by pixel, in Python. Mended: one look-up for all pixels."""

import numpy as np

from tests.faults.frame import MENDED, count, run

HEIGHT, WIDTH = 210, 160
PALETTE = np.arange(256, dtype=np.uint8)[::-1].copy()
FRAME = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH), dtype=np.uint8)


def to_grey(_):
    if MENDED:
        return PALETTE[FRAME]
    grey = np.empty_like(FRAME)
    for i in range(HEIGHT):  # fault
        for j in range(WIDTH):
            grey[i, j] = PALETTE[FRAME[i, j]]
    count(HEIGHT * WIDTH)
    return grey


def crop(grey):
    return grey[33:193].astype(np.float32) / np.float32(255)


def infer(image):
    for _ in range(20):
        np.tanh(image)


run(24, grey=to_grey, crop=crop, infer=infer)
