"""Tables of block numbers, lists in Python, are made into tensors in each step.

vllm-project/vllm#6879: `torch.tensor(list)` gathers the numbers object by object.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from perfharness import PerfRecorder

BATCHES = 30
REQUESTS = 256
BLOCKS = {"cuda": 1024, "cpu": 64}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = parser.parse_args()
    blocks = BLOCKS[args.device]
    tables = [[request * blocks + block for block in range(blocks)] for request in range(REQUESTS)]
    kept = np.array(tables, dtype=np.int32)
    side = 4096 if args.device == "cuda" else 16
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("tensor_from_list")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=REQUESTS):
                with perf.range("prepare"):
                    kept[:, 0] = index
                    if args.mended:
                        table = torch.from_numpy(kept)
                    else:
                        table = torch.tensor(tables, dtype=torch.int32)  # fault
                with perf.range("model"):
                    hidden = weight * table.to(args.device)[0, 1]
                    for _ in range(10):
                        hidden = hidden @ weight * 0.01
                with perf.range("results"):
                    hidden.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
