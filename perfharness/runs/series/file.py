"""The file of a series of launches, next to the folders of their runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from perfharness.errors import ResultError, UsageError
from perfharness.files import read_regular, write_model
from perfharness.model.manifest import MANIFEST_NAME
from perfharness.run_swap import series_in

_Model = TypeVar("_Model", bound=BaseModel)


def check_folder(output_dir: Path, option: str, own_file: str) -> None:
    """Raises `UsageError` where the folder of a series holds something else that it would be read as, or mixed with.

    Args:
        own_file: of a series of this kind, which may be there from an earlier one.
    """
    launch = "a single launch" if (output_dir / MANIFEST_NAME).exists() else None
    if what := series_in(output_dir, but=own_file) or launch:
        raise UsageError(f"-o {output_dir} holds {what}, and {option} makes a folder of launches; name another -o")


def read_series(path: Path, model: type[_Model]) -> _Model | None:
    """The file; None where there is none. Raises `ResultError` where it is damaged."""
    try:
        return model.model_validate_json(read_regular(path, follow=False))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ResultError(f"{path} cannot be read ({str(error).splitlines()[0]}); it is damaged.") from error


def write_series(path: Path, series: _Model, has_numbers: Callable[[_Model], bool]) -> bool:
    """Write the file; not where it has no number and an earlier one has. Raises `ResultError`."""
    if not has_numbers(series):
        with suppress(OSError, ValidationError):
            if has_numbers(type(series).model_validate_json(read_regular(path))):
                return False
    write_model(path, series)
    return True
