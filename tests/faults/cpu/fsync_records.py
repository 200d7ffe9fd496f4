"""A store of results calls fsync for every record of a batch. Mended: it only writes."""

import os
import tempfile

from tests.faults.frame import MENDED, count, run, sorting

RECORDS = 60


def store(_):
    for _ in range(RECORDS):
        write(results.fileno())


def write(file):
    os.write(file, b"x" * 120)
    if not MENDED:
        os.fsync(file)  # fault
        count()


with tempfile.NamedTemporaryFile() as results:
    run(20, RECORDS, infer=sorting(10000), store=store)
