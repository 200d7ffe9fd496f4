"""The program that PyTorch runs: a factory's module or a torch.export file, described, in the requested precision."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from perfharness.backends.base import BackendOptions, FactoryModel, ModelSource
from perfharness.backends.models import call_factory
from perfharness.errors import BackendError
from perfharness.model.bench import Precision, TensorSpec

NARROW: dict[Precision, str] = {"fp16": "float16", "bf16": "bfloat16"}
"""Precisions that are a dtype of weights and activations."""

SAFE_VARIABLE, UNSAFE_VARIABLE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""PyTorch's environment variables that override what `torch.load` unpickles."""


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

    def release(self) -> None:
        """Release the weights."""
        self.module = None


def load_program(torch: Any, model: ModelSource, options: BackendOptions) -> Program:
    """The model's module, still on the CPU. Raises `BackendError`."""
    if model.path is not None:
        return _exported(torch, model, options)
    made = call_factory(model, "torch", options.precision)
    if not isinstance(made, FactoryModel):
        raise BackendError(
            f"{model.factory} returned a {type(made).__name__} for torch; it must return a FactoryModel, for a module "
            "does not tell its inputs"
        )
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
    if precision in NARROW:
        return module.to(getattr(torch, NARROW[precision])), NARROW[precision]
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
    return getattr(torch, NARROW[precision]) if precision in NARROW and own.is_floating_point else own


def _described_outputs(torch: Any, module: Any, made: FactoryModel) -> tuple[TensorSpec, ...]:
    """Names, shapes and dtypes, found by two inferences on the meta device with different open dimensions."""
    small, large = (_traced(torch, module, made.inputs, size) for size in (2, 3))
    names = list(made.outputs) or small[0]
    if len(names) != len(small[1]):
        raise BackendError(f"the model returns {len(small[1])} outputs, and {len(names)} names are given for them")
    return tuple(
        TensorSpec(
            name=name,
            shape=tuple(size if size == other else None for size, other in zip(one.shape, two.shape, strict=True)),
            dtype=_numpy_dtype(torch, one.dtype),
        )
        for name, one, two in zip(names, small[1], large[1], strict=True)
    )


def _traced(torch: Any, module: Any, inputs: tuple[TensorSpec, ...], size: int) -> tuple[list[str], list[Any]]:
    """Names and values of the outputs where every open dimension is `size`, on the meta device."""
    shapes = [tuple(size if each is None else each for each in spec.shape) for spec in inputs]
    dtypes = [getattr(torch, spec.dtype) for spec in inputs]
    with torch.inference_mode():
        try:
            held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            empty = {name: tensor.to("meta") for name, tensor in held.items()}
            given = [
                torch.zeros(shape, dtype=dtype, device="meta") for shape, dtype in zip(shapes, dtypes, strict=True)
            ]
            made = torch.func.functional_call(module, empty, tuple(given))
        except Exception:  # the model needs data
            made = module(*(torch.zeros(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)))
    found = tensors(torch, made)
    names = list(made) if isinstance(made, Mapping) else [f"output_{number}" for number in range(len(found))]
    return [str(name) for name in names], found


def _exported(torch: Any, model: ModelSource, options: BackendOptions) -> Program:
    """A file of `torch.export.save`, which describes itself."""
    try:
        with weights_only():
            program = torch.export.load(str(model.path))
    except Exception as error:
        why = " ".join(str(error).split())[:300]
        raise BackendError(f"{model.path} is no program of torch.export that this PyTorch can read: {why}") from error
    _check_precision(torch, program, model.name, options.precision)
    if options.device == "cuda":
        program = _on_gpu(torch, program)
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
        output_dtypes=[
            torch.float32 if values[spec.name].dtype == torch.bfloat16 else values[spec.name].dtype for spec in outputs
        ],
        computes_in=NARROW.get(options.precision, "float32"),
        exported=True,
    )


@contextmanager
def weights_only() -> Iterator[None]:
    """While open, PyTorch unpickles tensors and nothing else, unless the user's environment allows more.

    `torch.export.load` passes `weights_only=False`, and unpickles any object of a program.
    """
    if os.environ.get(UNSAFE_VARIABLE):
        yield
        return
    before = os.environ.get(SAFE_VARIABLE)
    os.environ[SAFE_VARIABLE] = "1"
    try:
        package: Any = import_module("torch.export.pt2_archive._package")
    except ImportError:  # only before PyTorch 2.8
        package = None
    unpickler = getattr(package, "pickle", None)
    if unpickler is not None:
        package.pickle = _NoPickle()
    try:
        yield
    finally:
        if unpickler is not None:
            package.pickle = unpickler
        if before is None:
            del os.environ[SAFE_VARIABLE]
        else:
            os.environ[SAFE_VARIABLE] = before


class _NoPickle:
    """Replaces the module `pickle` while a file is read."""

    def loads(self, _content: bytes) -> Any:
        """Refuse."""
        raise BackendError(f"it holds pickled objects, which may run any code; {UNSAFE_VARIABLE}=1 allows them")


def _on_gpu(torch: Any, program: Any) -> Any:
    """The program with its weights, and the constants that it creates, on the GPU."""
    return import_module(f"{torch.__name__}.export.passes").move_to_device_pass(program, "cuda")


def _spec(torch: Any, name: str, value: Any) -> TensorSpec:
    if not isinstance(value, torch.Tensor):
        raise BackendError(f"{name!r} of the exported program is no tensor; export the model with tensors only")
    shape = tuple(size if isinstance(size, int) else None for size in value.shape)
    return TensorSpec(name=name, shape=shape, dtype=_numpy_dtype(torch, value.dtype))


def _numpy_dtype(torch: Any, dtype: Any) -> str:
    """NumPy's name; bfloat16, which NumPy does not have, becomes float32."""
    return "float32" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch.")


def _check_precision(torch: Any, program: Any, name: str, precision: Precision) -> None:
    """Raise `BackendError` where the program would not compute in the reported precision."""
    sizes: dict[Any, int] = {}
    for tensor in program.state_dict.values():
        if tensor.is_floating_point():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
    most = max(sizes.items(), key=lambda each: each[1])[0] if sizes else torch.float32
    own: dict[Any, tuple[Precision, ...]] = {
        torch.float32: ("fp32", "tf32"),
        torch.float16: ("fp16",),
        torch.bfloat16: ("bf16",),
    }
    if precision not in own.get(most, ()):
        raise BackendError(
            f"{name} is exported in {str(most).removeprefix('torch.')}, and an exported program computes in its own "
            f"precision; ask for {' or '.join(own.get(most, ())) or 'another model'}, or export it in {precision}"
        )
