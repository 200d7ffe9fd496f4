"""Types for what is read back from files: a run folder may come from anybody, so names and numbers are checked."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from perfharness.model.secrets import mask_arguments, mask_text

NAME_BYTES = 255
PROCESS_FOLDER = re.compile(r"proc_\d{1,9}_gpu_\d{1,9}")
MEASURED_FOLDER = re.compile(rf"{PROCESS_FOLDER.pattern}(/(child|rank)_\d{{1,9}}){{0,8}}", re.ASCII)


def _file_name(name: str) -> str:
    """One component of a path: never outside of its folder, never hidden."""
    if not name or name.startswith(".") or "/" in name or not name.isprintable() or len(name.encode()) > NAME_BYTES:
        raise ValueError("must be the name of a file in its folder")
    return name


def _measured_folder(name: str) -> str:
    if not MEASURED_FOLDER.fullmatch(name):
        raise ValueError("must be proc_X_gpu_Y")
    return name


def finite(value: Any) -> Any:
    """JSON without NaN, infinities, and integers that no column can hold. Raises `ValueError`."""
    if isinstance(value, dict):
        for one in value.values():
            finite(one)
    elif isinstance(value, list):
        for one in value:
            finite(one)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError("must fit into 64 bits")
    return value


FileName = Annotated[str, AfterValidator(_file_name)]
"""The name of a file or folder inside of the folder that is searched for it."""

MeasuredFolder = Annotated[str, AfterValidator(_measured_folder)]
"""`proc_X_gpu_Y`, or the folder of a process that it started."""

Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
"""An integer that a column can hold."""

UnixNs = Annotated[int, Field(ge=0, lt=1 << 62)]
"""A time of day; half of the range of 64 bits, so that a duration can be added."""

Seconds = Annotated[float, Field(ge=0, le=4e9)]

FiniteJson = Annotated[dict[str, dict[str, Any]], AfterValidator(finite)]
"""What companions noted."""

MaskedArguments = Annotated[list[str], AfterValidator(mask_arguments)]
"""A command line, with secrets masked."""

MaskedText = Annotated[str, AfterValidator(mask_text)]
"""A text that may quote command lines or output, with secrets masked."""
