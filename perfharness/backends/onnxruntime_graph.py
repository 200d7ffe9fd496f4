"""What ONNX Runtime reports of a loaded model: inputs and outputs, provider of each node, times of operators."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from perfharness.backends.base import LayerTime
from perfharness.errors import BackendError
from perfharness.model.bench import TensorSpec

DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""ONNX Runtime's name of a type -> NumPy's."""

Shape = tuple[int, ...]


def tensor_spec(node: Any) -> TensorSpec:
    """Spec of an input or output. Raises `BackendError` for types that NumPy does not have."""
    if node.type not in DTYPES:
        raise BackendError(
            f"{node.name!r} is {node.type}, which cannot be measured; export the model with numbers there"
        )
    shape = tuple(size if isinstance(size, int) and size > 0 else None for size in node.shape)
    return TensorSpec(name=node.name, shape=shape, dtype=DTYPES[node.type])


def output_shapes(session: Any, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Shapes of the outputs, as far as names of open dimensions determine them from the inputs' shapes.

    Raises `BackendError` where one name would have two sizes.
    """
    sizes: dict[str, int] = {}
    for node in session.get_inputs():
        for wanted, size in zip(node.shape, shapes[node.name], strict=True):
            if isinstance(wanted, str) and sizes.setdefault(wanted, size) != size:
                raise BackendError(
                    f"dimension {wanted!r} would be {sizes[wanted]} and {size}; inputs that share it must agree"
                )
    known = {}
    for node in session.get_outputs():
        shape = [sizes.get(size) if isinstance(size, str) else size for size in node.shape]
        if all(isinstance(size, int) and size > 0 for size in shape):
            known[node.name] = tuple(int(size) for size in shape if size is not None)
    return known


def nodes_by_provider(session: Any) -> dict[str, int]:
    """How many nodes each provider got; empty where this version of ONNX Runtime does not report it."""
    counts: dict[str, int] = {}
    with suppress(AttributeError, RuntimeError):
        for part in session.get_provider_graph_assignment_info():
            counts[part.ep_name] = counts.get(part.ep_name, 0) + len(part.get_nodes())
    return counts


def layer_times_of_profile(events: list[dict[str, Any]], rounds: int) -> list[LayerTime]:
    """Mean milliseconds of each operator over the last `rounds` runs of a profile, in the order of execution.

    The first run is excluded, since it allocates. Times of an operator that runs several times in a run are added up.
    """
    runs = [event for event in events if event.get("cat") == "Session" and event.get("name") == "model_run"]
    if len(runs) < rounds + 1:
        raise BackendError(f"ONNX Runtime's profile has {len(runs)} runs, not {rounds + 1}")
    begin = runs[-rounds]["ts"]
    total: dict[str, float] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith("_kernel_time") and event["ts"] >= begin:
            layer = name.removesuffix("_kernel_time")
            total[layer] = total.get(layer, 0.0) + float(event["dur"])
    return [LayerTime(name, microseconds / 1000 / rounds) for name, microseconds in total.items()]
