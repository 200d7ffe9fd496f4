"""An engine in use: context, profile, buffers, and rounds on one CUDA stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from perfharness.backends.base import BackendOptions
from perfharness.backends.cuda_memory import BufferSession, CudaStream, checked, runtime
from perfharness.backends.models import Shape
from perfharness.backends.session import LayerTime
from perfharness.backends.tensorrt.engine import Engine, Network, Profile, ShapeRange, describe_profile, tensor_spec
from perfharness.backends.tensorrt.library import TensorRTLibrary, layer_profiler
from perfharness.errors import BackendError, OutOfMemoryError


class LoadedEngine:
    """A deserialized engine; `profiles` has the shapes of all inputs, one entry per profile."""

    def __init__(self, library: TensorRTLibrary, serialized: Engine) -> None:
        self.serialized = serialized
        self._runtime = library.start("Runtime")  # must outlive the engine
        self.engine = engine = library.call(
            f"{serialized.name} cannot be loaded by {library}",
            f"build it again with {library} on this machine, from its ONNX file",
            self._runtime.deserialize_cuda_engine,
            serialized.blob,
        )
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        specs = [tensor_spec(name, engine.get_tensor_shape(name), engine.get_tensor_dtype(name)) for name in names]
        modes, locations = library.module.TensorIOMode, library.module.TensorLocation
        self.inputs = tuple(spec for spec in specs if engine.get_tensor_mode(spec.name) == modes.INPUT)
        self.outputs = tuple(spec for spec in specs if spec not in self.inputs)
        for spec in self.inputs:
            if engine.get_tensor_location(spec.name) == locations.HOST:
                raise BackendError(
                    f"input {spec.name!r} is a shape tensor, whose values decide the shapes of others; give a model "
                    "whose shapes depend only on shapes"
                )
        self.profiles = tuple(self._profile(index) for index in range(engine.num_optimization_profiles))

    def profile_for(self, shapes: Mapping[str, Shape]) -> int | None:
        """The profile that supports the shapes, with the nearest usual shapes if several do; None if none does."""
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
        """Ranges of a profile; an input without open dimensions has only one shape."""
        ranges = {}
        for spec in self.inputs:
            fixed = tuple(size for size in spec.shape if size is not None)
            found = [fixed] * 3
            if len(fixed) != len(spec.shape):
                found = [tuple(map(int, shape)) for shape in self.engine.get_tensor_profile_shape(spec.name, index)]
            ranges[spec.name] = ShapeRange(*found)
        return ranges


class CudaGraph:
    """Work captured from a stream, replayed by one call.

    After a change of shapes or profile, the caller must execute once before a capture (TensorRT's Best Practices, CUDA
    Graphs).
    """

    def __init__(self, stream: CudaStream, work: Callable[[], None]) -> None:
        self._cuda, self._stream = cuda, _ = runtime(), stream
        self._instance: Any = None
        mode = cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        checked(cuda.cudaStreamBeginCapture(stream.pointer, mode), "the capture of a CUDA graph")
        try:
            work()
        except BaseException:
            _, unfinished = cuda.cudaStreamEndCapture(stream.pointer)  # makes the stream usable again
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
        """Free the graph."""
        if self._instance is not None:
            self._cuda.cudaGraphExecDestroy(self._instance)
            self._instance = None


class TensorRTSession(BufferSession):
    """One context of an engine.

    For an ONNX model with open dimensions and no profile, `allocate` builds an engine for exactly the given shapes (or
    uses the cache).
    """

    _stream: CudaStream

    def __init__(self, library: TensorRTLibrary, source: Network | Engine, options: BackendOptions) -> None:
        super().__init__(on_gpu=True)
        self._library, self._source = library, source
        self._has_graph = options.mode == "cudagraph"
        self._loaded: LoadedEngine | None = None
        self._context: Any = None
        self._graph: CudaGraph | None = None
        self._profile_index = 0
        self._settings: dict[str, str] = {}
        specs: Network | LoadedEngine
        try:
            if isinstance(source, Engine):
                specs = self._load(source)
            else:
                specs = source if source.builds_for_shapes else self._load(source.engine())
            self.inputs, self.outputs = specs.inputs, specs.outputs
        except BaseException:
            self.close()
            raise

    def _allocate(self, shapes: dict[str, Shape]) -> None:
        """Build if necessary, choose the profile, set shapes, allocate buffers and set their addresses."""
        loaded = self._engine_for(shapes)
        index = loaded.profile_for(shapes)
        if index is None:
            ranges = " | ".join(map(describe_profile, loaded.profiles))
            raise BackendError(f"no profile of {loaded.serialized.name} supports {shapes}; it has: {ranges}")
        self._profile_index = index
        if self._context is None:
            self._context = self._library.create_context(loaded.engine, self._has_graph)
        shaped = shapes | self._shaped(self._context, shapes)
        for spec in (*self.inputs, *self.outputs):
            self._buffer(spec, shaped[spec.name])
        self._address(self._context)
        if self._has_graph and not self._library.is_rtx:
            self._enqueue(self._context)  # after a change of shapes, execute once before the capture
            self.synchronize()
            self._graph = CudaGraph(self._stream, lambda: self._enqueue(self._context))
        self._settings["profile"] = describe_profile(loaded.profiles[index]) if loaded.profiles else "none"

    def _execute(self) -> None:
        if self._graph is not None:
            self._graph.launch()
        else:
            self._enqueue(self._context)

    def settings(self) -> dict[str, str]:
        """Library, build settings, size and profile of the engine."""
        return {"library": str(self._library), **self._settings}

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """Times from TensorRT's profiler in a separate context, so that the measured one never has a profiler."""
        assert self._loaded is not None
        profiler, times = layer_profiler(self._library.module)
        try:
            context = self._library.create_context(self._loaded.engine, cuda_graph=False)
        except OutOfMemoryError as error:
            return f"not enough memory for a second context with a profiler: {error}"
        self._shaped(context, self._shapes)
        self._address(context)
        context.profiler = profiler
        self.copy_in()
        for index in range(rounds + 1):
            if index == 1:
                times.clear()  # drop the warm-up
            self._enqueue(context)
            self.synchronize()
        if not times:
            return f"{self._library.name} reported no layers to its profiler"
        return [LayerTime(name, total / rounds) for name, total in times.items()]

    def _free(self) -> None:
        if self._graph is not None:
            self._graph.close()
            self._graph = None
        super()._free()

    def _release(self) -> None:
        self._unload()
        super()._release()

    def _engine_for(self, shapes: Mapping[str, Shape]) -> LoadedEngine:
        """The current engine, or one built for these shapes if engines depend on them."""
        source, loaded = self._source, self._loaded
        is_fitting = loaded is not None and loaded.profile_for(shapes) is not None
        if isinstance(source, Network) and source.builds_for_shapes and not is_fitting:
            self._unload()
            loaded = self._load(source.engine(shapes))
        assert loaded is not None  # others are loaded at once
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
        self._context = None
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def _shaped(self, context: Any, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Set profile and shapes of a context; returns the shapes of the outputs."""
        call, index = self._library.call, self._profile_index
        choose = context.set_optimization_profile_async
        call(f"profile {index} could not be chosen", "build the engine again", choose, index, self._stream.pointer)
        self.synchronize()
        for name, shape in shapes.items():
            advice = "give a supported shape"
            call(f"input {name!r} cannot be {shape}", advice, context.set_input_shape, name, shape)
        if missing := context.infer_shapes():
            raise BackendError(f"the shapes of {', '.join(missing)} are undetermined; give a model without such inputs")
        out = {spec.name: tuple(int(size) for size in context.get_tensor_shape(spec.name)) for spec in self.outputs}
        if unknown := [name for name, shape in out.items() if any(size < 0 for size in shape)]:
            raise BackendError(
                f"the shape of output {unknown[0]!r} depends on the values of the inputs, so its buffer cannot be "
                "allocated before; give a model whose output shapes follow from its input shapes"
            )
        return out

    def _address(self, context: Any) -> None:
        for name, buffer in self._buffers.items():
            what, advice = f"{name!r} did not accept its buffer", "build the engine again"
            self._library.call(what, advice, context.set_tensor_address, name, buffer.pointer)

    def _enqueue(self, context: Any) -> None:
        if not context.execute_async_v3(self._stream.pointer):
            raise self._library.failure("the model could not be run", "allocate again, or use other shapes")


def _distance(profile: Profile, shapes: Mapping[str, Shape]) -> float:
    """Distance of shapes from a profile's usual ones: sum over dimensions of |log of the ratio|."""
    return sum(
        abs(float(np.log(max(size, 1) / max(usual, 1))))
        for name, ranges in profile.items()
        for size, usual in zip(shapes[name], ranges.opt, strict=True)
    )
