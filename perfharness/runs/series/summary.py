"""What launches come to together: figures of each, and over them means, medians, intervals and findings."""

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
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import SERIES_NAME, RunManifest
from perfharness.model.result import TIMES, path_text
from perfharness.model.rounding import figure
from perfharness.runs.figures import METRICS, stage_entries, stage_figures, value_at
from perfharness.runs.files.process_traces import startup_of
from perfharness.runs.files.run_folder import RunSummary, read_manifest
from perfharness.runs.series.machine import LaunchConditions, conditions_of, machine_changes, unsteady_findings
from perfharness.runs.series.model import WHOLE, Kind, Series, SeriesRow, Summary, read_series
from perfharness.runs.series.overhead import overhead_of
from perfharness.runs.series.processes import process_figures, scaling_of

TIME = "cpu_time"
"""Of a batch: what findings are about."""

ALWAYS = (*TIMES, "items_per_second", "duration_s", "cpu_s")
"""Metrics that are null where they could not be measured; others are left out then."""

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
"""Figures of a cold or warm start."""

CONTAINER = "container_to_first_batch_ms"

FIRST_LAUNCH_ERROR = 0.01
"""How often a first launch that is like the others is taken for different."""

LISTED = 3


class LaunchFacts(NamedTuple):
    """What is kept of a launch besides its row."""

    conditions: LaunchConditions
    loops: Sequence[str]
    """Paths of its batches."""


def measured_row(
    row: SeriesRow, kind: Kind, manifest: RunManifest, summary: RunSummary
) -> tuple[SeriesRow, LaunchFacts]:
    """The row of a launch with its figures, and what else is kept of it."""
    loops: list[str] = []
    if kind == "processes":
        figures = {WHOLE: process_figures(summary)}
        row = row.model_copy(update={"reason": summary.mean["throughput"]["reason"]})
    elif kind == "cold":
        startup = startup_of(summary.folder, manifest.processes[0], manifest.container_start_unix_ns) or {}
        figures = {WHOLE: {name: startup.get(name) for name in STARTUP}}
        if row.place == 0 and startup.get(CONTAINER) is not None:  # later launches find a container that runs
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
    """Whether anything was measured; where stages are, any time of a stage."""
    counted = [found for path, found in row.figures.items() if path or kind in ("processes", "cold")]
    return any(value is not None for found in counted for value in found.values())


def _process_times(manifest: RunManifest) -> dict[str, float | None]:
    """How long the processes of a launch took and what CPU time they used, all together."""
    processes = manifest.processes
    return {
        "duration_s": _total([process.duration_s for process in processes]),
        "cpu_s": _total([time for process in processes for time in (process.user_s, process.system_s)]),
    }


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def new_series(
    kind: Kind,
    rows: Sequence[SeriesRow],
    command: Sequence[str],
    script: str,
    script_arguments: Sequence[str] = (),
    seed: int | None = None,
    facts: Mapping[str, LaunchFacts] | None = None,
) -> Series:
    """The series that these launches make now; arguments as the fields, and of `summarise`."""
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
    """The series with everything that is computed from its rows.

    Args:
        facts: by the folders of launches.
    """
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
    """`series.json` with new figures of its launches, written; None where there is none.

    What was recorded of the launches stays. Raises `ResultError` where the file is damaged.
    """
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
    if (folder / SERIES_NAME).is_file():  # else it is a part of the series around it
        with suppress(ResultError):  # where nothing can be written, the analysis of the runs has reported it
            write_model(folder / SERIES_NAME, updated)
    return updated


def _summaries(rows: Sequence[SeriesRow]) -> dict[str, dict[str, Summary]]:
    """Over the launches of one label. Times of a GPU that did nothing are left out."""
    found: dict[str, dict[str, Summary]] = {}
    names = dict.fromkeys((path, name) for row in rows for path, metrics in row.figures.items() for name in metrics)
    for path, name in names:
        values = [row.figures.get(path, {}).get(name) for row in rows]
        is_idle = name.startswith(GPU_TIMES) and not any(values)
        if not is_idle or (name in ALWAYS and None in values):
            found.setdefault(path, {})[name] = summary_of(values)
    return found


def summary_of(values: Sequence[float | None]) -> Summary:
    """One figure over launches; None: that launch does not have it."""
    known = [value for value in values if value is not None]
    found = mean_of_launches(values)
    return Summary(
        count=len(known),
        mean=_figure(found.mean),
        std=_figure(found.std),
        low=_figure(found.low),
        high=_figure(found.high),
        median=statistics.median(known) if known else None,
        min=min(known, default=None),
        max=max(known, default=None),
        reason=found.reason,
    )


def _unsteady(series: Series) -> Iterator[Finding]:
    """Where the machine changed by more than the narrowest interval of a batch's time."""
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
    """Loops whose launches drift, or whose first launch differs; corrected for how many loops there are."""
    process = label if len(series.summary) > 1 else None
    times = {path: _launch_times(series.measured(label), path) for path in series.loops}
    for path, values in times.items():
        drift = trend(values, ALPHA / len(times))
        if drift is not None and drift.is_certain:
            percent = 100 * abs(drift.value) / float(np.mean(values))
            yield Finding(
                "launches-drift",
                Severity.WARNING,
                f"{path} became {'slower' if drift.value > 0 else 'faster'} from launch to launch, by "
                f"{percent:.2g} % each: the next launch will differ from the mean.",
                "Look for what builds up: heat (--cool-down), files, memory. Then repeat.",
                process,
            )
    if next(row for row in series.rows if row.label == label).status != "ok":
        return  # the first that was measured is not the first launch
    chances = {path: p_value for path, values in times.items() if (p_value := first_launch_p_value(values)) is not None}
    for path, p_value in zip(chances, holm(list(chances.values())), strict=True):
        if p_value < FIRST_LAUNCH_ERROR:
            first, *others = times[path]
            percent = 100 * (first / float(np.mean(others)) - 1)
            yield Finding(
                "first-launch-differs",
                Severity.WARNING,
                f"{path}: the first launch was {abs(percent):.1f} % {'slower' if percent > 0 else 'faster'} than the "
                f"others (p = {p_value:.2g}), and is part of the mean.",
                "Launch once before, so that caches of files and compilers are filled. Then repeat.",
                process,
            )


def _launch_times(rows: Sequence[SeriesRow], path: str) -> list[float]:
    """Mean times of a batch of a loop, by launch; empty where one does not have it."""
    values = [row.figures.get(path, {}).get(TIME) for row in rows]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def _began_warm(series: Series) -> Iterator[Finding]:
    """Launches that began on a GPU that was warmer than before the first."""
    warm = [(row.folder, wait) for row in series.rows for wait in row.waits if not wait.reached]
    if warm:
        listed = ", ".join(
            f"{folder} at {'an unknown temperature' if wait.end_c is None else f'{wait.end_c} °C'}"
            for folder, wait in warm[:LISTED]
        )
        more = f" and {len(warm) - LISTED} more" if len(warm) > LISTED else ""
        yield Finding(
            "launches-began-warm",
            Severity.WARNING,
            f"{len(warm)} launches began on a warmer GPU than the first one: {listed}{more}.",
            "Set a longer cool-down-limit (perfharness.toml), or a higher temperature with --cool-down.",
        )


def _figure(value: float | None) -> float | None:
    return None if value is None else figure(value)
