"""A TensorRT that computes ONNX models on the host, in a fake CUDA's streams.

Its behaviour is that of NVIDIA's documentation: nothing runs before all shapes and addresses are set, an engine of
another version is refused, failing calls return None or False and log the reason.
"""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.reference

from tests.tensorrt.fake_cuda import FakeCuda
from tests.tensorrt.fakes import OLD, RTX

KINDS = {"float32": "FLOAT", "float16": "HALF", "int8": "INT8", "int32": "INT32", "int64": "INT64", "bool": "BOOL"}
ACTIVATION_BYTES = 1000
Severity = IntEnum("Severity", "INTERNAL_ERROR ERROR WARNING INFO VERBOSE", start=0)
DataType = Enum("DataType", "FLOAT HALF INT8 INT32 INT64 BOOL BF16")
TensorIOMode = Enum("TensorIOMode", "NONE INPUT OUTPUT")
TensorLocation = Enum("TensorLocation", "DEVICE HOST")
ComputeCapability = Enum("ComputeCapability", "NONE CURRENT SM75 SM80 SM86 SM89 SM120")
CudaGraphStrategy = Enum("CudaGraphStrategy", "DISABLED WHOLE_GRAPH_CAPTURE")


@dataclass
class World:
    """State shared by all objects of one fake TensorRT, and the faults that a test plants.

    Args:
        fails: name of a call -> the message that it logs instead of doing anything.
        builds: networks that were built; `flags` are those of the last.
    """

    version: str
    cuda: FakeCuda
    fails: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    builds: int = 0
    contexts: int = 0
    profiled_runs: int = 0
    plain_runs: int = 0
    logger: Any = None

    def log(self, message: str) -> None:
        self.logger.log(Severity.ERROR, message)

    def refused(self, call: str) -> bool:
        if call in self.fails:
            self.log(self.fails[call])
        return call in self.fails


def fake_tensorrt(version: str, cuda: FakeCuda) -> tuple[Any, World]:
    """Replaces the module `tensorrt` or `tensorrt_rtx`."""
    world = World(version, cuda)

    def started(cls: Callable[..., Any]) -> Callable[[Any], Any]:
        def start(logger: Any) -> Any:
            world.logger = logger
            if world.refused(getattr(cls, "__name__", "")):
                raise TypeError("pybind11::init(): factory function returned nullptr")
            return cls(world)

        return start

    module = SimpleNamespace(
        __version__=version,
        ILogger=type("ILogger", (), {"Severity": Severity, "__init__": lambda self: None}),
        IProfiler=type("IProfiler", (), {"__init__": lambda self: None}),
        BuilderFlag=Enum("BuilderFlag", "TF32 FP16"),
        MemoryPoolType=Enum("MemoryPoolType", "WORKSPACE"),
        NetworkDefinitionCreationFlag=IntEnum("Flag", {"STRONGLY_TYPED": 1}),
        TensorIOMode=TensorIOMode,
        TensorLocation=TensorLocation,
        Builder=started(Builder),
        Runtime=started(Runtime),
        OnnxParser=lambda network, logger: OnnxParser(world, network),
    )
    if version == RTX:
        vars(module).update(ComputeCapability=ComputeCapability, CudaGraphStrategy=CudaGraphStrategy)
    return module, world


@dataclass
class Network:
    flags: int
    model: Any = None

    @property
    def num_inputs(self) -> int:
        return len(self.model.graph.input)

    @property
    def num_outputs(self) -> int:
        return len(self.model.graph.output)

    def get_input(self, index: int) -> Any:
        return described(self.model.graph.input[index])

    def get_output(self, index: int) -> Any:
        return described(self.model.graph.output[index])


@dataclass
class OnnxParser:
    world: World
    network: Network
    num_errors: int = 0

    def parse(self, model: bytes) -> bool:
        self.num_errors = int("parse" in self.world.fails)
        if not self.num_errors:
            self.network.model = onnx.load_from_string(model)
        return not self.num_errors

    def parse_from_file(self, model: str) -> bool:
        return self.parse(Path(model).read_bytes())

    def get_error(self, index: int) -> Any:
        del index
        message = self.world.fails["parse"]
        return SimpleNamespace(desc=lambda: message, node_name=lambda: "a_node", node_operator=lambda: "Frobnicate")


@dataclass
class OptimizationProfile:
    shapes: dict[str, Any] = field(default_factory=dict)

    def set_shape(self, name: str, least: Any, usual: Any, greatest: Any) -> None:
        if not len(least) == len(usual) == len(greatest):
            raise ValueError("inconsistent dimensions")
        self.shapes[name] = (tuple(least), tuple(usual), tuple(greatest))


class BuilderConfig:
    def __init__(self) -> None:
        self.profiles: list[Any] = []
        self.flags = {"TF32"}  # on by default
        self.limit = 1 << 33
        self.builder_optimization_level = 3

    def add_optimization_profile(self, profile: OptimizationProfile) -> int:
        self.profiles.append(profile.shapes)
        return len(self.profiles) - 1

    def clear_flag(self, flag: Any) -> None:
        self.flags.discard(flag.name)

    def set_flag(self, flag: Any) -> None:
        self.flags.add(flag.name)

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        self.limit = pool_size

    def get_memory_pool_limit(self, pool: Any) -> int:
        return self.limit


@dataclass
class Builder:
    world: World
    create_network = staticmethod(Network)
    create_builder_config = staticmethod(BuilderConfig)
    create_optimization_profile = staticmethod(OptimizationProfile)

    def build_serialized_network(self, network: Network, config: BuilderConfig) -> bytes | None:
        if self.world.refused("build_serialized_network"):
            return None
        inputs = [described(each) for each in network.model.graph.input]
        if any(-1 in tensor.shape for tensor in inputs) and not config.profiles:
            self.world.log("Network has dynamic or shape inputs, but no optimization profile has been defined.")
            return None
        assert network.flags == 2, "not strongly typed"
        self.world.builds += 1
        self.world.flags = config.flags
        content = self.world.version, config.profiles, network.model.SerializeToString()
        return b"FAKE" + pickle.dumps(content)


@dataclass
class Runtime:
    world: World

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
        if self.world.refused("deserialize_cuda_engine"):
            return None
        if not serialized_engine.startswith(b"FAKE"):
            self.world.log("IRuntime::deserializeCudaEngine: Error Code 1: Serialization (magicTag does not match)")
            return None
        version, profiles, model = pickle.loads(serialized_engine[4:])
        if version != self.world.version:
            self.world.log(
                "The engine plan file is not compatible with this version of TensorRT, expecting library version "
                f"{self.world.version} got {version}, please rebuild."
            )
            return None
        return Engine(self.world, profiles, onnx.load_from_string(model))


class Engine:
    def __init__(self, world: World, profiles: list[Any], model: Any) -> None:
        self.world, self.profiles, self.model = world, profiles, model
        self.inputs: dict[str, Any] = {each.name: described(each) for each in model.graph.input}
        self.outputs: dict[str, Any] = {each.name: described(each) for each in model.graph.output}
        self.tensors: dict[str, Any] = self.inputs | self.outputs
        self.num_io_tensors = len(self.tensors)
        self.num_optimization_profiles = max(1, len(profiles))
        setattr(self, "device_memory_size" if world.version == OLD else "device_memory_size_v2", ACTIVATION_BYTES)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> Any:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_location(self, name: str) -> Any:
        return TensorLocation.HOST if "host" in name else TensorLocation.DEVICE

    def get_tensor_shape(self, name: str) -> Any:
        return self.tensors[name].shape

    def get_tensor_dtype(self, name: str) -> Any:
        return self.tensors[name].dtype

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Any]:
        return list(self.profiles[profile_index][name])

    def create_runtime_config(self) -> Any:
        assert self.world.version == RTX
        return SimpleNamespace(cuda_graph_strategy=None)

    def create_execution_context(self, config: Any = None) -> Any:
        if self.world.refused("create_execution_context"):
            return None
        if self.world.cuda.used_bytes() + ACTIVATION_BYTES > self.world.cuda.room_bytes:
            self.world.log("Requested amount of GPU memory (1000 bytes) could not be allocated.")
            return None
        self.world.contexts += 1
        return ExecutionContext(self)

    def computed(self, given: dict[str, Any]) -> dict[str, Any]:
        evaluator = onnx.reference.ReferenceEvaluator(self.model)
        return dict(zip(self.outputs, evaluator.run(None, given), strict=True))


class ExecutionContext:
    profiler: Any = None

    def __init__(self, engine: Engine) -> None:
        self.engine, self.world = engine, engine.world
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.profile: int | None = None
        self.executed_with: Any = None  # shapes for which an execution outside of a capture is done

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self.world.cuda.stream(stream_handle)
        self.profile = profile_index
        return profile_index < self.engine.num_optimization_profiles

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert self.profile is not None, "no optimization profile is chosen"
        fixed = self.engine.inputs[name].shape
        is_open = -1 in fixed
        least, _, most = self.engine.get_tensor_profile_shape(name, self.profile) if is_open else [fixed] * 3
        self.shapes[name] = tuple(shape)
        return all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))

    def infer_shapes(self) -> list[str]:
        return [name for name in self.engine.inputs if name not in self.shapes]

    def get_tensor_shape(self, name: str) -> Any:
        if "deciding" in name:
            return (-1,)
        return self.engine.computed({each: self.empty(each) for each in self.engine.inputs})[name].shape

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.addresses[name] = int(memory)
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        stream, world = self.world.cuda.stream(stream_handle), self.world
        if world.refused("execute_async_v3"):
            return False
        assert not self.infer_shapes()
        assert self.addresses.keys() == self.engine.tensors.keys()
        if stream.captured is not None:
            if world.refused("capture"):
                return False
            assert self.executed_with == self.shapes, "captured before it was executed once with these shapes"
        self.executed_with = dict(self.shapes)
        addresses, profiler = dict(self.addresses), self.profiler
        inputs = {name: self.empty(name) for name in self.engine.inputs}

        def copied(address: int, array: Any, *, to_device: bool) -> None:
            world.cuda.bytes_at("device", address, array.nbytes)
            to, origin = (address, array.ctypes.data) if to_device else (array.ctypes.data, address)
            ctypes.memmove(to, origin, array.nbytes)

        def work() -> None:
            for name, array in inputs.items():
                copied(addresses[name], array, to_device=False)
            for name, array in self.engine.computed(inputs).items():
                copied(addresses[name], np.ascontiguousarray(array), to_device=True)
            world.cuda.now_ms += 1.5
            world.plain_runs += profiler is None
            world.profiled_runs += profiler is not None

        stream.put(work)
        if profiler is not None:  # enqueue_emits_profile is on by default: it waits, and reports
            stream.run()
            for index, node in enumerate(self.engine.model.graph.node):
                profiler.report_layer_time(node.name, 0.5 * (index + 1))
        return True

    def empty(self, name: str) -> Any:
        kinds = {kind: dtype for dtype, kind in KINDS.items()}
        return np.zeros(self.shapes[name], kinds[self.engine.inputs[name].dtype.name])


def described(value: Any) -> Any:
    kind = value.type.tensor_type
    shape = tuple(size.dim_value if size.HasField("dim_value") else -1 for size in kind.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    return SimpleNamespace(name=value.name, shape=shape, dtype=DataType[KINDS.get(dtype.name, "BF16")])
