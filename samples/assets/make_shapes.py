"""Draw the JPEG images of this folder and train the network that classifies them; two minutes on two CPU cores.

    python -m samples.assets.make_shapes        from the root of the checkout

Seeds are fixed. The training set is drawn anew, so none of the images in the repository was seen in training.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter
from torch import nn
from torch.nn import functional

from samples.image_classification import CLASSES, FRAME_SIZE, INPUT_SIDE, MEAN, STD, WEIGHTS, ShapesResNet

IMAGES = Path(__file__).resolve().parent / "images"
IMAGES_PER_CLASS = 2
TRAINING_IMAGES = 9000
HELD_OUT_IMAGES = 900
TRAINING_SIZE = (FRAME_SIZE[0] // 2, FRAME_SIZE[1] // 2)
EPOCHS = 10
BATCH_SIZE = 100
OVERSAMPLING = 4  # drawn larger and scaled down, for smooth edges

Point = tuple[float, float]


def background(rng: random.Random, size: tuple[int, int]) -> Image.Image:
    """A two-colour gradient with blurred noise on it."""
    width, height = size
    first, second = (np.array([rng.uniform(0, 255) for _ in range(3)]) for _ in range(2))
    slope = (
        np.linspace(0, 1, width)[None, :, None] * rng.random() + np.linspace(0, 1, height)[:, None, None] * rng.random()
    )
    noise = np.random.default_rng(rng.getrandbits(32)).normal(0, 12, (height, width, 3))
    pixels = np.clip(first + (second - first) * slope + noise, 0, 255).astype(np.uint8)
    return Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(1))


def contrasting(rng: random.Random, image: Image.Image) -> tuple[int, int, int]:
    """A colour that stands out from the mean of the image."""
    mean = np.asarray(image).mean(axis=(0, 1))
    while True:
        color = (rng.randrange(256), rng.randrange(256), rng.randrange(256))
        if np.abs(mean - np.array(color)).sum() > 220:
            return color


def turned(points: list[Point], angle: float, centre: Point, radius: float) -> list[Point]:
    """Points of the unit circle, turned, scaled and moved."""
    cos, sin = math.cos(angle), math.sin(angle)
    return [(centre[0] + radius * (x * cos - y * sin), centre[1] + radius * (x * sin + y * cos)) for x, y in points]


def on_circle(count: int, radii: tuple[float, ...]) -> list[Point]:
    """`count` points around the circle, their radii in rotation."""
    steps = [(2 * math.pi * i / count, radii[i % len(radii)]) for i in range(count)]
    return [(radius * math.cos(angle), radius * math.sin(angle)) for angle, radius in steps]


def outline(label: str) -> list[Point]:
    """Corners of a shape with straight sides, on the unit circle."""
    arm = 0.28
    corners: dict[str, list[Point]] = {
        "triangle": on_circle(3, (1.0,)),
        "square": on_circle(4, (1.0,)),
        "star": on_circle(10, (1.0, 0.42)),
        "cross": [
            (-arm, -1), (arm, -1), (arm, -arm), (1, -arm), (1, arm), (arm, arm),
            (arm, 1), (-arm, 1), (-arm, arm), (-1, arm), (-1, -arm), (-arm, -arm),
        ],
    }  # fmt: skip
    return corners[label]


def draw_shape(rng: random.Random, label: str, size: tuple[int, int]) -> Image.Image:
    """An image of one shape: place, size, angle, colours and background are left to chance."""
    image = background(rng, size)
    color = contrasting(rng, image)
    scale = OVERSAMPLING
    mask = Image.new("L", (size[0] * scale, size[1] * scale), 0)
    pen = ImageDraw.Draw(mask)
    radius = rng.uniform(0.24, 0.42) * min(size) * scale
    centre = tuple(rng.uniform(radius, side * scale - radius) for side in size)
    if label in ("circle", "ring"):
        x, y = centre
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
        if label == "ring":
            hole = radius * rng.uniform(0.5, 0.7)
            pen.ellipse((x - hole, y - hole, x + hole, y + hole), fill=0)
    else:
        pen.polygon(turned(outline(label), rng.uniform(0, 2 * math.pi), (centre[0], centre[1]), radius), fill=255)
    image.paste(color, (0, 0), mask.resize(size, Image.Resampling.LANCZOS))
    return image


def write_images() -> None:
    """The input files of the sample."""
    IMAGES.mkdir(exist_ok=True)
    for number, label in enumerate(CLASSES):
        for index in range(IMAGES_PER_CLASS):
            image = draw_shape(random.Random(1000 * number + index), label, FRAME_SIZE)
            image.save(IMAGES / f"{label}_{index + 1}.jpg", quality=85)


def drawn_set(name: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(count, 3, 64, 64) normalised images, squeezed to a square as the sample does, and their classes."""
    images = np.empty((count, INPUT_SIDE, INPUT_SIDE, 3), dtype=np.uint8)
    classes = torch.arange(count) % len(CLASSES)
    for index in range(count):
        drawn = draw_shape(random.Random(f"{name} {index}"), CLASSES[int(classes[index])], TRAINING_SIZE)
        images[index] = np.asarray(drawn.resize((INPUT_SIDE, INPUT_SIDE), Image.Resampling.BILINEAR))
    planes = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return (planes - MEAN) / STD, classes


def train() -> nn.Module:
    """The network, trained on one drawn set and tried on another."""
    torch.manual_seed(0)
    images, classes = drawn_set("train", TRAINING_IMAGES)
    model = ShapesResNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, EPOCHS * TRAINING_IMAGES // BATCH_SIZE)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(TRAINING_IMAGES).split(BATCH_SIZE):
            loss = functional.cross_entropy(model(images[chosen]), classes[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    images, classes = drawn_set("held out", HELD_OUT_IMAGES)
    with torch.inference_mode():
        right = (model(images).argmax(dim=1) == classes).float().mean()
    print(f"{right:.1%} of {HELD_OUT_IMAGES} images not seen in training are classified right")
    return model


def main() -> None:
    write_images()
    # Half precision halves the file; the sample turns them back into floats when it loads them.
    np.savez_compressed(WEIGHTS, **{name: value.half().numpy() for name, value in train().state_dict().items()})


if __name__ == "__main__":
    main()
