"""The energy of a run: each GPU's by every sensor, its idle part, each stage's and each process's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from perfharness.analysis.energy.attribution import attribute
from perfharness.analysis.energy.gpu_sensors import COUNTER, METRICS, POWERS, GpuSensors, Window, WindowEnergy
from perfharness.analysis.energy.kinds import BusyShares, KnownWork
from perfharness.analysis.energy.results import (
    GpuEnergy,
    IdlePower,
    OccurrenceEnergy,
    ProcessEnergy,
    RunEnergy,
    SensorEnergy,
    StageAttribution,
)
from perfharness.analysis.energy.sensors import disagreement, idle_power, shortest_window_ns
from perfharness.analysis.energy.steps import NS_PER_MS, Energy, per, rounded
from perfharness.analysis.energy.work import MeasuredProcess, merged, no_window, union_window
from perfharness.model.findings import Finding, Severity
from perfharness.model.telemetry import SampleLog
from perfharness.model.trace import Int64

NO_WINDOW = Energy(None, reason="there is no such window")


def account(log: SampleLog, processes: Sequence[MeasuredProcess]) -> tuple[RunEnergy, list[Finding]]:
    """Energy of a run, from the readings of the sensors and the GPU work of the traces."""
    uuids = dict.fromkeys(gpu.sensor_uuid for process in processes for gpu in process.gpus)
    accounts = [
        _GpuAccount(log, uuid, [mine for process in processes if (mine := process.on(uuid)) is not None])
        for uuid in uuids
    ]
    parts: dict[str, list[ProcessEnergy]] = {}
    for one in accounts:
        for folder, energy in one.process_energies():
            parts.setdefault(folder, []).append(energy)
    shares = {folder: _of_all_gpus(energies) for folder, energies in parts.items()}
    return _run([one.gpu for one in accounts], shares), [finding for one in accounts for finding in one.findings()]


class _GpuAccount:
    """One GPU of a run, the processes on it, and what its sensors measured in their windows (`seen`, if any)."""

    def __init__(self, log: SampleLog, uuid: str, processes: list[MeasuredProcess]) -> None:
        self.sensors = GpuSensors(log, uuid)
        self.processes = processes
        self.idle = self._idle(log)
        self.unknown = next(
            (
                f"what {process.folder} did on the GPU is not known: {process.work.reason}"
                for process in processes
                if process.work.reason
            ),
            None,
        )
        windows = merged([window for process in processes for window in process.windows])
        self.seen = WindowEnergy(self.sensors, windows, self._work(), self.idle.power_mean_w) if windows else None
        self.reason = None if self.seen else no_window(processes)
        self.best = self.seen.best()[1] if self.seen else Energy(None, reason=self.reason)
        self.gpu = self._gpu()

    def _idle(self, log: SampleLog) -> IdlePower:
        start, end = log.meta.idle_start_unix_ns, log.meta.idle_end_unix_ns
        window = None if start is None or end is None else (start, end)
        utilization = self.sensors.readings("gpu_utilization_percent")
        known = None if isinstance(utilization, str) else utilization
        energies = [(metric, idle_power(self.sensors.steps[metric], window, known)) for metric in METRICS]
        metric, energy = next((one for one in energies if one[1].joules is not None), energies[0])
        return energy.as_power(metric)

    def _work(self) -> KnownWork | None:
        """When they were at work; only their batches where the GPU was not traced; None where nothing is known."""
        batches = [(one.batches.start_ns, one.batches.end_ns) for one in self.processes if one.reason is None]
        if self.unknown is None:
            return KnownWork(BusyShares(self._classes()[1]), batches)
        return KnownWork(BusyShares([]), batches) if any(len(start) for start, _ in batches) else None

    def _classes(self) -> tuple[list[str], list[tuple[Int64, Int64]]]:
        """Stages of one path are one class, whichever process they are of."""
        gathered: dict[str, list[tuple[Int64, Int64]]] = {}
        for process in self.processes:
            for name, spans in zip(process.work.stages, process.work.busy, strict=True):
                gathered.setdefault(name, []).append(spans)
        busy = [
            (np.concatenate([start for start, _ in spans]), np.concatenate([end for _, end in spans]))
            for spans in gathered.values()
        ]
        return list(gathered), busy

    def _gpu(self) -> GpuEnergy:
        seen, lifetime = self.seen, union_window([process.lifetime for process in self.processes])
        total = {metric: seen.explained(metric).total if seen else NO_WINDOW for metric in METRICS}
        power = next((total[metric] for metric in POWERS if total[metric].joules is not None), Energy(None))
        idle_w = self.idle.power_mean_w
        idle_j = None if idle_w is None or seen is None else idle_w * seen.seconds
        above_j = None if idle_j is None or self.best.joules is None else self.best.joules - idle_j
        return GpuEnergy(
            uuid=self.sensors.uuid,
            run=self._by_sensor(lifetime) if lifetime else self._by_sensor(None, known=False),
            window=self._by_sensor(None),
            disagreement_j=rounded(disagreement(total[COUNTER], power)),
            idle=self.idle,
            idle_j=rounded(idle_j),
            energy_above_idle_j=rounded(above_j),
            attribution=self._attribution(),
            reason=self.reason or (self.best.reason if self.best.joules is None else None),
        )

    def _by_sensor(self, stretch: Window | None, *, known: bool = True) -> list[SensorEnergy]:
        """Energy of a stretch of time (None: of the windows) by each sensor."""
        found = []
        for metric in METRICS:
            energy = self.seen.energy(metric, stretch) if self.seen and known else NO_WINDOW
            period = self.sensors.period_ns(metric)
            found.append(
                SensorEnergy(
                    source=metric,
                    energy_j=rounded(energy.joules),
                    error_j=rounded(energy.error_j),
                    power_mean_w=rounded(energy.mean_power_w),
                    seconds=rounded(energy.seconds),
                    update_period_ms=None if period is None else period / NS_PER_MS,
                    reason=energy.reason,
                )
            )
        return found

    def _attribution(self) -> StageAttribution:
        reason = self.reason or self.unknown
        metric = self.seen.finest() if self.seen is not None and reason is None else None
        if reason is None and metric is None:
            reason = self.best.reason or "no sensor can measure it"
        if self.seen is None or metric is None or reason is not None:
            awake = IdlePower(None, None, None, None, reason)
            return StageAttribution(None, None, None, 0, None, None, None, [], [], awake, reason)
        # Batches and items from the first window to the last, pauses included: what stages' energies are of.
        counts = [process.batches.counts([process.window] if process.window else []) for process in self.processes]
        items = [each for _, each in counts if each is not None]
        names, busy = self._classes()
        return attribute(
            self.sensors.steps[metric],
            names,
            BusyShares(busy),
            self.seen.window,
            idle_w=self.idle.power_mean_w,
            limit_w=self.sensors.limit_w(),
            explained=self.seen.explained(metric),
            source=metric,
            counts=(sum(count for count, _ in counts), sum(items) if len(items) == len(counts) else None),
        )

    def process_energies(self) -> Iterator[tuple[str, ProcessEnergy]]:
        """Of the processes on the GPU, by folder name."""
        total, gpu = self.best, self.gpu
        shares, why = self._busy_shares()
        # What the GPU had spent without any work: awake, as a GPU with processes on it is, or idle.
        awake_w = gpu.attribution.awake.power_mean_w
        rest_j = gpu.idle_j if awake_w is None or self.seen is None else awake_w * self.seen.seconds
        for process, share in zip(self.processes, shares, strict=True):
            others = [other.folder for other in self.processes if other is not process]
            idle_j = None if gpu.idle_j is None else gpu.idle_j / len(self.processes)
            joules, error_j = total.joules, total.error_j
            if others:
                joules = error_j = None
                if share is not None and total.joules is not None and rest_j is not None:
                    rest = min(rest_j, total.joules)
                    joules = rest / len(self.processes) + share * (total.joules - rest)
                    error_j = None if total.error_j is None else share * total.error_j
            reason = total.reason
            if joules is None and reason is None:
                reason = why or f"idle power is not known, without which nothing can be shared out: {gpu.idle.reason}"
            batches, items = process.batches.counts(process.windows)
            yield (
                process.folder,
                ProcessEnergy(
                    gpu_uuid=self.sensors.uuid,
                    gpu_uuids=[self.sensors.uuid],
                    shared_with=others,
                    share_above_idle=rounded(share),
                    energy_j=rounded(joules),
                    error_j=rounded(error_j),
                    idle_j=rounded(idle_j),
                    energy_above_idle_j=rounded(joules - idle_j) if joules is not None and idle_j is not None else None,
                    energy_per_batch_j=per(joules, batches),
                    energy_per_item_j=per(joules, items),
                    batches=batches,
                    items=items,
                    occurrences=self._occurrences(process, others),
                    reason=reason,
                ),
            )

    def _busy_shares(self) -> tuple[Sequence[float | None], str | None]:
        """Each process's part of the time in which any of them was at work; moments of several in equal parts."""
        if len(self.processes) == 1:
            return [1.0], None
        reason = self.reason or self.unknown
        if self.seen is not None and reason is None:
            busy = BusyShares([process.work.all_busy() for process in self.processes])
            start, end = np.asarray(self.seen.windows, dtype=np.int64).T
            seconds = busy.within(start, end).sum(axis=1)
            if seconds.sum():
                return (seconds / seconds.sum()).tolist(), None
            reason = "none of the processes did anything on the GPU"
        return [None] * len(self.processes), reason

    def _occurrences(self, process: MeasuredProcess, others: list[str]) -> OccurrenceEnergy:
        """Energy of single batches, by the counter, or else by the finest power there is."""
        metric = next((metric for metric in METRICS if self.sensors.period_ns(metric) is not None), None)
        if metric is None:
            return OccurrenceEnergy(None, 0, [], "no energy sensor was read")
        shortest = shortest_window_ns(self.sensors.period_ns(metric) or 0.0)
        start, end = process.batches.start_ns, process.batches.end_ns
        long_enough = ~process.batches.warmup & (end - start >= shortest)
        reason = None
        if process.window is None or self.seen is None:
            reason = no_window([process])
        elif others:
            reason = f"the GPU is shared with {', '.join(others)}, and a sensor cannot separate processes"
        elif not long_enough.any():
            reason = f"no batch is as long as {shortest / NS_PER_MS:.0f} ms, which the sensor needs"
        found: list[float | None] = []
        if reason is None and self.seen is not None:
            found = [None] * len(start)
            for at in np.flatnonzero(long_enough).tolist():
                found[at] = rounded(self.seen.energy(metric, (int(start[at]), int(end[at]))).joules)
        return OccurrenceEnergy(shortest / NS_PER_MS, sum(value is not None for value in found), found, reason)

    def findings(self) -> Iterator[Finding]:
        """What a reader of the GPU's energies must know."""
        gpu, uuid = self.gpu, self.sensors.uuid
        if gpu.disagreement_j:
            parts = ", ".join(
                f"{one.source} {one.energy_j:.1f} ± {one.error_j:.1f} J"
                for one in gpu.window
                if one.energy_j is not None
            )
            yield Finding(
                "energy-sensors-disagree",
                Severity.WARNING,
                f"GPU {uuid}: the energy counter and integrated power are {gpu.disagreement_j:.1f} J further "
                f"apart than their errors allow ({parts}).",
                "Take the larger difference as the error of every energy here.",
            )
        if gpu.idle.power_mean_w is None:
            yield Finding(
                "energy-idle-unknown",
                Severity.NOTE,
                f"GPU {uuid}: idle power is not known ({gpu.idle.reason}), so it is not separated.",
                "Wait before the run on a GPU without other users: `measure-idle = 5` in perfharness.toml.",
            )
        if self.seen is not None and self.seen.ambiguous:
            yield Finding(
                "energy-sensor-may-miss-work",
                Severity.WARNING,
                f"GPU {uuid}: energy is not known ({gpu.reason}).",
                "Change the batch size, or let batches vary in length, or measure for longer.",
            )
        gpus = [gpu for one in self.processes for gpu in one.gpus]
        instances = sorted({gpu.uuid for gpu in gpus if gpu.uuid != gpu.sensor_uuid})
        if instances:
            yield Finding(
                "energy-of-whole-gpu",
                Severity.WARNING,
                f"Energy and power are those of the whole GPU {uuid}, of which the run used "
                f"{', '.join(instances)}; what other MIG instances did is in them.",
                "Leave the GPU's other instances idle while energy is measured.",
            )


def _of_all_gpus(parts: Sequence[ProcessEnergy]) -> ProcessEnergy:
    """A process's parts of the energy of each of its GPUs, together; None where one of them is not known."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    joules, idle_j = _sum([part.energy_j for part in parts]), _sum([part.idle_j for part in parts])
    return replace(
        first,
        gpu_uuid=None,
        gpu_uuids=[uuid for part in parts for uuid in part.gpu_uuids],
        shared_with=list(dict.fromkeys(folder for part in parts for folder in part.shared_with)),
        share_above_idle=None,
        energy_j=rounded(joules),
        error_j=rounded(_error_of_sum([part.error_j for part in parts])),
        idle_j=rounded(idle_j),
        energy_above_idle_j=rounded(_sum([part.energy_above_idle_j for part in parts])),
        energy_per_batch_j=per(joules, first.batches),
        energy_per_item_j=per(joules, first.items),
        occurrences=_occurrences_of_all([part.occurrences for part in parts]),
        reason=next((part.reason for part in parts if part.reason is not None), None),
    )


def _occurrences_of_all(parts: Sequence[OccurrenceEnergy]) -> OccurrenceEnergy:
    """Of each batch the sum over the GPUs, where it is known of all of them."""
    reason = next((part.reason for part in parts if part.reason is not None), None)
    if reason is not None:
        return OccurrenceEnergy(parts[0].shortest_window_ms, 0, [], reason)
    found = [rounded(_sum(list(of_batch))) for of_batch in zip(*(part.batch_energy_j for part in parts), strict=True)]
    shortest = [part.shortest_window_ms for part in parts if part.shortest_window_ms is not None]
    return OccurrenceEnergy(max(shortest, default=None), sum(value is not None for value in found), found, None)


def _run(gpus: list[GpuEnergy], processes: dict[str, ProcessEnergy]) -> RunEnergy:
    """Sums over the GPUs; None where one of them is not known."""
    window, run = (
        [
            min(
                (part for part in parts if part.energy_j is not None),
                key=lambda part: part.error_j or 0.0,
                default=None,
            )
            for parts in sensors
        ]
        for sensors in ([gpu.window for gpu in gpus], [gpu.run for gpu in gpus])
    )
    total = _sum([part.energy_j if part else None for part in window])
    return RunEnergy(
        energy_j=rounded(total),
        error_j=rounded(_error_of_sum([part.error_j if part else None for part in window])),
        energy_per_batch_j=per(total, sum(process.batches for process in processes.values())),
        energy_per_item_j=per(total, _sum([process.items for process in processes.values()])),
        energy_run_j=rounded(_sum([part.energy_j if part else None for part in run])),
        gpus=gpus,
        processes=processes,
        reason=next((gpu.reason for gpu in gpus if gpu.reason), None) if gpus else "no process of this run has a GPU",
    )


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def _error_of_sum(errors: list[float | None]) -> float | None:
    """Of values that err independently."""
    squares = _sum([None if error is None else error * error for error in errors])
    return None if squares is None else float(np.sqrt(squares))
