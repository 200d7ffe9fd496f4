"""Models as users name them: a file, a SavedModel folder, or a function that makes the model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from perfharness.backends.base import SAVED_MODEL, ModelSource
from perfharness.errors import BackendError, UsageError
from perfharness.model.bench import Precision

FILE_KINDS = {
    ".onnx": "ONNX",
    ".engine": "TensorRT engine",
    ".plan": "TensorRT engine",
    ".pt2": "PyTorch's torch.export",
    ".keras": "Keras",
    ".xml": "OpenVINO",
    SAVED_MODEL: "TensorFlow SavedModel folder",
}
"""Suffix -> description of such a file."""

_HOW = (
    "name a file (.onnx, .engine, .plan, .pt2, .keras, .xml), a SavedModel folder, or a function as module:function "
    "or file.py:function"
)


def model_source(text: str, name: str | None = None) -> ModelSource:
    """The model that a text names; `name` is its name in tables; None: the file's or function's own name.

    A file must exist; a function is looked up when a backend loads it. Raises `UsageError`.
    """
    path = Path(text)
    if path.exists():
        return ModelSource(name or path.stem or text, path=path, suffix=_file_suffix(path))
    module, colon, function = text.rpartition(":")
    if colon and _is_function_name(module, function):
        return ModelSource(name or _factory_name(module, function), factory=text)
    if path.suffix.lower() in FILE_KINDS or "/" in text:
        raise UsageError(f"there is no model file {text}; {_HOW}")
    raise UsageError(f"{text!r} names no model; {_HOW}")


def call_factory(model: ModelSource, backend: str, precision: Precision) -> Any:
    """Return value of the model's function for this backend and precision.

    Raises `BackendError` where the function is not there or fails; its own exception is the cause.
    """
    function = named_function(model)
    try:
        made = function(backend=backend, precision=precision)
    except BackendError:
        raise
    except Exception as error:
        raise BackendError(
            f"{model.factory}(backend={backend!r}, precision={precision!r}) failed: {type(error).__name__}: {error}"
        ) from error
    if made is None:
        raise BackendError(f"{model.factory} returned None for backend {backend!r}; it must return the model")
    return made


def _file_suffix(path: Path) -> str:
    """Which kind of model lies at an existing path. Raises `UsageError` where it is none."""
    if path.is_dir():
        if (path / "saved_model.pb").is_file():
            return SAVED_MODEL
        raise UsageError(f"the folder {path} is no SavedModel, for it has no saved_model.pb; {_HOW}")
    suffix = path.suffix.lower()
    if suffix == ".py":
        raise UsageError(f"{path} is a program; name the function that makes the model, as {path}:function")
    if suffix not in FILE_KINDS or suffix == SAVED_MODEL:
        raise UsageError(f"{path} is no model file that is known by its suffix; {_HOW}")
    return suffix


def _is_function_name(module: str, function: str) -> bool:
    dotted = module.replace(".", "_").isidentifier() and not module.startswith(".")
    return function.isidentifier() and (dotted or module.endswith(".py"))


def _factory_name(module: str, function: str) -> str:
    """`samples.mobilenet_v3.factory:create` is `mobilenet_v3`: the folder where the other parts are generic."""
    parts = (module[:-3].replace("/", ".") if module.endswith(".py") else module).split(".")
    specific = [
        part for part in [*parts, function] if part and part not in ("factory", "model", "create", "make", "build")
    ]
    return specific[-1] if specific else function


def named_function(model: ModelSource) -> Callable[..., Any]:
    """The function that `factory` names, or class. Raises `BackendError` where it is not there."""
    module_name, _, name = str(model.factory).rpartition(":")
    module = _module_of_file(Path(module_name)) if module_name.endswith(".py") else _module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        raise BackendError(f"{module_name} has no function {name!r}; name one that makes the model")
    made: Callable[..., Any] = function
    return made


def _module(name: str) -> ModuleType:
    """The module, also one that lies in the working folder, as `python -m` finds it."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except Exception as error:
        raise BackendError(f"the module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise BackendError(f"there is no file {path}; name the file with the function that makes the model")
    name = f"_perfharness_factory_{path.stem}"  # the file may have the name of a library
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BackendError(f"{path} is no Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BackendError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return module
