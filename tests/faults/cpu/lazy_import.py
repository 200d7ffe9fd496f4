"""Modules are imported at the first request that needs them. Mended: they are imported before the first batch."""

import importlib
import sys

from tests.faults.frame import MENDED, count, run, sorting

NEEDED = ["scipy.stats", "scipy.signal", "scipy.optimize", "pyarrow.parquet"]


def postprocess(index):
    name = NEEDED[index % len(NEEDED)]
    if name not in sys.modules:
        count()
    return importlib.import_module(name)  # fault


if MENDED:
    for name in NEEDED:
        importlib.import_module(name)
run(20, postprocess=postprocess, infer=sorting(60000))
