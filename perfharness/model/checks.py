"""Checked types for values read from files, because run folders may come from anybody."""

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
CHILD_FOLDER = re.compile(r"(?:child|rank)_\d{1,9}", re.ASCII)  # in the folder of the launched process
MEASURED_FOLDER = re.compile(rf"{PROCESS_FOLDER.pattern}(/{CHILD_FOLDER.pattern})?", re.ASCII)


def _measured_folder(name: str) -> str:
    if not MEASURED_FOLDER.fullmatch(name):
        raise ValueError("must be proc_X_gpu_Y")
    return name


def _trace_name(name: str) -> str:
    """A file in a process's folder, not outside it and not hidden."""
    *folders, file = name.split("/")
    if len(folders) > 1 or not all(map(CHILD_FOLDER.fullmatch, folders)):
        raise ValueError("must be the name of a file in the folder of a process")
    if not file or file.startswith(".") or not file.isprintable() or len(file.encode()) > NAME_BYTES:
        raise ValueError("must be the name of a file in its folder")
    return name


def finite(value: Any) -> Any:
    """Reject NaN, infinities, and integers beyond 64 bits in JSON. Raises `ValueError`."""
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


MeasuredFolder = Annotated[str, AfterValidator(_measured_folder)]  # a launched process or its child
TraceName = Annotated[str, AfterValidator(_trace_name)]  # relative to the launched process's folder
Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
UnixNs = Annotated[int, Field(ge=0, lt=1 << 62)]  # leaves room for adding a duration
Seconds = Annotated[float, Field(ge=0, le=4e9)]
FiniteJson = Annotated[dict[str, dict[str, Any]], AfterValidator(finite)]
MaskedArguments = Annotated[list[str], AfterValidator(mask_arguments)]  # a command line, with secrets masked
PrintableText = Annotated[str, AfterValidator(printable)]  # escapes what UTF-8, and so JSON, cannot represent


def refuse_booleans(values: Mapping[str, Any], fields: Mapping[str | None, FieldInfo]) -> None:
    """Raise `ValueError` for true or false in a setting that is not a switch, because pydantic takes them as 1 or 0."""
    for key, value in values.items():
        if isinstance(value, bool) and key in fields and fields[key].annotation is not bool:
            raise ValueError(f"{key} = {str(value).lower()}, but it is not a switch; give its value")
