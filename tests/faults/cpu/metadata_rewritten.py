"""The metadata of all frames is written anew after each frame. Mended: a line is added."""

import itertools
import json
import tempfile
from pathlib import Path

from tests.faults.frame import MENDED, count, run

BEFORE = 1200


def metadata_of(number):
    return {"frame": number, "dropouts": [number % 5, number % 7], "snr": number * 0.37, "field": f"f{number}"}


def describe(_):
    frames.append(metadata_of(len(frames)))
    if MENDED:
        count()
        with path.open("a") as stream:
            stream.write(json.dumps(frames[-1]) + "\n")
    else:
        count(len(frames))
        save()


def save():
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as stream:
        json.dump(frames, stream)  # fault
    temporary.replace(path)  # fault


def demodulate(index):
    return [(index * position * position) % 251 for position in range(40000)]


def correct(samples):
    return sum(abs(before - after) for before, after in itertools.pairwise(samples))


frames = [metadata_of(number) for number in range(BEFORE)]
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "recording.json"
    run(50, demodulate=demodulate, correct=correct, describe=describe)
