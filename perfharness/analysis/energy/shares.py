"""Each process's part of its GPU's energy, and the energy of single batches."""

from __future__ import annotations

import numpy as np

from perfharness.analysis.energy.busy import BusyShares
from perfharness.analysis.energy.gpu_sensors import (
    COUNTER,
    NS_PER_MS,
    POWERS,
    GpuSensors,
    WindowEnergy,
    rounded,
)
from perfharness.analysis.energy.sensors import shortest_window_ns
from perfharness.analysis.energy.steps import Energy
from perfharness.analysis.energy.work import MeasuredProcess, no_window
from perfharness.model.energy import GpuEnergy, OccurrenceEnergy, ProcessEnergy


def process_energies(
    sensors: GpuSensors, gpu: GpuEnergy, processes: list[MeasuredProcess], seen: WindowEnergy | None
) -> dict[str, ProcessEnergy]:
    """Of the processes on one GPU, by folder name."""
    total = seen.best()[1] if seen else Energy(None, reason=gpu.reason)
    shares, why = _busy_shares(processes, seen)
    rest_j = _without_work(gpu, seen)
    found = {}
    for process, share in zip(processes, shares, strict=True):
        others = [other.folder for other in processes if other is not process]
        idle_j = None if gpu.idle_j is None else gpu.idle_j / len(processes)
        if not others:
            joules = total.joules
        elif share is None or total.joules is None or rest_j is None:
            joules = None
        else:
            rest = min(rest_j, total.joules)
            joules = rest / len(processes) + share * (total.joules - rest)
        reason = total.reason
        if joules is None and reason is None:
            reason = why or f"idle power is not known, without which nothing can be shared out: {gpu.idle.reason}"
        error = (
            total.error_j if not others else None if share is None or total.error_j is None else share * total.error_j
        )
        batches, items = process.batches.counts(process.windows)
        found[process.folder] = ProcessEnergy(
            gpu_uuid=sensors.uuid,
            shared_with=others,
            share_above_idle=rounded(share),
            energy_j=rounded(joules),
            error_j=rounded(error) if joules is not None else None,
            idle_j=rounded(idle_j),
            energy_above_idle_j=rounded(joules - idle_j) if joules is not None and idle_j is not None else None,
            energy_per_batch_j=rounded(joules / batches) if joules is not None and batches else None,
            energy_per_item_j=rounded(joules / items) if joules is not None and items else None,
            batches=batches,
            items=items,
            occurrences=_occurrences(sensors, process, others, seen),
            reason=reason,
        )
    return found


def _without_work(gpu: GpuEnergy, seen: WindowEnergy | None) -> float | None:
    """What the GPU had spent over the window without any work: awake, as a GPU with processes on it is, or idle."""
    awake_w = gpu.attribution.awake.power_mean_w
    return gpu.idle_j if awake_w is None or seen is None else awake_w * seen.seconds


def _busy_shares(processes: list[MeasuredProcess], seen: WindowEnergy | None) -> tuple[list[float | None], str | None]:
    """Each process's part of the time in which any of them was at work; moments of several in equal parts."""
    if len(processes) == 1:
        return [1.0], None
    nothing: list[float | None] = [None] * len(processes)
    if seen is None:
        return nothing, no_window(processes)
    unknown = next((process for process in processes if process.work.reason), None)
    if unknown is not None:
        return nothing, f"what {unknown.folder} did on the GPU is not known: {unknown.work.reason}"
    busy = BusyShares([process.work.all_busy() for process in processes])
    start, end = np.asarray(seen.windows, dtype=np.int64).T
    seconds = busy.within(start, end).sum(axis=1)
    if not seconds.sum():
        return nothing, "none of the processes did anything on the GPU"
    return [float(part) for part in seconds / seconds.sum()], None


def _occurrences(
    sensors: GpuSensors, process: MeasuredProcess, others: list[str], seen: WindowEnergy | None
) -> OccurrenceEnergy:
    """Energy of single batches, by the counter, or else by the finest power there is."""
    metric = next((metric for metric in (COUNTER, *POWERS) if sensors.period_ns(metric) is not None), None)
    if metric is None:
        return OccurrenceEnergy(None, 0, [], "no energy sensor was read")
    shortest = shortest_window_ns(sensors.period_ns(metric) or 0.0)
    length = process.batches.end_ns - process.batches.start_ns
    long_enough = process.batches.kept & (length >= shortest)
    if process.window is None or seen is None:
        return OccurrenceEnergy(shortest / NS_PER_MS, 0, [], no_window([process]))
    if others:
        why = f"the GPU is shared with {', '.join(others)}, and a sensor tells no process from another"
        return OccurrenceEnergy(shortest / NS_PER_MS, 0, [], why)
    if not long_enough.any():
        why = f"no batch is as long as {shortest / NS_PER_MS:.0f} ms, which the sensor needs"
        return OccurrenceEnergy(shortest / NS_PER_MS, 0, [], why)
    found: list[float | None] = []
    for start, end, wanted in zip(
        process.batches.start_ns.tolist(), process.batches.end_ns.tolist(), long_enough.tolist(), strict=True
    ):
        found.append(rounded(seen.energy(metric, (start, end)).joules) if wanted else None)
    return OccurrenceEnergy(shortest / NS_PER_MS, sum(value is not None for value in found), found, None)
