"""After each frame the metadata of all frames is written anew into a temporary file, which then replaces the old one.

happycube/ld-decode#60. Mended: a line is added for each frame.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from perfharness import PerfRecorder

MENDED = "--mended" in sys.argv
BATCHES, BEFORE = 50, 1200
records_written = 0


class Metadata:
    """Of a recording that is being decoded; it has many frames already."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frames: list[dict[str, Any]] = [self.of_frame(number) for number in range(BEFORE)]

    @staticmethod
    def of_frame(number: int) -> dict[str, Any]:
        return {"frame": number, "dropouts": [number % 5, number % 7], "snr": number * 0.37, "field": f"f{number}"}

    def add(self, number: int) -> None:
        global records_written
        self.frames.append(self.of_frame(number))
        if MENDED:
            records_written += 1
            with self.path.open("a") as stream:
                stream.write(json.dumps(self.frames[-1]) + "\n")
            return
        records_written += len(self.frames)
        self.save()

    def save(self) -> None:
        temporary = self.path.with_suffix(".tmp")
        with temporary.open("w") as stream:
            json.dump(self.frames, stream)  # fault
        temporary.replace(self.path)  # fault


def demodulate(index: int) -> list[int]:
    return [(index * position * position) % 251 for position in range(40000)]


def correct(samples: list[int]) -> int:
    return sum(abs(before - after) for before, after in itertools.pairwise(samples))


with tempfile.TemporaryDirectory() as folder:
    metadata = Metadata(Path(folder) / "recording.json")
    perf = PerfRecorder("faults")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                with perf.range("demodulate"):
                    samples = demodulate(index)
                with perf.range("correct"):
                    correct(samples)
                with perf.range("describe"):
                    metadata.add(BEFORE + index)
    perf.finalize()
print(records_written, "records written")
