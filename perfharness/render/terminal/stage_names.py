"""Names of stages in tables: indented below their parent's row, with the recorder where there are several."""

from __future__ import annotations

from collections.abc import Sequence

from perfharness.model.result import Path, path_text

INDENT = "  "


def row_names(paths: Sequence[Path]) -> list[str]:
    """A name for each row, indented below its nearest ancestor that has a row."""
    several = len({path[0] for path in paths}) > 1
    depth: dict[Path, int] = {}
    names = []
    for path in paths:
        above = next((length for length in range(len(path) - 1, 0, -1) if path[:length] in depth), 0)
        depth[path] = depth[path[:above]] + 1 if above else 0
        begin = above or (0 if several or len(path) == 1 else 1)
        names.append(INDENT * depth[path] + path_text(path[begin:]))
    return names
