"""Models as named by users (a file, a SavedModel folder, or a function), and their descriptions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from perfharness.errors import BackendError, UsageError
from perfharness.model.bench import Precision, TensorSpec

Shape = tuple[int, ...]

SAVED_MODEL = "savedmodel"
"""Pseudo-suffix of a TensorFlow SavedModel, which is a folder."""

HALF_DTYPES: dict[Precision, str] = {"fp16": "float16", "bf16": "bfloat16"}
"""Precision -> dtype of its weights and activations."""

FILE_KINDS = (".onnx", ".engine", ".plan", ".pt2", ".keras", SAVED_MODEL)
"""Suffixes of model files."""

_HOW = (
    "name a file (.onnx, .engine, .plan, .pt2, .keras), a SavedModel folder, or a function as module:function "
    "or file.py:function"
)


@dataclass(frozen=True)
class ModelSource:
    """A model as named by the user: a file (or SavedModel folder), or `module:function`.

    The function is called as `function(backend=NAME, precision=PRECISION)` and returns the backend's input, in a
    `FactoryModel` if that does not describe its own inputs (docs/guides/backends.md). `model_source` parses text.

    Args:
        name: for tables.
        path: the file or folder; None for a factory.
        factory: `module:function` or `file.py:function`; None for a file.
        suffix: of the file, in lower case; `SAVED_MODEL` for a SavedModel folder; empty for a factory.
    """

    name: str
    path: Path | None = None
    factory: str | None = None
    suffix: str = ""


@dataclass(frozen=True)
class FactoryModel:
    """Return value of factories for models that do not describe themselves (an `nn.Module`).

    Args:
        model: the backend's input.
        inputs: name, shape (None for open dimensions) and dtype, in the order of the model's arguments. Dtypes are
            those on the host; a session in fp16 or bf16 casts on the device, inside `execute`.
        outputs: names in the order of the returned values; empty for `output_0`, `output_1`, ...
    """

    model: Any
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...] = ()


def model_source(text: str, name: str | None = None) -> ModelSource:
    """Parse a model's name. `name`: for tables; None for the name of the file or function.

    A file must exist; a function is looked up when a backend loads it. Raises `UsageError`.
    """
    path = Path(text)
    if path.exists():
        return ModelSource(name or path.stem or text, path=path, suffix=_file_suffix(path))
    module, colon, function = text.rpartition(":")
    if colon and _is_function_name(module, function):
        return ModelSource(name or _factory_name(module, function), factory=text)
    what = (
        f"there is no model file {text}"
        if path.suffix.lower() in FILE_KINDS or "/" in text
        else f"{text!r} is not a model"
    )
    raise UsageError(f"{what}; {_HOW}")


def shapes_of(texts: Iterable[str]) -> dict[str, tuple[int | str, ...]]:
    """Parse `image=batchx3x224x224` (or with commas) into numbers and dimension names. Raises `UsageError`."""
    found: dict[str, tuple[int | str, ...]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        parts = [part.strip() for part in sizes.split("," if "," in sizes else "x")]
        if not equals or not name or not all(part.isdigit() or part.isidentifier() for part in parts):
            raise UsageError(f"--shape {text}: must be NAME=DIMxDIM…, such as image=batchx3x224x224")
        found[name] = tuple(int(part) if part.isdigit() else part for part in parts)
    return found


def call_factory(model: ModelSource, backend: str, precision: Precision) -> Any:
    """Call the model's function for this backend and precision.

    Raises `BackendError` if the function is missing or fails; its own exception is the cause.
    """
    try:
        made = named_function(model)(backend=backend, precision=precision)
    except BackendError:
        raise
    except Exception as error:
        called = f"{model.factory}(backend={backend!r}, precision={precision!r})"
        raise BackendError(f"{called} failed: {type(error).__name__}: {error}") from error
    if made is None:
        raise BackendError(f"{model.factory} returned None for backend {backend!r}; it must return the model")
    return made


def _file_suffix(path: Path) -> str:
    """Kind of model at an existing path. Raises `UsageError` for other files."""
    if path.is_dir():
        if (path / "saved_model.pb").is_file():
            return SAVED_MODEL
        raise UsageError(f"the folder {path} is not a SavedModel: it has no saved_model.pb; {_HOW}")
    suffix = path.suffix.lower()
    if suffix == ".py":
        raise UsageError(f"{path} is a program; name the function that creates the model, as {path}:function")
    if suffix not in FILE_KINDS or suffix == SAVED_MODEL:
        raise UsageError(f"{path} is not a model file with a known suffix; {_HOW}")
    return suffix


def _is_function_name(module: str, function: str) -> bool:
    dotted = module.replace(".", "_").isidentifier() and not module.startswith(".")
    return function.isidentifier() and (dotted or module.endswith(".py"))


def _factory_name(module: str, function: str) -> str:
    """`samples.mobilenet_v3.factory:create` becomes `mobilenet_v3`: the last part that is not generic."""
    parts = (module[:-3].replace("/", ".") if module.endswith(".py") else module).split(".")
    generic = ("", "factory", "model", "create", "make", "build")
    return next((part for part in reversed([*parts, function]) if part not in generic), function)


def named_function(model: ModelSource) -> Callable[..., Any]:
    """The function or class named by `factory`. Raises `BackendError` if it is missing."""
    module_name, _, name = str(model.factory).rpartition(":")
    module = _module_of_file(Path(module_name)) if module_name.endswith(".py") else _module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        raise BackendError(f"{module_name} has no function {name!r}; name one that creates the model")
    made: Callable[..., Any] = function
    return made


def _module(name: str) -> ModuleType:
    """Import a module, also from the working folder like `python -m`."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except Exception as error:
        raise BackendError(f"the module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise BackendError(f"there is no file {path}; name the file with the function that creates the model")
    name = f"_perfharness_factory_{path.stem}"  # the file may be named like a library
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BackendError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BackendError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return module


def described_model(model: ModelSource, backend: str, precision: Precision, what: str) -> FactoryModel:
    """Return value of the model's function, which must be a `FactoryModel` of `what`. Raises `BackendError`."""
    made = call_factory(model, backend, precision)
    if isinstance(made, FactoryModel) and made.inputs:
        return made
    raise BackendError(
        f"{model.factory} returned a {type(made).__name__} for {backend}; it must return a FactoryModel with {what}, "
        "and the names, shapes and dtypes of its inputs"
    )


def named_outputs(value: Any, names: Sequence[str]) -> tuple[tuple[str, ...], list[Any]]:
    """Names and values of a model's outputs: one value, a sequence, or values by name.

    `names`: as given, or empty. Raises `BackendError` if their number differs from that of the values.
    """
    if isinstance(value, Mapping):
        if names and set(names) != set(value):
            raise BackendError(f"the model returns {', '.join(map(str, value))}, not {', '.join(names)}")
        order = tuple(names) or tuple(value)
        return tuple(map(str, order)), [value[name] for name in order]
    values = list(value) if isinstance(value, list | tuple) else [value]
    if names and len(names) != len(values):
        raise BackendError(f"the model returns {len(values)} outputs, not {len(names)}: {', '.join(names)}")
    return tuple(names) or tuple(f"output_{index}" for index in range(len(values))), values


def host_dtype(dtype: Any) -> str:
    """NumPy's name of a framework's dtype; float32 for bfloat16, which NumPy lacks."""
    name = str(dtype).removeprefix("torch.")
    return "float32" if name == "bfloat16" else name


def precision_of_most(elements: Mapping[str, int]) -> Precision | None:
    """Precision of most of a model's weights, given element counts by dtype; None if unknown."""
    kinds: dict[str, Precision] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    known = [(count, kinds[dtype]) for dtype, count in elements.items() if dtype in kinds and count]
    return max(known, key=lambda each: each[0])[1] if known else None


def check_own_precision(
    name: str, framework: str, own: Precision | None, wanted: Precision, others: Iterable[Precision] = ("tf32",)
) -> None:
    """Raise `BackendError` if a framework that computes in a model's own precision would not use the wanted one.

    Args:
        own: precision of the model; None if unknown or without floating-point numbers.
        others: precisions in which it can also compute an fp32 model.
    """
    possible = {own, *(others if own == "fp32" else ())}
    if own is not None and wanted not in possible:
        raise BackendError(
            f"{name} is a model in {own}, and {framework} computes in a model's own precision; use "
            f"{' or '.join(sorted(map(str, possible)))}, or give a model in {wanted}"
            + (", or samples to quantise it (--calibration)" if (own, wanted) == ("fp32", "int8") else "")
        )
