"""Keras 3 on TensorFlow, as a graph (`keras`) or compiled by XLA (`kerasxla`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from perfharness.backends.base import Backend, BackendOptions, imported
from perfharness.backends.models import HALF_DTYPES, FactoryModel, ModelSource, call_factory
from perfharness.backends.session import Session, translated
from perfharness.backends.tensorflow import TensorFlowSession, configured
from perfharness.distribution import install_command
from perfharness.errors import BackendError, BackendUnavailableError
from perfharness.model.bench import TensorSpec

MODES = {"keras": False, "kerasxla": True}
"""Mode -> whether XLA compiles the model."""

PACKAGES = {"keras": ("keras",), "tensorflow": ("tensorflow", "tensorflow-cpu")}
"""Module -> the packages that install it."""


class KerasBackend(Backend):
    """`.keras` files, and functions that return a `keras.Model` (in a `FactoryModel` where it has no `Input`s).

    The model is called as one function that TensorFlow compiles, as `Model.predict` does it. In fp16 and bf16 every
    layer gets that dtype policy.
    """

    name = "keras"
    modes = tuple(MODES)
    precisions = ("fp32", "tf32", "fp16", "bf16")
    suffixes = (".keras",)
    install = f"{install_command('keras')}, and tensorflow for it to compute with"

    def versions(self) -> dict[str, str]:
        """Of keras, and of TensorFlow where it is installed; importing them takes seconds."""
        found: dict[str, str] = {}
        for module, packages in PACKAGES.items():
            for package in packages:
                with suppress(PackageNotFoundError):
                    found.setdefault(module, version(package))
        if "keras" not in found:
            raise BackendUnavailableError(f"keras is not installed: {self.install}")
        return found

    def unsupported(self, options: BackendOptions) -> str | None:
        """No TensorFlow, no GPU, or another number of threads than TensorFlow's."""
        for module in PACKAGES:
            if module not in sys.modules and find_spec(module) is None:
                return f"{module} is not installed: {self.install}"
        if options.device == "cpu" and options.threads is None:
            return None  # nothing that needs the framework: importing it takes seconds
        return configured(options)

    def open(self, model: ModelSource, options: BackendOptions) -> Session:
        """Load the file or call the factory; it is compiled in `allocate`."""
        os.environ["KERAS_BACKEND"] = "tensorflow"  # read once, when keras is imported
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        keras = imported("keras", self.install, "keras on tensorflow")
        if (loaded := keras.backend.backend()) != "tensorflow":
            raise BackendUnavailableError(
                f"Keras was imported with its {loaded} backend in this process; run it in a process of its own"
            )
        if (problem := configured(options)) is not None:
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
            network = _in_precision(keras, given.model, options)

        def called(*values: Any) -> Any:
            return network(_packed(keras, network, values), training=False)

        made = FactoryModel(
            called, given.inputs or _inputs(network, model.name), given.outputs or _output_names(network)
        )
        return TensorFlowSession(model.name, made, options, MODES[options.mode or self.modes[0]])


def _in_precision(keras: Any, network: Any, options: BackendOptions) -> Any:
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
