"""Image classification: JPEG files are decoded, preprocessed, classified by a small residual network, postprocessed.

Runs on the CPU, or on the GPU that PyTorch sees. The network knows the six shapes of samples/assets; how its weights
were made is in samples/assets/make_shapes.py. Results go to the terminal and to `predictions.csv` in the output
folder.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from perfharness import PerfRecorder, get_default_arg_parser, parse_validate_default_args

ASSETS = Path(__file__).resolve().parent / "assets"
WEIGHTS = ASSETS / "shapes_resnet.npz"
CLASSES = ("circle", "cross", "ring", "square", "star", "triangle")
FRAME_SIZE = (320, 240)
INPUT_SIDE = 64
MEAN, STD = 0.5, 0.25
JPEG_SUFFIXES = (".jpg", ".jpeg")

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Prediction:
    """The network's answer for one file."""

    file: str
    label: str
    score: float


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ShapesResNet(nn.Module):
    """Residual network for 64x64 RGB images: (N, 3, 64, 64) float -> (N, 6) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(ResidualBlock(16, 16, 2), ResidualBlock(16, 24, 2), ResidualBlock(24, 32, 2))
        self.head = nn.Linear(32, len(CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))
        return logits


def load_model(device: torch.device) -> nn.Module:
    """The trained network, in inference mode on `device`."""
    model = ShapesResNet()
    with np.load(WEIGHTS) as weights:
        model.load_state_dict({name: torch.from_numpy(weights[name]) for name in weights.files})
    return model.to(device).eval()


def find_images(path: Path) -> list[Path]:
    """The JPEG file itself, or those of a folder in the order of their names."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix.lower() in JPEG_SUFFIXES)
    return [path]


def batches_of(files: Sequence[Path], batch_size: int, num_batches: int | None) -> Iterator[list[Path]]:
    """Batches of files: one pass with a short last batch, or `num_batches` full ones, starting over as needed."""
    source = iter(files) if num_batches is None else itertools.cycle(files)
    for _ in itertools.count() if num_batches is None else range(num_batches):
        batch = list(itertools.islice(source, batch_size))
        if not batch:
            return
        yield batch


def decode(file: Path) -> Pixels:
    """(240, 320, 3) uint8; a file of another size is scaled, so that a batch is one array."""
    with Image.open(file) as image:
        pixels = image.convert("RGB")
        return np.asarray(pixels if pixels.size == FRAME_SIZE else pixels.resize(FRAME_SIZE))


def preprocess(images: Sequence[Pixels], device: torch.device) -> torch.Tensor:
    """Decoded images on the host -> (N, 3, 64, 64) float on `device`, scaled and normalised there."""
    host = torch.from_numpy(np.stack(images))
    if device.type == "cuda":
        host = host.pin_memory()  # or the copy below would block the host
    planes = host.to(device, non_blocking=True).permute(0, 3, 1, 2).float() / 255
    scaled = functional.interpolate(planes, (INPUT_SIDE, INPUT_SIDE), mode="bilinear", antialias=True)
    return (scaled - MEAN) / STD


def postprocess(logits: torch.Tensor, files: Sequence[Path]) -> list[Prediction]:
    """Logits on the device -> the best class of each file; waits for the device."""
    scores, classes = functional.softmax(logits, dim=1).max(dim=1)
    return [
        Prediction(file.name, CLASSES[class_], score)
        for file, class_, score in zip(files, classes.tolist(), scores.tolist(), strict=True)
    ]


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = get_default_arg_parser("image_classification", output_dir=".", parser_type="minimal")
    parser.add_argument("-i", "--input_path", default=ASSETS / "images", help="a JPEG file or a folder of them")
    parser.add_argument("-b", "--batch_size", type=int, default=4, help="images per batch")
    parser.add_argument("--batches", type=int, help="number of full batches; without it one pass over the input")
    args = parse_validate_default_args(parser)
    if args.batches is not None and args.batches < 1:
        parser.error(f"--batches: must be 1 or more, got {args.batches}")
    return args


def pick_device(device_id: int) -> torch.device:
    """The GPU with this number where PyTorch sees one, else the CPU."""
    return torch.device("cuda", device_id) if torch.cuda.is_available() else torch.device("cpu")


@torch.inference_mode()
def main() -> int:
    args = parse_args()
    perf = PerfRecorder("image_classification", args)
    files = find_images(Path(args.input_path))
    if not files:
        print(f"no JPEG files in {args.input_path}: give -i a .jpg file or a folder of them", file=sys.stderr)
        return 2
    # Processes of a launch share the cores, and threads of two that spin for one another made a batch ten times slower.
    torch.set_num_threads(1)
    device = pick_device(args.device_id)
    model = load_model(device)

    predictions: list[Prediction] = []
    with perf.range("pipeline"):
        for _, batch in perf.batches(batches_of(files, args.batch_size, args.batches), items=len):
            with perf.range("decode"):
                images = [decode(file) for file in batch]
            with perf.range("preprocess"):
                inputs = preprocess(images, device)
            with perf.range("inference"):
                logits = model(inputs)
            with perf.range("postprocess"):
                predictions += postprocess(logits, batch)
    perf.finalize()

    write_predictions(predictions, Path(args.output_dir))
    print(f"{len(predictions)} images on {device}")
    return 0


def write_predictions(predictions: Sequence[Prediction], folder: Path) -> None:
    """One line a prediction, to the terminal and to predictions.csv."""
    with (folder / "predictions.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(("file", "label", "score"))
        for prediction in predictions:
            writer.writerow((prediction.file, prediction.label, f"{prediction.score:.4f}"))
            print(f"{prediction.file}: {prediction.label} ({prediction.score:.3f})")


if __name__ == "__main__":
    sys.exit(main())
