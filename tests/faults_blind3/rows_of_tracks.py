"""Tracks are collected row by row from a table, each row as an object of its own.

talmolab/sleap-roots#194, ddmms/ml-peg#542. Mended: column by column.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in a container with one core

import numpy as np
import pandas as pd

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, ROWS = 30, 600
rows_visited = 0


def read(index: int) -> pd.DataFrame:
    numbers = np.arange(ROWS)
    words = [f"{position * index % 1013}" for position in range(12000)]
    return pd.DataFrame({
        "track": numbers % 6, "frame": numbers // 6, "x": numbers * 0.5 + len(words[0]), "y": numbers * 0.25,
    })  # fmt: skip


def build_trajectories(table: pd.DataFrame) -> dict[int, list[tuple[int, float, float]]]:
    global rows_visited
    found: dict[int, list[tuple[int, float, float]]] = {}
    if MENDED:
        columns = (table[name].tolist() for name in ("track", "frame", "x", "y"))
        for track, frame, x, y in zip(*columns, strict=True):
            found.setdefault(track, []).append((frame, x, y))
        return found
    for _, row in table.iterrows():  # fault
        rows_visited += 1
        found.setdefault(int(row["track"]), []).append((int(row["frame"]), row["x"], row["y"]))
    return found


def smooth(trajectories: dict[int, list[tuple[int, float, float]]]) -> float:
    total = 0.0
    for _ in range(25):
        for points in trajectories.values():
            total += sum(x * 0.9 + y * 0.1 for _, x, y in points)
    return total


perf = PerfRecorder("faults")
with perf.range("pipeline"):
    for index in range(BATCHES):
        with perf.batch(index, total_items=ROWS):
            with perf.range("read"):
                table = read(index)
            with perf.range("track"):
                trajectories = build_trajectories(table)
            with perf.range("smooth"):
                smooth(trajectories)
perf.finalize()
print(rows_visited, "rows as objects")
