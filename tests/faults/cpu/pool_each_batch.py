"""A pool of workers is made and ended for every batch. Mended: one pool for all batches."""

import multiprocessing

from tests.faults.frame import MENDED, count, run, sorting

ITEMS = 6
context = multiprocessing.get_context("fork")


def crop(value):
    return sum(range(value))


def augment(_):
    return kept.map(crop, [2000] * ITEMS) if MENDED else augment_in_new_pool()


def augment_in_new_pool():
    count()
    with context.Pool(6) as pool:  # fault
        return pool.map(crop, [2000] * ITEMS)


kept = context.Pool(2) if MENDED else None
run(16, ITEMS, augment=augment, infer=sorting(60000))
if MENDED:
    kept.terminate()
