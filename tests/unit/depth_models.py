"""Small ONNX networks that make a map of an image, in several precisions. For tests, and to try `compare-engines`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["fp32", "fp16"]

WIDTH = 8
"""Channels between the layers of `random_net`."""


def _weights(helper: Any, name: str, values: npt.NDArray[np.float32], kind: Kind) -> tuple[list[Any], list[Any]]:
    """Initializers, and the nodes that make fp32 of them under `name`."""
    import onnx

    if kind == "fp32":
        return [onnx.numpy_helper.from_array(values, name)], []
    stored = onnx.numpy_helper.from_array(values.astype(np.float16), f"{name}_fp16")
    return [stored], [helper.make_node("Cast", [f"{name}_fp16"], [name], name=f"{name}_cast", to=1)]


def write_net(path: Path, layers: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]], kind: Kind = "fp32") -> Path:
    """Convolutions with Relu after each but the last; input `image` (1, 3, ?, ?), output `depth` (1, 1, ?, ?)."""
    import onnx
    from onnx import helper

    nodes, stored, last = [], [], "image"
    for place, (weights, bias) in enumerate(layers):
        names = (f"w{place}", f"b{place}")
        for name, values in zip(names, (weights, bias), strict=True):
            made, casts = _weights(helper, name, np.asarray(values, np.float32), kind if name[0] == "w" else "fp32")
            stored += made
            nodes += casts
        is_last = place == len(layers) - 1
        out = "depth" if is_last else f"conv{place}_out"
        pad = weights.shape[2] // 2
        nodes.append(helper.make_node("Conv", [last, *names], [out], name=f"conv{place}", pads=[pad] * 4))
        last = out
        if not is_last:
            nodes.append(helper.make_node("Relu", [out], [f"relu{place}_out"], name=f"relu{place}"))
            last = f"relu{place}_out"
    image = helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1, 3, "height", "width"])
    depth = helper.make_tensor_value_info("depth", onnx.TensorProto.FLOAT, [1, 1, "height", "width"])
    graph = helper.make_graph(nodes, "depth", [image], [depth], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())
    return path


def weighted_sum(path: Path, weights: tuple[float, float, float], kind: Kind = "fp32") -> Path:
    """The map is the sum of the channels, each times its weight."""
    layer = np.asarray(weights, np.float32).reshape(1, 3, 1, 1)
    return write_net(path, [(layer, np.zeros(1, np.float32))], kind)


def random_net(path: Path) -> Path:
    """Three layers, seeded; its maps are positive on images of ordinary size."""
    random = np.random.default_rng(0)

    def layer(to: int, of: int) -> npt.NDArray[Any]:
        return random.normal(0, (2 / (9 * of)) ** 0.5, (to, of, 3, 3)).astype(np.float32)

    last = np.abs(layer(1, WIDTH))
    layers = [
        (layer(WIDTH, 3), np.zeros(WIDTH, np.float32)),
        (layer(WIDTH, WIDTH), np.zeros(WIDTH, np.float32)),
        (last, np.full(1, 0.5, np.float32)),
    ]
    return write_net(path, layers)
