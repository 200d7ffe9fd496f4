"""Planes of a volume with channels last are read across the stride. Mended: made contiguous once."""

import numpy as np

from tests.faults.frame import MENDED, count, run, svd

PLANES, SIDE = 64, 160
source = np.random.default_rng(6).random((SIDE, SIDE, PLANES)).astype(np.float32)
contiguous = np.empty((PLANES, SIDE, SIDE), np.float32)


def acquire(index):
    source[index % SIDE] += 0.01
    planes = source.transpose(2, 0, 1)
    if MENDED:
        np.copyto(contiguous, planes)
        return contiguous
    return planes


def normalize_one(plane):
    count(not plane.flags.c_contiguous)
    low, high = plane.min(), plane.max()  # fault
    scaled = (plane - low) / (high - low)  # fault
    return float(np.sqrt(scaled).mean())  # fault


def normalize(planes):
    return [normalize_one(plane) for plane in planes]


run(30, PLANES, acquire=acquire, normalize=normalize, reconstruct=svd(72))
