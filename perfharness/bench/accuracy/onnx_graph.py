"""The intermediate tensors of an ONNX graph, and which of two graphs' tensors are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from perfharness.errors import BackendError, BackendUnavailableError
from perfharness.model.bench import TensorSpec
from perfharness.model.distribution import install_command

INSTALL = install_command("onnxruntime")
PLUMBING = ("Cast", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Identity", "Constant")
"""Operators that a change of precision adds or removes."""

ENOUGH_NAMES = 0.5
"""Of the smaller graph's tensors; where fewer have the same name in both, positions are compared."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class GraphTensor:
    """An output of a node.

    Args:
        position: of its node, in topological order.
        shape: for the inputs that were given; None where it does not follow from them.
        kind: NumPy's name of its type; None where it is not known; `bfloat16` has no NumPy type.
    """

    name: str
    position: int
    op_type: str
    shape: Shape | None
    kind: str | None

    @property
    def bytes(self) -> int | None:
        """Its size, where shape and type are known."""
        if self.shape is None or self.kind is None:
            return None
        return prod(self.shape) * (2 if self.kind == "bfloat16" else np.dtype(self.kind).itemsize)


@dataclass(frozen=True)
class Alignment:
    """Pairs of tensors in the first graph's order, and those that are in one graph only."""

    by: Literal["name", "position"]
    pairs: list[tuple[GraphTensor, GraphTensor]]
    only_first: list[str]
    only_second: list[str]


def load_graph(path: Path) -> Any:
    """The model without weights that lie in other files. Raises `BackendError`, `BackendUnavailableError`."""
    try:
        import onnx
    except ImportError:
        raise BackendUnavailableError(f"layers are exposed by onnx, which is not installed: {INSTALL}") from None
    try:
        model = onnx.load_model(path, load_external_data=False)
    except Exception as error:
        raise BackendError(f"{path} is no ONNX model: {type(error).__name__}: {error}") from error
    if not model.graph.node:  # so is what text and empty files are read as
        raise BackendError(f"{path} is no ONNX model: there is no operator in it")
    return model


def graph_inputs(model: Any) -> dict[str, tuple[tuple[int | str | None, ...], str]]:
    """Shape (names where open) and NumPy type of each input, without weights."""
    import onnx

    weights = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        if value.name not in weights:
            kind = value.type.tensor_type
            sizes = [one.dim_value if one.HasField("dim_value") else one.dim_param or None for one in kind.shape.dim]
            found[value.name] = (tuple(sizes), str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)))
    return found


def onnx_inputs(path: Path) -> list[TensorSpec] | None:
    """Inputs of a file; None where onnx is not installed, or cannot read it."""
    try:
        inputs = graph_inputs(load_graph(path))
    except (BackendError, TypeError, KeyError):
        return None
    return [
        TensorSpec(name=name, shape=tuple(n if isinstance(n, int) and n > 0 else None for n in shape), dtype=dtype)
        for name, (shape, dtype) in inputs.items()
    ]


def graph_tensors(model: Any, shapes: Mapping[str, Shape]) -> list[GraphTensor]:
    """All outputs of nodes for these input shapes; without those of nodes inside If and Loop."""
    import onnx

    sized = onnx.ModelProto()
    sized.CopyFrom(model)
    for value in sized.graph.input:
        if value.name in shapes:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(dims, shapes[value.name], strict=True):
                dim.dim_value = size
    try:
        inferred = onnx.shape_inference.infer_shapes(sized, data_prop=True)
    except Exception:  # operators that onnx does not know
        inferred = sized
    known = {value.name: value for value in (*inferred.graph.value_info, *inferred.graph.output)}
    return [
        GraphTensor(name, position, node.op_type, *_described(known.get(name)))
        for position, node in enumerate(model.graph.node)
        for name in node.output
        if name
    ]


def _described(value: Any) -> tuple[Shape | None, str | None]:
    """Shape and type, as far as they are known."""
    import onnx

    if value is None or not value.type.HasField("tensor_type"):
        return None, None
    tensor = value.type.tensor_type
    shape: Shape | None = None
    if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        shape = tuple(dim.dim_value for dim in tensor.shape.dim)
    if tensor.elem_type == onnx.TensorProto.BFLOAT16:
        return shape, "bfloat16"
    try:
        return shape, str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except (KeyError, ValueError):
        return shape, None


def align(first: Sequence[GraphTensor], second: Sequence[GraphTensor]) -> Alignment:
    """Pair tensors by name where at least half match, else by position, operator and shape."""
    own = {tensor.name: tensor for tensor in second}
    ours, theirs = ([tensor for tensor in graph if tensor.op_type not in PLUMBING] for graph in (first, second))
    by: Literal["name", "position"] = "name"
    if sum(tensor.name in own for tensor in ours) >= ENOUGH_NAMES * max(1, min(len(ours), len(theirs))):
        pairs = [(tensor, own[tensor.name]) for tensor in first if tensor.name in own and tensor.op_type != "Constant"]
    else:
        by = "position"
        matcher = SequenceMatcher(None, [_key(one) for one in ours], [_key(one) for one in theirs], autojunk=False)
        pairs = [
            pair
            for at, other, size in matcher.get_matching_blocks()
            for pair in zip(ours[at : at + size], theirs[other : other + size], strict=True)
        ]
    paired = {one.name for one, _ in pairs}, {two.name for _, two in pairs}
    only = [
        [one.name for one in graph if one.name not in names]
        for graph, names in zip((ours, theirs), paired, strict=True)
    ]
    return Alignment(by, pairs, *only)


def _key(tensor: GraphTensor) -> tuple[str, Shape | None]:
    """Key that tensors at matching positions share: QLinearConv counts as Conv."""
    return tensor.op_type.removeprefix("QLinear").removesuffix("Integer"), tensor.shape


def with_outputs(model: Any, names: Sequence[str]) -> bytes:
    """The graph with these tensors as its only outputs."""
    import onnx

    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    del exposed.graph.output[:]
    exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    made: bytes = exposed.SerializeToString()
    return made
