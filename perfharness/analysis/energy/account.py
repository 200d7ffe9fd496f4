"""The energy of a run: per GPU, stage and process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from perfharness.analysis.energy.results import GpuEnergy, IdlePower, ProcessEnergy, RunEnergy, StageEnergy
from perfharness.analysis.energy.sensor import IN_STEP, MIN_UPDATES, SOURCES, Energy, Sensor, read_sensor
from perfharness.analysis.energy.stages import Known, per, rounded, stage_energies
from perfharness.analysis.energy.work import MeasuredProcess, merged, no_window, union_window
from perfharness.analysis.metrics.results import GpuMetrics
from perfharness.analysis.timeline.busy import Spans, Window, union
from perfharness.model.findings import Finding, Severity
from perfharness.model.machines import gpu_name
from perfharness.model.telemetry import SampleLog
from perfharness.model.units import NS_PER_S

PEAK_OVER_LIMIT = 1.3
"""Power exceeds the limit for short times: an H200 limited to 700 W drew 880 W for 20 ms when a load began."""

NO_GPU = "no process of this run has a GPU"
OF_ALL_INSTANCES = "a MIG instance has no energy sensor, and the sensor of its GPU includes the other instances"


def account(
    log: SampleLog, processes: Sequence[MeasuredProcess], metrics: Mapping[str, GpuMetrics] = MappingProxyType({})
) -> tuple[RunEnergy, list[Finding]]:
    """Energy of a run, from sensors and the GPU work of traces. `metrics`: by UUID, for names and nodes."""
    uuids = dict.fromkeys(gpu.uuid for process in processes for gpu in process.gpus)
    on_gpu = {uuid: [mine for process in processes if (mine := process.on(uuid)) is not None] for uuid in uuids}
    instances = {gpu.uuid for process in processes for gpu in process.gpus if gpu.uuid != gpu.sensor_uuid}
    sensors = {uuid: OF_ALL_INSTANCES if uuid in instances else read_sensor(log, uuid) for uuid in uuids}
    nodes = {uuid: gpu.node for uuid, gpu in metrics.items()}
    titles = {uuid: gpu.title for uuid, gpu in metrics.items()}
    gpus = {uuid: replace(_gpu(log, uuid, sensors[uuid], on_gpu[uuid]), node=nodes.get(uuid)) for uuid in uuids}
    shares = {process.folder: _process(process, gpus, sensors, on_gpu) for process in processes if process.gpus}
    total = sum_known([gpu.energy_j for gpu in gpus.values()])
    run = RunEnergy(
        energy_j=rounded(total),
        error_j=rounded(_error_of_sum([gpu.error_j for gpu in gpus.values()])),
        energy_per_batch_j=per(total, sum(process.batches for process in shares.values())),
        energy_per_item_j=per(total, sum_known([process.items for process in shares.values()])),
        energy_run_j=rounded(sum_known([gpu.energy_run_j for gpu in gpus.values()])),
        gpus=list(gpus.values()),
        processes=shares,
        reason=next((gpu.reason for gpu in gpus.values() if gpu.reason), None if gpus else NO_GPU),
    )
    return run, [one for uuid, gpu in gpus.items() for one in _findings(gpu, titles.get(uuid) or gpu_name(None, uuid))]


def _gpu(log: SampleLog, uuid: str, sensor: Sensor | str, processes: Sequence[MeasuredProcess]) -> GpuEnergy:
    windows = merged([window for process in processes for window in process.windows])
    lifetime = union_window([process.lifetime for process in processes])
    seconds = sum(end - start for start, end in windows) / NS_PER_S
    starts = [process.batches.start_ns for process in processes]
    total, run = Energy(None, reason=no_window(processes)), Energy(None)
    if isinstance(sensor, str):
        total = Energy(None, reason=sensor)
    else:
        total = sensor.total(windows, starts) if windows else total
        run = sensor.total([lifetime], starts) if lifetime else run
    idle = _idle(log, uuid, sensor)
    idle_j = None if idle.power_mean_w is None or not windows else idle.power_mean_w * seconds
    known = Known(total, idle.power_mean_w, _limit_w(log, uuid))
    stages, reason = _stages(sensor, processes, windows, known)
    return GpuEnergy(
        uuid=uuid,
        source=None if isinstance(sensor, str) else sensor.source,
        update_period_ms=None if isinstance(sensor, str) else sensor.period_ns / 1e6,
        seconds=rounded(seconds) if windows else None,
        energy_j=rounded(total.joules),
        error_j=rounded(total.error_j),
        power_mean_w=per(total.joules, seconds),
        energy_run_j=rounded(run.joules),
        idle=idle,
        idle_j=rounded(idle_j),
        energy_above_idle_j=rounded(None if total.joules is None or idle_j is None else total.joules - idle_j),
        stages=stages,
        stages_reason=reason,
        reason=total.reason,
    )


def _stages(
    sensor: Sensor | str, processes: Sequence[MeasuredProcess], windows: Sequence[Window], known: Known
) -> tuple[list[StageEnergy], str | None]:
    """Energy by stage, equal paths of several processes combined; or the reason why it is unknown."""
    unknown = (f"GPU work of {one.folder} is unknown: {one.work.reason}" for one in processes if one.work.reason)
    reason = sensor if isinstance(sensor, str) else next(unknown, None if windows else no_window(processes))
    if isinstance(sensor, str) or reason is not None:
        return [], reason
    parts: dict[str, list[Spans]] = {}
    for process in processes:
        for name, spans in zip(process.work.stages, process.work.busy, strict=True):
            parts.setdefault(name, []).append(spans)
    busy = {name: union(spans) for name, spans in parts.items()}
    counts = [process.batches.counts(process.windows) for process in processes]
    items = sum_known([each for _, each in counts])
    return stage_energies(sensor, busy, windows, known, (sum(count for count, _ in counts), items)), None


def _limit_w(log: SampleLog, uuid: str) -> float | None:
    """Highest power that the GPU can draw; None if its limit was not read."""
    series = [log.get(uuid, metric) for metric in ("power_limit_mw", *SOURCES[1:])]
    highest = [float(np.nanmax(one.value)) / 1e3 for one in series if one is not None and one.is_read.any()]
    return PEAK_OVER_LIMIT * max(highest) if series[0] is not None and highest else None


def _idle(log: SampleLog, uuid: str, sensor: Sensor | str) -> IdlePower:
    """Power in the idle time before the run; None if the GPU was not idle."""
    start, end = log.meta.idle_start_unix_ns, log.meta.idle_end_unix_ns
    series = log.get(uuid, "gpu_utilization_percent")
    energy, seconds = Energy(None, reason=sensor if isinstance(sensor, str) else None), 0.0
    if start is None or end is None:
        energy = Energy(None, reason="no idle time was measured before the run (measure-idle)")
    elif series is None or not len(read := series.select(series.is_read).between(start, end)):
        energy = Energy(None, reason="utilisation was not read before the run, so the GPU may not have been idle")
    elif read.value.max() > 0:
        energy = Energy(None, reason=f"the GPU was not idle before the run: utilisation up to {read.value.max():.0f} %")
    elif isinstance(sensor, Sensor):
        energy, seconds = sensor.between(start, end), (end - start) / NS_PER_S
    if energy.joules is None:
        return IdlePower(None, None, None, energy.reason)
    return IdlePower(per(energy.joules, seconds), per(energy.error_j, seconds), rounded(seconds), None)


def _process(
    process: MeasuredProcess,
    gpus: Mapping[str, GpuEnergy],
    sensors: Mapping[str, Sensor | str],
    on_gpu: Mapping[str, Sequence[MeasuredProcess]],
) -> ProcessEnergy:
    uuids = [gpu.uuid for gpu in process.gpus]
    mine = [gpus[uuid] for uuid in uuids]
    others = [other.folder for uuid in uuids for other in on_gpu[uuid] if other.folder != process.folder]
    reason = next((gpu.reason for gpu in mine if gpu.reason), None)
    if others:
        reason = f"the GPU is shared with {', '.join(dict.fromkeys(others))}; a sensor cannot separate processes"
        mine = []
    batches, items = process.batches.counts(process.windows)
    joules = sum_known([gpu.energy_j for gpu in mine])
    return ProcessEnergy(
        gpu_uuids=uuids,
        shared_with=list(dict.fromkeys(others)),
        energy_j=rounded(joules),
        error_j=rounded(_error_of_sum([gpu.error_j for gpu in mine])),
        idle_j=rounded(sum_known([gpu.idle_j for gpu in mine])),
        energy_above_idle_j=rounded(sum_known([gpu.energy_above_idle_j for gpu in mine])),
        energy_per_batch_j=per(joules, batches),
        energy_per_item_j=per(joules, items),
        batches=batches,
        items=items,
        batch_energy_j=_batch_energies(process, [sensors[gpu.uuid] for gpu in mine]),
        reason=reason,
    )


def _batch_energies(process: MeasuredProcess, sensors: Sequence[Sensor | str]) -> list[float | None]:
    """Energy of each batch that is long enough for the sensors; empty if none is."""
    known = [sensor for sensor in sensors if isinstance(sensor, Sensor)]
    batches, found = process.batches, list[float | None]()
    if not known or len(known) < len(sensors) or process.reason is not None:
        return []
    shortest = MIN_UPDATES * max(sensor.period_ns for sensor in known)
    for start, end, is_warmup in zip(batches.start_ns.tolist(), batches.end_ns.tolist(), batches.warmup, strict=True):
        is_long = end - start >= shortest and not is_warmup
        found.append(rounded(sum_known([sensor.between(start, end).joules for sensor in known])) if is_long else None)
    return found if any(joules is not None for joules in found) else []


def _findings(gpu: GpuEnergy, title: str) -> Iterator[Finding]:
    if gpu.idle.power_mean_w is None:
        yield Finding(
            "energy-uncertain",
            Severity.NOTE,
            f"{title}: idle power is not known ({gpu.idle.reason}), so it is not separated.",
            "Wait before the run on a GPU without other users: `measure-idle = 5` in perfharness.toml.",
        )
    if gpu.reason is not None and gpu.reason.startswith(IN_STEP):
        yield Finding(
            "energy-uncertain",
            Severity.WARNING,
            f"{title}: energy is not known ({gpu.reason}).",
            "Change the batch size, or let batches vary in length.",
        )


def sum_known(values: Sequence[float | None]) -> float | None:
    """The sum; None if a value is unknown, or without values."""
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def _error_of_sum(errors: Sequence[float | None]) -> float | None:
    """Error of a sum of values with independent errors."""
    squares = sum_known([None if error is None else error**2 for error in errors])
    return None if squares is None else squares**0.5
