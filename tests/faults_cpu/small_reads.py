"""Vectors are read from an unbuffered file, four bytes a call.

datastax/jvector#584 (10.3 s instead of 0.34 s). Annotated from outside: small_reads.toml. Mended: one read a vector.
"""

from __future__ import annotations

import struct
import sys
import tempfile
from typing import BinaryIO

MENDED = "--mended" in sys.argv
BATCHES, VECTORS, WIDTH = 24, 160, 256
reads = 0


def read_vector(file: BinaryIO) -> tuple[float, ...]:
    global reads
    if MENDED:
        reads += 1
        return struct.unpack(f"{WIDTH}f", file.read(4 * WIDTH))
    values = []
    for _ in range(WIDTH):  # fault
        values.append(struct.unpack("f", file.read(4))[0])
        reads += 1
    return tuple(values)


def read_vectors(file: BinaryIO) -> list[tuple[float, ...]]:
    file.seek(0)
    return [read_vector(file) for _ in range(VECTORS)]


def score(vectors: list[tuple[float, ...]]) -> list[float]:
    return [sum(vector) for vector in vectors for _ in range(30)]


def search(file: BinaryIO) -> None:
    score(read_vectors(file))


def evaluate() -> None:
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(bytes(4 * WIDTH * VECTORS))
        for _ in range(BATCHES):
            search(file)


if __name__ == "__main__":
    evaluate()
    print(reads, "reads")
