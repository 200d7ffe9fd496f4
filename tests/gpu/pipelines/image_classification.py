"""Classification of photographs as ONNX Runtime's tutorials have it (open, resize, normalise, run), by a small network
with random weights: without perfharness. image_classification.toml annotates it. It needs no GPU.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

MEAN, STDDEV = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PHOTOGRAPH = (3264, 2448)
CHANNELS, LAYERS, CLASSES = 32, 4, 1000


def write_photographs(folder: Path, count: int) -> list[Path]:
    """As many different photographs of 8 megapixels."""
    random = np.random.default_rng(0)
    paths = [folder / f"{index}.jpg" for index in range(count)]
    for path in paths:
        coarse = Image.fromarray(random.integers(0, 255, (60, 80, 3), dtype=np.uint8))
        coarse.resize(PHOTOGRAPH, Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def make_network() -> bytes:
    """Convolutions, each halving the image, and a linear layer, as a file of ONNX."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "data"
    for layer in range(LAYERS):
        shape = (CHANNELS, CHANNELS if layer else 3, 3, 3)
        kernel = random.normal(0, (9 * shape[1]) ** -0.5, shape).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"weight{layer}"))
        nodes.append(helper.make_node("Conv", [last, f"weight{layer}"], [f"c{layer}"], strides=[2, 2], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        last = f"r{layer}"
    weights.append(numpy_helper.from_array(random.normal(size=(CHANNELS, CLASSES)).astype(np.float32), "linear"))
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "linear"], ["scores"]),
    ]
    data = helper.make_tensor_value_info("data", TensorProto.FLOAT, [1, 3, 224, 224])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, CLASSES])
    graph = helper.make_graph(nodes, "network", [data], [scores], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def load_image(path: Path, *, draft: bool) -> Image.Image:
    with Image.open(path) as image:
        if draft:
            image.draft("RGB", (256, 256))
        small = image.convert("RGB").resize((256, 256), Image.Resampling.BILINEAR)
    return small.crop((16, 16, 240, 240))


def preprocess(image: Image.Image) -> Any:
    data = np.asarray(image).transpose(2, 0, 1).astype(np.float32)
    normalised = np.zeros_like(data)
    for channel in range(len(data)):
        normalised[channel] = (data[channel] / 255 - MEAN[channel]) / STDDEV[channel]
    return normalised[None]


def classify(session: Any, path: Path, *, draft: bool) -> list[int]:
    """The five most likely classes."""
    (scores,) = session.run(None, {"data": preprocess(load_image(path, draft=draft))})
    best: list[int] = np.argsort(scores[0])[::-1][:5].tolist()
    return best


def classify_batch(session: Any, paths: list[Path], *, draft: bool) -> list[list[int]]:
    return [classify(session, path, draft=draft) for path in paths]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=14)
    parser.add_argument("-b", "--batch-size", type=int, default=4)
    parser.add_argument("--draft", action="store_true", help="let the JPEG decoder scale")
    args = parser.parse_args()
    session = onnxruntime.InferenceSession(make_network(), providers=["CPUExecutionProvider"])
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photographs(Path(folder), args.batch_size)
        found = [classify_batch(session, paths, draft=args.draft) for _ in range(args.batches)]
    print(f"{len(found)} batches; the first photograph: {found[0][0]}")


if __name__ == "__main__":
    main()
