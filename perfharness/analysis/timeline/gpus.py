"""GPUs and streams of a trace's operations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.timeline.grouping import group_rows
from perfharness.model.columns import Int64, Integers
from perfharness.model.trace import GpuDevice, GpuOperations, TraceMeta, pid_of


@dataclass(frozen=True)
class Gpus:
    """`of` is the index in `facts` of each operation's GPU."""

    of: Integers
    facts: list[GpuDevice]
    positions: dict[tuple[int, int], int]
    """(process, device) as numbered in the trace -> index of the GPU."""

    def __len__(self) -> int:
        return len(self.facts)

    def find(self, process: Int64, device: Int64) -> Int64:
        """Index of the GPU of each process and device, as numbered in the trace; -1 for unused ones."""
        groups = group_rows(process, device)
        rows = zip(process[groups.first].tolist(), device[groups.first].tolist(), strict=True)
        return np.asarray([self.positions.get(row, -1) for row in rows], dtype=np.int64)[groups.code]


def find_gpus(operations: GpuOperations, meta: TraceMeta) -> Gpus:
    """List every GPU with operations, by process and number, with its recorded properties. Processes of a trace (forked
    workers) number GPUs independently: equal UUIDs are one GPU; without UUIDs, each process's number is a separate GPU.
    """
    groups = group_rows(operations.process, operations.device)
    process, device = operations.process[groups.first], operations.device[groups.first]
    facts: list[GpuDevice] = []
    by_uuid: dict[str, int] = {}
    positions: dict[tuple[int, int], int] = {}
    position = np.zeros(len(groups), dtype=np.int64)
    pids = pid_of(process)
    for at in np.lexsort((device, process)).tolist():
        found = _facts(meta, int(pids[at]), int(device[at]))
        known = by_uuid.get(found.uuid) if found.uuid is not None else None
        position[at] = len(facts) if known is None else known
        positions[int(process[at]), int(device[at])] = int(position[at])
        if known is None:
            facts.append(found)
            by_uuid |= {found.uuid: len(facts) - 1} if found.uuid is not None else {}
    return Gpus(position.astype(np.int32)[groups.code], facts, positions)


def _facts(meta: TraceMeta, pid: int, number: int) -> GpuDevice:
    fitting = [device for device in meta.devices if device.number == number and device.pid in (pid, None)]
    if fitting:
        return fitting[0]
    # For a child process without devices from nsys, use those of the others if they agree.
    candidates = {device.uuid: device for device in meta.devices if device.number == number}
    return next(iter(candidates.values())) if len(candidates) == 1 else GpuDevice(pid, number)
