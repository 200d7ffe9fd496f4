"""A pool with one thread fetches the images of a request one by one. Mended: a thread for each."""

import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tests.faults.frame import MENDED, count, run

IMAGES, ROUND_TRIP_S = 8, 0.009
PIXELS = zlib.compress(np.random.default_rng(9).integers(0, 40, 60_000, dtype=np.uint8).tobytes())
pool = ThreadPoolExecutor(IMAGES if MENDED else 1, thread_name_prefix="images")


def fetch(url):  # fault
    time.sleep(ROUND_TRIP_S)  # the store answers
    return PIXELS


def load(url):
    if MENDED:
        time.sleep(ROUND_TRIP_S)
        return np.frombuffer(zlib.decompress(PIXELS), np.uint8)
    return np.frombuffer(zlib.decompress(fetch(url)), np.uint8)  # fault


def images(index):
    futures = [pool.submit(load, f"image/{index}/{number}") for number in range(IMAGES)]
    count(0 if MENDED else IMAGES - 1)
    return np.stack([future.result() for future in futures])  # fault


def template(index):
    "\n".join(f"<image>{index * position % 97}</image>" for position in range(6000))
    return index


def embed(pixels):
    small = pixels[:, :4096].astype(np.float32).reshape(IMAGES * 32, -1)
    return float((small @ small.T).sum())


run(25, IMAGES, template=template, images=images, embed=embed)
