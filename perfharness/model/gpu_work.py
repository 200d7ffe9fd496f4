"""What a process did on its GPU, on UTC: what joins its trace to the sensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.model.trace import Int64


@dataclass(frozen=True)
class GpuWork:
    """Busy times of a process's GPU by stage, UTC ns, merged; `stages` are the paths of benchmark.json.

    `reason`: why they are not known.
    """

    stages: tuple[str, ...] = ()
    busy: tuple[tuple[Int64, Int64], ...] = ()
    reason: str | None = None

    def all_busy(self) -> tuple[Int64, Int64]:
        """All of it, as starts and ends."""
        starts = [start for start, _ in self.busy] or [np.empty(0, dtype=np.int64)]
        ends = [end for _, end in self.busy] or [np.empty(0, dtype=np.int64)]
        return np.concatenate(starts), np.concatenate(ends)
