"""Names of stages in tables and sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from perfharness.model.diagnosis import FunctionShare, Place
from perfharness.model.host_samples import Frame
from perfharness.model.result import Path, path_text
from perfharness.render.places import file_and_line
from perfharness.render.text import safe_line, short_function

INDENT = "  "
LONGEST = 60
"""Characters of a name in a table."""


def row_names(paths: Sequence[Path]) -> list[str]:
    """Name of each row, indented below its nearest ancestor."""
    several = len({path[0] for path in paths}) > 1
    depth: dict[Path, int] = {}
    names = []
    for path in paths:
        above = next((length for length in range(len(path) - 1, 0, -1) if path[:length] in depth), 0)
        depth[path] = depth[path[:above]] + 1 if above else 0
        begin = above or (0 if several or len(path) == 1 else 1)
        names.append(INDENT * depth[path] + shortened(_text(path[begin:])))
    return names


def _text(path: Path) -> str:
    """Path as text; a single name is not escaped."""
    return path[0] if len(path) == 1 else path_text(path)


def shortened(name: str) -> str:
    """Shorten a name to one line, without C++ types or without its middle."""
    name = safe_line(name if len(name) <= LONGEST or "::" not in name else short_function(name))
    if len(name) <= LONGEST:
        return name
    half = (LONGEST - 1) // 2
    return f"{name[:half]}…{name[-half:]}"


def stage_names(paths: Iterable[Path]) -> dict[Path, str]:
    """Shortest unique name of each stage, which `--stage` takes: the end of its path, or all of it."""
    distinct = list(dict.fromkeys(paths))
    ends = Counter(path[begin:] for path in distinct for begin in range(len(path)))

    def name(path: Path) -> str:
        begins = (begin for begin in range(len(path) - 1, 0, -1) if ends[path[begin:]] == 1)
        return _text(path[next(begins, 0) :])

    return {path: name(path) for path in distinct}


def is_named(path: Path, name: str) -> bool:
    """Whether a name is the end of a stage's path, or all of it."""
    return any(name in (path_text(path[begin:]), _text(path[begin:])) for begin in range(len(path)))


def line_of(place: FunctionShare | Place | Frame) -> str:
    """`json/encoder.py:395`."""
    return "/".join(file_and_line(place).split("/")[-2:])
