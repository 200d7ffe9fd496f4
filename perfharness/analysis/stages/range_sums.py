"""Sums over all occurrences of each range, of what was measured without batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perfharness.model.result import EntryTable

RANGE_TIMES = {"CPU": "cpu_time", "GPU": "gpu_time", "busy": "gpu_busy_time"}
"""What they are called in tables."""


def sums_of_ranges(entries: Iterable[EntryTable]) -> Mapping[tuple[str, ...], dict[str, float | None]]:
    """Count and times of each path over all processes, batches of one loop together; None: not measured."""
    sums: dict[tuple[str, ...], dict[str, float | None]] = {}
    for table in entries:
        path: list[str] = []
        paths = []
        for name, depth in zip(table.name.tolist(), table.depth.tolist(), strict=True):
            path[depth:] = [table.names[name]]
            paths.append(tuple(path))
        for column in table.numbers:
            if column.key not in ("count", *RANGE_TIMES.values()):
                continue
            for row, value in zip(column.rows.tolist(), column.values.tolist(), strict=True):
                if table.depth[row] == 0:  # a recorder is no range
                    continue
                mine = sums.setdefault(paths[row], {"count": 0.0, **dict.fromkeys(RANGE_TIMES.values(), 0.0)})
                before = mine[column.key]
                mine[column.key] = None if before is None or value != value else before + value
    return sums
