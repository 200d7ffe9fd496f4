"""Keras 3 on its TensorFlow, JAX and PyTorch backends, one per process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, NamedTuple

from perfharness.backends import jax as jax_backend
from perfharness.backends import tensorflow as tensorflow_backend
from perfharness.backends.base import Backend, BackendOptions, imported
from perfharness.backends.models import (
    HALF_DTYPES,
    FactoryModel,
    ModelSource,
    call_factory,
    named_outputs,
    specs_of,
    with_size,
)
from perfharness.backends.session import Array, FunctionSession, Session, translated
from perfharness.errors import BackendError, BackendUnavailableError
from perfharness.model.bench import TensorSpec
from perfharness.model.distribution import install_command


class Mode(NamedTuple):
    """The framework below Keras, and whether XLA compiles the model."""

    framework: str
    xla: bool


MODES = {
    "keras": Mode("tensorflow", xla=False),
    "kerasxla": Mode("tensorflow", xla=True),
    "kerasxla-jax": Mode("jax", xla=True),
    "keras-torch": Mode("torch", xla=False),
}
"""There is no Keras without XLA on JAX: each operation would be compiled by XLA separately."""

PACKAGES = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "jax": ("jax",), "torch": ("torch",)}


class KerasBackend(Backend):
    """`.keras` files, and functions that return a `keras.Model` (in a `FactoryModel` where it has no `Input`s).

    The model is called as one function that TensorFlow or JAX compiles, as `Model.predict` does it; on PyTorch it is
    called as it is. In fp16 and bf16 every layer gets that dtype policy.
    """

    name = "keras"
    modes = tuple(MODES)
    precisions = ("fp32", "tf32", "fp16", "bf16")
    suffixes = (".keras",)
    install = f"{install_command('keras')}, and tensorflow, jax or torch for it to compute with"

    def versions(self) -> dict[str, str]:
        """Of keras, and of the framework in use, or of all installed ones while none is in use."""
        found = {"keras": _version(("keras",))}
        if found["keras"] is None:
            raise BackendUnavailableError(f"keras is not installed: {self.install}")
        loaded = _loaded_framework()
        for framework in (loaded,) if loaded is not None else PACKAGES:
            found[framework] = _version(PACKAGES[framework])
        return {package: text for package, text in found.items() if text is not None}

    def unsupported(self, options: BackendOptions) -> str | None:
        """No framework below, no GPU, or Keras is in use here on another framework."""
        framework = _mode(options).framework
        for package in ("keras", framework):
            if package not in sys.modules and find_spec(package) is None:
                return f"{package} is not installed: {self.install}"
        if (loaded := _loaded_framework()) not in (None, framework):
            return (
                f"Keras was imported with its {loaded} backend in this process, and cannot change to {framework}; run "
                "it in a process of its own, as perfharness bench does"
            )
        if options.device == "cpu" and options.threads is None:
            return None  # nothing that needs the framework: importing it takes seconds
        return _framework_problem(framework, options)

    def open(self, model: ModelSource, options: BackendOptions) -> Session:
        """Load the file or call the factory; it is compiled in `allocate`."""
        mode = _mode(options)
        os.environ["KERAS_BACKEND"] = mode.framework  # read once, when keras is imported
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        keras = imported("keras", self.install, f"keras on {mode.framework}")
        if (problem := _framework_problem(mode.framework, options)) is not None:
            raise BackendUnavailableError(f"{self.name}: {problem}")
        if model.path is not None:
            with translated(f"{model.path} cannot be loaded"):
                returned = keras.saving.load_model(str(model.path), compile=False)
        else:
            returned = call_factory(model, self.name, options.precision)
        given = returned if isinstance(returned, FactoryModel) else FactoryModel(returned, ())
        if not isinstance(given.model, keras.Model):
            raise BackendError(f"{model.name} is a {type(given.model).__name__}; for keras it must be a keras.Model")
        with translated(f"{model.name}'s layers cannot be made anew in {options.precision}"):
            network = in_precision(keras, given.model, options)
        made = FactoryModel(
            network, given.inputs or _inputs(network, model.name), given.outputs or _output_names(network)
        )
        return _session(keras, mode, model.name, made, options)


def in_precision(keras: Any, network: Any, options: BackendOptions) -> Any:
    """The model with every layer in fp16 or bf16, the same weights rounded; as it is in other precisions."""
    wanted = HALF_DTYPES.get(options.precision, "float32")
    layers = [layer for layer in network._flatten_layers(include_self=False) if layer.weights]
    if all(layer.dtype_policy.name == wanted for layer in layers):
        return network

    def changed(layer: Any) -> Any:
        return type(layer).from_config({**layer.get_config(), "dtype": wanted})

    copy = keras.models.clone_model(network, clone_function=changed)
    copy.set_weights(network.get_weights())
    return copy


def _session(keras: Any, mode: Mode, name: str, made: FactoryModel, options: BackendOptions) -> Session:
    """A session of the framework below, with the model as its function."""
    network = made.model

    def called(*values: Any) -> Any:
        return network(_packed(keras, network, values), training=False)

    def stateless(variables: Any, *values: Any) -> Any:
        outputs, _ = network.stateless_call(*variables, _packed(keras, network, values), training=False)
        return outputs

    if mode.framework == "tensorflow":
        return _KerasTensorFlowSession(name, replace(made, model=called), options, mode.xla)
    if mode.framework == "torch":
        return KerasTorchSession(name, replace(made, model=called), options)
    groups = (network.trainable_variables, network.non_trainable_variables)
    parameters = tuple([each.value for each in group] for group in groups)
    return _KerasJaxSession(name, replace(made, model=(stateless, parameters)), options)


class _KerasTensorFlowSession(tensorflow_backend.TensorFlowSession):
    def settings(self) -> dict[str, str]:
        return {"keras backend": "tensorflow", **super().settings()}


class _KerasJaxSession(jax_backend.JaxSession):
    def settings(self) -> dict[str, str]:
        return {"keras backend": "jax", **super().settings()}


class KerasTorchSession(FunctionSession):
    """A Keras model on PyTorch, called without gradients."""

    compiles = False
    no_layer_times = (
        "Keras does not report the times of its layers; the backend torch does, for a model of PyTorch's own"
    )

    def __init__(self, name: str, made: FactoryModel, options: BackendOptions) -> None:
        self._torch = torch = imported("torch", KerasBackend.install)
        self._names, self._model = made.outputs, made.model
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        with translated(f"{name} could not be called"):
            few, more = (self._call(self._zeros(made.inputs, size)) for size in (1, 2))
        super().__init__(made.inputs, specs_of(self._names, few, more))

    def settings(self) -> dict[str, str]:
        """Settings of PyTorch."""
        return {"keras backend": "torch", "num_threads": str(self._torch.get_num_threads())}

    def _zeros(self, inputs: Sequence[TensorSpec], size: int) -> list[Any]:
        torch = self._torch
        return [torch.zeros(with_size(spec.shape, size), dtype=getattr(torch, spec.dtype)) for spec in inputs]

    def _compile(self, arrays: list[Array]) -> None:
        self._call(self._put(arrays))

    def _put(self, arrays: Iterable[Array]) -> list[Any]:
        return [self._torch.from_numpy(array) for array in arrays]

    def _call(self, inputs: list[Any]) -> list[Any]:
        with self._torch.inference_mode():
            self._names, values = named_outputs(self._model(*inputs), self._names)
            halves = (self._torch.float16, self._torch.bfloat16)
            return [value.float() if value.dtype in halves else value for value in values]

    def _release(self) -> None:
        self._model = None


def _mode(options: BackendOptions) -> Mode:
    return MODES[options.mode or KerasBackend.modes[0]]


def _loaded_framework() -> str | None:
    """The framework that Keras runs on in this process, or None while it is not imported."""
    keras = sys.modules.get("keras")
    return None if keras is None else str(keras.backend.backend())


def _framework_problem(framework: str, options: BackendOptions) -> str | None:
    """Why the framework below does not support the options here, or None; also sets threads and memory."""
    if framework == "torch":
        if options.device == "cuda":
            return "Keras on PyTorch is measured on the CPU only; take the backend torch, or keras on another framework"
        os.environ.setdefault("KERAS_TORCH_DEVICE", "cpu")
        return None
    if framework == "jax":
        return jax_backend.started(imported("jax", KerasBackend.install), options)
    return tensorflow_backend.configured(options)


def _version(packages: Sequence[str]) -> str | None:
    """Version of the first of these that is installed."""
    for package in packages:
        with suppress(PackageNotFoundError):
            return version(package)
    return None


def _inputs(network: Any, name: str) -> tuple[TensorSpec, ...]:
    """Inputs that the model declares. Raises `BackendError` where it does not."""
    tensors = getattr(network, "inputs", None)
    if not tensors:
        raise BackendError(
            f"{name} declares no inputs; make it from keras.Input, or return a FactoryModel that names them"
        )
    return tuple(TensorSpec(name=tensor.name, shape=tuple(tensor.shape), dtype=str(tensor.dtype)) for tensor in tensors)


def _output_names(network: Any) -> tuple[str, ...]:
    """Names of the layers that give the outputs; none where two are the same or the model names them itself."""
    names = tuple(getattr(network, "output_names", None) or ())
    if isinstance(getattr(network, "output", None), dict) or len(set(names)) != len(names):
        return ()
    return names


def _packed(keras: Any, network: Any, values: Sequence[Any]) -> Any:
    """The inputs in the structure in which the model declares them."""
    declared = getattr(network, "input", None) if getattr(network, "inputs", None) else None
    if declared is None:
        return values[0] if len(values) == 1 else list(values)
    return keras.tree.pack_sequence_as(declared, list(values))
