"""The GPUs that a trace's operations ran on, each under the number that its process has for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfharness.analysis.keys import group_rows
from perfharness.model.trace import GpuDevice, GpuOperations, Int64, TraceMeta, pid_of


@dataclass(frozen=True)
class Gpus:
    """`of` is the place in `facts` of the GPU that each operation ran on, `stream_of` a number of its stream, of all
    GPUs' streams.
    """

    of: Int64
    facts: list[GpuDevice]
    stream_of: Int64

    def __len__(self) -> int:
        return len(self.facts)


def find_gpus(operations: GpuOperations, meta: TraceMeta) -> Gpus:
    """Every GPU that something ran on, in order of processes and numbers, with what the trace tells of it.

    Processes that number a GPU each (forked workers) have a place each, also where it is the same GPU.
    """
    groups = group_rows(operations.process, operations.device)
    process, device = operations.process[groups.first], operations.device[groups.first]
    order = np.lexsort((device, process))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    pids = pid_of(process[order]).tolist()
    facts = [_facts(meta, pid, number) for pid, number in zip(pids, device[order].tolist(), strict=True)]
    of = place[groups.code]
    return Gpus(of, facts, group_rows(of, operations.stream).code)


def _facts(meta: TraceMeta, pid: int, number: int) -> GpuDevice:
    fitting = [device for device in meta.devices if device.number == number and device.pid in (pid, None)]
    if fitting:
        return fitting[0]
    # A child process that nsys lists no numbers for has those of the others, where these agree.
    alike = {device.uuid: device for device in meta.devices if device.number == number}
    return next(iter(alike.values())) if len(alike) == 1 else GpuDevice(pid, number)
