"""Find the files that define a model without running its code."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from perfharness.backends.models import ModelSource
from perfharness.backends.onnx_files import onnx_weight_files


def model_files(model: ModelSource) -> list[Path]:
    """Existing files of a model: the file and its weights, or the program that creates it.

    For a function in a file, that file; for a function in a package's module, the package folder's `*.py`, because
    models use more than the named module. Imports from elsewhere are not followed.
    """
    if model.path is None:
        return _files_of_function(str(model.factory).rpartition(":")[0])
    if model.path.is_dir():
        return sorted(one for one in model.path.rglob("*") if one.is_file())
    companions: Iterable[Path] = ()
    if model.suffix == ".onnx":
        with suppress(Exception):  # unreadable files are reported by loading
            companions = onnx_weight_files(model.path)
    return [path for path in (model.path, *companions) if path.is_file()]


def sha256_of(*files: Path) -> str:
    """Digest of the concatenated contents of files."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _files_of_function(module: str) -> list[Path]:
    if module.endswith(".py"):
        return [Path(module)] if Path(module).is_file() else []
    file = _module_file(module)
    if file is None:
        return []
    in_package = "." in module or file.name == "__init__.py"
    return sorted(file.parent.glob("*.py")) if in_package else [file]


def _module_file(name: str) -> Path | None:
    """File of a module as imported from the working folder or `sys.path`."""
    *packages, last = name.split(".")
    folders = [Path.cwd(), *map(Path, sys.path)]
    for package in packages:  # with or without an __init__.py
        folders = [folder / package for folder in folders if (folder / package).is_dir()]
    found = PathFinder.find_spec(last, [str(folder) for folder in folders])
    return Path(found.origin) if found is not None and found.has_location and found.origin else None
