"""What columns hold is checked: events without a time or a thread, or that end before they begin, are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from perfharness.errors import TraceFormatError
from perfharness.model.trace import Int64, Integers, NvtxRanges
from perfharness.trace.source import MISSING


def check_ranges(path: Path, ranges: NvtxRanges) -> None:
    """Raises `TraceFormatError` where ranges have no time or end before they begin; open ones have no end yet."""
    if not ranges.is_open.any():
        _check(path, "NVTX ranges", ranges.start_ns, ranges.end_ns, ranges.thread)
        return
    closed = ~ranges.is_open
    _check(path, "NVTX ranges", ranges.start_ns[closed], ranges.end_ns[closed], ranges.thread[closed])
    _check(path, "NVTX ranges", ranges.start_ns[~closed], ranges.start_ns[~closed], ranges.thread[~closed])


def check_calls(path: Path, start: Int64, end: Int64, thread: Int64) -> None:
    """Raises `TraceFormatError` where some of the CUDA calls contradict themselves."""
    _check(path, "CUDA calls", start, end, thread)


def check_operations(path: Path, start: Int64, end: Int64, process: Int64) -> None:
    """Raises `TraceFormatError` where some of the GPU operations contradict themselves."""
    _check(path, "GPU operations", start, end, process)


def _check(path: Path, what: str, start: Int64, end: Int64, owner: Int64) -> None:
    if not len(start) or (int(start.min()) != MISSING and int(owner.min()) != MISSING and not (end < start).any()):
        return
    incomplete = (start == MISSING) | (end == MISSING) | (owner == MISSING)
    for wrong, fault in ((incomplete, "have no time or no thread"), (end < start, "end before they begin")):
        count = int(np.count_nonzero(wrong))
        if count:
            raise TraceFormatError(
                f"{path} contradicts itself: {count} of {len(start)} {what} {fault}. The file is damaged; "
                "export it again with `nsys export --type sqlite`."
            )


def narrow(values: Int64, *types: type[np.signedinteger[Any]]) -> Integers:
    """Integers in the first of these types that holds them all, by default 32 bits; else as they are."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for narrower in types or (np.int32,):
        if np.iinfo(narrower).min <= low and high <= np.iinfo(narrower).max:
            return values.astype(narrower)
    return values
