"""Cold start: fresh processes one after another, with a cold and a warm file cache in turn (`cold_start.json`)."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from perfharness.errors import PerfHarnessError, ResultError, UsageError
from perfharness.files import write_model
from perfharness.runs.files.run_folder import RunSummary, read_manifest
from perfharness.runs.files.startup_file import startup_of
from perfharness.runs.launch import Observe, plan_launches, run_plan, unobserved
from perfharness.runs.series.cold_start_file import COLD_START_NAME, Cache, ColdStart, ColdStartRow, Spread
from perfharness.runs.series.file import read_series
from perfharness.runs.series.repeat_file import MOST_LAUNCHES
from perfharness.runs.series.series_launch import SeriesLaunch
from perfharness_launcher.options import LaunchOptions, command_of, launch_options
from perfharness_launcher.plan import LaunchPlan, folders_of
from perfharness_launcher.staging import series_folder

DROP_CACHES = Path("/proc/sys/vm/drop_caches")

FIGURES = (
    "process_to_first_batch_ms",
    "interpreter_and_imports_ms",
    "cuda_context_ms",
    "model_load_ms",
    "start_barrier_wait_ms",
    "other_ms",
    "first_batch_ms",
)


@dataclass(frozen=True)
class ColdStartResult:
    """A cold-start measurement.

    Attributes:
        is_complete: whether every process was run or could not be.
    """

    found: ColdStart
    folder: Path
    is_complete: bool


def cold_start_options(options: LaunchOptions, count: int) -> list[LaunchOptions]:
    """The options of each launch, in folders of their own: `first`, then a cold and a warm one in turn.

    Raises:
        UsageError: `count` is no number of processes, or the options start several at a time.
    """
    if not 1 <= count <= MOST_LAUNCHES:
        raise UsageError(f"--cold-start {count}: must be 1 to {MOST_LAUNCHES} processes")
    if options.explain:
        raise UsageError("--explain explains the times of batches, and --cold-start measures none; give --no-explain")
    if options.num_processes != 1 or (options.num_gpus or 1) != 1 or len(options.gpus) > 1:
        raise UsageError("--cold-start starts one process at a time; leave -np and -ng away, and name one GPU at most")
    own = {"history": False}  # a cold launch is not comparable with others
    return [
        options.model_copy(update={**own, "output_dir": options.output_dir / name}) for name in process_names(count)
    ]


def process_names(count: int) -> list[str]:
    """Names (and folders) of the processes in order: one with the cache as it is, then cold and warm ones."""
    return ["first", *(f"{kind}_{number}" for number in range(count) for kind in ("cold", "warm"))]


def drop_page_cache() -> str | None:
    """Empty the page cache of the machine; returns why that is not possible."""
    os.sync()  # only clean pages can be dropped
    try:
        DROP_CACHES.write_text("3\n", encoding="ascii")
    except OSError as error:
        return f"The page cache was not emptied ({DROP_CACHES}: {error.strerror}); only root on the host may do that."
    return None


def prepare_cache(name: str, drop: Callable[[], str | None]) -> ColdStartRow:
    """Prepare the file cache for a process; returns its row, `not_run` where that is not possible."""
    cache: Cache = "cold" if name.startswith("cold") else "warm" if name.startswith("warm") else "unknown"
    reason = drop() if cache == "cold" else None
    status: Literal["ok", "not_run"] = "ok" if reason is None else "not_run"
    return ColdStartRow(cache=cache, folder=name, status=status, reason=reason)


def cold_start(
    script: str | Path, *script_arguments: str, count: int, config: str | Path | None = None, **settings: Any
) -> ColdStartResult:
    """Measure the start-up of fresh processes; what `perfharness launch --cold-start` does.

    Args:
        script, script_arguments, config, settings: as in `perfharness.launch`.
        count: of processes with a cold file cache, and as many with a warm one.

    Raises:
        UsageError: as in `perfharness.launch`.
    """
    options = launch_options(script, script_arguments, settings, config)
    command = command_of(options, "--cold-start", str(count))
    plans = plan_launches(cold_start_options(options, count))
    with series_folder(options.output_dir, folders_of(plans)) as series:
        found = summarize_cold_start(options, plans, list(run_cold_start(plans, command)), command)
    return replace(found, folder=series.path)


def run_cold_start(
    plans: Sequence[LaunchPlan], command: Sequence[str], observe: Observe = unobserved
) -> Iterator[SeriesLaunch[ColdStartRow]]:
    """Run the plans of `cold_start_options`, each when it is requested; an interrupt ends it.

    The first process fills the cache. Where the cache cannot be emptied, only warm ones are run.
    """
    for plan in plans:
        row = prepare_cache(plan.options.output_dir.name, drop_page_cache)
        if row.status == "not_run":
            yield SeriesLaunch(row)
            continue
        process = _run_one(plan, row, command, observe)
        yield process
        if process.interrupted:
            return


def _run_one(
    plan: LaunchPlan, row: ColdStartRow, command: Sequence[str], observe: Observe
) -> SeriesLaunch[ColdStartRow]:
    try:
        with observe(plan) as observer:
            result = run_plan(plan, command, observer)
    except PerfHarnessError as error:
        row = row.model_copy(update={"status": "failed", "reason": str(error).splitlines()[0]})
        return SeriesLaunch(row, error=error)
    process = result.manifest.processes[0]
    if process.ended == "ok":
        row = row.model_copy(update={"startup": startup_of(result.folder, process)})
    else:
        reason = f"the process ended with {process.signal or process.exit_code} ({process.ended})"
        row = row.model_copy(update={"status": "failed", "reason": reason})
    return SeriesLaunch(row, result)


def summarize_cold_start(
    options: LaunchOptions,
    plans: Sequence[LaunchPlan],
    launches: Sequence[SeriesLaunch[ColdStartRow]],
    command: Sequence[str],
) -> ColdStartResult:
    """Median and range of each figure, written to `cold_start.json`. Raises `ResultError`."""
    rows = [one.row for one in launches]
    found = summarized(rows, command, options.script, options.script_arguments, plans[0].tracer.kind)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    write_model(options.output_dir / COLD_START_NAME, found)
    is_complete = len(rows) == len(plans)
    return ColdStartResult(found, options.output_dir, is_complete)


def cold_start_exit_code(found: ColdStart, *, is_complete: bool) -> int:
    """0: all well; 3: nothing is known, or a process failed; 1: nothing was measured, or it was interrupted."""
    if not is_complete or not any(row.status == "ok" and row.cache != "unknown" for row in found.rows):
        return 1
    is_known = any(spread.median is not None for spread in (*found.cold.values(), *found.warm.values()))
    return 0 if is_known and all(row.status != "failed" for row in found.rows) else 3


def summarized(
    rows: Sequence[ColdStartRow],
    command: Sequence[str],
    script: str,
    script_arguments: Sequence[str] = (),
    tracer: str = "none",
    figures: Iterable[str] = FIGURES,
) -> ColdStart:
    """The measurement: the rows, and median and range of each figure."""
    figures = tuple(figures)
    return ColdStart(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=list(command),
        script=script,
        script_arguments=list(script_arguments),
        tracer=tracer,
        rows=list(rows),
        cold=spreads(rows, "cold", figures),
        warm=spreads(rows, "warm", figures),
        cold_reason=next((row.reason for row in reversed(rows) if row.status == "not_run"), None),
    )


def update_cold_start(folder: Path, summaries: Sequence[RunSummary]) -> ColdStart | None:
    """`cold_start.json` with the runs' new numbers, written; None where the folder has none.

    What the launches recorded stays. Raises `ResultError` where the file is damaged.
    """
    before = read_series(folder / COLD_START_NAME, ColdStart)
    if before is None:
        return None
    run_dirs = {summary.folder.name: summary.folder for summary in summaries}
    rows = [
        row.model_copy(update={"startup": startup_of(run_dir, read_manifest(run_dir).processes[0])})
        if row.status == "ok" and (run_dir := run_dirs.get(row.folder)) is not None
        else row
        for row in before.rows
    ]
    updated = before.model_copy(update={"rows": rows, "cold": spreads(rows, "cold"), "warm": spreads(rows, "warm")})
    with suppress(ResultError):  # where nothing can be written, the analysis of the runs has reported it
        write_model(folder / COLD_START_NAME, updated)
    return updated


def spreads(rows: Sequence[ColdStartRow], cache: str, figures: Iterable[str] = FIGURES) -> dict[str, Spread]:
    """Median and range of each figure over the processes of one kind that ended well."""
    startups = [row.startup for row in rows if row.cache == cache and row.status == "ok" and row.startup is not None]
    return {name: _spread([one[name] for one in startups if one.get(name) is not None]) for name in figures}


def _spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread(count=0)
    return Spread(count=len(values), median=statistics.median(values), min=min(values), max=max(values))
