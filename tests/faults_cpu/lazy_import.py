"""Modules are imported at the first request that needs them, and the first batches count.

langgenius/dify#2423 (faster start, slow first requests). Mended: they are imported before the first batch.
"""

from __future__ import annotations

import importlib
import sys

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES = 20
NEEDED = ["scipy.stats", "scipy.signal", "scipy.optimize", "pyarrow.parquet"]
imported_late = 0


def handler(index: int) -> object:
    global imported_late
    name = NEEDED[index % len(NEEDED)]
    if name not in sys.modules:
        imported_late += 1
    return importlib.import_module(name)  # fault


if MENDED:
    for name in NEEDED:
        importlib.import_module(name)
perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=1):
            with perf.range("postprocess"):
                handler(index)
            with perf.range("infer"):
                sorted(range(60000), key=lambda value: value * 7919 % 10007)
perf.finalize()
print(imported_late, "modules imported inside batches")
