"""A TensorRT that computes ONNX models on the host, in a fake CUDA's streams, and refuses what the real one refuses.

Names, arguments and properties are those of the real bindings (`guard`, `tables/`). Its behaviour is that of
NVIDIA's documentation: nothing runs before all shapes and addresses are set, an engine of another version is
refused, failing calls return None or False and log the reason.
"""

from __future__ import annotations

import ctypes
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference

from tests.tensorrt.fake_cuda import FakeCuda
from tests.tensorrt.guard import Module
from tests.tensorrt.signatures import read_table

KINDS = {"float32": "FLOAT", "float16": "HALF", "int8": "INT8", "int32": "INT32", "int64": "INT64", "bool": "BOOL"}
ACTIVATION_BYTES = 1000


@dataclass
class World:
    """State shared by all objects of one fake TensorRT, and the faults that a test plants.

    Args:
        fails: name of a call -> the message that it logs instead of doing anything.
        started: classes that were made from a logger.
        builds: networks that were built.
    """

    cuda: FakeCuda
    fails: dict[str, str] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    builds: int = 0
    contexts: int = 0
    profiled_runs: int = 0
    plain_runs: int = 0

    def refused(self, call: str, logger: Any) -> bool:
        if call not in self.fails:
            return False
        logger.log(logger.Severity.ERROR, self.fails[call])
        return True


def fake_tensorrt(version: str, cuda: FakeCuda) -> tuple[Any, World]:
    """Replaces the module `tensorrt` or `tensorrt_rtx`."""
    module, world = Module(read_table(version)), World(cuda)
    severity = module.enum("ILogger.Severity")
    module.ILogger = type("ILogger", (), {"Severity": severity, "__init__": lambda self: None})  # type: ignore[attr-defined]
    module.IProfiler = type("IProfiler", (), {"__init__": lambda self: None})  # type: ignore[attr-defined]
    for cls in (
        *(Builder, IBuilderConfig, ICudaEngine, IExecutionContext, IHostMemory),
        *(INetworkDefinition, IOptimizationProfile, IRuntimeConfig, ITensor),
        *(OnnxParser, ParserError, Runtime),
    ):
        module.offer(cls, _world=world)
    return module, world


class _Object:
    _module: Any
    _world: World

    def _made(self, name: str, *arguments: Any) -> Any:
        return getattr(self._module, name)(*arguments)

    def _log(self, message: str) -> None:
        self._logger.log(self._logger.Severity.ERROR, message)

    _logger: Any = None


@dataclass
class IHostMemory(_Object):
    _data: bytes

    def __bytes__(self) -> bytes:  # the real one is a buffer
        return self._data


@dataclass
class ITensor(_Object):
    _name: str
    _shape: tuple[int, ...]
    _kind: str
    name = property(lambda self: self._name)
    shape = property(lambda self: self._shape)
    dtype = property(lambda self: self._module.DataType[self._kind])


@dataclass
class ParserError(_Object):
    _description: str

    def desc(self) -> str:
        return self._description

    def node_name(self) -> str:
        return "a_node"

    def node_operator(self) -> str:
        return "Frobnicate"


@dataclass
class INetworkDefinition(_Object):
    _flags: int
    _model: Any = None
    num_inputs = property(lambda self: len(self._model.graph.input))
    num_outputs = property(lambda self: len(self._model.graph.output))

    def get_input(self, index: int) -> Any:
        return self._made("ITensor", *_described(self._model.graph.input[index]))

    def get_output(self, index: int) -> Any:
        return self._made("ITensor", *_described(self._model.graph.output[index]))


@dataclass
class OnnxParser(_Object):
    _network: Any
    _logger: Any
    _errors: list[str] = field(default_factory=list)
    num_errors = property(lambda self: len(self._errors))

    def parse(self, model: bytes, path: str | None = None) -> bool:
        del path
        if "parse" in self._world.fails:
            self._errors.append(self._world.fails["parse"])
            return False
        self._network._model = onnx.load_from_string(model)
        return True

    def parse_from_file(self, model: str) -> bool:
        return self.parse(Path(model).read_bytes())

    def get_error(self, index: int) -> Any:
        return self._made("ParserError", self._errors[index])


@dataclass
class IOptimizationProfile(_Object):
    _shapes: dict[str, Any] = field(default_factory=dict)

    def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:  # noqa: A002
        if not len(min) == len(opt) == len(max):
            raise ValueError("inconsistent dimensions")
        self._shapes[input] = (tuple(min), tuple(opt), tuple(max))


class IBuilderConfig(_Object):
    def __init__(self) -> None:
        self._profiles: list[Any] = []
        self._flags = {"TF32"}  # on by default
        self._limit = 1 << 33
        self.builder_optimization_level = 3

    def add_optimization_profile(self, profile: Any) -> int:
        self._profiles.append(profile._shapes)
        return len(self._profiles) - 1

    def clear_flag(self, flag: Any) -> None:
        self._flags.discard(flag.name)

    def set_flag(self, flag: Any) -> None:
        self._flags.add(flag.name)

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        assert pool.name == "WORKSPACE"
        self._limit = pool_size

    def get_memory_pool_limit(self, pool: Any) -> int:
        return self._limit


class Builder(_Object):
    def __init__(self, logger: Any) -> None:
        self._logger = logger
        if self._world.refused("Builder", logger):
            raise TypeError("pybind11::init(): factory function returned nullptr")

    def create_network(self, flags: int = 0) -> Any:
        return self._made("INetworkDefinition", flags)

    def create_builder_config(self) -> Any:
        return self._made("IBuilderConfig")

    def create_optimization_profile(self) -> Any:
        return self._made("IOptimizationProfile")

    def build_serialized_network(self, network: Any, config: Any) -> Any:
        if self._world.refused("build_serialized_network", self._logger):
            return None
        inputs = [_described(each) for each in network._model.graph.input]
        if any(-1 in shape for _, shape, _ in inputs) and not config._profiles:
            self._log("Network has dynamic or shape inputs, but no optimization profile has been defined.")
            return None
        self._world.builds += 1
        description = {
            "version": self._module.__version__,
            "profiles": config._profiles,
            "flags": sorted(config._flags),
            "strong": bool(network._flags),
            "model": network._model.SerializeToString(),
        }
        return self._made("IHostMemory", b"FAKE" + pickle.dumps(description))


class Runtime(_Object):
    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._world.started.append("Runtime")

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
        if self._world.refused("deserialize_cuda_engine", self._logger):
            return None
        if not serialized_engine.startswith(b"FAKE"):
            self._log("IRuntime::deserializeCudaEngine: Error Code 1: Serialization (magicTag does not match)")
            return None
        description = pickle.loads(serialized_engine[4:])
        if description["version"] != self._module.__version__:
            self._log(
                "The engine plan file is not compatible with this version of TensorRT, expecting library version "
                f"{self._module.__version__} got {description['version']}, please rebuild."
            )
            return None
        return self._made("ICudaEngine", description, self._logger)


class ICudaEngine(_Object):
    def __init__(self, description: dict[str, Any], logger: Any) -> None:
        self._description, self._logger = description, logger
        self._model = onnx.load_from_string(description["model"])
        graph = self._model.graph
        self._inputs = {each.name: _described(each) for each in graph.input}
        self._outputs = {each.name: _described(each) for each in graph.output}

    num_io_tensors = property(lambda self: len(self._inputs) + len(self._outputs))
    num_optimization_profiles = property(lambda self: max(1, len(self._description["profiles"])))
    device_memory_size = property(lambda self: ACTIVATION_BYTES)
    device_memory_size_v2 = property(lambda self: ACTIVATION_BYTES)

    def get_tensor_name(self, index: int) -> str:
        return str([*self._inputs, *self._outputs][index])

    def get_tensor_mode(self, name: str) -> Any:
        return self._module.TensorIOMode["INPUT" if name in self._inputs else "OUTPUT"]

    def get_tensor_location(self, name: str) -> Any:
        return self._module.TensorLocation["HOST" if "host" in name else "DEVICE"]

    def get_tensor_shape(self, name: str) -> Any:
        return (self._inputs | self._outputs)[name][1]

    def get_tensor_dtype(self, name: str) -> Any:
        return self._module.DataType[(self._inputs | self._outputs)[name][2]]

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Any]:
        return list(self._description["profiles"][profile_index][name])

    def create_runtime_config(self) -> Any:
        return self._made("IRuntimeConfig")

    def create_execution_context(self, strategy: Any = None) -> Any:
        if self._world.refused("create_execution_context", self._logger):
            return None
        if self._world.cuda.used_bytes() + ACTIVATION_BYTES > self._world.cuda.room_bytes:
            self._log("Requested amount of GPU memory (1000 bytes) could not be allocated. There may not be enough")
            return None
        self._world.contexts += 1
        return self._made("IExecutionContext", self, strategy)


class IRuntimeConfig(_Object):
    cuda_graph_strategy: Any = None


class IExecutionContext(_Object):
    def __init__(self, engine: Any, config: Any) -> None:
        self._engine, self._logger, self._config = engine, engine._logger, config
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._profile: int | None = None
        self._settled_for: Any = None  # shapes for which an execution outside of a capture is done
        object.__setattr__(self, "profiler", None)

    profiler: Any

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._world.cuda.stream(stream_handle)
        if profile_index >= self._engine.num_optimization_profiles:
            self._log("profile index out of range")
            return False
        self._profile = profile_index
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        if self._profile is None:
            self._log("no optimization profile is chosen")
            return False
        fixed = self._engine._inputs[name][1]
        dynamic = -1 in fixed
        least, _, greatest = (
            self._engine.get_tensor_profile_shape(name, self._profile) if dynamic else (fixed, fixed, fixed)
        )
        if not all(low <= size <= high for low, size, high in zip(least, shape, greatest, strict=True)):
            self._log(f"Static dimension mismatch or out of profile: {name} {shape}")
            return False
        self._shapes[name] = tuple(shape)
        return True

    def infer_shapes(self) -> list[str]:
        return [name for name in self._engine._inputs if name not in self._shapes]

    def get_tensor_shape(self, name: str) -> Any:
        if "deciding" in name:
            return (-1,)
        empty = {
            each: np.zeros(self._shapes[each], _numpy(description[2]))
            for each, description in self._engine._inputs.items()
        }
        return self._computed(empty)[name].shape

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = int(memory)
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        stream, cuda = self._world.cuda.stream(stream_handle), self._world.cuda
        if self._world.refused("execute_async_v3", self._logger):
            return False
        names = [*self._engine._inputs, *self._engine._outputs]
        if self.infer_shapes() or any(name not in self._addresses for name in names):
            self._log("IExecutionContext::enqueueV3: Error Code 3: address or shape not set")
            return False
        if stream.captured is not None:
            if self._world.refused("capture", self._logger):
                return False
            assert self._settled_for == self._shapes, "captured before it was executed once with these shapes"
        self._settled_for = dict(self._shapes)
        shapes, addresses = dict(self._shapes), dict(self._addresses)
        profiler = object.__getattribute__(self, "profiler")

        def work() -> None:
            given = {}
            for name, (_, _, kind) in self._engine._inputs.items():
                array = np.zeros(shapes[name], _numpy(kind))
                cuda.bytes_at("device", addresses[name], array.nbytes)
                ctypes.memmove(array.ctypes.data, addresses[name], array.nbytes)
                given[name] = array
            for name, array in self._computed(given).items():
                found = np.ascontiguousarray(array)
                cuda.bytes_at("device", addresses[name], found.nbytes)
                ctypes.memmove(addresses[name], found.ctypes.data, found.nbytes)
            cuda.now_ms += 1.5
            if profiler is None:
                self._world.plain_runs += 1
            else:
                self._world.profiled_runs += 1

        stream.put(work)
        if profiler is not None:  # enqueue_emits_profile is on by default: it waits, and reports
            stream.run()
            for index, node in enumerate(self._engine._model.graph.node):
                profiler.report_layer_time(node.name, 0.5 * (index + 1))
        return True

    def _computed(self, given: dict[str, Any]) -> dict[str, Any]:
        evaluator = onnx.reference.ReferenceEvaluator(self._engine._model)
        return dict(zip(self._engine._outputs, evaluator.run(None, given), strict=True))


def _described(value: Any) -> tuple[str, tuple[int, ...], str]:
    kind = value.type.tensor_type
    shape = tuple(size.dim_value if size.HasField("dim_value") else -1 for size in kind.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    return value.name, shape, KINDS.get(dtype.name, "BF16")


def _numpy(kind: str) -> str:
    return {description: name for name, description in KINDS.items()}[kind]
