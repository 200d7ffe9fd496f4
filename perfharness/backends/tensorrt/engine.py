"""Serialized engines: read from a file, or built from ONNX and kept in a folder from one process to the next."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
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
        key: name of its files in the cache.
    """

    blob: bytes
    settings: Mapping[str, str]
    build_ms: float | None = None
    name: str = "the engine"
    key: str = ""


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

    def build(
        self,
        profiles: tuple[Profile, ...],
        timing_cache: bytes | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> tuple[Engine, bytes | None]:
        """The engine, and the updated timing cache. This may take minutes."""
        library = self._library
        config = self._builder.create_builder_config()
        settings = self._configure(config)
        for profile in profiles:
            self._add(config, profile)
        has_cache = library.set_timing_cache(config, timing_cache)
        library.messages.clear()
        start_ns = clock_ns()
        plan = self._builder.build_serialized_network(self.network, config)
        build_ms = (clock_ns() - start_ns) / 1e6
        if plan is None:
            what = f"{library} built no engine of {self.name}"
            raise library.messages.failure(what, "change the model or the options")
        settings["profiles"] = "; ".join(map(describe_profile, profiles)) or "none, all shapes are fixed"
        timing = bytes(config.get_timing_cache().serialize()) if has_cache else None
        return Engine(bytes(plan), settings, build_ms), timing

    def _configure(self, config: Any) -> dict[str, str]:
        module, extra = self._library.module, self._options.extra
        is_tf32 = self._options.precision == "tf32"  # TF32 is on by default
        (config.set_flag if is_tf32 else config.clear_flag)(module.BuilderFlag.TF32)
        config.profiling_verbosity = module.ProfilingVerbosity.DETAILED  # for the inspector; it costs no speed
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
    """Files under `folder/tensorrt`, each written atomically; None: no cache.

    An engine is found again for the same model (the bytes of its files), library and version, GPU, options and
    profiles; engines of RTX are portable, and shared by all GPUs. `KEY.json` next to it has the inputs of the build.
    """

    def __init__(self, folder: Path | None, library: TensorRTLibrary, gpu: str) -> None:
        self._folder = None if folder is None else folder / "tensorrt"
        self._library, self._gpu = library, gpu
        self.timing_name = f"timing-{_sha256([str(library), gpu])[:16]}.cache"

    def key(self, model_sha256: str, options: BackendOptions, profiles: tuple[Profile, ...]) -> str:
        """Name of an engine's files."""
        described = {
            "model_sha256": model_sha256,
            "library": str(self._library),
            "gpu": "any" if self._library.is_rtx else self._gpu,
            "precision": options.precision,
            **{name: options.extra.get(name) for name in ("workspace_bytes", "optimization_level")},
            "profiles": [{name: asdict(shapes) for name, shapes in sorted(each.items())} for each in profiles],
        }
        return _sha256(described)[:32]

    def compiled_name(self, key: str) -> str:
        """Name of the file with RTX's compiled kernels for an engine on this GPU."""
        return f"{key}-{_sha256(self._gpu)[:8]}.runtime-cache"

    def engine(self, key: str) -> Engine | None:
        """The cached engine; None where there is none or it is damaged."""
        blob, text = self.read(f"{key}.engine"), self.read(f"{key}.json")
        if blob is not None and text is not None:
            with suppress(ValueError, KeyError, TypeError):
                kept = json.loads(text)
                if kept["engine_sha256"] == hashlib.sha256(blob).hexdigest():
                    return Engine(blob, {**kept["settings"], "built": f"earlier, in {kept['build_ms']:.0f} ms"})
        return None

    def keep_engine(self, key: str, engine: Engine, **described: Any) -> None:
        """Write the engine, its build settings and build time."""
        about = {
            "library": str(self._library),
            "gpu": self._gpu,
            "engine_bytes": len(engine.blob),
            "engine_sha256": hashlib.sha256(engine.blob).hexdigest(),
            "build_ms": engine.build_ms,
            "settings": dict(engine.settings),
            **described,
        }
        self.keep(f"{key}.engine", engine.blob)
        self.keep(f"{key}.json", json.dumps(about, indent=2).encode())

    def read(self, name: str) -> bytes | None:
        """A file's content, or None."""
        try:
            return None if self._folder is None else (self._folder / name).read_bytes()
        except OSError:
            return None

    def keep(self, name: str, data: bytes | None) -> None:
        """Write a file, unless the content is None. Raises `BackendError` where that is not possible."""
        if self._folder is None or data is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(self._folder / name) as temporary:
                temporary.write_bytes(data)
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
        self.cache, self._options, self._name, self._given = cache, options, name, given
        self.network = None if is_engine_file(given) else Network(library, given, name, options)
        self._model_sha256 = model_sha256(given)

    @property
    def builds_for_shapes(self) -> bool:
        """Whether each set of shapes needs its own engine: open dimensions, and no profile given."""
        return self.network is not None and self.network.is_dynamic and not profiles_of(self._options)

    def engine(self, shapes: Mapping[str, Shape] | None = None) -> Engine:
        """The engine; built for these shapes where it depends on them."""
        model, network = self._model_sha256, self.network
        if network is None:
            assert isinstance(self._given, Path)
            settings = {"precision": "the engine file's own, whatever was asked for"}
            return Engine(self._given.read_bytes(), settings, None, f"the engine {self._name}", model[:32])
        profiles = network.profiles(shapes)
        key = self.cache.key(model, self._options, profiles)
        engine = self.cache.engine(key)
        if engine is None:
            engine, timing = network.build(profiles, self.cache.read(self.cache.timing_name))
            self.cache.keep(self.cache.timing_name, timing)
            self.cache.keep_engine(key, engine, model=self._name, model_sha256=model)
        return replace(engine, name=f"the engine of {self._name}", key=key)


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


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
