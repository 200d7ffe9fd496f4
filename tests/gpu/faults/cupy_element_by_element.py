"""The nearest neighbours of each query are sorted and read back one number at a time.

cupy/cupy#3142: `numb.append(regs_id[min_indices[j].get()])` for each query made a loop ten times slower.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
QUERIES = 64
NEIGHBOURS = 2
FACES = {"cuda": 200_000, "cpu": 64}


def one_by_one(distances: Any) -> list[float]:
    found = []
    for query in range(QUERIES):
        nearest = distances[query].argsort()[:NEIGHBOURS]
        for neighbour in range(NEIGHBOURS):
            found.append(float(distances[query, int(nearest[neighbour])]))  # fault
    return found


def together(distances: Any) -> list[float]:
    distances.sort(axis=1)
    found: list[float] = distances[:, :NEIGHBOURS].ravel().tolist()
    return found


def main() -> None:
    args = parse_options(__doc__)
    xp = np
    if args.device == "cuda":
        import cupy

        xp = cupy
    faces = xp.asarray(np.random.default_rng(0).standard_normal((FACES[args.device], 64), dtype=np.float32))
    queries = faces[:QUERIES] + np.float32(0.1)
    search = together if args.mended else one_by_one

    perf = PerfRecorder("cupy_element_by_element")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=QUERIES):
                with perf.range("distances"):
                    distances = -(queries @ faces.T)
                with perf.range("search"):
                    search(distances)
    perf.finalize()


if __name__ == "__main__":
    main()
