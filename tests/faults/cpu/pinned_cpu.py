"""A library pins the process to one CPU, which the threads of a pool share. Mended: all CPUs."""

import os
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tests.faults.frame import MENDED, count, run, spelling

TILES = 4
everywhere = os.sched_getaffinity(0)
tile = np.random.default_rng(4).integers(0, 30, 120_000, np.uint8).tobytes()


def import_library():
    os.sched_setaffinity(0, {min(everywhere)})


def pack(data):
    return len(zlib.compress(data, 6))


def encode(tiles):
    count(len(os.sched_getaffinity(0)) == 1)
    futures = [pool.submit(pack, one) for one in tiles]
    return sum(future.result() for future in futures)


def cut(index):
    return [bytes([index]) + tile for _ in range(TILES)]


import_library()
if MENDED:
    os.sched_setaffinity(0, everywhere)
pool = ThreadPoolExecutor(2, thread_name_prefix="tiles")
run(30, TILES, cut=cut, encode=encode, describe=spelling(20000))
