"""Inference backends behind one interface. To add one, add a file and a line in `BACKENDS`."""

from __future__ import annotations

from importlib import import_module

from perfharness.backends.base import Backend, BackendOptions, Device, DeviceChoice
from perfharness.backends.model_files import model_files
from perfharness.backends.models import SAVED_MODEL, FactoryModel, ModelSource, call_factory, model_source
from perfharness.backends.session import DeviceTimer, LayerTime, Session
from perfharness.errors import UsageError

__all__ = [
    "BACKENDS",
    "SAVED_MODEL",
    "Backend",
    "BackendOptions",
    "Device",
    "DeviceChoice",
    "DeviceTimer",
    "FactoryModel",
    "LayerTime",
    "ModelSource",
    "Session",
    "backend",
    "backend_and_mode",
    "call_factory",
    "device_for",
    "model_files",
    "model_source",
]

BACKENDS: dict[str, str] = {
    "keras": "perfharness.backends.tensorflow:KerasBackend",
    "onnxruntime": "perfharness.backends.onnxruntime:OnnxRuntimeBackend",
    "tensorflow": "perfharness.backends.tensorflow:TensorFlowBackend",
    "tensorrt": "perfharness.backends.tensorrt.backend:TensorRTBackend",
    "tensorrt-lean": "perfharness.backends.tensorrt.backend:TensorRTLeanBackend",
    "tensorrt-rtx": "perfharness.backends.tensorrt.backend:TensorRTRTXBackend",
    "torch": "perfharness.backends.torch:TorchBackend",
}
"""Name on the command line -> `module:class`, imported on first use."""

SPELLINGS: dict[str, tuple[str, str]] = {
    "kerasxla": ("keras", "kerasxla"),
    "tf": ("tensorflow", "tf"),
    "tfxla": ("tensorflow", "tfxla"),
}
"""Names on the command line for backends in a specific mode."""


def backend_and_mode(text: str) -> tuple[str, str]:
    """Backend and mode (empty for the default) of `NAME`, `NAME/MODE`, one of `SPELLINGS`, or `module:class[/MODE]`."""
    if text in SPELLINGS:
        return SPELLINGS[text]
    before, _, last = text.rpartition(":")
    name, _, mode = last.partition("/")
    return (f"{before}:{name}" if before else name), mode


def backend(name: str) -> Backend:
    """The backend with this name, or a user's own as `module:class`. Raises `UsageError` if unknown."""
    if name not in BACKENDS and ":" not in name:
        raise UsageError(f"unknown backend {name!r}; known are: {', '.join(sorted(BACKENDS))}, or module:class")
    module, _, cls = BACKENDS.get(name, name).partition(":")
    try:
        made: Backend = getattr(import_module(module), cls)()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"unknown backend {name!r}: {error}") from error
    return made


def device_for(asked: DeviceChoice, made: Backend, mode: str, *, has_gpu: bool) -> Device:
    """Device for a model in a launched process; `auto` is its GPU, if it has one and the mode supports it."""
    if asked != "auto":
        return asked
    return "cuda" if has_gpu and (not mode or mode in made.modes_on("cuda")) else "cpu"
