"""Images to measure accuracy on, and others to calibrate int8 on, next to suite_int8.toml.

    python -m samples.mobilenet_v3.data [--count 64] [FOLDER]

The labels are the answers of the network in NumPy: `top1` is the share of images on which another one agrees with it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from samples.mobilenet_v3.reference import forward
from samples.mobilenet_v3.structure import INPUT
from samples.mobilenet_v3.weights import example_images, weights


def write(folder: Path, count: int) -> None:
    """images/NUMBER.npy, labels.csv and calibration.npz; images in fp16, which halves the files."""
    images = example_images(count, seed=3).astype(np.float16)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    labels = []
    for number, image in enumerate(images):
        np.save(folder / "images" / f"{number:03}.npy", image)
        answer = forward(weights(), image[np.newaxis].astype(np.float32)).argmax()
        labels.append(f"{number:03},{answer}\n")
    (folder / "labels.csv").write_text("".join(labels))
    samples: dict[str, Any] = {INPUT: example_images(count, seed=4)}
    np.savez(folder / "calibration.npz", **samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent / "data")
    parser.add_argument("--count", type=int, default=64, help="of images of each kind")
    arguments = parser.parse_args()
    write(arguments.folder, arguments.count)
    print(arguments.folder)


if __name__ == "__main__":
    main()
