"""Where an engine is from: a file, the cache, or a build from ONNX, when a model is loaded or when shapes are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfharness.backends.tensorrt.build import Engine, Network
from perfharness.backends.tensorrt.cache import EngineCache, model_sha256
from perfharness.backends.tensorrt.library import TensorRTLibrary
from perfharness.backends.tensorrt.options import BuildOptions, Profile, Shape
from perfharness.errors import BackendError


@dataclass(frozen=True)
class SourcedEngine:
    """A serialized engine, what it is called in messages, and its key in the cache."""

    engine: Engine
    name: str
    key: str


class EngineSource:
    """An engine file, or an ONNX model that engines are built from.

    Args:
        given: the engine file's path, or the ONNX model (path or bytes).
        network: of the ONNX model; None for an engine file.
    """

    def __init__(
        self, library: TensorRTLibrary, given: Path | bytes, name: str, options: BuildOptions, cache: EngineCache
    ) -> None:
        self.cache, self._options, self._name = cache, options, name
        self.network: Network | None = None
        self._file: Engine | None = None
        if isinstance(given, Path) and given.suffix.lower() in (".engine", ".plan"):
            self._file = Engine(_file_bytes(given), {"precision": "the engine file's own, whatever was asked for"})
        else:
            self.network = Network(library, given, name, options)
        self._model_sha256 = model_sha256(given) if self._file is None else model_sha256(self._file.blob)

    @property
    def builds_for_shapes(self) -> bool:
        """Whether other shapes mean another engine: open dimensions, and no profile given."""
        return self.network is not None and self.network.is_dynamic and not self._options.profiles

    def at_load(self) -> SourcedEngine | None:
        """The engine, where it can be had without knowing shapes."""
        if self._file is not None:
            return SourcedEngine(self._file, f"the engine {self._name}", self._model_sha256[:32])
        return None if self.builds_for_shapes else self._built(None)

    def at_allocate(self, shapes: Mapping[str, Shape]) -> SourcedEngine:
        """An engine for these shapes."""
        return self._built(shapes)

    def _built(self, shapes: Mapping[str, Shape] | None) -> SourcedEngine:
        network = self.network
        assert network is not None  # an engine file is not built
        profiles: tuple[Profile, ...] = network.profiles(shapes)
        key = self.cache.key(self._model_sha256, self._options, profiles, network.strongly_typed)
        name = f"the engine of {self._name}"
        if (kept := self.cache.engine(key)) is not None:
            return SourcedEngine(kept, name, key)
        engine, timing = network.build(profiles, self.cache.timing())
        self.cache.keep_timing(timing)
        self.cache.keep_engine(key, engine, model=self._name, model_sha256=self._model_sha256)
        return SourcedEngine(engine, name, key)


def _file_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BackendError(f"the engine {path} cannot be read: {error}") from error
