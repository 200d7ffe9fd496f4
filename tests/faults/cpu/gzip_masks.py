"""Masks are written with the slowest level of compression. Mended: level 1."""

import gzip

import numpy as np

from tests.faults.frame import MENDED, count, run

SLICES, SIZE = 3, 256
STUDY = np.random.default_rng(8).normal(size=(SLICES, SIZE, SIZE)).astype(np.float32)


def normalize(index):
    volume = np.roll(STUDY, index, axis=2)
    return (volume - volume.mean()) / (volume.std() + 1e-6)


def segment(volume):
    smooth = sum(np.roll(volume, shift, axis) for axis in (1, 2) for shift in (-2, -1, 0, 1, 2))
    return np.digitize(smooth, [-4, -2, 0, 2, 4]).astype(np.uint8)


def export(mask):
    header = np.array([348, 3, *mask.shape], dtype=np.int32).tobytes().ljust(352, b"\0")
    return compress(header + mask.tobytes())


def compress(data):
    if MENDED:
        return gzip.compress(data, compresslevel=1)
    count()
    return gzip.compress(data, compresslevel=9)  # fault


run(50, SLICES, normalize=normalize, segment=segment, export=export)
