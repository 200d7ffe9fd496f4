"""Serialized engines: read from a file, or built from ONNX and cached between processes.

The cache key is the model (bytes of its files), library, GPU, options and profiles.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from perfharness.backends.base import BackendOptions
from perfharness.backends.model_files import sha256_of
from perfharness.backends.models import Shape, check_own_precision
from perfharness.backends.onnx_files import model_precision, onnx_weight_files
from perfharness.backends.tensorrt.library import TensorRTLibrary
from perfharness.errors import BackendError, ResultError
from perfharness.files import replacing
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
"""TensorRT's type name -> NumPy's, for types known to NumPy."""


@dataclass(frozen=True)
class ShapeRange:
    """Smallest, usual and largest shape of an input."""

    min: Shape
    opt: Shape
    max: Shape

    def holds(self, shape: Shape) -> bool:
        """Whether a shape lies between smallest and largest."""
        return len(shape) == len(self.min) and all(
            low <= size <= high for low, size, high in zip(self.min, shape, self.max, strict=True)
        )

    def __str__(self) -> str:
        """Format for options: `1x3,4x3,8x3`, or `4x3` if all three are equal."""
        texts = ["x".join(map(str, shape)) for shape in (self.min, self.opt, self.max)]
        return texts[0] if len(set(texts)) == 1 else ",".join(texts)


Profile = Mapping[str, ShapeRange]
"""Shape ranges of all inputs with open dimensions, by name."""


def describe_profile(profile: Profile) -> str:
    """Format for options: `image:1x3,4x3,8x3; scale:1`."""
    return "; ".join(f"{name}:{shapes}" for name, shapes in profile.items())


def profiles_of(options: BackendOptions) -> tuple[Profile, ...]:
    """Optimization profiles in the options; without any, one for exactly the allocated shapes is used.

    Raises `BackendError` for invalid text.
    """
    return tuple(_profile(text) for text in options.extra.get("profile", "").split("|") if text.strip())


def _profile(text: str) -> Profile:
    """Parse `x:1x3x8x8,4x3x8x8,8x3x8x8; y:...`: smallest, usual, largest shape, or one shape for all three."""
    profile = {}
    for part in map(str.strip, text.split(";")):
        name, colon, shapes = part.rpartition(":")
        try:
            sizes = [tuple(int(size) for size in shape.split("x")) for shape in shapes.split(",")]
        except ValueError:
            raise BackendError(f"the profile {part!r} has a part that is not a shape such as 1x3x224x224") from None
        if not colon or len(sizes) not in (1, 3) or len({len(shape) for shape in sizes}) != 1:
            raise BackendError(f"the profile {part!r} is not NAME:MIN,OPT,MAX with shapes such as 1x3x224x224")
        profile[name] = ShapeRange(*(sizes if len(sizes) == 3 else sizes * 3))
        if not profile[name].holds(profile[name].opt):
            raise BackendError(f"the profile {part!r} is out of order; give smallest, usual, largest shape")
    return profile


@dataclass(frozen=True)
class Engine:
    """A serialized engine with the settings of its build; `build_ms` is None if it was built earlier or elsewhere."""

    blob: bytes
    settings: Mapping[str, str]
    build_ms: float | None = None
    name: str = "the engine"


class Network:
    """A parsed ONNX model to build engines from; parsing needs no GPU.

    `gpu` is part of the cache's key. `builds_for_shapes`: whether each set of shapes needs its own engine (open
    dimensions without a profile).
    """

    def __init__(
        self, library: TensorRTLibrary, source: Path | bytes, name: str, options: BackendOptions, gpu: str
    ) -> None:
        self._library, self._options, self._source, self._gpu, self.name = library, options, source, gpu, name
        check_own_precision(name, str(library), model_precision(source), options.precision)
        self._builder = library.start("Builder")
        # accepted but without effect in TensorRT 11
        flag = library.module.NetworkDefinitionCreationFlag.STRONGLY_TYPED
        self.network = network = self._builder.create_network(1 << int(flag))
        parser = library.module.OnnxParser(network, library.logger)
        if not (parser.parse(source) if isinstance(source, bytes) else parser.parse_from_file(str(source))):
            raise BackendError(f"{name} cannot be read by {library}: {_parse_error(parser)}")
        self.inputs = tuple(_described(network.get_input(index)) for index in range(network.num_inputs))
        self.outputs = tuple(_described(network.get_output(index)) for index in range(network.num_outputs))
        is_open = any(None in spec.shape for spec in self.inputs)
        self._profiles = profiles_of(options) if is_open else ()
        self.builds_for_shapes = is_open and not self._profiles

    def engine(self, shapes: Mapping[str, Shape] | None = None) -> Engine:
        """The engine (for these shapes, if it depends on them), from the cache or built, which may take minutes."""
        profiles = self._profiles
        if self.builds_for_shapes and shapes is not None:
            profiles = ({name: ShapeRange(shape, shape, shape) for name, shape in shapes.items()},)
        name, path = f"the engine of {self.name}", self._cache_path(profiles)
        if path is not None and path.exists():
            return Engine(path.read_bytes(), {"built": "earlier"}, None, name)
        config = self._builder.create_builder_config()
        settings = self._configure(config)
        for profile in profiles:
            self._add(config, profile)
        start_ns = time.perf_counter_ns()
        plan = self._library.call(
            f"{self._library} could not build an engine of {self.name}",
            "change the model or the options",
            self._builder.build_serialized_network,
            self.network,
            config,
        )
        build_ms = (time.perf_counter_ns() - start_ns) / 1e6
        settings["profiles"] = "; ".join(map(describe_profile, profiles)) or "none, because all shapes are fixed"
        built = Engine(bytes(plan), settings, build_ms, name)
        if path is not None:
            _keep(path, built.blob)
        return built

    def _configure(self, config: Any) -> dict[str, str]:
        module, extra = self._library.module, self._options.extra
        is_tf32 = self._options.precision == "tf32"  # TF32 is on by default
        (config.set_flag if is_tf32 else config.clear_flag)(module.BuilderFlag.TF32)
        if "workspace_bytes" in extra:
            config.set_memory_pool_limit(module.MemoryPoolType.WORKSPACE, int(extra["workspace_bytes"]))
        if "optimization_level" in extra:
            config.builder_optimization_level = int(extra["optimization_level"])
        return {
            "builder flags": "TF32" if is_tf32 else "none",
            "optimization_level": str(config.builder_optimization_level),
            "workspace_bytes": str(config.get_memory_pool_limit(module.MemoryPoolType.WORKSPACE)),
        }

    def _add(self, config: Any, profile: Profile) -> None:
        made = self._builder.create_optimization_profile()
        what = f"{self.name} does not support the profile {describe_profile(profile)}"
        try:
            for name, shapes in profile.items():
                made.set_shape(name, shapes.min, shapes.opt, shapes.max)
        except ValueError as error:
            raise BackendError(f"{what}: {error}") from error
        advice = "give supported shapes"
        self._library.call(what, advice, lambda: config.add_optimization_profile(made) >= 0)

    def _cache_path(self, profiles: tuple[Profile, ...]) -> Path | None:
        """File name of an engine, derived from all that it depends on; None without a cache."""
        if self._options.cache_dir is None:
            return None
        if isinstance(source := self._source, bytes):
            sha256 = hashlib.sha256(source).hexdigest()
        else:
            sha256 = sha256_of(source, *onnx_weight_files(source))
        described = {
            "model_sha256": sha256,
            "library": str(self._library),
            "gpu": self._gpu,
            "precision": self._options.precision,
            **{name: self._options.extra.get(name) for name in ("workspace_bytes", "optimization_level")},
            "profiles": [{name: asdict(shapes) for name, shapes in sorted(each.items())} for each in profiles],
        }
        key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]
        return self._options.cache_dir / "tensorrt" / f"{key}.engine"


def _keep(path: Path, blob: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(blob)
    except (OSError, ResultError) as error:
        raise BackendError(f"{error}; name another cache folder") from error


def engine_of_file(path: Path, name: str) -> Engine:
    """Load an engine built elsewhere."""
    settings = {"precision": "that of the engine file, regardless of the request"}
    return Engine(path.read_bytes(), settings, None, f"the engine {name}")


def tensor_spec(name: str, shape: Any, dtype: Any) -> TensorSpec:
    """Spec of a network's or engine's tensor. Raises `BackendError` for types unknown to NumPy."""
    if dtype.name not in DTYPES:
        raise BackendError(
            f"{name!r} is of type {dtype.name}, which NumPy lacks; give the model inputs and outputs of another type "
            "(casts at its ends leave the inside unchanged)"
        )
    sizes = tuple(None if size < 0 else int(size) for size in shape)
    return TensorSpec(name=name, shape=sizes, dtype=DTYPES[dtype.name])


def _described(tensor: Any) -> TensorSpec:
    return tensor_spec(tensor.name, tensor.shape, tensor.dtype)


def _parse_error(parser: Any) -> str:
    if parser.num_errors == 0:
        return "no reason given"
    error = parser.get_error(0)
    text = " ".join(str(error.desc()).split())[:300]
    return f"{text} (node {error.node_name()!r}, operator {error.node_operator()!r})" if error.node_name() else text
