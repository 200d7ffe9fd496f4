"""A trace that cannot be true is refused: events without a time or a thread, and events that end before they begin."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perfharness.errors import TraceFormatError
from perfharness.model.trace import ApiCalls, GpuOperations, Int64, NvtxRanges
from perfharness.trace.source import MISSING


def check_times(path: Path, ranges: NvtxRanges, api: ApiCalls, operations: GpuOperations) -> None:
    """Raises `TraceFormatError` where the columns contradict themselves. Ranges never closed are no contradiction."""
    closed = ~ranges.is_open
    _check(path, "NVTX ranges", ranges.start_ns[closed], ranges.end_ns[closed], ranges.thread[closed])
    _check(path, "NVTX ranges", ranges.start_ns[~closed], ranges.start_ns[~closed], ranges.thread[~closed])
    _check(path, "CUDA calls", api.start_ns, api.end_ns, api.thread)
    _check(path, "GPU operations", operations.start_ns, operations.end_ns, operations.process)


def _check(path: Path, what: str, start: Int64, end: Int64, owner: Int64) -> None:
    incomplete = (start == MISSING) | (end == MISSING) | (owner == MISSING)
    for wrong, fault in ((incomplete, "have no time or no thread"), (end < start, "end before they begin")):
        count = int(np.count_nonzero(wrong))
        if count:
            raise TraceFormatError(
                f"{path} contradicts itself: {count} of {len(start)} {what} {fault}. The file is damaged; export it "
                "again with `nsys export --type sqlite`."
            )
