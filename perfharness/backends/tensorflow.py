"""TensorFlow: SavedModels and functions, as a graph (`tf`) or compiled by XLA (`tfxla`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy.typing as npt

from perfharness.backends.base import (
    SAVED_MODEL,
    Backend,
    BackendOptions,
    LayerTime,
    ModelSource,
    Session,
)
from perfharness.backends.function_session import (
    HALF_DTYPES,
    FunctionSession,
    described_model,
    named_outputs,
    own_precision_problem,
    with_errors,
)
from perfharness.backends.models import call_factory
from perfharness.errors import BackendError, BackendUnavailableError
from perfharness.model.bench import TensorSpec
from perfharness.model.distribution import install_command

MODES = {"tf": False, "tfxla": True}
"""Mode -> whether XLA compiles the graph."""

SIGNATURE = "serving_default"

Function = Callable[..., Any]


class TensorFlowBackend(Backend):
    """SavedModels, by their signature; functions and `tf.Module`s in a `FactoryModel`.

    TensorFlow computes in the dtypes of a model's weights, so a model in fp16 or bf16 must have been made in it.
    """

    name = "tensorflow"
    modes = tuple(MODES)
    precisions = ("fp32", "tf32", "fp16", "bf16")
    suffixes = (SAVED_MODEL,)
    install = f"{install_command('tensorflow')}, for a GPU: pip install 'tensorflow[and-cuda]'"
    extra = ("signature",)

    def versions(self) -> dict[str, str]:
        """Of tensorflow."""
        return {"tensorflow": str(imported(self.install).__version__)}

    def problem(self, options: BackendOptions) -> str | None:
        """Not installed, no GPU, tf32 on a CPU, or a number of threads other than TensorFlow's."""
        if (problem := self.option_problem(options, self.extra)) is not None:
            return problem
        try:
            tensorflow = imported(self.install)
        except BackendUnavailableError as error:
            return str(error)
        return configured(tensorflow, options)

    def load(self, model: ModelSource, options: BackendOptions) -> Session:
        """Load the SavedModel or call the factory; the graph is made in `allocate`."""
        self.check(options)
        self.check_model(model)
        tensorflow = imported(self.install)
        xla = MODES[options.mode or self.modes[0]]
        if model.path is not None:
            signature = options.extra.get("signature", SIGNATURE)
            function, inputs, names = with_errors(
                lambda: _signature(tensorflow, str(model.path), signature), f"{model.path} cannot be loaded"
            )
            return TensorFlowSession(tensorflow, model.name, function, inputs, names, options, xla)
        made = described_model(
            call_factory(model, self.name, options.precision), model, self.name, "a function or a tf.Module"
        )
        if not callable(made.model):
            raise BackendError(f"the model of {model.factory} is a {type(made.model).__name__}, which cannot be called")
        return TensorFlowSession(tensorflow, model.name, made.model, made.inputs, made.outputs, options, xla)


class TensorFlowSession(FunctionSession):
    """A concrete function for the shapes that were allocated.

    Args:
        function: of tensors, in the order of `inputs`.
        names: of the outputs, or empty.
        xla: whether XLA compiles it.
    """

    def __init__(
        self,
        tensorflow: Any,
        name: str,
        function: Function,
        inputs: Sequence[TensorSpec],
        names: Sequence[str],
        options: BackendOptions,
        xla: bool,
    ) -> None:
        self._tf, self._options, self._names, self._xla = tensorflow, options, tuple(names), xla
        self._model: Function | None = function
        self._concrete: Any = None
        self._device = "/GPU:0" if options.device == "cuda" else "/CPU:0"
        tensorflow.config.experimental.enable_tensor_float_32_execution(options.precision == "tf32")
        graph = with_errors(lambda: self._made([spec.shape for spec in inputs], inputs), f"{name} could not be traced")
        if (problem := own_precision_problem(name, "TensorFlow", _weights(graph), options.precision)) is not None:
            raise BackendError(problem)
        outputs = [
            TensorSpec(
                name=each,
                shape=tuple(tensor.shape) if tensor.shape.rank else (),
                dtype=tensor.dtype.as_numpy_dtype().dtype.name,
            )
            for each, tensor in zip(self._names, graph.outputs, strict=True)
        ]
        super().__init__(inputs, outputs)

    def device_memory_bytes(self) -> int | None:
        """Peak of TensorFlow's allocator since `allocate`."""
        if self._options.device == "cpu":
            return None
        return int(self._tf.config.experimental.get_memory_info("GPU:0")["peak"])

    def settings(self) -> dict[str, str]:
        """Settings of TensorFlow."""
        threading = self._tf.config.threading
        settings = {
            "jit_compile": str(self._xla),
            "intra_op_parallelism_threads": str(threading.get_intra_op_parallelism_threads() or "TensorFlow's choice"),
            "inter_op_parallelism_threads": str(threading.get_inter_op_parallelism_threads() or "TensorFlow's choice"),
        }
        for variable in ("TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS", "TF_XLA_FLAGS"):
            if variable in os.environ:
                settings[variable] = os.environ[variable]
        return settings

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """None: only TensorFlow's profiler has them, in a trace for TensorBoard."""
        del rounds
        if self._xla:
            return "XLA fuses a model's layers into kernels of its own, and TensorFlow does not report their times"
        return "TensorFlow reports the times of operators only in its profiler's traces for TensorBoard"

    def _made(self, shapes: Sequence[tuple[int | None, ...]], inputs: Sequence[TensorSpec]) -> Any:
        """The concrete function for these shapes."""
        tf = self._tf

        def traced(*values: Any) -> list[Any]:
            if self._model is None:
                raise BackendError("the session is closed; load the model again")
            self._names, outputs = named_outputs(self._model(*values), self._names)
            return [self._whole(value) for value in outputs]

        signature = [
            tf.TensorSpec(shape, spec.dtype, name=f"input_{index}")
            for index, (shape, spec) in enumerate(zip(shapes, inputs, strict=True))
        ]
        with tf.device(self._device):
            return tf.function(traced, autograph=False, jit_compile=self._xla or None).get_concrete_function(*signature)

    def _whole(self, value: Any) -> Any:
        """Half precision as float32, as with the other frameworks."""
        tensor = self._tf.convert_to_tensor(value)
        return self._tf.cast(tensor, "float32") if tensor.dtype.name in HALF_DTYPES.values() else tensor

    def _compile(self, arrays: list[npt.NDArray[Any]]) -> None:
        if self._options.device == "cuda":
            self._tf.config.experimental.reset_memory_stats("GPU:0")
        self._concrete = self._made([array.shape for array in arrays], self.inputs)
        self._wait(self._call(self._put(arrays)))  # XLA compiles, and oneDNN orders weights, at the first call

    def _put(self, arrays: list[npt.NDArray[Any]]) -> list[Any]:
        with self._tf.device(self._device):
            return [self._tf.convert_to_tensor(array) for array in arrays]

    def _call(self, inputs: list[Any]) -> list[Any]:
        return list(self._concrete(*inputs))

    def _fetch(self, outputs: list[Any]) -> list[Any]:
        return [output.numpy() for output in outputs]

    def _wait(self, values: list[Any]) -> list[Any]:
        if not self._fetched and self._options.device == "cuda":
            self._tf.test.experimental.sync_devices()
        return values

    def _release(self) -> None:
        self._concrete = self._model = None


def imported(install: str) -> Any:
    """Import `tensorflow` without its messages on stderr."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        return import_module("tensorflow")
    except ImportError:
        raise BackendUnavailableError(f"tensorflow is not installed: {install}") from None


def configured(tensorflow: Any, options: BackendOptions) -> str | None:
    """Set the options' number of threads, and let memory grow; why that is not possible, or None.

    TensorFlow accepts them only before the first tensor.
    """
    config = tensorflow.config
    if options.device == "cuda":
        gpus = config.list_physical_devices("GPU")
        if not gpus:
            return "TensorFlow finds no GPU here (a build for the CPU, or CUDA's libraries are missing)"
        if not config.experimental.get_memory_growth(gpus[0]):  # else it reserves the whole GPU
            try:
                config.experimental.set_memory_growth(gpus[0], True)
            except RuntimeError:
                return "TensorFlow has started in this process and has taken the whole GPU; use a process of its own"
    if options.threads is None:
        return None
    for kind, wanted in (("intra", options.threads), ("inter", 1)):
        if getattr(config.threading, f"get_{kind}_op_parallelism_threads")() == wanted:
            continue
        try:
            getattr(config.threading, f"set_{kind}_op_parallelism_threads")(wanted)
        except RuntimeError:
            return (
                "TensorFlow has started in this process and its number of threads cannot be changed; "
                f"for {options.threads} use a process of its own"
            )
    return None


def _signature(tensorflow: Any, path: str, name: str) -> tuple[Function, tuple[TensorSpec, ...], tuple[str, ...]]:
    """A SavedModel's signature as a function in the order of its inputs' names, its inputs, its outputs' names."""
    loaded = tensorflow.saved_model.load(path)
    if name not in loaded.signatures:
        found = ", ".join(loaded.signatures) or "none"
        raise BackendError(f"{path} has no signature {name!r}; it has: {found} (extra option signature)")
    signature = loaded.signatures[name]
    specs = signature.structured_input_signature[1]
    order = tuple(specs)
    inputs = tuple(
        TensorSpec(name=each, shape=tuple(specs[each].shape), dtype=specs[each].dtype.as_numpy_dtype().dtype.name)
        for each in order
    )

    def function(*values: Any, _keep: Any = loaded) -> Any:  # the signature alone does not keep the variables
        return signature(**dict(zip(order, values, strict=True)))

    return function, inputs, tuple(signature.structured_outputs)


def _weights(concrete: Any) -> dict[str, int]:
    """Dtype -> number of elements of a graph's floating-point variables and constants."""
    elements: dict[str, int] = {}
    graphs = [
        concrete.graph,
        *(function.graph for function in concrete.graph._functions.values() if hasattr(function, "graph")),
    ]
    constants = [
        operation.outputs[0] for graph in graphs for operation in graph.get_operations() if operation.type == "Const"
    ]
    for tensor in (*concrete.variables, *constants):
        if tensor.dtype.is_floating:
            elements[tensor.dtype.name] = elements.get(tensor.dtype.name, 0) + (tensor.shape.num_elements() or 0)
    return elements
