"""Keras 3 on its TensorFlow, JAX and PyTorch backends, one per process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy.typing as npt

from perfharness.backends import jax as jax_backend
from perfharness.backends import tensorflow as tensorflow_backend
from perfharness.backends.base import Backend, BackendOptions, FactoryModel, LayerTime, ModelSource, Session
from perfharness.backends.function_session import HALF_DTYPES, FunctionSession, named_outputs, with_errors
from perfharness.backends.models import call_factory
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
    extra = ()

    def versions(self) -> dict[str, str]:
        """Of keras, and of the framework in use, or of all installed ones while none is in use."""
        found = {"keras": _version(("keras",))}
        if found["keras"] is None:
            raise BackendUnavailableError(f"keras is not installed: {self.install}")
        loaded = _loaded_framework()
        for framework in (loaded,) if loaded is not None else PACKAGES:
            found[framework] = _version(PACKAGES[framework])
        return {package: text for package, text in found.items() if text is not None}

    def problem(self, options: BackendOptions) -> str | None:
        """Not installed, no framework below, no GPU, or Keras is in use here on another framework."""
        if (problem := self.option_problem(options, self.extra)) is not None:
            return problem
        mode = _mode(options)
        for package in ("keras", mode.framework):
            if package not in sys.modules and find_spec(package) is None:
                return f"{package} is not installed: {self.install}"
        if (problem := _process_problem(mode.framework)) is not None:
            return problem
        if options.device == "cpu" and options.threads is None:
            return None  # nothing that needs the framework: importing it takes seconds
        return _framework_problem(mode.framework, options)

    def load(self, model: ModelSource, options: BackendOptions) -> Session:
        """Load the file or call the factory; it is compiled in `allocate`."""
        self.check(options)
        self.check_model(model)
        mode = _mode(options)
        keras = imported(mode.framework, self.install)
        if (problem := _framework_problem(mode.framework, options)) is not None:
            raise BackendUnavailableError(f"{self.name}: {problem}")
        if model.path is not None:
            loaded = with_errors(
                lambda: keras.saving.load_model(str(model.path), compile=False), f"{model.path} cannot be loaded"
            )
            made = FactoryModel(loaded, ())
        else:
            returned = call_factory(model, self.name, options.precision)
            made = returned if isinstance(returned, FactoryModel) else FactoryModel(returned, ())
        if not isinstance(made.model, keras.Model):
            raise BackendError(f"{model.name} is a {type(made.model).__name__}; for keras it must be a keras.Model")
        network = in_precision(keras, made.model, options)
        inputs = made.inputs or _inputs(network, model.name)
        names = made.outputs or _output_names(network)
        return _session(keras, mode, model.name, network, inputs, names, options)


def imported(framework: str, install: str) -> Any:
    """The module `keras` on this framework. Raises `BackendUnavailableError` where it runs on another one."""
    if (problem := _process_problem(framework)) is not None:
        raise BackendUnavailableError(f"keras: {problem}")
    os.environ["KERAS_BACKEND"] = framework  # read once, when keras is imported
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        return import_module("keras")
    except ImportError as error:
        raise BackendUnavailableError(f"keras cannot be imported with {framework} ({error}): {install}") from None


def in_precision(keras: Any, network: Any, options: BackendOptions) -> Any:
    """The model with every layer in fp16 or bf16, the same weights rounded; as it is in other precisions."""
    wanted = HALF_DTYPES.get(options.precision, "float32")
    layers = [layer for layer in network._flatten_layers(include_self=False) if layer.weights]
    if all(layer.dtype_policy.name == wanted for layer in layers):
        return network

    def changed(layer: Any) -> Any:
        return type(layer).from_config({**layer.get_config(), "dtype": wanted})

    def cloned() -> Any:
        copy = keras.models.clone_model(network, clone_function=changed)
        copy.set_weights(network.get_weights())
        return copy

    return with_errors(cloned, f"this model's layers cannot be made anew in {wanted}")


def _session(
    keras: Any,
    mode: Mode,
    name: str,
    network: Any,
    inputs: Sequence[TensorSpec],
    names: Sequence[str],
    options: BackendOptions,
) -> Session:
    """A session of the framework below, with the model as its function."""

    def called(*values: Any) -> Any:
        return network(_packed(keras, network, values), training=False)

    if mode.framework == "tensorflow":
        module = import_module("tensorflow")
        return _KerasTensorFlowSession(module, name, called, inputs, names, options, mode.xla)
    if mode.framework == "jax":
        parameters = tuple([each.value for each in group] for group in _variables(network))

        def stateless(variables: Any, *values: Any) -> Any:
            outputs, _ = network.stateless_call(*variables, _packed(keras, network, values), training=False)
            return outputs

        return _KerasJaxSession(import_module("jax"), name, stateless, parameters, inputs, names, options)
    return KerasTorchSession(import_module("torch"), name, called, inputs, names, options)


class _KerasTensorFlowSession(tensorflow_backend.TensorFlowSession):
    def settings(self) -> dict[str, str]:
        return {"keras backend": "tensorflow", **super().settings()}


class _KerasJaxSession(jax_backend.JaxSession):
    def settings(self) -> dict[str, str]:
        return {"keras backend": "jax", **super().settings()}


class KerasTorchSession(FunctionSession):
    """A Keras model on PyTorch, called without gradients."""

    compiles = False

    def __init__(
        self,
        torch: Any,
        name: str,
        function: Any,
        inputs: Sequence[TensorSpec],
        names: Sequence[str],
        options: BackendOptions,
    ) -> None:
        self._torch, self._options, self._names = torch, options, tuple(names)
        self._model: Any = function
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        few = with_errors(lambda: self._output_arrays(inputs, 1), f"{name} could not be called")
        more = with_errors(lambda: self._output_arrays(inputs, 2), f"{name} could not be called")
        outputs = [
            TensorSpec(
                name=each,
                shape=tuple(a if a == b else None for a, b in zip(small.shape, large.shape, strict=True)),
                dtype=str(small.dtype).removeprefix("torch."),
            )
            for each, small, large in zip(self._names, few, more, strict=True)
        ]
        super().__init__(inputs, outputs)

    def settings(self) -> dict[str, str]:
        """Settings of PyTorch."""
        return {"keras backend": "torch", "num_threads": str(self._torch.get_num_threads())}

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """Not available."""
        del rounds
        return "Keras does not report the times of its layers; the backend torch does, for a model of PyTorch's own"

    def _output_arrays(self, inputs: Sequence[TensorSpec], size: int) -> list[Any]:
        zeros = [
            self._torch.zeros([size if each is None else each for each in spec.shape], dtype=self._dtype(spec))
            for spec in inputs
        ]
        return self._call(zeros)

    def _dtype(self, spec: TensorSpec) -> Any:
        return getattr(self._torch, spec.dtype)

    def _compile(self, arrays: list[npt.NDArray[Any]]) -> None:
        self._call(self._put(arrays))

    def _put(self, arrays: list[npt.NDArray[Any]]) -> list[Any]:
        return [self._torch.from_numpy(array) for array in arrays]

    def _call(self, inputs: list[Any]) -> list[Any]:
        with self._torch.inference_mode():
            self._names, values = named_outputs(self._model(*inputs), self._names)
            halves = (self._torch.float16, self._torch.bfloat16)
            return [value.float() if value.dtype in halves else value for value in values]

    def _fetch(self, outputs: list[Any]) -> list[Any]:
        return [output.numpy() for output in outputs]

    def _wait(self, values: list[Any]) -> list[Any]:
        return values

    def _release(self) -> None:
        self._model = None


def _mode(options: BackendOptions) -> Mode:
    return MODES[options.mode or KerasBackend.modes[0]]


def _loaded_framework() -> str | None:
    """The framework that Keras runs on in this process, or None while it is not imported."""
    keras = sys.modules.get("keras")
    return None if keras is None else str(keras.backend.backend())


def _process_problem(framework: str) -> str | None:
    """Why Keras cannot run on this framework in this process, or None."""
    loaded = _loaded_framework()
    if loaded in (None, framework):
        return None
    return (
        f"Keras was imported with its {loaded} backend in this process, and cannot change to {framework}; run it in a "
        "process of its own, as perfharness bench does"
    )


def _framework_problem(framework: str, options: BackendOptions) -> str | None:
    """Why the framework below does not support the options here, or None; also sets threads and memory."""
    if framework == "torch":
        if options.device == "cuda":
            return "Keras on PyTorch is measured on the CPU only; take the backend torch, or keras on another framework"
        os.environ.setdefault("KERAS_TORCH_DEVICE", "cpu")
        return None
    try:
        if framework == "jax":
            return jax_backend.started(import_module("jax"), options)
        return tensorflow_backend.configured(tensorflow_backend.imported(KerasBackend.install), options)
    except (ImportError, BackendUnavailableError) as error:
        return f"{framework} cannot be imported: {error}"


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


def _variables(network: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    return network.trainable_variables, network.non_trainable_variables
