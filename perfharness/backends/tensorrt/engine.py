"""Serialized engines: read from a file, or built from ONNX and kept in a folder from one process to the next."""

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
"""TensorRT's name of a type -> NumPy's, where NumPy has it."""


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
        """As in the options: `1x3,4x3,8x3`, or `4x3` where all three are the same."""
        texts = ["x".join(map(str, shape)) for shape in (self.min, self.opt, self.max)]
        return texts[0] if len(set(texts)) == 1 else ",".join(texts)


Profile = Mapping[str, ShapeRange]
"""Shape ranges of all inputs with open dimensions, by name."""


def describe_profile(profile: Profile) -> str:
    """As in the options: `image:1x3,4x3,8x3; scale:1`."""
    return "; ".join(f"{name}:{shapes}" for name, shapes in profile.items())


def profiles_of(options: BackendOptions) -> tuple[Profile, ...]:
    """The optimization profiles that the options name; none: one with exactly the shapes that are allocated.

    Raises `BackendError` for text that is no profile.
    """
    return tuple(_profile(text) for text in options.extra.get("profile", "").split("|") if text.strip())


def _profile(text: str) -> Profile:
    """`x:1x3x8x8,4x3x8x8,8x3x8x8; y:...`: smallest, usual, largest shape; one shape stands for all three."""
    profile = {}
    for part in map(str.strip, text.split(";")):
        name, colon, shapes = part.rpartition(":")
        try:
            sizes = [tuple(int(size) for size in shape.split("x")) for shape in shapes.split(",")]
        except ValueError:
            raise BackendError(f"the profile {part!r} has what is no shape such as 1x3x224x224") from None
        if not colon or len(sizes) not in (1, 3) or len({len(shape) for shape in sizes}) != 1:
            raise BackendError(f"the profile {part!r} is not NAME:MIN,OPT,MAX with shapes such as 1x3x224x224")
        profile[name] = ShapeRange(*(sizes if len(sizes) == 3 else sizes * 3))
        if not profile[name].holds(profile[name].opt):
            raise BackendError(f"the profile {part!r} is not in order; give smallest, usual, largest shape")
    return profile


@dataclass(frozen=True)
class Engine:
    """A serialized engine.

    Args:
        settings: how it was built, by TensorRT's names.
        build_ms: None: it was built earlier or elsewhere.
        name: for messages.
    """

    blob: bytes
    settings: Mapping[str, str]
    build_ms: float | None = None
    name: str = "the engine"


class Network:
    """A parsed ONNX model, ready to be built for several profiles; no GPU is needed to parse.

    Args:
        source: path of a file, or the file's bytes.
        inputs, outputs: as the model describes them.
    """

    def __init__(self, library: TensorRTLibrary, source: Path | bytes, name: str, options: BackendOptions) -> None:
        self._library, self._options, self.name = library, options, name
        check_own_precision(name, str(library), model_precision(source), options.precision)
        self._builder = library.start("Builder")
        # accepted but without effect since TensorRT 11
        flag = library.module.NetworkDefinitionCreationFlag.STRONGLY_TYPED
        self.network = network = self._builder.create_network(1 << int(flag))
        parser = library.module.OnnxParser(network, library.logger)
        if not (parser.parse(source) if isinstance(source, bytes) else parser.parse_from_file(str(source))):
            raise BackendError(f"{name} cannot be read by {library}: {_parse_error(parser)}")
        self.inputs = tuple(_described(network.get_input(index)) for index in range(network.num_inputs))
        self.outputs = tuple(_described(network.get_output(index)) for index in range(network.num_outputs))

    @property
    def is_dynamic(self) -> bool:
        """Whether an input leaves a dimension open, so that an engine needs a profile."""
        return any(None in spec.shape for spec in self.inputs)

    def profiles(self, shapes: Mapping[str, Shape] | None) -> tuple[Profile, ...]:
        """Profiles of the options, else one with exactly these shapes; none for a model without open dimensions."""
        if not self.is_dynamic:
            return ()
        exact = () if shapes is None else ({name: ShapeRange(shape, shape, shape) for name, shape in shapes.items()},)
        return profiles_of(self._options) or exact

    def build(self, profiles: tuple[Profile, ...]) -> Engine:
        """The engine. This may take minutes."""
        library = self._library
        config = self._builder.create_builder_config()
        settings = self._configure(config)
        for profile in profiles:
            self._add(config, profile)
        library.messages.clear()
        start_ns = time.perf_counter_ns()
        plan = self._builder.build_serialized_network(self.network, config)
        build_ms = (time.perf_counter_ns() - start_ns) / 1e6
        if plan is None:
            what = f"{library} built no engine of {self.name}"
            raise library.messages.failure(what, "change the model or the options")
        settings["profiles"] = "; ".join(map(describe_profile, profiles)) or "none, all shapes are fixed"
        return Engine(bytes(plan), settings, build_ms, f"the engine of {self.name}")

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
        what = f"{self.name} does not take the profile {describe_profile(profile)}"
        try:
            for name, shapes in profile.items():
                made.set_shape(name, shapes.min, shapes.opt, shapes.max)
        except ValueError as error:
            raise BackendError(f"{what}: {error}") from error
        if config.add_optimization_profile(made) < 0:
            raise self._library.messages.failure(what, "give shapes that it takes")


def tensor_spec(name: str, shape: Any, dtype: Any) -> TensorSpec:
    """A tensor of a network or an engine. Raises `BackendError` where NumPy does not have its type."""
    if dtype.name not in DTYPES:
        raise BackendError(
            f"{name!r} is of type {dtype.name}, which NumPy has not; give the model inputs and outputs of another "
            "(casts at its ends keep the inside as it is)"
        )
    sizes = tuple(None if size < 0 else int(size) for size in shape)
    return TensorSpec(name=name, shape=sizes, dtype=DTYPES[dtype.name])


def _described(tensor: Any) -> TensorSpec:
    return tensor_spec(tensor.name, tensor.shape, tensor.dtype)


def _parse_error(parser: Any) -> str:
    if parser.num_errors == 0:
        return "it does not say why"
    error = parser.get_error(0)
    text = " ".join(str(error.desc()).split())[:300]
    return f"{text} (node {error.node_name()!r}, operator {error.node_operator()!r})" if error.node_name() else text


class EngineCache:
    """Engines under `folder/tensorrt`; None: no cache.

    An engine is found again for the same model (the bytes of its files), library and version, GPU, options and
    profiles; engines of RTX are portable, and shared by all GPUs.
    """

    def __init__(self, folder: Path | None, library: TensorRTLibrary, gpu: str) -> None:
        self._folder = None if folder is None else folder / "tensorrt"
        self._library, self._gpu = str(library), "any" if library.is_rtx else gpu

    def path(self, model_sha256: str, options: BackendOptions, profiles: tuple[Profile, ...]) -> Path | None:
        """File of an engine, which may not exist."""
        if self._folder is None:
            return None
        described = {
            "model_sha256": model_sha256,
            "library": self._library,
            "gpu": self._gpu,
            "precision": options.precision,
            **{name: options.extra.get(name) for name in ("workspace_bytes", "optimization_level")},
            "profiles": [{name: asdict(shapes) for name, shapes in sorted(each.items())} for each in profiles],
        }
        key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]
        return self._folder / f"{key}.engine"

    def keep(self, path: Path, blob: bytes) -> None:
        """Write an engine. Raises `BackendError` where that is not possible."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                temporary.write_bytes(blob)
        except (OSError, ResultError) as error:
            raise BackendError(f"{error}; name another cache folder") from error


class EngineSource:
    """An engine file, or an ONNX model that engines are built from.

    Args:
        given: the engine file's path, or the ONNX model (path or bytes).
        network: of the ONNX model; None for an engine file.
    """

    def __init__(
        self, library: TensorRTLibrary, given: Path | bytes, name: str, options: BackendOptions, cache: EngineCache
    ) -> None:
        self._cache, self._options, self._name, self._given = cache, options, name, given
        self.network = None if is_engine_file(given) else Network(library, given, name, options)
        self._model_sha256 = model_sha256(given)

    @property
    def builds_for_shapes(self) -> bool:
        """Whether each set of shapes needs its own engine: open dimensions, and no profile given."""
        return self.network is not None and self.network.is_dynamic and not profiles_of(self._options)

    def engine(self, shapes: Mapping[str, Shape] | None = None) -> Engine:
        """The engine; built for these shapes where it depends on them, unless the cache has it."""
        network = self.network
        if network is None:
            assert isinstance(self._given, Path)
            settings = {"precision": "the engine file's own, whatever was asked for"}
            return Engine(self._given.read_bytes(), settings, None, f"the engine {self._name}")
        profiles = network.profiles(shapes)
        path = self._cache.path(self._model_sha256, self._options, profiles)
        if path is not None and path.exists():
            return Engine(path.read_bytes(), {"built": "earlier"}, None, f"the engine of {self._name}")
        engine = network.build(profiles)
        if path is not None:
            self._cache.keep(path, engine.blob)
        return engine


def is_engine_file(given: Path | bytes) -> bool:
    """Whether the suffix is that of an engine."""
    return isinstance(given, Path) and given.suffix.lower() in (".engine", ".plan")


def model_sha256(source: Path | bytes) -> str:
    """Digest of a model's file and, of ONNX, its weight files. Raises `BackendError` where one is missing."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    try:
        return sha256_of(source, *(() if is_engine_file(source) else onnx_weight_files(source)))
    except OSError as error:
        raise BackendError(f"{source} cannot be read: {error}") from error
