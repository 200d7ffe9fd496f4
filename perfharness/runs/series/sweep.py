"""Sweep over the number of processes: a launch with each, and the scaling curve (`scaling.json`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from perfharness.errors import PerfHarnessError, ResultError, UsageError
from perfharness.files import write_model
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import RunManifest
from perfharness.model.result import ProcessResult, Tree, path_text
from perfharness.runs.files.run_folder import RunSummary, read_manifest
from perfharness.runs.launch import Observe, plan_launches, run_plan, unobserved
from perfharness.runs.series.file import read_series
from perfharness.runs.series.scaling import (
    SCALING_NAME,
    GpuPoint,
    Scaling,
    ScalingRow,
    find_knee,
    scaling_points,
)
from perfharness.runs.series.series_launch import SeriesLaunch
from perfharness_launcher.options import LaunchOptions, command_of, launch_options
from perfharness_launcher.plan import LaunchPlan, folders_of
from perfharness_launcher.staging import series_folder

POWER_FIGURES = ("power_sample_w", "power_instant_w", "power_average_w")
"""The finest first."""

OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|OUT_OF_MEMORY|MemoryError|bad_alloc", re.IGNORECASE)
NO_METRICS = "the GPUs were not sampled in this run"


@dataclass(frozen=True)
class ProcessSweep:
    """A sweep over the number of processes.

    Attributes:
        folder: of `scaling.json` and of the runs.
    """

    scaling: Scaling
    launches: Sequence[SeriesLaunch[ScalingRow]]
    folder: Path


def sweep_options(options: LaunchOptions, numbers: Sequence[int]) -> list[LaunchOptions]:
    """The options of each launch, in folders of their own. Raises `UsageError`."""
    if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 1:
        given = ",".join(map(str, numbers))
        raise UsageError(f"--np-sweep {given}: must be different numbers of processes, as in 1,2,4,8")
    if options.explain:
        raise UsageError(
            "--explain explains one launch, and --np-sweep makes several; give --no-explain, and explain one of them "
            "with `perfharness launch --explain`"
        )
    if options.num_processes != 1:
        raise UsageError(
            "--np-sweep sets the number of processes of each launch, so -np cannot; leave one of the two away"
        )
    return [
        options.model_copy(update={"num_processes": number, "output_dir": options.output_dir / f"np_{number}"})
        for number in numbers
    ]


def sweep_processes(
    script: str | Path,
    *script_arguments: str,
    numbers: Sequence[int],
    config: str | Path | None = None,
    **settings: Any,
) -> ProcessSweep:
    """Launch a script with each number of processes per GPU; what `perfharness launch --np-sweep` does.

    Args:
        script, script_arguments, config, settings: as in `perfharness.launch`.
        numbers: of processes per GPU.

    Raises:
        UsageError: as in `perfharness.launch`, of any of the launches, before the first.
    """
    options = launch_options(script, script_arguments, settings, config)
    command = command_of(options, "--np-sweep", ",".join(map(str, numbers)))
    plans = plan_launches(sweep_options(options, numbers))
    with series_folder(options.output_dir, folders_of(plans)) as series:
        swept = summarize_sweep(options, plans, list(run_sweep(plans, command)), command)
    return replace(swept, folder=series.path)


def run_sweep(
    plans: Sequence[LaunchPlan], command: Sequence[str], observe: Observe = unobserved
) -> Iterator[SeriesLaunch[ScalingRow]]:
    """Run all plans, one after the other, each when it is requested.

    A launch that fails is a row with the reason, and the sweep goes on; an interrupt ends it.
    """
    interrupted = False
    for plan in plans:
        number = plan.options.num_processes
        folder = plan.options.output_dir.name
        if interrupted:
            reason = "the sweep was interrupted"
            yield SeriesLaunch(ScalingRow(num_processes=number, folder=folder, status="not_run", reason=reason))
            continue
        try:
            with observe(plan) as observer:
                result = run_plan(plan, command, observer)
        except PerfHarnessError as error:
            reason = str(error).splitlines()[0]
            row = ScalingRow(num_processes=number, folder=folder, status="failed", reason=reason)
            launched = SeriesLaunch(row, error=error)
            interrupted = launched.interrupted
            yield launched
            continue
        launched = SeriesLaunch(scaling_row(number, folder, result.manifest, result.summary), result)
        interrupted = launched.interrupted
        yield launched


def summarize_sweep(
    options: LaunchOptions,
    plans: Sequence[LaunchPlan],
    launches: Sequence[SeriesLaunch[ScalingRow]],
    command: Sequence[str],
) -> ProcessSweep:
    """The scaling curve, written to `scaling.json`. Raises `ResultError`."""
    loops = [loop_path(one.result.summary.results) for one in launches if one.result is not None]
    scaling = Scaling(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=list(command),
        script=options.script,
        script_arguments=list(options.script_arguments),
        num_gpus=max(1, len(plans[0].gpus)),
        warmup_batches=options.warmup_batches,
        **_curve([one.row for one in launches], loops),
    )
    options.output_dir.mkdir(parents=True, exist_ok=True)
    write_model(options.output_dir / SCALING_NAME, scaling)
    return ProcessSweep(scaling, launches, options.output_dir)


def sweep_exit_code(launches: Sequence[SeriesLaunch[ScalingRow]]) -> int:
    """0: all well; 3: some were measured, or none gave a throughput; 1: none was measured, or it was interrupted."""
    rows = [one.row for one in launches]
    if any(one.interrupted for one in launches) or all(row.status != "ok" for row in rows):
        return 1
    findings = [finding for one in launches if one.result is not None for finding in one.result.summary.findings]
    has_errors = any(finding.severity is Severity.ERROR for finding in findings)
    failed = any(one.error is not None for one in launches) or all(row.items_per_second is None for row in rows)
    return 3 if failed or has_errors else 0


def update_scaling(folder: Path, summaries: Sequence[RunSummary]) -> Scaling | None:
    """`scaling.json` with the runs' new numbers, written; None where the folder has none.

    What the launches recorded stays. Raises `ResultError` where the file is damaged.
    """
    before = read_series(folder / SCALING_NAME, Scaling)
    if before is None:
        return None
    by_folder = {summary.folder.name: summary for summary in summaries}
    rows = [_updated_row(point.row, by_folder.get(point.row.folder)) for point in before.points]
    loops = [loop_path(summary.results) for summary in summaries]
    updated = before.model_copy(update=_curve(rows, loops))
    with suppress(ResultError):  # where nothing can be written, the analysis of the runs has reported it
        write_model(folder / SCALING_NAME, updated)
    return updated


def _updated_row(before: ScalingRow, summary: RunSummary | None) -> ScalingRow:
    if summary is None:
        return before
    return scaling_row(before.num_processes, before.folder, read_manifest(summary.folder), summary)


def _curve(rows: Sequence[ScalingRow], loops: Sequence[tuple[str, ...] | None]) -> dict[str, Any]:
    points = scaling_points(rows)
    loop = next((path for path in loops if path is not None), None)
    return {
        "points": points,
        "knee": find_knee(points),
        "loop": None if loop is None else path_text(loop),
        "base_num_processes": min((row.num_processes for row in rows if row.items_per_second), default=None),
    }


def scaling_row(num_processes: int, folder: str, manifest: RunManifest, summary: RunSummary) -> ScalingRow:
    """The row of one launch; numbers only where all of its processes ended well."""
    mean, results, findings = summary.mean, summary.results, summary.findings
    codes = sorted({finding.code for finding in findings if finding.severity is not Severity.NOTE})
    common: dict[str, Any] = {
        "num_processes": num_processes,
        "num_processes_total": len(manifest.processes),
        "folder": folder,
        "findings": codes,
    }
    bad = [process for process in manifest.processes if process.ended != "ok"]
    if bad:
        return ScalingRow(**common, status="failed", reason=why_it_failed(len(bad), len(manifest.processes), findings))
    throughput = mean["throughput"]
    latency = _latency(mean, results)
    gpus, gpus_reason = _gpus(mean)
    return ScalingRow(
        **common,
        status="ok",
        reason=throughput["reason"],
        items_per_second=throughput["items_per_second"],
        window_ms=throughput["window_ms"],
        mean_processes_inside_a_batch=(throughput["concurrency"] or {}).get("mean_processes"),
        latency_p50_ms=latency.get("p50"),
        latency_p99_ms=latency.get("p99"),
        gpus=gpus,
        gpus_reason=gpus_reason,
    )


def why_it_failed(count: int, total: int, findings: Sequence[Finding]) -> str:
    """One sentence: how many processes, how the first one ended, and whether memory ran out."""
    ends = [finding for finding in findings if finding.code.startswith("process-")]
    if not ends:
        return f"{count} of {total} processes did not end well"
    first = f"{ends[0].process}: {ends[0].message.splitlines()[0].split('; the end of')[0]}"
    memory = "out of memory; " if any(OUT_OF_MEMORY.search(finding.message) for finding in ends) else ""
    return f"{memory}{count} of {total} processes did not end well ({first})"


def loop_path(results: dict[str, ProcessResult]) -> tuple[str, ...] | None:
    """The one loop of batches of all processes, or None where there are several or none."""
    paths = {loop.path for result in results.values() for loop in result.loops}
    return paths.pop() if len(paths) == 1 else None


def _latency(mean: Tree, results: dict[str, ProcessResult]) -> dict[str, Any]:
    path = loop_path(results)
    if path is None:
        return {}
    tree = mean["stats_minus_warmup"]
    for name in path:
        tree = tree.get(name, {})
    found: dict[str, Any] = tree.get("cpu_time", {})
    return found


def _gpus(mean: Tree) -> tuple[list[GpuPoint], str | None]:
    metrics = mean.get("gpu_metrics")
    if not metrics:
        return [], NO_METRICS
    points = [
        GpuPoint(uuid=gpu["uuid"], busy_share=gpu["busy_share"], power_w=_power(gpu["figures"]))
        for gpu in metrics["gpus"]
    ]
    return points, None if points else metrics.get("reason") or NO_METRICS


def _power(figures: dict[str, Any]) -> float | None:
    means = [figures[name]["mean"] for name in POWER_FIGURES if name in figures]
    return next((value for value in means if value is not None), None)
