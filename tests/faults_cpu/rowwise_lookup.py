"""Labels are looked up row by row through `np.vectorize(dict.get)`.

bytedance/Protenix#248 (14 times slower). Mended: a table of all keys. Beside it, innocent: a histogram.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, ROWS = 24, 300_000
KEYS = np.arange(0, 4000, 2)
TABLE = np.arange(4000) // 10
LABELS = {int(key): int(key) // 10 for key in KEYS}
ROW_KEYS = np.random.default_rng(1).choice(KEYS, ROWS)
rows_in_python = 0


def look_up(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    global rows_in_python
    if MENDED:
        return TABLE[keys]
    rows_in_python += len(keys)
    return np.asarray(np.vectorize(LABELS.get)(keys))  # fault


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=ROWS):
            with perf.range("label"):
                labels = look_up(ROW_KEYS)
            with perf.range("tally"):
                for _ in range(30):
                    np.bincount(labels, minlength=400)
perf.finalize()
print(rows_in_python, "rows in Python")
