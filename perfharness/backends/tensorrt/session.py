"""An engine in use: context, profile, buffers, addresses, and rounds on one CUDA stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
from perfharness.backends.cuda_memory import CudaStream, PairedBuffer, checked, runtime, threads_problem
from perfharness.backends.tensorrt.engine import (
    Engine,
    EngineSource,
    Profile,
    Shape,
    ShapeRange,
    describe_profile,
    tensor_spec,
)
from perfharness.backends.tensorrt.library import LayerRecorder, TensorRTLibrary
from perfharness.errors import BackendError, OutOfMemoryError


class LoadedEngine:
    """A deserialized engine, its inputs, outputs and profiles.

    Args:
        serialized: its origin and its name in the cache.
        profiles: shapes of all inputs, one entry per profile.
    """

    def __init__(self, library: TensorRTLibrary, serialized: Engine) -> None:
        self.serialized = serialized
        self._runtime = library.start("Runtime")  # must outlive the engine
        self.engine = engine = library.load(self._runtime, serialized.blob, serialized.name)
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        specs = {
            name: tensor_spec(name, engine.get_tensor_shape(name), engine.get_tensor_dtype(name)) for name in names
        }
        modes, locations = library.module.TensorIOMode, library.module.TensorLocation
        inputs = [name for name in names if engine.get_tensor_mode(name) == modes.INPUT]
        for name in inputs:
            if engine.get_tensor_location(name) == locations.HOST:
                raise BackendError(
                    f"input {name!r} is a shape tensor, whose values decide the shapes of others; give a model where "
                    "shapes follow from shapes"
                )
        self.inputs = tuple(specs[name] for name in inputs)
        self.outputs = tuple(specs[name] for name in names if name not in inputs)
        self.profiles = tuple(self._profile(index) for index in range(engine.num_optimization_profiles))

    def profile_for(self, shapes: Mapping[str, Shape]) -> int | None:
        """The profile that takes the shapes, of several the one with the nearest usual shapes; None: none does."""
        fitting = [
            (_distance(profile, shapes), index)
            for index, profile in enumerate(self.profiles)
            if all(ranges.holds(shapes[name]) for name, ranges in profile.items())
        ]
        return min(fitting)[1] if fitting else None

    def close(self) -> None:
        """Release engine and runtime, in this order."""
        self.engine = None
        self._runtime = None

    def _profile(self, index: int) -> Profile:
        """Ranges of a profile; an input without open dimensions has only one shape, and is skipped."""
        ranges = {}
        for spec in self.inputs:
            fixed = tuple(size for size in spec.shape if size is not None)
            found = [fixed] * 3
            if len(fixed) != len(spec.shape):
                found = [tuple(map(int, shape)) for shape in self.engine.get_tensor_profile_shape(spec.name, index)]
            ranges[spec.name] = ShapeRange(*found)
        return ranges


class CudaGraph:
    """The work that `work` put into the stream, replayed by one call.

    TensorRT must execute once after a change of shapes or profile before a capture (Best Practices, CUDA Graphs); the
    caller does that.
    """

    def __init__(self, stream: CudaStream, work: Callable[[], None]) -> None:
        self._cuda, self._stream = cuda, _ = runtime(), stream
        self._instance: Any = None
        mode = cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        checked(cuda.cudaStreamBeginCapture(stream.pointer, mode), "the capture of a CUDA graph")
        try:
            work()
        except BaseException:
            _, unfinished = cuda.cudaStreamEndCapture(stream.pointer)  # or the stream could not be used again
            if unfinished is not None:
                cuda.cudaGraphDestroy(unfinished)
            raise
        graph = checked(cuda.cudaStreamEndCapture(stream.pointer), "the capture of a CUDA graph")
        try:
            self._instance = checked(cuda.cudaGraphInstantiate(graph, 0), "a CUDA graph")
        finally:
            cuda.cudaGraphDestroy(graph)

    def launch(self) -> None:
        """Replay the graph in the stream."""
        checked(self._cuda.cudaGraphLaunch(self._instance, self._stream.pointer), "a CUDA graph")

    def close(self) -> None:
        """Free it."""
        if self._instance is not None:
            self._cuda.cudaGraphExecDestroy(self._instance)
            self._instance = None


class TensorRTSession(Session):
    """One context of an engine.

    Where the model is ONNX, its dimensions are open and no profile was given, `allocate` builds an engine for exactly
    the given shapes (or takes it from the cache).
    """

    def __init__(self, library: TensorRTLibrary, source: EngineSource, options: BackendOptions) -> None:
        self._library, self._source = library, source
        self._has_graph = options.mode == "cudagraph"
        self._stream: CudaStream | None = None
        self._loaded: LoadedEngine | None = None
        self._context: Any = None
        self._runtime_cache: Any = None
        self._graph: CudaGraph | None = None
        self._buffers: dict[str, PairedBuffer] = {}
        self._shapes: dict[str, Shape] = {}
        self._profile_index = 0
        self._settings: dict[str, str] = {}
        try:
            self._stream = CudaStream()
            if not source.builds_for_shapes:
                self._load(source.engine())
            specs = self._loaded or source.network
            assert specs is not None  # a source is an engine or a network
            self.inputs, self.outputs = specs.inputs, specs.outputs
        except BaseException:
            self.close()
            raise

    def allocate(self, shapes: Mapping[str, Shape]) -> None:
        """Build if necessary, choose the profile, set shapes, allocate buffers, set their addresses."""
        stream = self._open_stream()
        whole = checked_shapes(self, shapes)
        self._free_buffers()
        loaded = self._engine_for(whole)
        index = loaded.profile_for(whole)
        if index is None:
            ranges = " | ".join(map(describe_profile, loaded.profiles))
            raise BackendError(f"no profile of {loaded.serialized.name} takes {whole}; it has: {ranges}")
        self._profile_index = index
        if self._context is None:
            cache = self._source.cache
            compiled = cache.read(cache.compiled_name(loaded.serialized.key)) if self._library.is_rtx else None
            self._context, self._runtime_cache = self._library.create_context(loaded.engine, compiled, self._has_graph)
        shaped = whole | self._shaped(self._context, whole)
        for spec in (*self.inputs, *self.outputs):
            self._buffers[spec.name] = PairedBuffer(shaped[spec.name], spec.dtype)
        self._address(self._context)
        self._shapes = whole
        if self._has_graph and not self._library.is_rtx:
            self._enqueue()  # shapes changed: execute once without a graph before the capture
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
        """A problem with waiting for a stream, or None."""
        return threads_problem()

    def settings(self) -> dict[str, str]:
        """Library, how the engine was built, its size, profile and layers."""
        return {"library": str(self._library), **self._settings}

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """By TensorRT's profiler, in a context of its own, so that the measured one never has a profiler."""
        loaded, stream = self._loaded, self._open_stream()
        if loaded is None or not self._shapes:
            raise BackendError("nothing is allocated; allocate and write inputs before layers are timed")
        recorder = LayerRecorder(self._library.module)
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
                recorder.milliseconds.clear()  # the first was a warm-up
            self._enqueue(context)
            stream.synchronize()
        if not recorder.milliseconds:
            return f"{self._library.name} reported no layer to its profiler"
        return [LayerTime(name, total / rounds) for name, total in recorder.milliseconds.items()]

    def close(self) -> None:
        """Save RTX's compiled kernels, then free context, engine, buffers and stream."""
        if self._runtime_cache is not None and self._loaded is not None:
            cache = self._source.cache
            with suppress(BackendError):  # without the cache only time is lost
                name = cache.compiled_name(self._loaded.serialized.key)
                cache.keep(name, bytes(self._runtime_cache.serialize()))
        self._free_buffers()
        self._unload()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _engine_for(self, shapes: Mapping[str, Shape]) -> LoadedEngine:
        """The engine in use, or one built for these shapes where engines depend on them."""
        loaded = self._loaded
        if loaded is None or (loaded.profile_for(shapes) is None and self._source.builds_for_shapes):
            self._unload()
            loaded = self._load(self._source.engine(shapes))
        return loaded

    def _load(self, serialized: Engine) -> LoadedEngine:
        self._loaded = loaded = LoadedEngine(self._library, serialized)
        if serialized.build_ms is not None:
            self.build_ms = (self.build_ms or 0.0) + serialized.build_ms
        engine = loaded.engine
        activations = getattr(engine, "device_memory_size_v2", None) or engine.device_memory_size
        self._settings = {
            **serialized.settings,
            "engine_bytes": str(len(serialized.blob)),
            "activation_bytes": str(activations),
        }
        return loaded

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

    def _keep_information(self, loaded: LoadedEngine) -> None:
        """Keep the engine inspector's report for these shapes: in the settings, and whole next to the engine's file."""
        self._settings["profile"] = (
            describe_profile(loaded.profiles[self._profile_index]) if loaded.profiles else "none"
        )
        if not hasattr(self._library.module, "EngineInspector"):
            return
        inspector = loaded.engine.create_engine_inspector()
        inspector.execution_context = self._context
        text = inspector.get_engine_information(self._library.module.LayerInformationFormat.JSON)
        try:
            layers = json.loads(text).get("Layers")
        except ValueError as error:
            self._settings["layers"] = f"the engine inspector's answer could not be read: {error}"
            return
        if isinstance(layers, list):
            self._settings["layers"] = str(len(layers))
        self._source.cache.keep(f"{loaded.serialized.key}.layers.json", text.encode())

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
            with suppress(BackendError):  # after an error on the device nothing runs, and everything can be freed
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
