"""TensorRT and TensorRT-RTX as backends: installation, supported devices, accepted models."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from perfharness.backends.base import Backend, BackendOptions, ModelSource, Session
from perfharness.backends.cuda_memory import checked, gpu_problem, runtime
from perfharness.backends.models import call_factory
from perfharness.backends.tensorrt.engine import EXTRA, EngineCache, EngineSource, build_options, is_engine_file
from perfharness.backends.tensorrt.library import TensorRTLibrary, import_library
from perfharness.backends.tensorrt.session import TensorRTSession
from perfharness.errors import BackendError, BackendUnavailableError
from perfharness.model.distribution import install_command


class TensorRTBackend(Backend):
    """TensorRT 10 and 11: ONNX files, engines, and functions that return a path, the bytes or an `onnx.ModelProto`."""

    name = "tensorrt"
    modes = ("stream", "cudagraph")
    precisions = ("fp32", "tf32", "fp16", "bf16", "int8")
    suffixes: tuple[str, ...] = (".onnx", ".engine", ".plan")
    install = install_command("tensorrt")
    module: ClassVar[str] = "tensorrt"
    title: ClassVar[str] = "TensorRT"

    def versions(self) -> dict[str, str]:
        """Of TensorRT, its ONNX parser being part of it."""
        return {self.module: self._library().version}

    def problem(self, options: BackendOptions) -> str | None:
        """Not installed, no GPU, or a GPU that the library does not support."""
        if (problem := self.option_problem(options, EXTRA)) is not None:
            return problem
        try:
            build_options(options)
            library = self._library()
        except BackendError as error:
            return str(error)
        if options.device != "cuda":
            return f"{self.title} runs on a GPU only; choose the device cuda"
        if (problem := gpu_problem()) is not None:
            return problem
        return library.gpu_problem(*_compute_capability())

    def load(self, model: ModelSource, options: BackendOptions) -> Session:
        """A session; an engine that needs no shapes is built here, others in `allocate`."""
        self.check(options)
        self.check_model(model)
        library = self._library()
        cache = EngineCache(options.cache_dir, library, _gpu_name())
        given = model.path if model.path is not None else self._from_function(model, options)
        return TensorRTSession(
            library, EngineSource(library, given, model.name, build_options(options), cache), options
        )

    def _from_function(self, model: ModelSource, options: BackendOptions) -> Path | bytes:
        """Return value of the user's function, called with `tensorrt` for all variants, since all take ONNX."""
        made = call_factory(model, TensorRTBackend.name, options.precision)
        if hasattr(made, "SerializeToString"):
            made = made.SerializeToString()
        if isinstance(made, bytes):
            return made
        if isinstance(made, str | Path):
            return Path(made)
        raise BackendError(
            f"{model.factory} returned a {type(made).__name__} for {self.name}; it must return the path of an .onnx or "
            ".engine file, an ONNX file's bytes, or an onnx.ModelProto"
        )

    def _library(self) -> TensorRTLibrary:
        library = import_library(self.module, self.title, self.install)
        try:
            import onnx  # noqa: F401  # which precision a model has is read from the file
        except ImportError:
            raise BackendUnavailableError(f"onnx is not installed: {self.install}") from None
        return library


class TensorRTLeanBackend(TensorRTBackend):
    """TensorRT's lean runtime: runs engines built elsewhere by `trtexec --versionCompatible --excludeLeanRuntime`."""

    name = "tensorrt-lean"
    suffixes = (".engine", ".plan")
    install = install_command("tensorrt-lean")
    module = "tensorrt_lean_bindings"
    title = "TensorRT lean"

    def _from_function(self, model: ModelSource, options: BackendOptions) -> Path | bytes:
        given = super()._from_function(model, options)
        if not is_engine_file(given):
            raise BackendError(f"{model.factory} returned ONNX; {self.title} runs .engine and .plan files only")
        return given

    def _library(self) -> TensorRTLibrary:
        return import_library(self.module, self.title, self.install)


class TensorRTRTXBackend(TensorRTBackend):
    """TensorRT-RTX: the same, engines built ahead of time for several kinds of GPU and compiled where they run."""

    name = "tensorrt-rtx"
    install = install_command("tensorrt-rtx")
    module = "tensorrt_rtx"
    title = "TensorRT-RTX"


def _compute_capability() -> tuple[int, int]:
    """Major and minor of the first GPU."""
    cuda = runtime()
    attribute = cuda.cudaDeviceAttr
    return (
        int(checked(cuda.cudaDeviceGetAttribute(attribute.cudaDevAttrComputeCapabilityMajor, 0), "a GPU's attribute")),
        int(checked(cuda.cudaDeviceGetAttribute(attribute.cudaDevAttrComputeCapabilityMinor, 0), "a GPU's attribute")),
    )


def _gpu_name() -> str:
    """Name and compute capability of the first GPU: what an engine depends on."""
    properties = checked(runtime().cudaGetDeviceProperties(0), "the properties of the GPU")
    name = properties.name.decode() if isinstance(properties.name, bytes) else str(properties.name)
    major, minor = _compute_capability()
    return f"{name.rstrip(chr(0))} {major}.{minor}"
