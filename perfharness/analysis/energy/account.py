"""The energy of a run: each GPU's by every sensor, its idle part, each stage's and each process's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfharness.analysis.energy.attribution import ClassEnergy, attribute
from perfharness.analysis.energy.gpu_sensors import (
    COUNTER,
    NS_PER_MS,
    POWERS,
    GpuSensors,
    Window,
    WindowEnergy,
    rounded,
)
from perfharness.analysis.energy.kinds import BusyShares, KnownWork
from perfharness.analysis.energy.sensors import disagreement, idle_power, shortest_window_ns
from perfharness.analysis.energy.steps import Energy
from perfharness.analysis.energy.work import MeasuredProcess, merged, no_window, union_window
from perfharness.model.energy import (
    GpuEnergy,
    IdlePower,
    JointEnergy,
    OccurrenceEnergy,
    ProcessEnergy,
    RunEnergy,
    SensorEnergy,
    StageAttribution,
    StageEnergy,
)
from perfharness.model.findings import Finding, Severity
from perfharness.model.telemetry import SampleLog
from perfharness.model.trace import Int64


def account(log: SampleLog, processes: Sequence[MeasuredProcess]) -> tuple[RunEnergy, list[Finding]]:
    """Energy of a run, from the readings of the sensors and the GPU work of the traces."""
    uuids = list(dict.fromkeys(process.sensor_uuid for process in processes if process.sensor_uuid))
    gpus: list[GpuEnergy] = []
    shares: dict[str, ProcessEnergy] = {}
    findings: list[Finding] = []
    for uuid in uuids:
        mine = [process for process in processes if process.sensor_uuid == uuid]
        sensors = GpuSensors(log, uuid)
        idle = _idle(sensors, _idle_window(log))
        windows = merged([window for process in mine for window in process.windows])
        seen = WindowEnergy(sensors, windows, _known_work(mine), idle.power_mean_w) if windows else None
        gpu = _gpu(sensors, mine, seen, idle)
        gpus.append(gpu)
        shares |= process_energies(sensors, gpu, mine, seen)
        findings += _findings(sensors, gpu, mine, seen)
    return _run(gpus, shares), findings


def _known_work(processes: list[MeasuredProcess]) -> KnownWork | None:
    """When they were at work; only their batches where the GPU was not traced; None where nothing is known."""
    batches = [(process.batches.start_ns, process.batches.end_ns) for process in processes if process.reason is None]
    if not any(process.work.reason for process in processes):
        return KnownWork(BusyShares(_classes(processes)[1]), batches)
    return KnownWork(BusyShares([]), batches) if any(len(start) for start, _ in batches) else None


def _idle_window(log: SampleLog) -> Window | None:
    start, end = log.meta.idle_start_unix_ns, log.meta.idle_end_unix_ns
    return None if start is None or end is None else (start, end)


def _gpu(
    sensors: GpuSensors, processes: list[MeasuredProcess], seen: WindowEnergy | None, idle: IdlePower
) -> GpuEnergy:
    lifetime = union_window([process.lifetime for process in processes])
    reason = None if seen else no_window(processes)
    best = seen.best()[1] if seen else Energy(None, reason=reason)
    seconds = seen.seconds if seen else None
    idle_j = None if idle.power_mean_w is None or seconds is None else idle.power_mean_w * seconds
    above = None if idle_j is None or best.joules is None else best.joules - idle_j
    window = {metric: seen.energy(metric) if seen else NO_WINDOW for metric in (COUNTER, *POWERS)}
    shown = {metric: seen.explained(metric).shown if seen else NO_WINDOW for metric in (COUNTER, *POWERS)}
    power = next((shown[metric] for metric in POWERS if shown[metric].joules is not None), Energy(None))
    run = {metric: seen.energy(metric, lifetime) if seen and lifetime else NO_WINDOW for metric in (COUNTER, *POWERS)}
    return GpuEnergy(
        uuid=sensors.uuid,
        run=[_sensor(sensors, metric, energy) for metric, energy in run.items()],
        window=[_sensor(sensors, metric, energy) for metric, energy in window.items()],
        disagreement_j=rounded(disagreement(shown[COUNTER], power)),
        idle=idle,
        idle_j=rounded(idle_j),
        energy_above_idle_j=rounded(above),
        attribution=_attribution(sensors, processes, seen, idle.power_mean_w),
        reason=reason or (best.reason if best.joules is None else None),
    )


NO_WINDOW = Energy(None, reason="there is no such window")


def _sensor(sensors: GpuSensors, metric: str, energy: Energy) -> SensorEnergy:
    period = sensors.period_ns(metric)
    return SensorEnergy(
        source=metric,
        energy_j=rounded(energy.joules),
        error_j=rounded(energy.error_j),
        power_mean_w=rounded(energy.mean_power_w),
        seconds=rounded(energy.seconds),
        update_period_ms=None if period is None else period / NS_PER_MS,
        reason=energy.reason,
    )


def _idle(sensors: GpuSensors, window: Window | None) -> IdlePower:
    utilization = sensors.readings("gpu_utilization_percent")
    known = None if isinstance(utilization, str) else utilization
    reason = None
    for metric in (COUNTER, *POWERS):
        energy = idle_power(sensors.steps[metric], window, known)
        reason = reason or energy.reason
        if energy.joules is not None:
            return _power(metric, energy)
    return IdlePower(None, None, None, None, reason)


def _attribution(
    sensors: GpuSensors, processes: list[MeasuredProcess], seen: WindowEnergy | None, idle_w: float | None
) -> StageAttribution:
    if seen is None:
        return _no_attribution(no_window(processes))
    unknown = next((process for process in processes if process.work.reason), None)
    if unknown is not None:
        return _no_attribution(f"what {unknown.folder} did on the GPU is not known: {unknown.work.reason}")
    metric = seen.finest()
    if metric is None:
        return _no_attribution(seen.best()[1].reason or "no sensor can measure it")
    names, busy = _classes(processes)
    found = attribute(
        sensors.steps[metric],
        names,
        BusyShares(busy),
        seen.window,
        idle_w=idle_w,
        limit_w=sensors.limit_w(),
        explained=seen.explained(metric),
    )
    batches, items = _counts(processes)
    period_ms = (sensors.period_ns(metric) or 0.0) / NS_PER_MS
    return StageAttribution(
        source=metric,
        energy_j=rounded(found.joules),
        seconds=rounded(found.seconds),
        steps=found.steps,
        sensor_lag_ms=None if found.lag_ns is None else round(found.lag_ns / NS_PER_MS, 3),
        sensor_window_ms=None if found.duty is None else round(found.duty * period_ms, 3),
        sensor_smoothed_ms=None if found.smoothed_ns is None else round(found.smoothed_ns / NS_PER_MS, 3),
        stages=[_stage(one, idle_w, found.awake.mean_power_w, batches, items) for one in found.classes],
        joint=[
            JointEnergy(
                list(joint.names),
                round(joint.busy_s, 6),
                round(joint.joules, 6),
                round(joint.low_j, 6),
                round(joint.high_j, 6),
                _above(joint.joules, joint.busy_s, found.awake.mean_power_w),
            )
            for joint in found.joint
        ],
        awake=_power(metric, found.awake),
        reason=found.reason,
    )


def _power(metric: str, energy: Energy) -> IdlePower:
    if energy.joules is None or not energy.seconds or energy.error_j is None:
        return IdlePower(None, None, None, None, energy.reason)
    return IdlePower(
        metric, rounded(energy.mean_power_w), rounded(energy.error_j / energy.seconds), rounded(energy.seconds), None
    )


def _no_attribution(reason: str) -> StageAttribution:
    return StageAttribution(
        None, None, None, 0, None, None, None, [], [], IdlePower(None, None, None, None, reason), reason
    )


def _classes(processes: list[MeasuredProcess]) -> tuple[list[str], list[tuple[Int64, Int64]]]:
    """Stages of one path are one class, whichever process they are of."""
    gathered: dict[str, list[tuple[Int64, Int64]]] = {}
    for process in processes:
        for name, spans in zip(process.work.stages, process.work.busy, strict=True):
            gathered.setdefault(name, []).append(spans)
    busy = [
        (np.concatenate([start for start, _ in spans]), np.concatenate([end for _, end in spans]))
        for spans in gathered.values()
    ]
    return list(gathered), busy


def _counts(processes: list[MeasuredProcess]) -> tuple[int, float | None]:
    """Batches and items from the first window to the last, pauses included: what stages' energies are of."""
    counts = [process.batches.counts([process.window] if process.window else []) for process in processes]
    known = [items for _, items in counts if items is not None]
    return sum(count for count, _ in counts), sum(known) if len(known) == len(counts) else None


def _stage(
    one: ClassEnergy, idle_w: float | None, awake_w: float | None, batches: int, items: float | None
) -> StageEnergy:
    return StageEnergy(
        stage=one.name,
        busy_s=round(one.busy_s, 6),
        method=one.method,
        energy_j=rounded(one.joules),
        energy_j_low=rounded(one.low_j),
        energy_j_high=rounded(one.high_j),
        energy_above_idle_j=_above(one.joules, one.busy_s, idle_w),
        energy_above_awake_j=_above(one.joules, one.busy_s, awake_w),
        power_mean_w=rounded(one.joules / one.busy_s) if one.joules is not None and one.busy_s else None,
        energy_per_batch_j=rounded(one.joules / batches) if one.joules is not None and batches else None,
        energy_per_item_j=rounded(one.joules / items) if one.joules is not None and items else None,
        together=[name for name in one.together if name != one.name],
        reason=one.reason,
    )


def _above(joules: float | None, seconds: float, watts: float | None) -> float | None:
    """What is left of an energy without a power over that time."""
    return None if joules is None or watts is None else rounded(joules - watts * seconds)


def _run(gpus: list[GpuEnergy], processes: dict[str, ProcessEnergy]) -> RunEnergy:
    """Sums over the GPUs; None where one of them is not known."""

    def best(parts: list[SensorEnergy]) -> SensorEnergy | None:
        return next((part for part in parts if part.energy_j is not None), None)

    window = [best(gpu.window) for gpu in gpus]
    run = [best(gpu.run) for gpu in gpus]
    batches = sum(process.batches for process in processes.values())
    items = [process.items for process in processes.values()]
    known_items = [count for count in items if count is not None]
    total = _sum([part.energy_j if part else None for part in window])
    errors = [part.error_j for part in window if part and part.error_j is not None]
    every_item = sum(known_items) if len(known_items) == len(items) else None
    reason = next((gpu.reason for gpu in gpus if gpu.reason), None)
    return RunEnergy(
        energy_j=rounded(total),
        error_j=rounded(float(np.sqrt(np.sum(np.square(errors))))) if total is not None else None,
        energy_per_batch_j=rounded(total / batches) if total is not None and batches else None,
        energy_per_item_j=rounded(total / every_item) if total is not None and every_item else None,
        energy_run_j=rounded(_sum([part.energy_j if part else None for part in run])),
        gpus=gpus,
        processes=processes,
        reason=reason if gpus else "no process of this run has a GPU",
    )


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def _findings(
    sensors: GpuSensors, gpu: GpuEnergy, processes: list[MeasuredProcess], seen: WindowEnergy | None
) -> list[Finding]:
    found = []
    if gpu.disagreement_j:
        estimates = {one.source: one for one in gpu.window if one.energy_j is not None}
        parts = ", ".join(f"{name} {one.energy_j:.1f} ± {one.error_j:.1f} J" for name, one in estimates.items())
        found.append(
            Finding(
                "energy-sensors-disagree",
                Severity.WARNING,
                f"GPU {sensors.uuid}: the energy counter and integrated power are {gpu.disagreement_j:.1f} J further "
                f"apart than their errors allow ({parts}).",
                "Take the larger difference as the error of every energy here.",
            )
        )
    if gpu.idle.power_mean_w is None:
        found.append(
            Finding(
                "energy-idle-unknown",
                Severity.NOTE,
                f"GPU {sensors.uuid}: idle power is not known ({gpu.idle.reason}), so it is not separated.",
                "Wait before the run on a GPU without other users: `perfharness launch --measure-idle 5`.",
            )
        )
    if seen is not None and seen.ambiguous:
        found.append(
            Finding(
                "energy-sensor-may-miss-work",
                Severity.WARNING,
                f"GPU {sensors.uuid}: energy is not known ({gpu.reason}).",
                "Change the batch size, or let batches vary in length, or measure for longer.",
            )
        )
    instances = sorted({process.gpu_uuid or "" for process in processes if process.gpu_uuid != process.sensor_uuid})
    if instances:
        found.append(
            Finding(
                "energy-of-whole-gpu",
                Severity.WARNING,
                f"Energy and power are those of the whole GPU {sensors.uuid}, of which the run used "
                f"{', '.join(instances)}; what other MIG instances did is in them.",
                "Leave the GPU's other instances idle while energy is measured.",
            )
        )
    return found


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
        why = f"the GPU is shared with {', '.join(others)}, and a sensor cannot separate processes"
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
