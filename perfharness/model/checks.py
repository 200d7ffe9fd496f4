"""Types for what is read back from files: a run folder may come from anybody, so names and numbers are checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic.fields import FieldInfo

from perfharness.model.conventions import printable
from perfharness.secrets import mask_arguments

NAME_BYTES = 255
PROCESS_FOLDER = re.compile(r"proc_\d{1,9}_gpu_\d{1,9}(-\d{1,9}){0,63}")
CHILD_FOLDER = re.compile(r"(?:child|rank)_\d{1,9}", re.ASCII)
"""Folder of a measured process in that of its launched one: `rank_R` where its rank is known, else `child_K`."""

MEASURED_FOLDER = re.compile(rf"{PROCESS_FOLDER.pattern}(/{CHILD_FOLDER.pattern})?", re.ASCII)


def _file_name(name: str) -> str:
    """One component of a path: never outside of its folder, never hidden."""
    if not name or name.startswith(".") or "/" in name or not name.isprintable() or len(name.encode()) > NAME_BYTES:
        raise ValueError("must be the name of a file in its folder")
    return name


def _measured_folder(name: str) -> str:
    if not MEASURED_FOLDER.fullmatch(name):
        raise ValueError("must be proc_X_gpu_Y")
    return name


def _trace_name(name: str) -> str:
    *folders, file = name.split("/")
    if len(folders) > 1 or not all(map(CHILD_FOLDER.fullmatch, folders)):
        raise ValueError("must be the name of a file in the folder of a process")
    _file_name(file)
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


MeasuredFolder = Annotated[str, AfterValidator(_measured_folder)]
"""`proc_X_gpu_Y`, or the folder of a process that it started."""

TraceName = Annotated[str, AfterValidator(_trace_name)]
"""A trace, relative to the folder of its launched process."""

Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
"""An integer that a column can hold."""

UnixNs = Annotated[int, Field(ge=0, lt=1 << 62)]
"""A time of day; half of the range of 64 bits, so that a duration can be added."""

Seconds = Annotated[float, Field(ge=0, le=4e9)]

FiniteJson = Annotated[dict[str, dict[str, Any]], AfterValidator(finite)]
"""What companions noted."""

MaskedArguments = Annotated[list[str], AfterValidator(mask_arguments)]
"""A command line, with secrets masked."""

PrintableText = Annotated[str, AfterValidator(printable)]
"""A text with what is no UTF-8 escaped, as a folder's name may have it: JSON takes none of it."""


def refuse_booleans(values: Mapping[str, Any], fields: Mapping[str | None, FieldInfo]) -> None:
    """Raises `ValueError` where a setting that is no switch is true or false, which pydantic takes for 1 or 0."""
    for key, value in values.items():
        if isinstance(value, bool) and key in fields and fields[key].annotation is not bool:
            raise ValueError(f"{key} = {str(value).lower()}, but it is no switch; give its value")
