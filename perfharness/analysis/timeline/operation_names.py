"""What GPU operations are called."""

from __future__ import annotations

import numpy as np

from perfharness.model.trace import CopyKind, GpuOperationKind, Int64, Trace

DIRECTIONS = {
    CopyKind.HOST_TO_DEVICE: "host to device",
    CopyKind.DEVICE_TO_HOST: "device to host",
    CopyKind.DEVICE_TO_DEVICE: "device to device",
    CopyKind.PEER_TO_PEER: "peer to peer",
    CopyKind.HOST_TO_HOST: "host to host",
}


def operation_names(trace: Trace) -> tuple[list[str], Int64]:
    """Names, and each operation's code among them: a kernel's own, a copy's direction."""
    details = trace.details
    kind = trace.operations.kind
    own = [*("kernel", "copy", "memset", "graph replay"), *(f"copy {text}" for text in DIRECTIONS.values())]
    code = len(trace.names) + kind.astype(np.int64)
    if len(details) < len(kind):  # they were not read
        return [*trace.names, *own], code
    for number, direction in enumerate(DIRECTIONS):
        code[(kind == GpuOperationKind.MEMCPY) & (details.copy_kind == direction)] = len(trace.names) + 4 + number
    return [*trace.names, *own], np.where(details.name >= 0, details.name, code)
