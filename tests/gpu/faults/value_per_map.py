"""The mean of each feature map is read back for the log as soon as it is computed.

openvdb/fvdb-reality-capture#144: reading a loss twice a step cost 5 to 10 %, the reads were deferred.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
MAPS = {"cuda": (200, 16 << 20), "cpu": (20, 1 << 10)}


def read_each(maps: list[torch.Tensor]) -> list[float]:
    means = []
    for values in maps:
        means.append(values.mean().item())  # fault
    return means


def read_once(maps: list[torch.Tensor]) -> list[float]:
    means: list[float] = torch.stack([values.mean() for values in maps]).tolist()
    return means


def main() -> None:
    args = parse_options(__doc__)
    count, length = MAPS[args.device]
    activations = torch.rand(length, device=args.device)
    maps = [activations] * count
    statistics = read_once if args.mended else read_each

    perf = PerfRecorder("value_per_map")
    with perf.range("pipeline"):
        for index in range(BATCHES):
            with perf.batch(index, total_items=8):
                with perf.range("scale"):
                    activations.mul_(1.0)
                with perf.range("statistics"):
                    statistics(maps)
    perf.finalize()


if __name__ == "__main__":
    main()
