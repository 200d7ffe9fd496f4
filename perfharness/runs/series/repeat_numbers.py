"""The numbers of `repeat.json`: what is kept of each launch, and over launches means, intervals and findings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfharness.analysis.comparison.compare import holm
from perfharness.analysis.comparison.launches import LaunchMean, first_launch_p_value, mean_of_launches
from perfharness.analysis.statistics import ALPHA, mean_interval, trend
from perfharness.analysis.suites.latency import drift_percent
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import RunManifest
from perfharness.model.result import TIMES, Float64, ProcessResult, path_of
from perfharness.model.rounding import figure
from perfharness.runs.figures import Figures, loop_paths, run_figures, stage_figures
from perfharness.runs.files.run_folder import RunSummary
from perfharness.runs.series.launch_conditions import LaunchConditions, conditions_of
from perfharness.runs.series.repeat_file import OverLaunches, Repeat
from perfharness.runs.series.steadiness import movements_of, unsteady_findings

STABLE_METRIC = "cpu_time"
"""Of a batch: what drift is about."""

LISTED = 3
ALWAYS = (*TIMES, "items_per_second")
"""Metrics that are there with the reason where they could not be measured."""

FIRST_LAUNCH_ERROR = 0.01
"""How often a first launch that is like the others is taken for different."""

GPU_TIMES = tuple(time for time in TIMES if time.startswith("gpu"))


@dataclass(frozen=True)
class LaunchNumbers:
    """What is kept of one launch: neither its traces nor its batches are.

    Attributes:
        drifts: by loop and process, how much the last third of the batches is slower than the first; None: not certain.
        within: half of the interval of each stage's times for further batches of this launch; only where it is the
            only one.
    """

    stages: Mapping[str, Figures]
    run: Figures
    loops: Sequence[str]
    conditions: LaunchConditions | None = None
    drifts: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    within: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @staticmethod
    def of(name: str, manifest: RunManifest, summary: RunSummary, *, is_only: bool = False) -> LaunchNumbers:
        """Of a launch that was analysed."""
        loops = loop_paths(summary.mean)
        stages = stage_figures(summary.mean)
        well = {process.folder for process in manifest.measured_processes if process.ended == "ok"}
        results = [result for folder, result in summary.results.items() if folder in well]
        return LaunchNumbers(
            stages,
            run_figures(summary.mean),
            loops,
            conditions_of(name, manifest, summary.mean),
            {path: [drift_percent(values) for values in _series(results, path, STABLE_METRIC)] for path in loops},
            {path: within_launch(results, path) for path in stages} if is_only else {},
        )


def within_launch(results: Sequence[ProcessResult], path: str) -> dict[str, float]:
    """Half of the interval of a stage's times for further batches of the same launch, by metric; where there is one.

    Over processes where there are several; over the batches of one by batch means.
    """
    found = {}
    for metric in TIMES:
        processes = _series(results, path, metric)
        if len(processes) > 1:
            over = mean_of_launches([float(values.mean()) for values in processes])
            if over.high is not None and over.mean is not None:
                found[metric] = over.high - over.mean
        elif processes:
            interval = mean_interval(processes[0])
            if not isinstance(interval, str):
                found[metric] = (interval[1] - interval[0]) / 2
    return found


def _series(results: Sequence[ProcessResult], path: str, metric: str) -> list[Float64]:
    """Times of the batches of a stage that are not excluded, an array a process; without those not measured."""
    columns = (result.values_minus_warmup.get(path_of(path), {}).get(metric) for result in results)
    return [values for values in columns if values is not None and len(values) and not np.isnan(values).any()]


def numbers_of_repeat(launches: Sequence[LaunchNumbers]) -> dict[str, Any]:
    """The numbers of the file, by its fields."""
    paths = list(dict.fromkeys(path for launch in launches for path in launch.stages))
    loops = list(dict.fromkeys(path for launch in launches for path in launch.loops))
    stages = {path: _metrics([launch.stages.get(path, {}) for launch in launches]) for path in paths}
    if len(launches) == 1:
        stages = {path: _within(launches[0], path, metrics) for path, metrics in stages.items()}
    known = [launch.conditions for launch in launches if launch.conditions is not None]
    machine = movements_of(known) if len(known) == len(launches) and len(known) > 1 else None
    return {
        "confidence": 1 - ALPHA,
        "loops": loops,
        "stages": stages,
        "run": _metrics([launch.run for launch in launches]),
        "machine": machine,
    }


def findings_of_repeat(repeat: Repeat, launches: Sequence[LaunchNumbers]) -> list[Finding]:
    """What a reader of the numbers must know, for the file."""
    return [
        *_unsteady(repeat),
        *_launch_drift(repeat),
        *_first_launch(repeat),
        *_warm(repeat),
        *(finding for path in repeat.loops for finding in _batch_findings(path, launches)),
    ]


def _metrics(launches: Sequence[Figures]) -> dict[str, OverLaunches]:
    names = dict.fromkeys(name for launch in launches for name in launch)
    columns = {name: [launch.get(name) for launch in launches] for name in names}
    return {
        name: over_launches(values, mean_of_launches(values))
        for name, values in columns.items()
        if _is_worth_it(name, values)
    }


def _is_worth_it(name: str, values: Sequence[float | None]) -> bool:
    """Whether a launch has it, or should have it; times of a GPU that did nothing are left out."""
    if name in ALWAYS and any(value is None for value in values):
        return True
    if name.startswith(GPU_TIMES) and not any(values):
        return False
    return any(value is not None for value in values)


def over_launches(values: Sequence[float | None], found: LaunchMean) -> OverLaunches:
    """One number over launches, as it stands in files."""
    return OverLaunches(
        values=list(values),
        mean=_figure(found.mean),
        std=_figure(found.std),
        low=_figure(found.low),
        high=_figure(found.high),
        scope=None if found.low is None else "launches",
        reason=found.reason,
    )


def _within(launch: LaunchNumbers, path: str, metrics: Mapping[str, OverLaunches]) -> dict[str, OverLaunches]:
    """Of a single launch: the times with intervals for further batches of that launch."""
    found = dict(metrics)
    for metric, half in launch.within.get(path, {}).items():
        if (one := found.get(metric)) is not None and one.mean is not None:
            low, high = _figure(one.mean - half), _figure(one.mean + half)
            found[metric] = one.model_copy(update={"low": low, "high": high, "scope": "within-launch"})
    return found


def _unsteady(repeat: Repeat) -> Iterator[Finding]:
    """Where the machine moved by more than the interval of a loop's batches is wide."""
    if repeat.machine is None:
        return
    widths = [
        (stage.high - stage.low) / 2 / stage.mean
        for path in repeat.loops
        if (stage := repeat.stages.get(path, {}).get(STABLE_METRIC)) is not None
        and stage.mean
        and stage.low is not None
        and stage.high is not None
    ]
    if widths:
        yield from unsteady_findings(
            repeat.machine, min(widths), f"the interval of a batch's time (±{min(widths):.2%})"
        )


def _warm(repeat: Repeat) -> Iterator[Finding]:
    """Launches that began on a GPU that was warmer than before the first."""
    warm = [(row.folder, wait) for row in repeat.rows for wait in row.waits if not wait.reached]
    if warm:
        listed = ", ".join(
            f"{folder} at {'an unknown temperature' if wait.end_c is None else f'{wait.end_c} °C'}"
            for folder, wait in warm[:LISTED]
        )
        more = f" and {len(warm) - LISTED} more" if len(warm) > LISTED else ""
        yield Finding(
            "launches-began-warm",
            Severity.WARNING,
            f"{len(warm)} launches did not begin on a GPU as cool as the first one did: {listed}{more}",
            "a longer cool-down-limit (perfharness.toml); or --cool-down with a temperature that the GPUs come down to",
        )


def _launch_drift(repeat: Repeat) -> Iterator[Finding]:
    """Loops whose launches became slower or faster; corrected for how many loops there are."""
    for path in repeat.loops:
        values = _values(repeat, path)
        drift = trend(values, ALPHA / len(repeat.loops))
        if drift is not None and drift.is_certain:
            yield Finding(
                "launches-drift",
                Severity.WARNING,
                f"{path} became {'slower' if drift.value > 0 else 'faster'} from launch to launch, by "
                f"{abs(drift.value) / float(np.mean(values)):.2%} each, so the mean is that of no launch to come",
                "look for what builds up: heat (--cool-down), files, memory; and repeat",
            )


def _first_launch(repeat: Repeat) -> Iterator[Finding]:
    """Loops whose first launch differs from the others; corrected for how many loops there are."""
    if not repeat.measured or repeat.measured[0] != repeat.rows[0]:
        return
    chances = {path: first_launch_p_value(_values(repeat, path)) for path in repeat.loops}
    found = {path: p_value for path, p_value in chances.items() if p_value is not None}
    for path, p_value in zip(found, holm(list(found.values())), strict=True):
        if p_value < FIRST_LAUNCH_ERROR:
            first, *others = _values(repeat, path)
            change = first / float(np.mean(others)) - 1
            yield Finding(
                "first-launch-differs",
                Severity.WARNING,
                f"{path}: the first launch was {abs(change):.1%} {'slower' if change > 0 else 'faster'} than the "
                f"others (p = {p_value:.2g}), and is part of the mean",
                "launch once before, so that caches of files and compilers are filled; and repeat",
            )


def _values(repeat: Repeat, path: str) -> list[float]:
    """Mean times of a batch of a loop, by launch; empty where one does not have it."""
    stage = repeat.stages.get(path, {}).get(STABLE_METRIC)
    values = [] if stage is None else [value for value in stage.values if value is not None]
    return values if stage is not None and len(values) == len(stage.values) else []


def _batch_findings(path: str, launches: Sequence[LaunchNumbers]) -> Iterator[Finding]:
    processes = [drift for launch in launches for drift in launch.drifts.get(path, ())]
    known = [drift for drift in processes if drift is not None]
    if known and len(known) > len(processes) / 2 and len({math.copysign(1, drift) for drift in known}) == 1:
        yield Finding(
            "batches-drift",
            Severity.NOTE,
            f"In {len(known)} of {len(processes)} processes the last third of the batches of {path} was "
            f"{'slower' if known[0] > 0 else 'faster'} than the first, by {np.median(np.abs(known)):.1f} % (median)",
            "more warm-up batches (-w), or longer runs",
        )


def _figure(value: float | None) -> float | None:
    return None if value is None else figure(value)
