"""Inputs of requests, from files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perfharness.errors import UsageError
from perfharness.load.profile import MixEntry
from perfharness.load.request import LoadRequest

KINDS = ".npz, .npy, .json, .jsonl, .txt"


class Inputs:
    """The input of each request: what the file of its entry holds; of lines, as many as the request has items.

    Args:
        mix: entries without a file have no input.

    Raises:
        UsageError: a file cannot be read.
    """

    def __init__(self, mix: tuple[MixEntry, ...]) -> None:
        self._values = {entry.name: read_input(entry.input) for entry in mix if entry.input is not None}

    def __bool__(self) -> bool:
        return bool(self._values)

    def of(self, request: LoadRequest) -> Any:
        """The input; None where the request's entry has no file."""
        value = self._values.get(request.input or "")
        if isinstance(value, Lines):
            return value.take(request.id * request.items, request.items)
        return value


class Lines:
    """Lines of a text file, or values of a JSONL file; after the last comes the first."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def take(self, first: int, count: int) -> list[Any]:
        """`count` of them from the `first` on."""
        return [self._values[place % len(self._values)] for place in range(first, first + count)]


def read_input(path: Path) -> Any:
    """An array (.npy), arrays by name (.npz), a JSON value (.json), or lines (.txt, .jsonl). Raises `UsageError`."""
    try:
        return _read(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"the input {path} cannot be read ({reason}); it can be {KINDS}") from error


def _read(path: Path) -> Any:
    kind = path.suffix.lower()
    if kind == ".npy":
        return np.load(path, allow_pickle=False)
    if kind == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            found: Mapping[str, Any] = {name: archive[name] for name in archive.files}
        return found
    if kind == ".json":
        return json.loads(path.read_text("utf-8"))
    if kind not in (".txt", ".jsonl"):
        raise ValueError(f"a file of kind {kind or '(none)'}")
    lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    if not lines:
        raise ValueError("it has no lines")
    return Lines([json.loads(line) for line in lines] if kind == ".jsonl" else lines)
