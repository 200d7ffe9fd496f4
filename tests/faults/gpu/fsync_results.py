"""Each batch's results are written to files and forced to the disk. Mended: one file, not forced."""

import os
import tempfile
from pathlib import Path

import torch

from tests.faults.frame import MENDED, products, run

FILES = 16


def new_file():
    return Path(folder, f"{len(list(Path(folder).iterdir()))}.bin")


def save(scores):
    if MENDED:
        new_file().write_bytes(scores.numpy().tobytes())
        return
    for score in scores.split(len(scores) // FILES):
        with new_file().open("wb") as file:
            file.write(score.numpy().tobytes())
            file.flush()
            os.fsync(file.fileno())  # fault


# In the current folder: the temporary one may be in memory, where nothing waits for a disk.
with tempfile.TemporaryDirectory(dir=".") as folder, torch.inference_mode():
    run(30, FILES, model=products(20), results=lambda hidden: hidden[:512].float().cpu(), save=save)
