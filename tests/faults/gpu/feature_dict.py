"""Hundreds of small tensors are moved to the GPU one by one. Mended: packed into one."""

import torch

from tests.faults.frame import DEVICE, MENDED, products, result, run

VALUES = 64


def upload(_):
    if MENDED:
        packed = torch.cat(list(features.values())).to(DEVICE)
        found = dict(zip(features, packed.split(VALUES), strict=True))
    else:
        found = {name: value.to(DEVICE) for name, value in features.items()}  # fault
    return found["feature_0"][0].to(torch.bfloat16)


features = {f"feature_{index}": torch.rand(VALUES) for index in range(400)}
with torch.inference_mode():
    run(50, upload=upload, model=products(10), results=result)
