"""A request's features are a dictionary of hundreds of small tensors, moved to the GPU one by one.

sgl-project/sglang#18558 and deepspeedai/DeepSpeed#248: many small copies each cost a call, and were batched.
"""

from __future__ import annotations

import torch
from fault_options import parse_options

from perfharness import PerfRecorder

BATCHES = 50
FEATURES = 400
VALUES = 64


def one_by_one(features: dict[str, torch.Tensor], device: str) -> dict[str, torch.Tensor]:
    return {name: value.to(device) for name, value in features.items()}  # fault


def in_one_copy(features: dict[str, torch.Tensor], device: str) -> dict[str, torch.Tensor]:
    packed = torch.cat(list(features.values())).to(device)
    return dict(zip(features, packed.split(VALUES), strict=True))


def main() -> None:
    args = parse_options(__doc__)
    upload = in_one_copy if args.mended else one_by_one
    side = 4096 if args.device == "cuda" else 16
    features = {f"feature_{index}": torch.rand(VALUES) for index in range(FEATURES)}
    weight = torch.randn(side, side, device=args.device, dtype=torch.bfloat16)

    perf = PerfRecorder("feature_dict")
    with perf.range("pipeline"), torch.inference_mode():
        for index in range(BATCHES):
            with perf.batch(index, total_items=1):
                with perf.range("upload"):
                    on_device = upload(features, args.device)
                with perf.range("model"):
                    hidden = weight * on_device["feature_0"][0].to(torch.bfloat16)
                    for _ in range(10):
                        hidden = hidden @ weight * 0.01
                with perf.range("results"):
                    hidden.amax().item()
    perf.finalize()


if __name__ == "__main__":
    main()
