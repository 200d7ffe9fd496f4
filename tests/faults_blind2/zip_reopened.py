"""The tiles of an image pyramid lie in a ZIP archive, which is opened, with its directory of all names, for each tile.

zarr-developers/zarr-python#66, pytorch/vision#950. Mended: opened once.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
SLIDES, TILES, NAMES, SIDE = 6, 40, 1500, 48
opened = 0


class TileStore:
    """A mapping from names to arrays, as array libraries want it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.archive = ZipFile(path)

    def __getitem__(self, name: str) -> np.ndarray:
        return np.frombuffer(self._bytes(name), np.uint8).reshape(SIDE, SIDE)

    def _bytes(self, name: str) -> bytes:
        global opened
        if MENDED:
            return self.archive.read(name)
        opened += 1
        with ZipFile(self.path) as archive:  # fault
            return archive.read(name)


def write_archive(path: Path) -> None:
    rng = np.random.default_rng(3)
    with ZipFile(path, "w", ZIP_STORED) as archive:
        for number in range(NAMES):
            archive.writestr(
                f"level-0/c/{number // 40}/{number % 40}", rng.integers(0, 255, SIDE * SIDE, np.uint8).tobytes()
            )


def normalize(tile: np.ndarray) -> np.ndarray:
    scaled = tile.astype(np.float32)
    for _ in range(60):
        scaled = (scaled - scaled.mean()) / (scaled.std() + 1e-3)
    return scaled


def segment(tiles: list[np.ndarray]) -> float:
    stack = np.stack(tiles).reshape(-1, SIDE)
    for _ in range(150):
        stack = np.tanh(stack @ np.eye(SIDE, dtype=np.float32))
    return float(stack.sum())


with tempfile.TemporaryDirectory() as folder:
    write_archive(Path(folder, "slide.zip"))
    store = TileStore(Path(folder, "slide.zip"))
    perf = PerfRecorder("faults")
    with perf.range("pipeline"):
        for slide in range(SLIDES):
            with perf.batch(slide, total_items=TILES):
                tiles = []
                with perf.range("load"):
                    for number in range(TILES):
                        position = (slide * 211 + number * 7) % NAMES
                        with perf.range("tile"):
                            with perf.range("fetch"):
                                tile = store[f"level-0/c/{position // 40}/{position % 40}"]
                            with perf.range("normalize"):
                                tiles.append(normalize(tile))
                with perf.range("segment"):
                    segment(tiles)
    perf.finalize()
print(opened, "times opened")
