"""Two processes of the same program take turns on one GPU, and each is half as fast. Mended: one process."""

import torch

from tests.faults.frame import pick, products, result, run

multiply = products(20)


def model(_):
    result(multiply(1))


with torch.inference_mode():
    run(pick(300, 5), pick(4096, 16), model=model)
