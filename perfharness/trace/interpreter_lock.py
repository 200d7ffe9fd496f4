"""Intervals of the interpreter lock from nsys's `--trace=python-gil`.

nsys (2023.4 and 2025.3) writes them as NVTX ranges `Holding GIL` and `Waiting for GIL` in the domain `GIL Trace`.
Ranges of these names in other domains are the user's.
"""

from __future__ import annotations

import numpy as np

from perfharness.model.host_samples import HostEventKind, HostEvents
from perfharness.model.trace import NvtxRanges
from perfharness.trace.columns import rows_of

DOMAIN = "GIL Trace"
KIND_OF_NAME = {"Holding GIL": HostEventKind.GIL_HELD, "Waiting for GIL": HostEventKind.GIL_WAITED}


def split_interpreter_lock(ranges: NvtxRanges, names: list[str]) -> tuple[NvtxRanges, HostEvents | None]:
    """Split into other ranges and the intervals of the interpreter lock, or None if not recorded.

    Args:
        ranges: closed ranges of an nsys trace.
        names: names by code.
    """
    kind_of = {names.index(name): kind for name, kind in KIND_OF_NAME.items() if name in names}
    if not kind_of or DOMAIN not in names:
        return ranges, None
    of_nsys = np.isin(ranges.name, list(kind_of)) & (ranges.domain == names.index(DOMAIN))
    if not of_nsys.any():
        return ranges, None
    rows = np.flatnonzero(of_nsys)
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    kind = np.zeros(len(rows), dtype=np.int8)
    for code, value in kind_of.items():
        kind[ranges.name[rows] == code] = value
    events = HostEvents(
        start_ns=ranges.start_ns[rows],
        end_ns=ranges.end_ns[rows],
        thread=ranges.thread[rows],
        kind=kind,
        detail=np.zeros(len(rows), dtype=np.int8),
    )
    return rows_of(ranges, ~of_nsys), events
