"""Counters of the GPUs that nsys samples beside a trace (`--gpu-metrics-devices`), in columns on the trace's clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from perfharness.model.columns import Int64, Integers
from perfharness.model.gpu_device import GpuDevice


class GpuMetric(str, Enum):
    """What is read, all as shares of what the hardware can at most over the whole period of a reading."""

    GR_ACTIVE = "gr_active"
    """The graphics and compute engine has work."""
    SM_ACTIVE = "sm_active"
    """Multiprocessors with a warp."""
    SM_ISSUE = "sm_issue"
    """Instructions issued."""
    OCCUPANCY = "occupancy"
    """Warps in flight."""
    TENSOR = "tensor"
    """The tensor pipes are active."""
    DRAM_READ = "dram_read"
    DRAM_WRITE = "dram_write"
    """Both of the same peak: their sum is the share of the bandwidth."""


@dataclass(frozen=True)
class GpuMetrics:
    """One row a reading of one GPU, ordered by GPU and time; the columns are aligned.

    A reading is the mean over its period, from `start_ns` to `end_ns`. Periods of a GPU do not overlap; where there is
    a gap between them, readings were lost.
    """

    start_ns: Int64
    end_ns: Int64
    gpu: Integers
    """Index in `gpus`."""
    gpus: list[GpuDevice]
    """As nsys describes them; `number` is nsys's, not the one by which a process calls the GPU."""
    percent: dict[GpuMetric, Integers]
    """0 to 100, as nsys rounds them; -1: not in this reading. A metric that the card does not have is missing."""
    clock_mhz: Integers | None = None
    """Of the multiprocessors, -1 where a reading lacks it; None: not sampled."""

    def __len__(self) -> int:
        return len(self.start_ns)
