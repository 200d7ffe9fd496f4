"""TensorFlow, and Keras 3 on TensorFlow: as a graph (`tf`, `keras`), or compiled by XLA (`tfxla`, `kerasxla`)."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np

from perfharness.backends.base import Backend, BackendOptions, imported
from perfharness.backends.models import (
    HALF_DTYPES,
    SAVED_MODEL,
    FactoryModel,
    ModelSource,
    Shape,
    call_factory,
    check_own_precision,
    described_model,
    named_outputs,
    precision_of_most,
)
from perfharness.backends.session import Array, Session, translated, translation
from perfharness.distribution import install_command
from perfharness.errors import BackendError, BackendUnavailableError
from perfharness.model.bench import TensorSpec

PACKAGES = {"keras": ("keras",), "tensorflow": ("tensorflow", "tensorflow-cpu")}
"""Module -> packages that install it."""

SIGNATURE = "serving_default"

ALIGNMENT_BYTES = 64
"""TensorFlow reads host arrays in place if their address is a multiple of this, and copies others."""

VARIABLES = ("TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS", "TF_XLA_FLAGS")

LAYERS_OF_XLA = "XLA fuses the layers of a model into its own kernels, and TensorFlow does not report their times"
LAYERS_OF_GRAPH = "TensorFlow reports operator times only in its profiler's traces for TensorBoard"


class TensorFlowBackend(Backend):
    """SavedModels, by signature; functions and `tf.Module`s in a `FactoryModel`.

    TensorFlow computes in the dtypes of a model's weights, so a model for fp16 or bf16 must be created in it.
    """

    name = "tensorflow"
    modes = ("tf", "tfxla")
    precisions = ("fp32", "tf32", "fp16", "bf16")
    suffixes = (SAVED_MODEL,)
    install = f"{install_command('tensorflow')}, for a GPU: pip install 'tensorflow[and-cuda]'"
    extra: Mapping[str, tuple[str, ...]] = {"signature": ()}

    def versions(self) -> dict[str, str]:
        """Version of TensorFlow."""
        return {"tensorflow": str(library().__version__)}

    def unsupported(self, options: BackendOptions) -> str | None:
        """Check for a GPU, and whether the number of threads can be set."""
        return _configured(options)

    def open(self, model: ModelSource, options: BackendOptions) -> Session:
        """Load the SavedModel or call the factory; the graph is built in `allocate`."""
        if model.path is not None:
            with translated(f"{model.path} cannot be loaded"):
                made = _signature(str(model.path), options.extra.get("signature", SIGNATURE))
        else:
            made = described_model(model, self.name, options.precision, "a function or a tf.Module")
            if not callable(made.model):
                raise BackendError(
                    f"the model of {model.factory} is a {type(made.model).__name__}, which cannot be called"
                )
        return TensorFlowSession(model.name, made, options)


class TensorFlowSession(Session):
    """A concrete function for the allocated shapes.

    `copy_in` passes the host arrays to TensorFlow in each round, like a service per batch; on the CPU it may read them
    in place.
    """

    def __init__(self, name: str, made: FactoryModel, options: BackendOptions) -> None:
        self._tf, self._options, self._names = library(), options, made.outputs
        self._xla = options.mode.endswith("xla")
        self.no_layer_times = LAYERS_OF_XLA if self._xla else LAYERS_OF_GRAPH
        self._model: Any = made.model
        self._concrete: Any = None
        self._on_device: list[Any] = []
        self._values: list[Any] = []
        self._fetched = False
        self._device = "/GPU:0" if options.device == "cuda" else "/CPU:0"
        self._tf.config.experimental.enable_tensor_float_32_execution(options.precision == "tf32")
        with translated(f"{name} could not be traced"):
            graph = self._made([spec.shape for spec in made.inputs], made.inputs)
        check_own_precision(name, "TensorFlow", precision_of_most(_weights(graph)), options.precision)
        super().__init__(made.inputs, map(_spec, self._names, graph.outputs))

    def device_memory_bytes(self) -> int | None:
        """Peak of TensorFlow's allocator since `allocate`."""
        if self._options.device == "cpu":
            return None
        return int(self._tf.config.experimental.get_memory_info("GPU:0")["peak"])

    def parameter_bytes(self) -> int | None:
        """Size of the graph's variables."""
        held = () if self._concrete is None else self._concrete.variables
        return sum((one.shape.num_elements() or 0) * one.dtype.size for one in held) or None

    def settings(self) -> dict[str, str]:
        """TensorFlow's settings."""
        threading = self._tf.config.threading
        settings = {
            "jit_compile": str(self._xla),
            "intra_op_parallelism_threads": str(threading.get_intra_op_parallelism_threads() or "TensorFlow's choice"),
            "inter_op_parallelism_threads": str(threading.get_inter_op_parallelism_threads() or "TensorFlow's choice"),
        }
        return settings | {name: os.environ[name] for name in VARIABLES if name in os.environ}

    def _made(self, shapes: Sequence[tuple[int | None, ...]], inputs: Sequence[TensorSpec]) -> Any:
        """Create the concrete function for these shapes."""
        tf = self._tf

        def traced(*values: Any) -> list[Any]:
            self._names, outputs = named_outputs(self._model(*values), self._names)
            return [self._whole(value) for value in outputs]

        signature = [
            tf.TensorSpec(shape, spec.dtype, name=f"input_{index}")
            for index, (shape, spec) in enumerate(zip(shapes, inputs, strict=True))
        ]
        with tf.device(self._device):
            return tf.function(traced, autograph=False, jit_compile=self._xla or None).get_concrete_function(*signature)

    def _whole(self, value: Any) -> Any:
        """Convert half precision to float32, as for the other frameworks."""
        tensor = self._tf.convert_to_tensor(value)
        return self._tf.cast(tensor, "float32") if tensor.dtype.name in HALF_DTYPES.values() else tensor

    def _allocate(self, shapes: dict[str, Shape]) -> None:
        arrays = {spec.name: aligned_zeros(shapes[spec.name], spec.dtype) for spec in self.inputs}
        if self._options.device == "cuda":
            self._tf.config.experimental.reset_memory_stats("GPU:0")
        with self.building():
            self._concrete = self._made([array.shape for array in arrays.values()], self.inputs)
            self._on_device = self._put(arrays.values())
            self._execute()  # on the first call, XLA compiles and oneDNN reorders weights
            self.synchronize()
        self._host = arrays

    def _put(self, arrays: Iterable[Array]) -> list[Any]:
        with self._tf.device(self._device):
            return [self._tf.convert_to_tensor(array) for array in arrays]

    def copy_in(self) -> None:
        """Pass the host arrays to TensorFlow."""
        self._on_device = []  # freed first, because XLA records its CUDA graphs again for arrays at other addresses
        self._on_device = self._put(self._host.values())

    def _execute(self) -> None:
        self._values = []
        self._values, self._fetched = list(self._concrete(*self._on_device)), False

    def copy_out(self) -> None:
        """Copy the outputs to the host, waiting for them."""
        try:
            self._values, self._fetched = [value.numpy() for value in self._values], True
        except Exception as error:
            raise translation(error, "the model could not be run") from error

    def synchronize(self) -> None:
        """Wait for the outputs on the device, unless copied to the host."""
        if self._values and not self._fetched and self._options.device == "cuda":
            self._tf.test.experimental.sync_devices()

    def _results(self) -> Sequence[Any]:
        return self._values

    def _free(self) -> None:
        self._on_device, self._values = [], []

    def _release(self) -> None:
        self._concrete = self._model = None


def aligned_zeros(shape: Shape, dtype: str) -> Array:
    """Create an array aligned to `ALIGNMENT_BYTES`."""
    kind = np.dtype(dtype)
    size_bytes = prod(shape) * kind.itemsize
    raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[begin : begin + size_bytes].view(kind).reshape(shape)


def library() -> Any:
    """Import `tensorflow` without its messages on stderr."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return imported("tensorflow", TensorFlowBackend.install)


def _configured(options: BackendOptions) -> str | None:
    """Set the number of threads and enable memory growth; returns the reason if that is impossible, or None.

    TensorFlow accepts these settings only before the first tensor.
    """
    config = library().config
    if options.device == "cuda":
        gpus = config.list_physical_devices("GPU")
        if not gpus:
            return "TensorFlow finds no GPU here (a CPU build, or missing CUDA libraries)"
        if not config.experimental.get_memory_growth(gpus[0]):  # else it reserves the whole GPU
            try:
                config.experimental.set_memory_growth(gpus[0], True)
            except RuntimeError:
                return "TensorFlow has started in this process and taken the whole GPU; use a separate process"
    if options.threads is None:
        return None
    for kind, wanted in (("intra", options.threads), ("inter", 1)):
        if getattr(config.threading, f"get_{kind}_op_parallelism_threads")() == wanted:
            continue
        try:
            getattr(config.threading, f"set_{kind}_op_parallelism_threads")(wanted)
        except RuntimeError:
            return (
                "TensorFlow has started in this process, so its number of threads cannot be changed; "
                f"use a separate process for {options.threads} threads"
            )
    return None


def _signature(path: str, name: str) -> FactoryModel:
    """A SavedModel's signature as a function, in the order of its input names."""
    loaded = library().saved_model.load(path)
    if name not in loaded.signatures:
        found = ", ".join(loaded.signatures) or "none"
        raise BackendError(f"{path} has no signature {name!r}; it has: {found} (extra option signature)")
    signature = loaded.signatures[name]
    specs = signature.structured_input_signature[1]

    def function(*values: Any, _keep: Any = loaded) -> Any:  # the signature does not keep the variables alive
        return signature(**dict(zip(specs, values, strict=True)))

    inputs = tuple(_spec(each, tensor) for each, tensor in specs.items())
    return FactoryModel(function, inputs, tuple(signature.structured_outputs))


def _spec(name: str, tensor: Any) -> TensorSpec:
    shape = tuple(tensor.shape) if tensor.shape.rank else ()
    return TensorSpec(name=name, shape=shape, dtype=tensor.dtype.as_numpy_dtype().dtype.name)


def _weights(concrete: Any) -> Counter[str]:
    """Element counts of a graph's floating-point variables and constants, by dtype."""
    functions = concrete.graph._functions.values()
    graphs = [concrete.graph, *(function.graph for function in functions if hasattr(function, "graph"))]
    operations = [operation for graph in graphs for operation in graph.get_operations() if operation.type == "Const"]
    elements: Counter[str] = Counter()
    for tensor in (*concrete.variables, *(operation.outputs[0] for operation in operations)):
        elements[tensor.dtype.name] += tensor.shape.num_elements() or 0
    return elements


class KerasBackend(Backend):
    """`.keras` files, and functions that return a `keras.Model` (in a `FactoryModel` if it has no `Input`s).

    The model is called as one function compiled by TensorFlow, like in `Model.predict`. In fp16 and bf16, every layer
    gets that dtype policy.
    """

    name = "keras"
    modes = ("keras", "kerasxla")
    precisions = ("fp32", "tf32", "fp16", "bf16")
    suffixes = (".keras",)
    install = f"{install_command('keras')}, and tensorflow as its backend"

    def versions(self) -> dict[str, str]:
        """Versions of Keras and TensorFlow from package metadata, because importing them takes seconds."""
        found: dict[str, str] = {}
        for module, packages in PACKAGES.items():
            for package in packages:
                with suppress(PackageNotFoundError):
                    found.setdefault(module, version(package))
        if "keras" not in found:
            raise BackendUnavailableError(f"keras is not installed: {self.install}")
        return found

    def unsupported(self, options: BackendOptions) -> str | None:
        """Check for TensorFlow and a GPU, and whether the number of threads can be set."""
        for module in PACKAGES:
            if module not in sys.modules and find_spec(module) is None:
                return f"{module} is not installed: {self.install}"
        if options.device == "cpu" and options.threads is None:
            return None  # avoids importing the framework, which takes seconds
        return _configured(options)

    def open(self, model: ModelSource, options: BackendOptions) -> Session:
        """Load the file or call the factory; compiled in `allocate`."""
        os.environ["KERAS_BACKEND"] = "tensorflow"  # read when keras is imported
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        keras = imported("keras", self.install, "keras on tensorflow")
        if (loaded := keras.backend.backend()) != "tensorflow":
            raise BackendUnavailableError(
                f"Keras was imported with its {loaded} backend in this process; use a separate process"
            )
        if (problem := _configured(options)) is not None:
            raise BackendUnavailableError(f"{self.name}: {problem}")
        if model.path is not None:
            with translated(f"{model.path} cannot be loaded"):
                returned = keras.saving.load_model(str(model.path), compile=False)
        else:
            returned = call_factory(model, self.name, options.precision)
        given = returned if isinstance(returned, FactoryModel) else FactoryModel(returned, ())
        if not isinstance(given.model, keras.Model):
            raise BackendError(f"{model.name} is a {type(given.model).__name__}; for keras it must be a keras.Model")
        with translated(f"{model.name}'s layers cannot be converted to {options.precision}"):
            network = _in_precision(keras, given.model, options)

        def called(*values: Any) -> Any:
            return network(_packed(keras, network, values), training=False)

        made = FactoryModel(
            called, given.inputs or _inputs(network, model.name), given.outputs or _output_names(network)
        )
        return TensorFlowSession(model.name, made, options)


def _in_precision(keras: Any, network: Any, options: BackendOptions) -> Any:
    """The model with every layer in fp16 or bf16 and rounded weights; unchanged for other precisions."""
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
    """Declared inputs of the model. Raises `BackendError` if there are none."""
    tensors = getattr(network, "inputs", None)
    if not tensors:
        raise BackendError(
            f"{name} declares no inputs; build it from keras.Input, or return a FactoryModel that names them"
        )
    return tuple(TensorSpec(name=tensor.name, shape=tuple(tensor.shape), dtype=str(tensor.dtype)) for tensor in tensors)


def _output_names(network: Any) -> tuple[str, ...]:
    """Names of the output layers; empty if two are equal or the model names its outputs itself."""
    names = tuple(getattr(network, "output_names", None) or ())
    if isinstance(getattr(network, "output", None), dict) or len(set(names)) != len(names):
        return ()
    return names


def _packed(keras: Any, network: Any, values: Sequence[Any]) -> Any:
    """Inputs in the structure declared by the model."""
    declared = getattr(network, "input", None) if getattr(network, "inputs", None) else None
    if declared is None:
        return values[0] if len(values) == 1 else list(values)
    return keras.tree.pack_sequence_as(declared, list(values))
