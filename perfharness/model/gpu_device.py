"""What a trace records of a GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuDevice:
    """A GPU as one process numbers it (`GpuOperations.device`); `pid` None: as every process does.

    What the trace lacks is None. `memory_bytes_per_s` and `clock_hz` are what the hardware can at most.
    """

    pid: int | None
    number: int
    name: str | None = None
    uuid: str | None = None
    """Without the prefix `GPU-`."""
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    clock_hz: int | None = None
    memory_bytes_per_s: int | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    max_warps_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    max_registers_per_sm: int | None = None
    max_shared_bytes_per_sm: int | None = None
