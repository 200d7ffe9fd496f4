"""Each batch's results are written to a file and forced to the disk before the next batch is started.

lanpa/tensorboardX#731: `os.fsync` at each flush; llnl/scr#449: it took most of the time of a checkpoint.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 30
FILES = 16


def save(folder: Path, index: int, scores: torch.Tensor) -> None:
    for number, score in enumerate(scores.split(len(scores) // FILES)):
        with (folder / f"{index}_{number}.bin").open("wb") as file:
            file.write(score.numpy().tobytes())
            file.flush()
            os.fsync(file.fileno())  # fault


def save_all(folder: Path, index: int, scores: torch.Tensor) -> None:
    (folder / f"{index}.bin").write_bytes(scores.numpy().tobytes())


def main() -> None:
    args = parse_options(__doc__)
    store = save_all if args.mended else save
    side = 4096 if args.device == "cuda" else 16
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("fsync_results")
    # In the current folder: the temporary one may be in memory, where nothing waits for a disk.
    with tempfile.TemporaryDirectory(dir=".") as folder, perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=FILES):
                with perf.range("model"):
                    hidden = weight
                    for _ in range(20):
                        hidden = hidden @ weight * 0.01
                with perf.range("results"):
                    scores = hidden[:512].float().cpu()
                with perf.range("save"):
                    store(Path(folder), index, scores)
    perf.finalize()


if __name__ == "__main__":
    main()
