"""One set of weights for all frameworks: seeded, or the user's own.

    python -m samples.mobilenet_v3.weights weights.npz                    the seeded set as a file
    python -m samples.mobilenet_v3.weights weights.npz --from model.pth   the user's, from torchvision's state_dict

The factories take the file that the environment variable PERFHARNESS_MOBILENET_V3_WEIGHTS names, else the seeded set.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from samples.mobilenet_v3.reference import Array, Weights
from samples.mobilenet_v3.structure import IMAGE_SIZE, shapes, torchvision_names

FILE_VARIABLE = "PERFHARNESS_MOBILENET_V3_WEIGHTS"
STATISTICS = Path(__file__).parent / "statistics.npz"


def weights() -> Weights:
    """The user's file where one is named, else the seeded set."""
    file = os.environ.get(FILE_VARIABLE)
    return read(Path(file)) if file else seeded()


@cache
def seeded() -> Weights:
    """Random, with batch norms and linear layers that fit: the same numbers on every machine.

    In statistics.npz, in fp16, are means and variances of 16 example images, and what scales the linear layers' outputs
    to mean 0 over those images and a standard deviation of 1 and 3, as a trained network's logits have.
    """
    random = np.random.default_rng(0)
    made: Weights = {}
    for name, shape in shapes().items():
        if name.endswith("gamma"):
            made[name] = random.uniform(0.7, 1.3, shape).astype(np.float32)
        elif name.endswith(("beta", "bias")):
            made[name] = random.normal(0.0, 0.2, shape).astype(np.float32)
        elif not name.endswith(("mean", "variance")):
            made[name] = random.normal(0.0, np.sqrt(2 / np.prod(shape[1:])), shape).astype(np.float32)
    with np.load(STATISTICS) as file:
        found = {name: file[name].astype(np.float32) for name in file.files}
    for name in ("hidden", "classifier"):
        made[f"{name}.weight"] *= found.pop(f"{name}.scale")
    made |= found
    return {name: made[name] for name in shapes()}


def pruned(given: Weights, share: float = 0.1) -> Weights:
    """The smallest numbers of all convolutions and linear layers together set to 0: global magnitude pruning.

    Trained networks bear three to five times as much as the seeded weights.
    """
    names = [name for name in given if name.endswith(".weight")]
    limit = np.quantile(np.concatenate([np.abs(given[name]).ravel() for name in names]), share)
    return given | {name: np.where(np.abs(given[name]) < limit, np.float32(0), given[name]) for name in names}


def channels_last(array: Array) -> Array:
    """Weights as frameworks with channels last want them: (height, width, in, out), depthwise (height, width, out, 1).

    So that all frameworks get the same images (batch, 3, height, width), a model with channels last transposes them:
    its own time, as it is in a service. "same" padding at stride 2 would differ from PyTorch's: (0, 1) where that has
    (1, 1) for a kernel of 3 and an even size. Padding is therefore written out there.
    """
    order = (1, 0) if array.ndim == 2 else (2, 3, 0, 1) if array.shape[1] == 1 else (2, 3, 1, 0)
    turned: Array = array.transpose(order)
    return turned


def example_images(count: int, seed: int = 1, size: int = IMAGE_SIZE) -> Array:
    """Images (count, 3, size, size) like normalised photographs: coloured patches and fine noise, each its own way."""
    random = np.random.default_rng([seed, size])
    made = np.empty((count, 3, size, size), np.float32)
    for image in made:
        cells = int(random.integers(7, 29))
        coarse = random.normal(0, random.uniform(0.8, 1.1), (3, cells, cells))
        places = np.arange(size) * cells // size
        image[:] = coarse[:, places[:, None], places[None, :]] + random.normal(0, 0.3, (3, 1, 1))
        image += random.normal(0, random.uniform(0.1, 0.3), image.shape)
    return made


def read(path: Path) -> Weights:
    """From an .npz with the names of `structure.shapes`, or with those of torchvision. Raises `ValueError`."""
    with np.load(path) as file:
        return checked({name: file[name] for name in file.files})


def checked(given: Mapping[str, Any]) -> Weights:
    """All weights in float32, by our names, from a mapping with our names or torchvision's. Raises `ValueError`."""
    theirs = torchvision_names()
    made: Weights = {}
    for name, shape in shapes().items():
        found = given.get(name, given.get(theirs[name]))
        if found is None:
            raise ValueError(f"the weights {name} (in torchvision {theirs[name]}) are missing")
        array = np.asarray(found, dtype=np.float32)
        if array.shape != shape:
            raise ValueError(f"the weights {name} are {array.shape}, and must be {shape}")
        made[name] = array
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("npz", type=Path)
    parser.add_argument("--from", dest="state_dict", type=Path, help="a file that torch.load reads: a state_dict")
    arguments = parser.parse_args()
    made = seeded() if arguments.state_dict is None else _from_torch(arguments.state_dict)
    np.savez(arguments.npz, **made)  # type: ignore[arg-type]
    print(f"{len(made)} arrays, {sum(each.size for each in made.values())} numbers, in {arguments.npz}")


def _from_torch(path: Path) -> Weights:
    import torch

    return checked({name: tensor.numpy() for name, tensor in torch.load(path, weights_only=True).items()})


if __name__ == "__main__":
    main()
