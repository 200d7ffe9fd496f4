"""TensorRT and TensorRT-RTX as backends: installation, supported devices, accepted models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from perfharness.backends.base import NUMBER, Backend, BackendOptions, imported
from perfharness.backends.cuda_memory import checked, gpu_problem, runtime
from perfharness.backends.models import ModelSource
from perfharness.backends.onnx_files import onnx_source
from perfharness.backends.session import Session
from perfharness.backends.tensorrt.engine import Engine, Network, engine_of_file, profiles_of
from perfharness.backends.tensorrt.library import TensorRTLibrary
from perfharness.backends.tensorrt.session import TensorRTSession
from perfharness.distribution import install_command
from perfharness.errors import BackendError


class TensorRTBackend(Backend):
    """TensorRT 10 and 11: ONNX files, engines, and functions that return a path, bytes or an `onnx.ModelProto`."""

    name = "tensorrt"
    modes = ("stream", "cudagraph")
    precisions = ("fp32", "tf32", "fp16", "bf16", "int8")
    suffixes: tuple[str, ...] = (".onnx", ".engine", ".plan")
    install = install_command("tensorrt")
    extra: Mapping[str, tuple[str, ...]] = {
        "profile": (),
        "workspace_bytes": NUMBER,
        "optimization_level": tuple("012345"),
    }
    module: ClassVar[str] = "tensorrt"
    title: ClassVar[str] = "TensorRT"
    builds: ClassVar[bool] = True

    def versions(self) -> dict[str, str]:
        """Version of TensorRT, which includes its ONNX parser."""
        return {self.module: self.library().version}

    def unsupported(self, options: BackendOptions) -> str | None:
        """Check for a GPU supported by the library."""
        profiles_of(options)
        library = self.library()
        if options.device != "cuda":
            return f"{self.title} runs only on a GPU; use the device cuda"
        return gpu_problem() or library.gpu_problem(*_compute_capability())

    def open(self, model: ModelSource, options: BackendOptions) -> Session:
        """Open a session; engines that do not depend on shapes are built here, others in `allocate`."""
        library = self.library()
        return TensorRTSession(library, self.source(library, model, options), options)

    def library(self) -> TensorRTLibrary:
        """Import the library. Raises `BackendUnavailableError`."""
        if self.builds:
            imported("onnx", self.install)  # needed to read a model's precision from the file
        return TensorRTLibrary(imported(self.module, self.install, self.title), self.title)

    def source(self, library: TensorRTLibrary, model: ModelSource, options: BackendOptions) -> Network | Engine:
        """The network to build engines from, or the engine of a file; RTX needs no GPU for it."""
        takes = "the path of an .onnx or .engine file, an ONNX file's bytes, or an onnx.ModelProto"
        given = onnx_source(model, TensorRTBackend.name, options, takes)
        if isinstance(given, Path) and given.suffix.lower() in (".engine", ".plan"):
            return engine_of_file(given, model.name)
        if not self.builds:
            raise BackendError(f"{model.factory} returned ONNX; {self.title} runs only .engine and .plan files")
        gpu = "any" if library.is_rtx or options.cache_dir is None else _gpu_name()  # RTX engines are portable
        return Network(library, given, model.name, options, gpu)


class TensorRTLeanBackend(TensorRTBackend):
    """TensorRT's lean runtime, for engines built by `trtexec --versionCompatible --excludeLeanRuntime`."""

    name = "tensorrt-lean"
    suffixes = (".engine", ".plan")
    install = install_command("tensorrt-lean")
    module = "tensorrt_lean_bindings"
    title = "TensorRT lean"
    builds = False


class TensorRTRTXBackend(TensorRTBackend):
    """TensorRT-RTX: engines are built ahead of time for several kinds of GPU and compiled where they run."""

    name = "tensorrt-rtx"
    install = install_command("tensorrt-rtx")
    module = "tensorrt_rtx"
    title = "TensorRT-RTX"


def _compute_capability() -> tuple[int, int]:
    """Compute capability of the first GPU."""
    cuda, kinds = runtime(), runtime().cudaDeviceAttr
    wanted = (kinds.cudaDevAttrComputeCapabilityMajor, kinds.cudaDevAttrComputeCapabilityMinor)
    major, minor = (int(checked(cuda.cudaDeviceGetAttribute(each, 0), "a GPU's attribute")) for each in wanted)
    return major, minor


def _gpu_name() -> str:
    """Name and compute capability of the first GPU, on which engines depend."""
    properties = checked(runtime().cudaGetDeviceProperties(0), "the properties of the GPU")
    name = properties.name.decode() if isinstance(properties.name, bytes) else str(properties.name)
    major, minor = _compute_capability()
    return f"{name.rstrip(chr(0))} {major}.{minor}"
