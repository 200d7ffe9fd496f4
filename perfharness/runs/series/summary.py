"""Summarise a series: figures of launches, and their means, medians, intervals and findings."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfharness.analysis.comparison.compare import holm
from perfharness.analysis.comparison.launches import first_launch_p_value, mean_of_launches
from perfharness.analysis.statistics import ALPHA, trend
from perfharness.errors import ResultError
from perfharness.files import write_model
from perfharness.model.findings import Finding, Severity, listed
from perfharness.model.manifest import SERIES_NAME, RunManifest
from perfharness.model.result import TIMES, path_text
from perfharness.model.rounding import rounded
from perfharness.runs.figures import METRICS, stage_entries, stage_figures, value_at
from perfharness.runs.files.process_traces import startup_of
from perfharness.runs.files.run_folder import RunSummary, read_manifest
from perfharness.runs.series.machine import LaunchConditions, conditions_of, machine_changes, unsteady_findings
from perfharness.runs.series.model import WHOLE, Kind, Series, SeriesRow, Summary, read_series
from perfharness.runs.series.overhead import overhead_of
from perfharness.runs.series.processes import all_known, process_figures, scaling_of

TIME = "cpu_time"
"""Time of a batch for findings."""

ALWAYS = (*TIMES, "items_per_second", "duration_s", "cpu_s")
"""Metrics that are null if not measured; others are omitted then."""

GPU_TIMES = tuple(time for time in TIMES if time.startswith("gpu"))

STARTUP = (
    "process_to_first_batch_ms",
    "interpreter_and_imports_ms",
    "cuda_context_ms",
    "model_load_ms",
    "start_barrier_wait_ms",
    "other_ms",
    "first_batch_ms",
)
CONTAINER = "container_to_first_batch_ms"

FIRST_LAUNCH_ERROR = 0.01
"""Probability that an ordinary first launch is reported as different."""


class LaunchFacts(NamedTuple):
    """Facts about a launch besides its row; `loops` are paths of its batches."""

    conditions: LaunchConditions
    loops: Sequence[str]


def measured_row(
    row: SeriesRow, kind: Kind, manifest: RunManifest, summary: RunSummary
) -> tuple[SeriesRow, LaunchFacts]:
    """Add figures to the row of a launch, and return its facts too."""
    loops: list[str] = []
    if kind == "processes":
        figures = {WHOLE: process_figures(summary)}
        row = row.model_copy(update={"reason": summary.mean["throughput"]["reason"]})
    elif kind == "cold":
        startup = startup_of(summary.folder, manifest.processes[0], manifest.container_start_unix_ns) or {}
        figures = {WHOLE: {name: startup.get(name) for name in STARTUP}}
        if row.place == 0 and startup.get(CONTAINER) is not None:  # later launches do not start the container
            figures[WHOLE][CONTAINER] = startup[CONTAINER]
    else:
        rate = value_at(summary.mean, METRICS["throughput"])
        figures = {WHOLE: {"items_per_second": rate, **_process_times(manifest)}, **stage_figures(summary.mean)}
        entries = stage_entries(summary.mean.get("mean_data") or {})
        loops = [path_text(path) for path, entry in entries if "total_items" in entry]
    figures = {
        path: {name: value for name, value in found.items() if value is not None or kind == "cold" or name in ALWAYS}
        for path, found in figures.items()
    }
    facts = LaunchFacts(conditions_of(row.folder, manifest, summary.mean), loops)
    return row.model_copy(update={"figures": figures}), facts


def has_figures(row: SeriesRow, kind: Kind) -> bool:
    """Whether any figure was measured; for launches with stages, any figure of a stage."""
    counted = [found for path, found in row.figures.items() if path or kind in ("processes", "cold")]
    return any(value is not None for found in counted for value in found.values())


def _process_times(manifest: RunManifest) -> dict[str, float | None]:
    processes = manifest.processes
    durations = all_known([process.duration_s for process in processes])
    cpu_times = all_known([time for process in processes for time in (process.user_s, process.system_s)])
    return {"duration_s": sum(durations) if durations else None, "cpu_s": sum(cpu_times) if cpu_times else None}


def new_series(
    kind: Kind,
    rows: Sequence[SeriesRow],
    command: Sequence[str],
    script: str,
    script_arguments: Sequence[str] = (),
    seed: int | None = None,
    facts: Mapping[str, LaunchFacts] | None = None,
) -> Series:
    """Make and summarise a series of these launches."""
    series = Series(
        kind=kind,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=list(command),
        script=script,
        script_arguments=list(script_arguments),
        seed=seed,
        confidence=1 - ALPHA,
        rows=list(rows),
    )
    return summarise(series, facts or {})


def summarise(series: Series, facts: Mapping[str, LaunchFacts]) -> Series:
    """Compute all fields of a series from its rows; `facts` are by folder of the launch."""
    labels = dict.fromkeys(row.label for row in series.measured())
    known = [facts[row.folder] for row in series.measured() if row.folder in facts]
    update: dict[str, Any] = {
        "loops": list(dict.fromkeys(path for one in known for path in one.loops)),
        "summary": {label: _summaries(series.measured(label)) for label in labels},
        "machine": machine_changes([one.conditions for one in known]),
    }
    if series.kind == "processes":
        update |= scaling_of(series.rows)
    series = series.model_copy(update=update)
    if series.kind == "overhead":
        series = series.model_copy(update=overhead_of(series))
    unlike = [finding for label in labels for finding in _unlike(series, label)]
    findings = [*series.findings, *_unsteady(series), *unlike, *_began_warm(series)]
    return series.model_copy(update={"findings": findings})


def update_series(folder: Path, summaries: Sequence[RunSummary]) -> Series | None:
    """Update the figures of launches in `series.json`; None if missing. Raises `ResultError`."""
    before = read_series(folder)
    if before is None:
        return None
    by_folder = {summary.folder: summary for summary in summaries}
    rows, facts = list(before.rows), {}
    for place, row in enumerate(rows):
        if (summary := by_folder.get(folder / row.folder)) is not None and row.status == "ok":
            manifest = read_manifest(summary.folder)
            rows[place], facts[row.folder] = measured_row(row, before.kind, manifest, summary)
    if len(facts) < len(before.measured()):
        return before
    updated = summarise(before.model_copy(update={"rows": rows, "findings": []}), facts)
    if (folder / SERIES_NAME).is_file():  # otherwise it is part of another series
        with suppress(ResultError):  # reported by the analysis of the runs
            write_model(folder / SERIES_NAME, updated)
    return updated


def _summaries(rows: Sequence[SeriesRow]) -> dict[str, dict[str, Summary]]:
    """Summaries over the launches of one label, without times of an idle GPU."""
    found: dict[str, dict[str, Summary]] = {}
    names = dict.fromkeys((path, name) for row in rows for path, metrics in row.figures.items() for name in metrics)
    for path, name in names:
        values = [row.figures.get(path, {}).get(name) for row in rows]
        is_idle = name.startswith(GPU_TIMES) and not any(values)
        if not is_idle or (name in ALWAYS and None in values):
            found.setdefault(path, {})[name] = summary_of(values)
    return found


def summary_of(values: Sequence[float | None]) -> Summary:
    """Summarise a figure over launches; None if a launch lacks it."""
    known = [value for value in values if value is not None]
    found = mean_of_launches(values)
    return Summary(
        **rounded({name: getattr(found, name) for name in ("mean", "std", "low", "high")}),
        count=len(known),
        median=statistics.median(known) if known else None,
        min=min(known, default=None),
        max=max(known, default=None),
        reason=found.reason,
    )


def _unsteady(series: Series) -> Iterator[Finding]:
    """Report changes of the machine that are larger than the narrowest interval of a batch's time."""
    widths = [
        (one.high - one.low) / 2 / one.mean
        for summary in series.summary.values()
        for path in series.loops
        if (one := summary.get(path, {}).get(TIME)) is not None
        and one.mean
        and one.low is not None
        and one.high is not None
    ]
    if widths:
        yield from unsteady_findings(series.machine, min(widths))


def _unlike(series: Series, label: str) -> Iterator[Finding]:
    """Report loops with a drift or a different first launch, corrected for the number of loops."""
    process = label if len(series.summary) > 1 else None
    rows = series.measured(label)
    times = {path: all_known([row.figures.get(path, {}).get(TIME) for row in rows]) for path in series.loops}
    for path, values in times.items():
        drift = trend(values, ALPHA / len(times))
        if drift is not None and drift.is_certain:
            percent = 100 * abs(drift.value) / float(np.mean(values))
            yield Finding(
                "launches-drift",
                Severity.WARNING,
                f"{path} became {percent:.2g} % {'slower' if drift.value > 0 else 'faster'} with each launch; "
                "the next one will differ from the mean.",
                "Check heat (--cool-down), files and memory. Then repeat.",
                process,
            )
    if next(row for row in series.rows if row.label == label).status != "ok":
        return  # the first launch was not measured
    chances = {path: p_value for path, values in times.items() if (p_value := first_launch_p_value(values)) is not None}
    for path, p_value in zip(chances, holm(list(chances.values())), strict=True):
        if p_value < FIRST_LAUNCH_ERROR:
            first, *others = times[path]
            percent = 100 * (first / float(np.mean(others)) - 1)
            yield Finding(
                "first-launch-differs",
                Severity.WARNING,
                f"{path}: the first launch was {abs(percent):.1f} % {'slower' if percent > 0 else 'faster'} than the "
                f"others (p = {p_value:.2g}), but is part of the mean.",
                "Launch once to fill the caches of files and compilers. Then repeat.",
                process,
            )


def _began_warm(series: Series) -> Iterator[Finding]:
    warm = [(row.folder, wait) for row in series.rows for wait in row.waits if not wait.reached]
    if warm:
        launches = [
            f"{folder} at {'an unknown temperature' if wait.end_c is None else f'{wait.end_c} °C'}"
            for folder, wait in warm
        ]
        yield Finding(
            "launches-began-warm",
            Severity.WARNING,
            f"Launches on a warmer GPU than the first one: {listed(launches, most=3)}.",
            "Use a longer cool-down-limit (perfharness.toml) or a higher --cool-down.",
        )
