"""Code locations as text."""

from __future__ import annotations

import os
from pathlib import Path

from perfharness.analysis.host_samples.frames import inside_library
from perfharness.model.diagnosis import FunctionShare, Place
from perfharness.model.host_samples import Frame
from perfharness.render.text import safe_line


def place_text(place: FunctionShare | Place | Frame) -> str:
    """`resize (pipeline.py:42)`."""
    return safe_line(f"{place.function} ({file_and_line(place)})" if place.file else place.function)


def file_and_line(place: FunctionShare | Place | Frame) -> str:
    """`pipeline.py:42`."""
    line = f":{place.line}" if place.line else ""
    return safe_line(short_file(place.file) + line)


def short_file(path: str) -> str:
    """Path relative to the current folder or to the folder of installed modules."""
    installed = inside_library(path)
    if installed is not None:
        return installed
    here = f"{Path.cwd()}{os.sep}"
    return path[len(here) :] if path.startswith(here) else path
