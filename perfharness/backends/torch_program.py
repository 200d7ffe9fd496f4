"""The program that PyTorch runs: a factory's module or a torch.export file, described, in the requested precision."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from perfharness.backends.base import BackendOptions
from perfharness.backends.models import (
    HALF_DTYPES,
    FactoryModel,
    ModelSource,
    check_own_precision,
    described_model,
    host_dtype,
    named_outputs,
    precision_of_most,
)
from perfharness.errors import BackendError
from perfharness.model.bench import Precision, TensorSpec


@dataclass
class Program:
    """A module, with its inputs and outputs.

    Args:
        input_dtypes: to which inputs are cast on the device.
        output_dtypes: likewise the outputs.
        computes_in: dtype as text.
        exported: by torch.export, so that it has no submodules.
    """

    module: Any
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    input_dtypes: list[Any]
    output_dtypes: list[Any]
    computes_in: str
    exported: bool = False


def load_program(torch: Any, model: ModelSource, options: BackendOptions) -> Program:
    """The model's module, still on the CPU. Raises `BackendError`."""
    if model.path is not None:
        return _exported(torch, model, options)
    made = described_model(model, "torch", options.precision, "an nn.Module")
    if not isinstance(made.model, torch.nn.Module):
        raise BackendError(f"{model.factory} returned a FactoryModel of a {type(made.model).__name__}, no nn.Module")
    module = made.model.eval()
    outputs = _described_outputs(torch, module, made)
    module, computes_in = _in_precision(torch, module, options.precision)
    return Program(
        module=module,
        inputs=made.inputs,
        outputs=outputs,
        input_dtypes=[_at_device(torch, spec.dtype, options.precision) for spec in made.inputs],
        output_dtypes=[getattr(torch, spec.dtype) for spec in outputs],
        computes_in=computes_in,
    )


def tensors(torch: Any, made: Any) -> list[Any]:
    """A module's outputs as a list. Raises `BackendError` where they are anything but tensors."""
    if isinstance(made, torch.Tensor):
        return [made]
    if not isinstance(made, list | tuple) and isinstance(made, Mapping):
        made = list(made.values())
    if isinstance(made, list | tuple) and all(isinstance(each, torch.Tensor) for each in made):
        return list(made)
    raise BackendError(
        f"the model returned a {type(made).__name__}, or things in it that are no tensors; it must return a tensor, or "
        "a tuple, list or dict of tensors"
    )


def _in_precision(torch: Any, module: Any, precision: Precision) -> tuple[Any, str]:
    """The module with its weights in the precision, and its dtype as text."""
    if precision in HALF_DTYPES:
        return module.to(getattr(torch, HALF_DTYPES[precision])), HALF_DTYPES[precision]
    if precision != "int8":
        return module, "float32"
    linear = [name for name, each in module.named_modules() if isinstance(each, torch.nn.Linear)]
    if not linear:
        raise BackendError("the model has no linear layer, and dynamic int8 quantises nothing else; use fp32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, but there is no other without a further library
        quantised = torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear}, dtype=torch.qint8)
    return quantised, f"float32, and qint8 in {len(linear)} linear layers (dynamic quantisation takes no others)"


def _at_device(torch: Any, dtype: str, precision: Precision) -> Any:
    """Dtype of an input on the device: floating-point inputs are in the precision, others unchanged."""
    own = getattr(torch, dtype)
    return getattr(torch, HALF_DTYPES.get(precision, dtype)) if own.is_floating_point else own


def _described_outputs(torch: Any, module: Any, made: FactoryModel) -> tuple[TensorSpec, ...]:
    """Names, shapes and dtypes, from two inferences with other sizes: dimensions that differ are open."""
    small, large = (_traced(torch, module, made.inputs, size) for size in (2, 3))
    own_names = tuple(map(str, small)) if isinstance(small, Mapping) else ()
    names, few = named_outputs(tensors(torch, small), made.outputs or own_names)
    return tuple(
        TensorSpec(
            name=name,
            shape=tuple(size if size == other else None for size, other in zip(one.shape, two.shape, strict=True)),
            dtype=host_dtype(one.dtype),
        )
        for name, one, two in zip(names, few, tensors(torch, large), strict=True)
    )


def _traced(torch: Any, module: Any, inputs: tuple[TensorSpec, ...], size: int) -> Any:
    """What the module returns where every open dimension is `size`: on the meta device, unless it needs data."""

    def zeros(device: str) -> list[Any]:
        return [
            torch.zeros([each or size for each in spec.shape], dtype=getattr(torch, spec.dtype), device=device)
            for spec in inputs
        ]

    with torch.inference_mode():
        try:
            held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            empty = {name: tensor.to("meta") for name, tensor in held.items()}
            return torch.func.functional_call(module, empty, tuple(zeros("meta")))
        except Exception:
            return module(*zeros("cpu"))


def _exported(torch: Any, model: ModelSource, options: BackendOptions) -> Program:
    """A file of `torch.export.save`, which describes itself."""
    try:
        program = torch.export.load(str(model.path))
    except Exception as error:
        why = " ".join(str(error).split())[:300]
        raise BackendError(f"{model.path} is no program of torch.export that this PyTorch can read: {why}") from error
    _check_precision(program, model.name, options.precision)
    if options.device == "cuda":  # with its weights, and the constants that it creates
        program = import_module(f"{torch.__name__}.export.passes").move_to_device_pass(program, "cuda")
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    signature = program.graph_signature
    inputs, outputs = (
        tuple(_spec(torch, str(name), values.get(name)) for name in names)
        for names in (signature.user_inputs, signature.user_outputs)
    )
    return Program(
        module=program.module(),
        inputs=inputs,
        outputs=outputs,
        input_dtypes=[values[spec.name].dtype for spec in inputs],
        output_dtypes=[getattr(torch, spec.dtype) for spec in outputs],
        computes_in=HALF_DTYPES.get(options.precision, "float32"),
        exported=True,
    )


def _spec(torch: Any, name: str, value: Any) -> TensorSpec:
    if not isinstance(value, torch.Tensor):
        raise BackendError(f"{name!r} of the exported program is no tensor; export the model with tensors only")
    shape = tuple(size if isinstance(size, int) else None for size in value.shape)
    return TensorSpec(name=name, shape=shape, dtype=host_dtype(value.dtype))


def _check_precision(program: Any, name: str, precision: Precision) -> None:
    """Raise `BackendError` where the program would not compute in the reported precision."""
    sizes: Counter[str] = Counter()
    for tensor in program.state_dict.values():
        if tensor.is_floating_point():
            sizes[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    most = max(sizes, key=sizes.__getitem__, default="float32")
    if (own := precision_of_most({most: 1})) is None:
        raise BackendError(f"{name} is exported in {most}; export it in {precision}")
    check_own_precision(name, "torch.export", own, precision)
