"""The file of a series of launches, next to the folders of their runs."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from perfharness.errors import ResultError
from perfharness.files import read_regular

OVERHEAD_NAME = "overhead.json"
TRACED, UNTRACED = "traced", "untraced"
"""File of `launch --overhead`, and the folders of its two repeats next to it."""

_Model = TypeVar("_Model", bound=BaseModel)


def read_series(path: Path, model: type[_Model]) -> _Model | None:
    """The file; None where there is none. Raises `ResultError` where it is damaged."""
    try:
        return model.model_validate_json(read_regular(path, follow=False))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ResultError(f"{path} cannot be read ({str(error).splitlines()[0]}); it is damaged.") from error
