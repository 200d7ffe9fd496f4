"""A ZIP archive is opened, and its directory read, for each tile. Mended: opened once."""

import tempfile
from zipfile import ZipFile

import numpy as np

from tests.faults.frame import MENDED, batches, count, stage

TILES, NAMES, SIDE = 40, 1500, 48


class TileStore:
    """A mapping from names to arrays, as array libraries want it."""

    def __getitem__(self, name):
        return np.frombuffer(self.read(name), np.uint8).reshape(SIDE, SIDE)

    def read(self, name):
        if MENDED:
            return kept.read(name)
        count()
        with ZipFile(path) as archive:  # fault
            return archive.read(name)


def write_archive():
    rng = np.random.default_rng(3)
    with ZipFile(path, "w") as archive:
        for number in range(NAMES):
            tile = rng.integers(0, 255, SIDE * SIDE, np.uint8).tobytes()
            archive.writestr(f"level-0/c/{number // 40}/{number % 40}", tile)


def normalize(tile):
    scaled = tile.astype(np.float32)
    for _ in range(60):
        scaled = (scaled - scaled.mean()) / (scaled.std() + 1e-3)
    return scaled


def segment(tiles):
    stack = np.stack(tiles).reshape(-1, SIDE)
    for _ in range(150):
        stack = np.tanh(stack @ np.eye(SIDE, dtype=np.float32))


with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/slide.zip"
    write_archive()
    kept, store = ZipFile(path), TileStore()
    for slide in batches(6, TILES):
        tiles = []
        with stage("load"):
            for number in range(TILES):
                position = (slide * 211 + number * 7) % NAMES
                with stage("tile"):
                    with stage("fetch"):
                        tile = store[f"level-0/c/{position // 40}/{position % 40}"]
                    with stage("normalize"):
                        tiles.append(normalize(tile))
        with stage("segment"):
            segment(tiles)
