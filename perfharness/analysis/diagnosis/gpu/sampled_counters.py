"""The GPU's counters while each stage's own work ran, from readings over windows that hold many stages (GPM)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfharness.analysis.counters.clocks import Clocks
from perfharness.analysis.counters.delay import placed
from perfharness.analysis.counters.fits import Estimate, Fits, WorkInWindows
from perfharness.analysis.counters.readings import GpmReadings
from perfharness.analysis.diagnosis.host.calls import stays_inside
from perfharness.analysis.diagnosis.workload import OtherProcesses, StageRows, Workload
from perfharness.analysis.energy.kinds import BusyShares
from perfharness.analysis.timeline.attribution import stage_of_calls
from perfharness.model.diagnosis import GpuCounters
from perfharness.model.result import Float64
from perfharness.model.telemetry import GPM_WINDOW
from perfharness.model.trace import GpuOperationKind, Int64

MIN_WINDOWS = 10
"""Readings that lie in the measured batches as a whole; fewer do not show how far they scatter."""

MOST_CLASSES = 12
"""Paths that are separated; those with the least work on the GPU are one more class."""

MOST_REST = 0.05
"""Part of a stage's work that may lie in that class without its counters being null."""

MOST_OFF, MOST_OFF_RELATIVE = 0.05, 0.10
"""Half of an interval: five points of the peak (links: half a GB/s), or a tenth of the value. A wider one is null."""

MAX_EDGE_ERROR = 0.1
"""Of a window: where its ends are known worse, so is what ran in it."""

STRAY = 0.02
"""SM activity in windows in which nothing of the run was on the GPU: more is somebody else's."""

MARGIN_NS = 2_000_000
"""So long before and after such a window nothing ran either."""

PCIE_CEILING, NVLINK_CEILING, LINK_UNIT = 256e9, 2e12, 10e9
"""Bytes per second: more than links of today carry in both directions; and what is worth speaking of."""

SHARES = {
    "sm_active": "gpm_sm_active_percent", "occupancy": "gpm_sm_occupancy_percent", "tensor": "gpm_tensor_percent",
    "fp32": "gpm_fp32_percent", "fp16": "gpm_fp16_percent", "fp64": "gpm_fp64_percent",
    "integer": "gpm_integer_percent", "dram": "gpm_dram_percent",
}  # fmt: skip
TENSOR_TYPES = {
    "hmma": "gpm_tensor_hmma_percent", "imma": "gpm_tensor_imma_percent", "dmma": "gpm_tensor_dmma_percent",
    "dfma": "gpm_tensor_dfma_percent",
}  # fmt: skip
OF_TIME = ("dram",)
"""Shares whose means are over time, since the memory's clock does not change; the others are over cycles."""

RATES = {
    "pcie_bytes_per_s": ("gpm_pcie_rx_mib_per_s", "gpm_pcie_tx_mib_per_s", PCIE_CEILING),
    "nvlink_bytes_per_s": ("gpm_nvlink_rx_mib_per_s", "gpm_nvlink_tx_mib_per_s", NVLINK_CEILING),
}
"""Field of `GpuCounters` -> metrics of telemetry.parquet."""


@dataclass(frozen=True)
class _OfGpu:
    """What the readings of one GPU in the measured batches come to."""

    readings: GpmReadings
    kernels: WorkInWindows
    operations: WorkInWindows
    classes: Mapping[int, int]
    """Path -> its class; those without are in the last one."""
    time_ns: Float64
    """Of the operations of each path, beginning with those in none (-1)."""
    clocks: Clocks
    fits: Mapping[str, Fits | str]
    """By field of `GpuCounters` (or type of tensor cores); or why there is none."""


class StageCounters:
    """Counters of each stage of a trace, from the readings of the GPUs that it used.

    Args:
        workload: of the trace.
        readings: by UUID of the GPU (without its prefix), on the trace's clock.
    """

    def __init__(self, workload: Workload, readings: Mapping[str, GpmReadings]) -> None:
        self._workload = workload
        self._paths = workload.stages.paths
        row = stage_of_calls(workload.stages, workload.trace.api, workload.launches.call)
        self._path = np.full(len(workload.trace.operations), -1, dtype=np.int64)
        self._path[workload.launches.operation] = np.where(row >= 0, workload.paths[row], -1)
        self._gpus: dict[int, _OfGpu] = {}
        self.missing: list[str] = []
        """Why the readings of a GPU say nothing of any stage."""
        for position, facts in enumerate(workload.gpus.facts):
            found = readings.get(facts.uuid or "")
            if found is None and _alone(workload, readings):
                found = next(iter(readings.values()))
            if found is not None:
                prepared = self._prepare(position, found)
                if isinstance(prepared, str):
                    self.missing.append(f"counters of GPU {position}: {prepared}")
                else:
                    self._gpus[position] = prepared

    def of_stage(self, stage: StageRows, gpus: tuple[int, ...]) -> list[GpuCounters]:
        """Its counters on each of these GPUs whose readings say something (`missing`)."""
        return [self._of(stage, position) for position in gpus if position in self._gpus]

    def _prepare(self, position: int, readings: GpmReadings) -> _OfGpu | str:
        """The readings of one GPU; or why they say nothing."""
        if GPM_WINDOW in readings.missing:
            return readings.missing[GPM_WINDOW]
        workload, others = self._workload, self._workload.others
        if len(workload.gpus) > 1 and others.gpu_uuid not in (None, workload.gpus.facts[position].uuid):
            others = OtherProcesses(None, 0)  # they are on another GPU
        if others.busy is None and others.count:
            return f"another process of the run is on the GPU, and when it worked is not known: {others.reason}"
        if (unclear := _unclear_ends(readings)) is not None:
            return unclear
        operations, details = workload.trace.operations, workload.details
        mine = np.flatnonzero(workload.gpus.of == position)
        is_copy = operations.kind[mine] == GpuOperationKind.MEMCPY
        is_copy[is_copy] = ~stays_inside(details, mine[is_copy])
        length = (operations.end_ns[mine] - operations.start_ns[mine]).astype(np.float64)
        path, count = self._path[mine] + 1, len(self._paths) + 1
        time_ns = np.bincount(path, weights=length, minlength=count).astype(np.float64)
        classes = _classes(time_ns)
        spans = self._spans(mine[~is_copy], classes), self._spans(mine, classes)
        if others.busy is not None and others.count:
            for each in spans:
                each.append((others.busy.start, others.busy.end))
        kernel_work, all_work = (BusyShares(each) for each in spans)
        readings, window = placed(readings, kernel_work), _measured(workload)
        inside = (readings.start_ns >= window[0]) & (readings.end_ns <= window[1])
        if inside.sum() < MIN_WINDOWS:
            return f"{inside.sum()} readings lie in the measured batches; {MIN_WINDOWS} are needed"
        readings = readings.select(inside)
        nothing = np.empty(0, dtype=np.int64)
        copies = operations.start_ns[mine[is_copy]], operations.end_ns[mine[is_copy]]
        stray = _stray(readings, all_work)
        if stray > STRAY:
            return f"the GPU was {stray:.0%} active while nothing of this run was on it: another program uses it"
        bounds, error_ns = (readings.start_ns, readings.end_ns), readings.edge_error_ns
        kernels = WorkInWindows(*bounds, kernel_work, copies, error_ns)
        every = WorkInWindows(*bounds, all_work, (nothing, nothing), error_ns)
        cycles = [
            readings.values[metric]
            for name, metric in SHARES.items()
            if name not in OF_TIME and metric in readings.values
        ]
        clocks = kernels.find_clocks(cycles, readings.clock_ratio)
        fits = _all_fits(readings, kernels, every, clocks)
        return _OfGpu(readings, kernels, every, classes, time_ns, clocks, fits)

    def _spans(self, operation: Int64, classes: Mapping[int, int]) -> list[tuple[Int64, Int64]]:
        """When each class ran, those without a class of their own last."""
        operations = self._workload.trace.operations
        number = np.full(len(self._paths) + 1, len(classes), dtype=np.int64)
        for path, own in classes.items():
            number[path + 1] = own
        of = number[self._path[operation] + 1]
        return [
            (operations.start_ns[operation[of == own]], operations.end_ns[operation[of == own]])
            for own in range(len(classes) + 1)
        ]

    def _of(self, stage: StageRows, position: int) -> GpuCounters:
        found = self._gpus[position]
        below = self._below(stage.number)
        owners = sorted({found.classes[path] for path in below if path in found.classes})
        rest = _rest(found, below)
        if not found.operations.busy_s[owners].sum():
            return GpuCounters.without(position, "gpm", "it has no work on the GPU in the readings")
        if rest > MOST_REST:
            why = f"{rest:.0%} of its work is in stages with too little of it to be separated"
            return GpuCounters.without(position, "gpm", why)
        values: dict[str, float | None] = {}
        errors: dict[str, float] = {}
        missing: list[str] = []
        for name, fits in found.fits.items():
            answer = _answer(fits, found.operations if name in RATES else found.kernels, owners)
            if isinstance(answer, Estimate):
                values[name], errors[name] = answer.value, answer.error
            elif name not in TENSOR_TYPES:
                missing.append(f"{name}: {answer}")
        return GpuCounters(
            gpu=position,
            source="gpm",
            seconds=float(found.kernels.busy_s[owners].sum()),
            **{name: values.get(name) for name in (*SHARES, *RATES)},
            missing=missing,
            tensor_types={name: value for name in TENSOR_TYPES if (value := values.get(name)) is not None},
            uncertainty=max((errors[name] for name in SHARES if name in errors), default=None),
            errors=errors,
            sm_clock_mhz=found.kernels.clock_while(owners, found.readings.sm_clock_mhz, found.clocks),
        )

    def _below(self, path: int) -> set[int]:
        """A path and all inside it: a path stands behind the one around it."""
        inside = {path}
        for each in range(path + 1, len(self._paths)):
            if int(self._paths.parent[each]) in inside:
                inside.add(each)
        return inside


def _unclear_ends(readings: GpmReadings) -> str | None:
    """Why it is not known well enough what ran in the windows; None: it is."""
    window_ns = float(np.median(readings.end_ns - readings.start_ns)) if len(readings) else 0.0
    if readings.edge_error_ns <= MAX_EDGE_ERROR * window_ns or not len(readings):
        return None
    seen_ms, clock_us = (readings.edge_error_ns - readings.clock_error_ns) / 1e6, readings.clock_error_ns / 1e3
    return (
        f"the ends of the readings' windows ({window_ns / 1e6:.0f} ms long) are known to {seen_ms:.1f} ms, for the "
        f"driver was asked or answered late, and the trace's clock to {clock_us:.1f} µs: together more than "
        f"{MAX_EDGE_ERROR:.0%} of a window"
    )


def _classes(time_ns: Float64) -> dict[int, int]:
    """The paths with the most work, numbered."""
    longest = np.argsort(-time_ns, kind="stable")[:MOST_CLASSES]
    return {int(each) - 1: number for number, each in enumerate(longest[time_ns[longest] > 0])}


def _rest(found: _OfGpu, below: set[int]) -> float:
    """The part of a stage's work that has no class of its own."""
    whole = float(sum(found.time_ns[path + 1] for path in below))
    return float(sum(found.time_ns[path + 1] for path in below - found.classes.keys())) / max(whole, 1.0)


def _alone(workload: Workload, readings: Mapping[str, GpmReadings]) -> bool:
    """Whether the trace's only GPU must be the only one that was sampled, though the trace lacks its UUID."""
    return len(workload.gpus) == len(readings) == 1 and workload.gpus.facts[0].uuid is None


def _measured(workload: Workload) -> tuple[int, int]:
    """From the start of the first batch that counts to the end of the last; of all stages where there are none."""
    stages, times = workload.stages, workload.stage_times
    kept = stages.is_batch & ~times.warmup if stages.is_batch.any() else np.ones(len(stages), dtype=np.bool_)
    if not kept.any():
        return 0, 0
    return int(stages.start_ns[kept].min()), int(stages.end_ns[kept].max())


def _stray(readings: GpmReadings, work: BusyShares) -> float:
    """Mean SM activity of the windows that lie apart from all traced work; 0 where there are none."""
    active = readings.values.get(SHARES["sm_active"])
    if active is None:
        return 0.0
    quiet = work.within(readings.start_ns - MARGIN_NS, readings.end_ns + MARGIN_NS).sum(axis=0) <= 0
    quiet &= ~np.isnan(active)
    return float(active[quiet].mean()) if quiet.any() else 0.0


def _all_fits(
    readings: GpmReadings, kernels: WorkInWindows, operations: WorkInWindows, clocks: Clocks
) -> dict[str, Fits | str]:
    """Every counter explained: shares by kernels, traffic of links by all operations."""
    values = readings.values
    found: dict[str, Fits | str] = {}
    for name, metric in (SHARES | TENSOR_TYPES).items():
        found[name] = _fits(
            kernels,
            values.get(metric),
            readings.missing.get(metric),
            plain=name in TENSOR_TYPES,
            clocks=None if name in OF_TIME else clocks,
        )
    for name, (received, sent, ceiling) in RATES.items():
        both = values[received] + values[sent] if received in values and sent in values else None
        why = readings.missing.get(received) or readings.missing.get(sent)
        found[name] = _fits(operations, both, why, ceiling, LINK_UNIT)
    return found


def _fits(
    work: WorkInWindows,
    values: Float64 | None,
    why: str | None,
    ceiling: float = 1.0,
    unit: float = 1.0,
    *,
    plain: bool = False,
    clocks: Clocks | None = None,
) -> Fits | str:
    if values is None:
        return why or "it was not sampled"
    count = int((~np.isnan(values)).sum())
    if count < MIN_WINDOWS:
        return f"{count} readings of it lie in the measured batches; {MIN_WINDOWS} are needed"
    return work.fit(values, ceiling, unit, plain=plain, clocks=clocks)


def _answer(fits: Fits | str, work: WorkInWindows, owners: list[int]) -> Estimate | str:
    """The estimate where it is narrow enough, or why there is none."""
    if isinstance(fits, str):
        return fits
    if not work.busy_s[owners].sum():
        return "it has no kernels in the readings"
    estimate = fits.of(owners)
    if estimate.error <= max(MOST_OFF_RELATIVE * estimate.value, MOST_OFF * fits.unit):
        return estimate
    off = fits.off_by_clocks(owners)
    if off > estimate.error / 2:
        return (
            "the clock of the multiprocessors changed, and the readings, shares of its cycles, do not tell what it was "
            f"while this work ran, so that anything from {estimate.low:.3g} to {estimate.high:.3g} fits them; hold the "
            "clocks, or use nsys's counters"
        )
    return (
        f"its work rises and falls with other work, so that anything from {estimate.low:.3g} to {estimate.high:.3g} "
        "fits the readings"
    )
