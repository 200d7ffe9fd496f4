"""Where the outputs of two ONNX models begin to differ: intermediate tensors, in the order of computation.

Both graphs run in ONNX Runtime on the CPU, a part of their tensors exposed as outputs at a time, so that memory is
bounded; graph optimisation is off, since fused operators have no intermediate tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from perfharness.bench.accuracy.difference import DifferenceAccumulator
from perfharness.bench.accuracy.figure import SampleError
from perfharness.bench.accuracy.onnx_graph import (
    INSTALL,
    GraphTensor,
    align,
    graph_inputs,
    graph_tensors,
    load_graph,
    with_outputs,
)
from perfharness.errors import BackendError, BackendUnavailableError, UsageError

DEFAULT_TOLERANCE = 1e-2
DEFAULT_MEMORY_BYTES = 512 << 20
UNKNOWN_SHARE = 8
"""A tensor of unknown size counts as memory / UNKNOWN_SHARE."""

Pair = tuple[GraphTensor, GraphTensor]
Arrays = dict[str, npt.NDArray[Any]]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LayerRow(_Model):
    """One tensor in both models.

    Args:
        position: of its node in the first model.
        relative_error: root of the sum of squared differences over that of the first model's squared values; None
            with a reason.
        beyond: whether that is more than the tolerance, or values are NaN or infinite in one model only.
    """

    position: int
    op_type: str
    first: str
    second: str
    shape: tuple[int, ...] | None
    relative_error: float | None
    cosine: float | None = None
    max_absolute: float | None = None
    max_value: float | None = None
    """The largest magnitude in the first model, as the scale of the differences."""

    nan_count: int = 0
    inf_count: int = 0
    beyond: bool = False
    reason: str | None = None


class LayerComparison(_Model):
    """All tensors that are in both; `first_beyond` indexes the first row beyond the tolerance."""

    first: str
    second: str
    tolerance: float
    aligned_by: Literal["name", "position"]
    rows: list[LayerRow]
    first_beyond: int | None
    compared: int
    only_first: list[str] = Field(default_factory=list)
    only_second: list[str] = Field(default_factory=list)
    parts: int = 0
    """Runs of each model."""


def compare_layers(
    first: Path,
    second: Path,
    inputs: Arrays,
    *,
    tolerance: float = DEFAULT_TOLERANCE,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> LayerComparison:
    """Run both on the same inputs and compare intermediate tensors.

    Args:
        first: what differences are relative to.
        inputs: by the first model's names; the second's are found by name, else by order, and cast to its types.
        memory_bytes: for the exposed tensors of both models together; one tensor may be larger.

    Raises `BackendError` where a model cannot be loaded or run, `UsageError` where inputs do not fit.
    """
    models = [load_graph(path) for path in (first, second)]
    feeds = [_feeds(model, inputs, path) for model, path in zip(models, (first, second), strict=True)]
    tensors = [
        graph_tensors(model, {name: array.shape for name, array in feed.items()})
        for model, feed in zip(models, feeds, strict=True)
    ]
    alignment = align(*tensors)
    if not alignment.pairs:
        raise UsageError(f"{first} and {second} have no tensor in common, neither by name nor by position and shape")
    rows: list[LayerRow] = []
    parts = list(split_parts(alignment.pairs, memory_bytes))
    for part in parts:
        ours = _run(models[0], [one.name for one, _ in part], feeds[0], first)
        theirs = _run(models[1], [two.name for _, two in part], feeds[1], second)
        rows += [compare_tensor(pair, ours[pair[0].name], theirs[pair[1].name], tolerance) for pair in part]
    return LayerComparison(
        first=str(first),
        second=str(second),
        tolerance=tolerance,
        aligned_by=alignment.by,
        rows=rows,
        first_beyond=next((place for place, row in enumerate(rows) if row.beyond), None),
        compared=sum(row.relative_error is not None for row in rows),
        only_first=alignment.only_first,
        only_second=alignment.only_second,
        parts=len(parts),
    )


def split_parts(pairs: Sequence[Pair], memory_bytes: int) -> Iterator[list[Pair]]:
    """Consecutive pairs grouped into parts that fit; a larger one is alone."""
    part: list[Pair] = []
    used = 0
    for pair in pairs:
        sizes = [one.bytes for one in pair]
        size = sum(memory_bytes // UNKNOWN_SHARE if one is None else one for one in sizes)
        if part and used + size > memory_bytes:
            yield part
            part, used = [], 0
        part.append(pair)
        used += size
    if part:
        yield part


def compare_tensor(pair: Pair, ours: Any, theirs: Any, tolerance: float) -> LayerRow:
    """Compare one tensor; one without figures has a reason, and exceeds the tolerance only where values are missing."""
    one, two = pair
    no_array = next((why for why in (ours, theirs) if isinstance(why, str)), None)
    shape = np.shape(ours) if no_array is None else one.shape
    row = partial(
        LayerRow, position=one.position, op_type=one.op_type, first=one.name, second=two.name, shape=shape,
        relative_error=None,
    )  # fmt: skip
    if no_array is not None:
        return row(reason=no_array)
    a, b = np.asarray(ours), np.asarray(theirs)
    if (a.dtype.kind == "f") != (b.dtype.kind == "f"):
        return row(reason=f"{a.dtype} in one model and {b.dtype} in the other")
    seen = DifferenceAccumulator()
    try:
        seen.update(b, a)
    except SampleError as error:
        return row(reason=str(error), beyond=a.shape != b.shape)
    figures = seen.figures()
    row = partial(row, nan_count=seen.nan, inf_count=seen.inf)
    if seen.unlike or not seen.compared:
        return row(beyond=bool(seen.unlike), reason=figures["mse"].reason)
    is_relative = bool(seen.baseline_square or not seen.error_square)
    relative = sqrt(seen.error_square / (seen.baseline_square or 1.0)) if is_relative else None
    return row(
        relative_error=relative,
        reason=None if is_relative else "all values of the first model are 0",
        beyond=relative is None or relative > tolerance,
        cosine=figures["cosine"].value,
        max_absolute=figures["max_absolute"].value,
        max_value=float(np.abs(a[np.isfinite(a)].astype(np.float64)).max()),
    )


def _feeds(model: Any, inputs: Arrays, path: Path) -> Arrays:
    wanted = graph_inputs(model)
    if not set(wanted) <= set(inputs):
        if len(wanted) != len(inputs):
            raise UsageError(f"{path} takes the inputs {', '.join(wanted)}; given are {', '.join(inputs)}")
        inputs = dict(zip(wanted, inputs.values(), strict=True))
    found = {}
    for name, (shape, kind) in wanted.items():
        array = inputs[name]
        fits = array.ndim == len(shape) and all(
            size == have or not isinstance(size, int) for size, have in zip(shape, array.shape, strict=True)
        )
        if not fits:
            raise UsageError(f"input {name!r} of {path} is {shape}, and cannot be {array.shape}")
        found[name] = np.ascontiguousarray(array, dtype=np.dtype(kind))
    return found


def _run(model: Any, names: Sequence[str], feeds: Arrays, path: Path) -> Mapping[str, Any]:
    """Arrays by name, or why there are none."""
    try:
        library = import_module("onnxruntime")
    except ImportError:
        raise BackendUnavailableError(f"onnxruntime is not installed: {INSTALL}") from None
    options = library.SessionOptions()
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    folder = str(path.absolute().parent)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    wanted = list(dict.fromkeys(names))
    try:
        session = library.InferenceSession(with_outputs(model, wanted), options, providers=["CPUExecutionProvider"])
        readable = [one.name for one in session.get_outputs() if "bfloat16" not in one.type and "tensor" in one.type]
        values = session.run(readable, feeds) if readable else []
    except Exception as error:
        raise BackendError(f"{path} could not be run with its tensors exposed: {error}") from error
    found: dict[str, Any] = dict.fromkeys(wanted, "NumPy has no type for its values")
    found |= dict(zip(readable, values, strict=True))
    return found


def layer_inputs(path: Path, given: Mapping[str, tuple[int | str, ...]], seed: int = 0) -> Arrays:
    """Seeded inputs of a model: floats standard normal, integers 0 or 1; open first dimensions are 1.

    Args:
        given: shapes by name, for inputs that leave other dimensions open. Raises `UsageError` where one is missing.
    """
    random = np.random.default_rng(seed)
    found: Arrays = {}
    wanted = graph_inputs(load_graph(path))
    if unknown := sorted(set(given) - set(wanted)):
        raise UsageError(f"{path} has no input {unknown[0]!r}; it has: {', '.join(wanted)}")
    for name, (shape, kind) in wanted.items():
        batch = [1 if isinstance(size, str | None) else size for size in shape[:1]]
        sizes = given.get(name, (*batch, *shape[1:]))
        whole = [size for size in sizes if isinstance(size, int)]
        if len(whole) < len(sizes):
            left = next(size for size in sizes if not isinstance(size, int)) or "a dimension"
            example = ",".join(str(size) if isinstance(size, int) else "?" for size in sizes)
            raise UsageError(f"input {name!r} of {path} leaves {left} open; say --shape {name}={example}")
        is_float = np.dtype(kind).kind == "f"
        values = random.standard_normal(whole) if is_float else random.integers(0, 2, whole)
        found[name] = values.astype(np.dtype(kind))
    return found
