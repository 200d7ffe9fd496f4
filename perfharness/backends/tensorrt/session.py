"""An engine in use: context, profile, buffers, addresses, and rounds on one CUDA stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.backends.base import (
    Arrays,
    BackendOptions,
    DeviceTimer,
    LayerTime,
    Session,
    checked_arrays,
    checked_shapes,
)
from perfharness.backends.cuda_memory import CudaStream, PairedBuffer, threads_problem
from perfharness.backends.tensorrt.build import describe_profile, spec_of
from perfharness.backends.tensorrt.graph import CudaGraph
from perfharness.backends.tensorrt.library import TensorRTLibrary
from perfharness.backends.tensorrt.options import Profile, Shape, ShapeRange
from perfharness.backends.tensorrt.source import EngineSource, SourcedEngine
from perfharness.errors import BackendError, OutOfMemoryError


class LoadedEngine:
    """A deserialized engine and what it says of itself.

    Args:
        sourced: the serialized engine, where it is from and what it is called in the cache.
        profiles: shapes of all inputs, one a profile.
    """

    def __init__(self, library: TensorRTLibrary, sourced: SourcedEngine) -> None:
        self._library, self.sourced = library, sourced
        messages = library.messages
        self._runtime = library.create_runtime()
        advice = f"build it again with {library.name} {library.version} on this machine, from its ONNX file"
        if (problem := library.engine_problem(self._runtime, sourced.engine.blob)) is not None:
            raise BackendError(f"{sourced.name} cannot be loaded: {problem}; {advice}")
        messages.clear()
        self.engine = self._runtime.deserialize_cuda_engine(sourced.engine.blob)
        if self.engine is None:
            raise messages.failure(f"{sourced.name} cannot be loaded by {library.name} {library.version}", advice)
        engine = self.engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        is_input = library.module.TensorIOMode.INPUT
        self._input_names = [name for name in names if engine.get_tensor_mode(name) == is_input]
        self._refuse_host_inputs()
        specs = {name: spec_of(name, engine.get_tensor_shape(name), engine.get_tensor_dtype(name)) for name in names}
        self.inputs = tuple(specs[name] for name in self._input_names)
        self.outputs = tuple(specs[name] for name in names if name not in self._input_names)
        self.profiles = tuple(self._profile(index) for index in range(engine.num_optimization_profiles))

    def profile_for(self, shapes: Mapping[str, Shape]) -> int | None:
        """The profile that takes the shapes, of several the one whose usual shapes are nearest; None: none does."""
        fitting = [
            (_distance(profile, shapes), index)
            for index, profile in enumerate(self.profiles)
            if all(ranges.holds(shapes[name]) for name, ranges in profile.items())
        ]
        return min(fitting)[1] if fitting else None

    def information(self, context: Any | None = None) -> dict[str, Any]:
        """What the engine inspector tells, for the shapes of a context where one is given."""
        inspector = self.engine.create_engine_inspector()
        if context is not None:
            inspector.execution_context = context
        text = inspector.get_engine_information(self._library.module.LayerInformationFormat.JSON)
        told: dict[str, Any] = json.loads(text)
        return told

    def close(self) -> None:
        """Let go of engine and runtime, in this order."""
        self.engine = None
        self._runtime = None

    def _refuse_host_inputs(self) -> None:
        """Shape tensors have values that decide other shapes, so that buffers could not be made before inputs."""
        host = self._library.module.TensorLocation.HOST
        for name in self._input_names:
            if self.engine.get_tensor_location(name) == host:
                raise BackendError(
                    f"input {name!r} is a shape tensor, whose values decide the shapes of others; give a model where "
                    "shapes follow from shapes"
                )

    def _profile(self, index: int) -> Profile:
        """Ranges of a profile; an input without open dimensions has but one shape, and is not asked for."""
        ranges = {}
        for spec in self.inputs:
            fixed = tuple(size for size in spec.shape if size is not None)
            if len(fixed) == len(spec.shape):
                ranges[spec.name] = ShapeRange(fixed, fixed, fixed)
            else:
                told = self.engine.get_tensor_profile_shape(spec.name, index)  # least, usual, greatest
                ranges[spec.name] = ShapeRange(*(tuple(map(int, shape)) for shape in told))
        return ranges


class TensorRTSession(Session):
    """One context of an engine.

    Where the model is ONNX, its dimensions are open and no profile was given, `allocate` builds an engine for exactly
    the shapes that it is asked for (from the cache, if it is there).

    A memory limit holds for what is known before it is taken: the engine, the context's activations and the buffers.
    """

    def __init__(self, library: TensorRTLibrary, source: EngineSource, options: BackendOptions) -> None:
        self._library, self._source, self._options = library, source, options
        self._stream: CudaStream | None = None
        self._loaded: LoadedEngine | None = None
        self._context: Any = None
        self._runtime_cache: Any = None
        self._graph: CudaGraph | None = None
        self._buffers: dict[str, PairedBuffer] = {}
        self._shapes: dict[str, Shape] = {}
        self._profile_index = 0
        self._told: dict[str, str] = {}
        self.enforces_memory_limit = options.memory_limit_bytes is not None
        try:
            self._stream = CudaStream()
            if (sourced := source.at_load()) is not None:
                self._load(sourced)
            specs = source.network if self._loaded is None else self._loaded
            assert specs is not None  # a source is an engine or a network
            self.inputs, self.outputs = specs.inputs, specs.outputs
        except BaseException:
            self.close()
            raise

    def allocate(self, shapes: Mapping[str, Shape]) -> None:
        """Build where that is needed, choose the profile, set shapes, make buffers, tell their addresses."""
        stream = self._open_stream()
        whole = checked_shapes(self, shapes)
        self._free_buffers()
        loaded = self._engine_for(whole)
        index = loaded.profile_for(whole)
        if index is None:
            ranges = " | ".join(map(describe_profile, loaded.profiles))
            raise BackendError(f"no profile of {loaded.sourced.name} takes {whole}; it has: {ranges}")
        self._profile_index = index
        self._check_room(loaded)
        if self._context is None:
            compiled = self._source.cache.compiled(loaded.sourced.key) if self._library.is_rtx else None
            self._context, self._runtime_cache = self._library.create_context(
                loaded.engine, compiled, self._options.mode == "cudagraph"
            )
        out = self._shaped(self._context, whole)
        for spec in (*self.inputs, *self.outputs):
            shape = whole[spec.name] if spec.name in whole else out[spec.name]
            self._buffers[spec.name] = PairedBuffer(shape, spec.dtype)
            self._check_room(loaded)
        self._address(self._context)
        self._shapes = whole
        if self._options.mode == "cudagraph" and not self._library.is_rtx:
            self._enqueue()  # shapes changed: once without, before it is captured
            stream.synchronize()
            self._graph = CudaGraph(stream, self._enqueue)
        self._keep_information(loaded)

    def write_inputs(self, arrays: Arrays) -> None:
        """Fill the pinned buffers."""
        checked_arrays(self, self._shapes, arrays)
        for spec in self.inputs:
            np.copyto(self._buffers[spec.name].host, arrays[spec.name])

    def copy_in(self) -> None:
        """Host to GPU, in the stream."""
        stream = self._open_stream()
        for spec in self.inputs:
            self._buffer(spec.name).copy_in(stream)

    def execute(self) -> None:
        """One inference, in the stream."""
        if not self._shapes:
            raise BackendError("nothing is allocated; allocate before a model is executed")
        if self._graph is not None:
            self._graph.launch()
        else:
            self._enqueue()

    def copy_out(self) -> None:
        """GPU to host, in the stream."""
        stream = self._open_stream()
        for spec in self.outputs:
            self._buffer(spec.name).copy_out(stream)

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._open_stream().synchronize()

    def read_outputs(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of the pinned buffers."""
        if not self._shapes:
            raise BackendError("nothing is allocated; allocate and execute before outputs are read")
        return {spec.name: np.array(self._buffers[spec.name].host) for spec in self.outputs}

    def device_timer(self) -> DeviceTimer | None:
        """Events in the session's stream."""
        return self._open_stream().timer()

    def stream_pointer(self) -> int | None:
        """Of the session's stream."""
        return self._open_stream().pointer

    def threads_problem(self) -> str | None:
        """That of waiting for a stream."""
        return threads_problem()

    def settings(self) -> dict[str, str]:
        """Library, how the engine was built, its size, profile and layers."""
        return {"library": f"{self._library.name} {self._library.version}", **self._told}

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """By TensorRT's profiler, in a context of its own, so that the measured one never has a profiler."""
        loaded, stream = self._loaded, self._open_stream()
        if loaded is None or not self._shapes:
            raise BackendError("nothing is allocated; allocate and write inputs before layers are timed")
        recorder = self._library.profiler()
        try:
            context, _ = self._library.create_context(loaded.engine, None, cuda_graph=False)
        except OutOfMemoryError as error:
            return f"there is no room for a second context with a profiler: {error}"
        self._shaped(context, self._shapes)
        self._address(context)
        context.profiler = recorder.given
        self.copy_in()
        for index in range(rounds + 1):
            if index == 1:
                recorder.milliseconds.clear()  # the first was for warming up
            self._enqueue(context)
            stream.synchronize()
        if not recorder.milliseconds:
            return f"{self._library.name} reported no layer to its profiler"
        return [LayerTime(name, total / rounds) for name, total in recorder.milliseconds.items()]

    def close(self) -> None:
        """Keep what RTX compiled, then free context, engine, buffers and stream."""
        if self._runtime_cache is not None and self._loaded is not None:
            with suppress(BackendError):  # a cache that cannot be kept costs time, not results
                self._source.cache.keep_compiled(self._loaded.sourced.key, bytes(self._runtime_cache.serialize()))
        self._free_buffers()
        self._unload()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _engine_for(self, shapes: Mapping[str, Shape]) -> LoadedEngine:
        """The engine in use, or one built for these shapes where that is how it is done."""
        loaded = self._loaded
        if loaded is None or (loaded.profile_for(shapes) is None and self._source.builds_for_shapes):
            self._unload()
            loaded = self._load(self._source.at_allocate(shapes))
        return loaded

    def _load(self, sourced: SourcedEngine) -> LoadedEngine:
        self._loaded = LoadedEngine(self._library, sourced)
        built_ms = sourced.engine.build_ms
        if built_ms is not None:
            self.build_ms = (self.build_ms or 0.0) + built_ms
        self._told = {**sourced.engine.settings, "engine_bytes": str(len(sourced.engine.blob))}
        return self._loaded

    def _unload(self) -> None:
        self._context, self._runtime_cache = None, None
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def _shaped(self, context: Any, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Set profile and shapes of a context; returns the shapes of the outputs."""
        messages, stream = self._library.messages, self._open_stream()
        messages.clear()
        if not context.set_optimization_profile_async(self._profile_index, stream.pointer):
            raise messages.failure(f"profile {self._profile_index} could not be chosen", "build the engine again")
        stream.synchronize()
        for name, shape in shapes.items():
            if not context.set_input_shape(name, shape):
                raise messages.failure(f"input {name!r} cannot be {shape}", "give a shape that the engine takes")
        if missing := context.infer_shapes():
            raise BackendError(f"the shapes do not tell those of {', '.join(missing)}; give a model where they do")
        out = {spec.name: tuple(int(size) for size in context.get_tensor_shape(spec.name)) for spec in self.outputs}
        if unknown := [name for name, shape in out.items() if any(size < 0 for size in shape)]:
            raise BackendError(
                f"the shape of output {unknown[0]!r} depends on the values of the inputs, so that no buffer can be "
                "made before; give a model whose outputs have shapes that follow from its inputs' shapes"
            )
        return out

    def _address(self, context: Any) -> None:
        for name, buffer in self._buffers.items():
            if not context.set_tensor_address(name, buffer.device_pointer):
                raise self._library.messages.failure(f"{name!r} did not take its buffer", "build the engine again")

    def _enqueue(self, context: Any = None) -> None:
        if not (context or self._context).execute_async_v3(self._open_stream().pointer):
            raise self._library.messages.failure("the model could not be run", "allocate again, or other shapes")

    def _check_room(self, loaded: LoadedEngine) -> None:
        """Refuse what would not keep to the limit; a CUDA context and what libraries load come on top."""
        limit = self._options.memory_limit_bytes
        parts = {
            "the engine": len(loaded.sourced.engine.blob),
            "activations": self._library.context_memory_bytes(loaded.engine),
            "buffers": sum(buffer.nbytes for buffer in self._buffers.values()),
        }
        self._told["activation_bytes"] = str(parts["activations"])
        if limit is not None and sum(parts.values()) > limit:
            told = ", ".join(f"{what} {size} bytes" for what, size in parts.items())
            raise OutOfMemoryError(f"{told}: more than the limit of {limit} bytes")

    def _keep_information(self, loaded: LoadedEngine) -> None:
        """The inspector's word on the engine: into the settings, and whole beside the cached engine."""
        self._told["profile"] = describe_profile(loaded.profiles[self._profile_index]) if loaded.profiles else "none"
        try:
            information = loaded.information(self._context)
        except (ValueError, RuntimeError) as error:
            self._told["layers"] = f"the engine inspector's answer could not be read: {error}"
            return
        layers = information.get("Layers")
        if isinstance(layers, list):
            self._told["layers"] = str(len(layers))
        self._source.cache.keep_layers(loaded.sourced.key, information)

    def _buffer(self, name: str) -> PairedBuffer:
        if name not in self._buffers:
            raise BackendError("nothing is allocated; allocate before anything is copied")
        return self._buffers[name]

    def _open_stream(self) -> CudaStream:
        if self._stream is None:
            raise BackendError("the session is closed; load the model again")
        return self._stream

    def _free_buffers(self) -> None:
        """Free what the rounds used, once nothing runs on it any more."""
        if self._stream is not None and self._buffers:
            with suppress(BackendError):  # after an error on the device nothing runs, and all is to be freed
                self._stream.synchronize()
        if self._graph is not None:
            self._graph.close()
            self._graph = None
        self._shapes = {}
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers = {}


def _distance(profile: Profile, shapes: Mapping[str, Shape]) -> float:
    """How far shapes are from a profile's usual ones: sum over dimensions of |log of the ratio|."""
    return sum(
        abs(float(np.log(max(size, 1) / max(usual, 1))))
        for name, ranges in profile.items()
        for size, usual in zip(shapes[name], ranges.opt, strict=True)
    )
