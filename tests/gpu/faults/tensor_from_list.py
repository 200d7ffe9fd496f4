"""Tables of block numbers, lists in Python, are made into tensors in each step.

vllm-project/vllm#6879: `torch.tensor(list)` gathers the numbers object by object. Annotated from outside:
tensor_from_list.toml.
"""

from __future__ import annotations

import numpy as np
import torch
from fault_options import parse_options

STEPS = 50
REQUESTS = 256
BLOCKS = {"cuda": 1024, "cpu": 64}


class Engine:
    def __init__(self, device: str, *, keeps_array: bool) -> None:
        blocks = BLOCKS[device]
        self.tables = [[request * blocks + block for block in range(blocks)] for request in range(REQUESTS)]
        self.kept = np.array(self.tables, dtype=np.int32) if keeps_array else None
        side = 4096 if device == "cuda" else 16
        self.weight = torch.randn(side, side, device=device, dtype=torch.bfloat16)

    def step(self, requests: int) -> float:
        del requests
        hidden = self.forward(self.block_table())
        return float(hidden.amax())

    def block_table(self) -> torch.Tensor:
        if self.kept is not None:
            table = torch.from_numpy(self.kept)
        else:
            table = torch.tensor(self.tables, dtype=torch.int32)  # fault
        return table.to(self.weight.device)

    def forward(self, table: torch.Tensor) -> torch.Tensor:
        hidden = self.weight * table[0, 1]
        for _ in range(10):
            hidden = hidden @ self.weight * 0.01
        return hidden


def serve(engine: Engine) -> None:
    with torch.inference_mode():
        for _ in range(STEPS):
            engine.step(REQUESTS)


def main() -> None:
    args = parse_options(__doc__)
    serve(Engine(args.device, keeps_array=args.mended))


if __name__ == "__main__":
    main()
