"""A decoder process sends frames in full size, which are then shrunk. Mended: it sends small ones."""

import subprocess
import sys

import numpy as np
from PIL import Image

from tests.faults.frame import MENDED, count, network, run

BATCHES, FRAMES = 50, 2
SMALL = (320, 180)
SIZE = SMALL if MENDED else (1600, 900)
DECODER = """
import sys, zlib
width, height, frames = map(int, sys.argv[1:])
row = bytes(n * n % 251 for n in range(width * 3))
packed = zlib.compress(row * height, 1)
for number in range(frames):
    for _ in range(8):  # as many passes as a decoder makes
        frame = zlib.decompress(packed)
    sys.stdout.buffer.write(frame)
"""


def read_one():
    if MENDED:
        data = stream.read(SIZE[0] * SIZE[1] * 3)
    else:
        data = stream.read(SIZE[0] * SIZE[1] * 3)  # fault
        count()
    return Image.frombytes("RGB", SIZE, data)


def read(_):
    return [read_one() for _ in range(FRAMES)]


def shrink_one(frame):
    return np.asarray(frame if frame.size == SMALL else frame.reduce(5), dtype=np.float32) / 255


def shrink(frames):
    return np.stack([shrink_one(frame) for frame in frames])


def track(_):
    for position, peak in enumerate(np.tile(np.full(240, 0.5), 40).tolist()):
        tracks[position % 240] = 0.9 * tracks.get(position % 240, 0.0) + 0.1 * peak


command = [sys.executable, "-c", DECODER, *map(str, SIZE), str(BATCHES * FRAMES)]
decoder = subprocess.Popen(command, stdout=subprocess.PIPE)
stream, tracks = decoder.stdout, {}
run(BATCHES, FRAMES, read=read, shrink=shrink, detect=network(240, 240, 24), track=track)
stream.close()
decoder.wait()
