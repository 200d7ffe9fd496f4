"""Tracks are collected row by row from a table, each row as an object of its own. Mended: column by column."""

import numpy as np
import pandas as pd

from tests.faults.frame import MENDED, count, run

ROWS = 600


def read(index):
    numbers = np.arange(ROWS)
    words = [f"{position * index % 1013}" for position in range(12000)]
    columns = {"track": numbers % 6, "frame": numbers // 6, "x": numbers * 0.5 + len(words[0]), "y": numbers * 0.25}
    return pd.DataFrame(columns)


def track(table):
    found = {}
    if MENDED:
        columns = (table[name].tolist() for name in ("track", "frame", "x", "y"))
        for number, frame, x, y in zip(*columns, strict=True):
            found.setdefault(number, []).append((frame, x, y))
        return found
    for _, row in table.iterrows():  # fault
        count()
        found.setdefault(int(row["track"]), []).append((int(row["frame"]), row["x"], row["y"]))
    return found


def smooth(trajectories):
    total = 0.0
    for _ in range(25):
        for points in trajectories.values():
            total += sum(x * 0.9 + y * 0.1 for _, x, y in points)
    return total


run(30, ROWS, read=read, track=track, smooth=smooth)
