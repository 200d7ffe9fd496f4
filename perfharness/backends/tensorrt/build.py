"""From ONNX to a serialized engine: network, precision, profiles, memory pools, timing cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfharness.backends.onnx_precision import model_precision
from perfharness.backends.tensorrt.library import TensorRTLibrary
from perfharness.backends.tensorrt.options import BuildOptions, Profile, Shape, ShapeRange, exact_profile
from perfharness.errors import BackendError
from perfharness.model.bench import TensorSpec

DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
}
"""TensorRT's name of a type -> NumPy's; the others NumPy has not."""


@dataclass(frozen=True)
class Engine:
    """A serialized engine.

    Args:
        build_ms: what building it took; None: it was built earlier, or elsewhere.
        settings: how it was built, by TensorRT's names.
    """

    blob: bytes
    settings: Mapping[str, str]
    build_ms: float | None = None


class Network:
    """A parsed ONNX model, ready to be built for several profiles; no GPU is needed to parse.

    Args:
        source: path of a file, or the file's bytes.
        inputs, outputs: as the model describes them.
        strongly_typed: whether the types in the file are those that are computed in.
    """

    def __init__(self, library: TensorRTLibrary, source: Path | bytes, name: str, options: BuildOptions) -> None:
        self._library, self._options, self.name = library, options, name
        self.strongly_typed = _is_strongly_typed(library, source, name, options)
        self._builder = library.create_builder()
        self._network = library.create_network(self._builder, self.strongly_typed)
        self._parser = library.module.OnnxParser(self._network, library.logger)
        parsed = self._parser.parse(source) if isinstance(source, bytes) else self._parser.parse_from_file(str(source))
        if not parsed:
            raise BackendError(f"{name} cannot be read by {library.name} {library.version}: {self._parse_errors()}")
        network = self._network
        self.inputs = tuple(tensor_spec(network.get_input(index)) for index in range(network.num_inputs))
        self.outputs = tuple(tensor_spec(network.get_output(index)) for index in range(network.num_outputs))

    @property
    def is_dynamic(self) -> bool:
        """Whether an input leaves a dimension open, so that an engine needs a profile."""
        return any(None in spec.shape for spec in self.inputs)

    def layers(self) -> list[tuple[str, str, str]]:
        """Name, kind and type of the first output of each layer, before TensorRT fuses them."""
        layers = (self._network.get_layer(index) for index in range(self._network.num_layers))
        return [(layer.name, layer.type.name, layer.get_output(0).dtype.name) for layer in layers]

    def profiles(self, shapes: Mapping[str, Shape] | None) -> tuple[Profile, ...]:
        """Those of the options, else one of these shapes; none for a model without open dimensions.

        Raises `BackendError` where they do not fit the model.
        """
        if not self.is_dynamic:
            return ()
        given = self._options.profiles or ((exact_profile(shapes),) if shapes is not None else ())
        return tuple(self._checked(profile) for profile in given)

    def build(
        self,
        profiles: tuple[Profile, ...],
        timing_cache: bytes | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> tuple[Engine, bytes | None]:
        """The engine, and the timing cache as it is afterwards. This may take minutes."""
        library, messages = self._library, self._library.messages
        config = self._builder.create_builder_config()
        settings = self._configure(config)
        for profile in profiles:
            self._add(config, profile)
        has_cache = library.set_timing_cache(config, timing_cache)
        messages.clear()
        start_ns = clock_ns()
        plan = self._builder.build_serialized_network(self._network, config)
        build_ms = (clock_ns() - start_ns) / 1e6
        if plan is None:
            raise messages.failure(
                f"{library.name} {library.version} built no engine of {self.name}", "change the model or the options"
            )
        settings["profiles"] = "; ".join(map(describe_profile, profiles)) or "none, all shapes are fixed"
        engine = Engine(bytes(plan), settings, build_ms)
        return engine, bytes(config.get_timing_cache().serialize()) if has_cache else None

    def _configure(self, config: Any) -> dict[str, str]:
        module, options = self._library.module, self._options
        flags = self._library.set_precision(config, options.precision, self.strongly_typed)
        config.profiling_verbosity = module.ProfilingVerbosity.DETAILED  # for the inspector; it costs no speed
        if options.workspace_bytes is not None:
            config.set_memory_pool_limit(module.MemoryPoolType.WORKSPACE, options.workspace_bytes)
        if options.optimization_level is not None:
            config.builder_optimization_level = options.optimization_level
        self._library.set_compute_capabilities(config, options.compute_capabilities)
        settings = {
            "typing": "strong" if self.strongly_typed else "weak",
            "builder flags": ", ".join(flags) or "none",
            "optimization_level": str(config.builder_optimization_level),
            "workspace_bytes": str(config.get_memory_pool_limit(module.MemoryPoolType.WORKSPACE)),
        }
        if self._library.is_rtx:
            settings["compute_capabilities"] = ", ".join(options.compute_capabilities) or "8.0 and later"
        return settings

    def _add(self, config: Any, profile: Profile) -> None:
        made = self._builder.create_optimization_profile()
        told = f"{self.name} does not take the profile {describe_profile(profile)}"
        try:
            for name, shapes in profile.items():
                made.set_shape(name, shapes.min, shapes.opt, shapes.max)
        except ValueError as error:
            raise BackendError(f"{told}: {error}") from error
        if config.add_optimization_profile(made) < 0:
            raise self._library.messages.failure(told, "give shapes that it takes")

    def _checked(self, profile: Profile) -> Profile:
        """A profile with all inputs that need one, and no others."""
        by_name = {spec.name: spec for spec in self.inputs}
        if others := sorted(set(profile) - set(by_name)):
            raise BackendError(f"the profile names {others[0]!r}, and the model takes {', '.join(by_name)}")
        whole = {}
        for name, spec in by_name.items():
            shapes = profile.get(name)
            if shapes is None and None in spec.shape:
                raise BackendError(f"the profile leaves {name!r} out, whose shape is open; give its shapes too")
            if shapes is not None:
                if not all(_fits(shape, spec) for shape in (shapes.min, shapes.opt, shapes.max)):
                    raise BackendError(f"the profile of {name!r} is {describe_range(shapes)}, the model's {spec.shape}")
                whole[name] = shapes
        return whole

    def _parse_errors(self) -> str:
        if self._parser.num_errors == 0:
            return "it does not say why"
        error = self._parser.get_error(0)
        told = " ".join(str(error.desc()).split())[:300]
        return f"{told} (node {error.node_name()!r}, operator {error.node_operator()!r})" if error.node_name() else told


def tensor_spec(tensor: Any) -> TensorSpec:
    """Of a tensor of a network."""
    return spec_of(tensor.name, tensor.shape, tensor.dtype)


def spec_of(name: str, shape: Any, dtype: Any) -> TensorSpec:
    """A tensor in our terms. Raises `BackendError` where NumPy has not its type."""
    if dtype.name not in DTYPES:
        raise BackendError(
            f"{name!r} is of type {dtype.name}, which NumPy has not; give the model inputs and outputs of another "
            "(casts at its ends keep the inside as it is)"
        )
    sizes = tuple(None if size < 0 else int(size) for size in shape)
    return TensorSpec(name=name, shape=sizes, dtype=DTYPES[dtype.name])


def describe_profile(profile: Profile) -> str:
    """In the words in which it is given."""
    return "; ".join(f"{name}:{describe_range(shapes)}" for name, shapes in profile.items())


def describe_range(shapes: ShapeRange) -> str:
    """`1x3,4x3,8x3`, or `4x3` where all three are the same."""
    each = dict.fromkeys("x".join(map(str, shape)) for shape in (shapes.min, shapes.opt, shapes.max))
    texts = ["x".join(map(str, shape)) for shape in (shapes.min, shapes.opt, shapes.max)]
    return texts[0] if len(each) == 1 else ",".join(texts)


def _fits(shape: Shape, spec: TensorSpec) -> bool:
    return len(shape) == len(spec.shape) and all(
        wanted in (None, size) for size, wanted in zip(shape, spec.shape, strict=True)
    )


def _is_strongly_typed(library: TensorRTLibrary, source: Path | bytes, name: str, options: BuildOptions) -> bool:
    """Whether the network is to be so. Raises `BackendError` where the precision cannot be had of this model."""
    own = model_precision(source if isinstance(source, bytes) else str(source))
    wanted = "fp32" if options.precision == "tf32" else options.precision
    is_own = own in (None, wanted)
    strong_only = not library.has_precision_flags
    if wanted == "int8" and own != "int8":
        raise BackendError(
            f"{name} is {own} and its own precision stays; for int8 give a model with QuantizeLinear and "
            "DequantizeLinear, which onnxruntime.quantization makes"
        )
    if (strong_only or options.typing == "strong") and not is_own:
        why = f"{library.name} {library.version} computes" if strong_only else "a strongly typed network computes"
        raise BackendError(f"{name} is {own}, and {why} in the model's own precision; give a model in {wanted}")
    if options.typing == "weak":
        return False
    if own not in (None, wanted, "fp32"):
        raise BackendError(f"{name} is {own}, its own precision, and is not widened to {wanted}; ask for {own}")
    return is_own
