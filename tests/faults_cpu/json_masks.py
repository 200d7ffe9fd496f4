"""The answer holds segmentation masks as JSON lists of numbers; the C encoder holds the interpreter lock meanwhile.

pytorch/serve#769. Mended: the bits are packed and sent as text. Beside it, innocent: the threshold that makes masks.
"""

from __future__ import annotations

import base64
import json
import sys

import numpy as np
from numpy.typing import NDArray

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, SHAPE = 24, (4, 320, 240)
SCORES = np.random.default_rng(1).random(SHAPE, dtype=np.float32)
numbers_encoded = 0


def encode(masks: NDArray[np.bool_]) -> str:
    global numbers_encoded
    if MENDED:
        return json.dumps({"shape": masks.shape, "bits": base64.b64encode(np.packbits(masks).tobytes()).decode()})
    numbers_encoded += masks.size
    listed = masks.astype(int).tolist()
    return json.dumps({"masks": listed})  # fault


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=SHAPE[0]):
            with perf.range("threshold"):
                for level in np.linspace(0.3, 0.6, 90):
                    masks = np.greater(SCORES, level)
            with perf.range("respond"):
                encode(masks)
perf.finalize()
print(numbers_encoded, "numbers encoded")
