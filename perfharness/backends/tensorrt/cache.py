"""Engines, timing caches and what RTX compiled, kept in a folder from one process to the next."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from perfharness.backends.model_files import onnx_weight_files, sha256_of
from perfharness.backends.tensorrt.build import Engine
from perfharness.backends.tensorrt.library import TensorRTLibrary
from perfharness.backends.tensorrt.options import BuildOptions, Profile
from perfharness.errors import BackendError


class EngineCache:
    """Files under `folder/tensorrt`, each written whole or not at all; with None nothing is kept.

    An engine is found again for the same model (the bytes of its files), library and version, GPU, options and
    profiles. `KEY.json` beside it says in words what it was built from.
    """

    def __init__(self, folder: Path | None, library: TensorRTLibrary, gpu: str) -> None:
        self._folder = None if folder is None else folder / "tensorrt"
        self._library, self._gpu = library, gpu

    def key(self, model_sha256: str, options: BuildOptions, profiles: tuple[Profile, ...], strong: bool) -> str:
        """Name of an engine's files; where engines are portable (RTX), they are shared by all GPUs."""
        return _sha256_text(self._described(model_sha256, options, profiles, strong))[:32]

    def engine(self, key: str) -> Engine | None:
        """What was kept, or None."""
        blob, described = self._read(f"{key}.engine"), self._read(f"{key}.json")
        if blob is None or described is None:
            return None
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(described)
            if told["engine_sha256"] == hashlib.sha256(blob).hexdigest():
                return Engine(blob, {**told["settings"], "built": f"earlier, in {told['build_ms']:.0f} ms"})
        return None

    def keep_engine(self, key: str, engine: Engine, **described: Any) -> None:
        """Engine, how it was built, and in how long."""
        digest = hashlib.sha256(engine.blob).hexdigest()
        told = {
            "library": f"{self._library.name} {self._library.version}",
            "gpu": self._gpu,
            "engine_bytes": len(engine.blob),
            "engine_sha256": digest,
            "build_ms": engine.build_ms,
            "settings": dict(engine.settings),
            **described,
        }
        self._write(f"{key}.engine", engine.blob)
        self._write(f"{key}.json", json.dumps(told, indent=2).encode())

    def keep_layers(self, key: str, information: object) -> None:
        """What the engine inspector tells, as `KEY.layers.json`."""
        self._write(f"{key}.layers.json", json.dumps(information, indent=1).encode())

    def timing(self) -> bytes | None:
        """Timing cache of this library on this GPU."""
        return self._read(self._timing_name())

    def keep_timing(self, cache: bytes | None) -> None:
        """As it is after a build."""
        if cache is not None:
            self._write(self._timing_name(), cache)

    def compiled(self, key: str) -> bytes | None:
        """What RTX compiled for an engine on this GPU."""
        return self._read(self._compiled_name(key))

    def keep_compiled(self, key: str, cache: bytes) -> None:
        """RTX's runtime cache after use."""
        self._write(self._compiled_name(key), cache)

    def _described(
        self, model_sha256: str, options: BuildOptions, profiles: tuple[Profile, ...], strong: bool
    ) -> dict[str, Any]:
        return {
            "model_sha256": model_sha256,
            "library": [self._library.name, self._library.version],
            "gpu": "any" if self._library.is_rtx and "CURRENT" not in options.compute_capabilities else self._gpu,
            "options": {name: value for name, value in asdict(options).items() if name not in ("profiles", "typing")},
            "profiles": [{name: asdict(shapes) for name, shapes in sorted(each.items())} for each in profiles],
            "strongly_typed": strong,
        }

    def _timing_name(self) -> str:
        named = _sha256_text([self._library.name, self._library.version, self._gpu])[:16]
        return f"timing-{named}.cache"

    def _compiled_name(self, key: str) -> str:
        return f"{key}-{_sha256_text(self._gpu)[:8]}.runtime-cache"

    def _read(self, name: str) -> bytes | None:
        if self._folder is None:
            return None
        try:
            return (self._folder / name).read_bytes()
        except OSError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        """Whole or not at all, also with several processes at once."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, place = tempfile.mkstemp(dir=self._folder, prefix=f".{name}-")
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(place).replace(self._folder / name)
        except OSError as error:
            raise BackendError(
                f"{self._folder / name} cannot be written ({error}); name another cache folder"
            ) from error


def model_sha256(source: Path | bytes) -> str:
    """Of an ONNX model: the file and the files with its weights. Raises `BackendError` where one is missing."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    try:
        return sha256_of(source, *onnx_weight_files(source))
    except OSError as error:
        raise BackendError(f"{source} cannot be read: {error}") from error


def _sha256_text(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
