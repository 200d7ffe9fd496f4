"""The file of a series of launches, next to the folders of their runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from perfharness.errors import ResultError
from perfharness.files import read_regular
from perfharness.model.base import Record
from perfharness.model.checks import MaskedArguments

OVERHEAD_NAME = "overhead.json"
TRACED, UNTRACED = "traced", "untraced"
"""File of `launch --overhead`, and the folders of its two repeats next to it."""

_Model = TypeVar("_Model", bound=BaseModel)


class SeriesFile(Record):
    """What the file of every series holds."""

    schema_version: int = 1
    created: str  # UTC, ISO 8601
    command: MaskedArguments
    script: str
    script_arguments: MaskedArguments = Field(default_factory=list)


class SeriesRow(Record):
    """One launch of a series. What was not measured is None; `reason` says why."""

    folder: str  # of its run, next to the file
    status: Literal["ok", "failed", "not_run"]  # `failed`: a process did not end well; its numbers are left out
    reason: str | None = None


def read_series(path: Path, model: type[_Model]) -> _Model | None:
    """The file; None where there is none. Raises `ResultError` where it is damaged."""
    try:
        return model.model_validate_json(read_regular(path, follow=False))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ResultError(f"{path} cannot be read ({str(error).splitlines()[0]}); it is damaged.") from error
