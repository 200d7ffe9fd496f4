"""The answer holds segmentation masks as JSON lists of numbers. Mended: the bits are packed and sent as text."""

import base64
import json

import numpy as np

from tests.faults.frame import MENDED, count, run

SHAPE = (4, 320, 240)
SCORES = np.random.default_rng(1).random(SHAPE, dtype=np.float32)


def threshold(_):
    for level in np.linspace(0.3, 0.6, 90):
        masks = np.greater(SCORES, level)
    return masks


def respond(masks):
    if MENDED:
        return json.dumps({"shape": masks.shape, "bits": base64.b64encode(np.packbits(masks).tobytes()).decode()})
    count(masks.size)
    listed = masks.astype(int).tolist()
    return json.dumps({"masks": listed})  # fault


run(24, SHAPE[0], threshold=threshold, respond=respond)
