"""`perfharness launch --cold-start N`: fresh processes one after another, with a cold and a warm file cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from perfharness.cli.options import EXIT_CHECK_FAILED, EXIT_FAILED, EXIT_OK
from perfharness.cli.output import Output
from perfharness.errors import PerfHarnessError
from perfharness.model.cold_start import Cache, CacheState, ColdStart, ColdStartRow
from perfharness.runs.launch import LaunchResult
from perfharness_launcher.companions.companion import Companion
from perfharness_launcher.companions.page_cache import FilesInUse, drop_page_cache
from perfharness_launcher.plan.launch_plan import LaunchPlan
from perfharness_launcher.plan.options import LaunchOptions

Run = Callable[[LaunchPlan, Sequence[Companion]], LaunchResult]
Drop = Callable[[Collection[Path]], CacheState]


def cold_start_options(options: LaunchOptions, count: int) -> list[LaunchOptions]:
    """The options of each launch, in folders of their own: `first`, then a cold and a warm one in turn."""
    names = ["first", *(f"{kind}_{number}" for number in range(count) for kind in ("cold", "warm"))]
    return [replace(options, output_dir=options.output_dir / name) for name in names]


def run_cold_start(
    plans: Sequence[LaunchPlan], output_dir: Path, output: Output, run: Run, drop: Drop = drop_page_cache
) -> int:
    """Run the plans of `cold_start_options`; returns the exit code.

    The first process shows which files are read, and fills the cache. Where the cache cannot be emptied, only warm ones
    are run.
    """
    rows, cold_reason = [], None
    files: set[Path] = set()
    for plan in plans:
        cache = _cache_of(plan)
        state = None
        if cache == "cold":
            state = drop(files)
            if state.method is None:
                cold_reason = state.reason
                rows.append(ColdStartRow(cache=cache, folder=plan.options.output_dir.name, status="not_run",
                                         reason=cold_reason, cache_state=state))  # fmt: skip
                continue
        watcher = FilesInUse()
        output.message(f"\n{plan.options.output_dir.name}: {cache} file cache")
        row, interrupted = _row(plan, cache, state, run, [watcher] if cache == "unknown" else [])
        rows.append(row)
        files |= watcher.files
        if interrupted:
            break
    found = _conclude(rows, cold_reason, plans[0], output_dir, output)
    measured = [row for row in found.rows if row.status == "ok" and row.cache != "unknown"]
    if not measured or len(rows) < len(plans):
        return EXIT_FAILED
    told = any(spread.median is not None for spread in (*found.cold.values(), *found.warm.values()))
    return EXIT_OK if told and all(row.status != "failed" for row in rows) else EXIT_CHECK_FAILED


def _cache_of(plan: LaunchPlan) -> Cache:
    name = plan.options.output_dir.name
    return "cold" if name.startswith("cold") else "warm" if name.startswith("warm") else "unknown"


def _row(
    plan: LaunchPlan, cache: Cache, state: CacheState | None, run: Run, beside: Sequence[Companion]
) -> tuple[ColdStartRow, bool]:
    """What one process told, and whether the user interrupted it."""
    from perfharness.report.cold_start import startup_of

    folder = plan.options.output_dir.name
    try:
        result = run(plan, beside)
    except PerfHarnessError as error:
        reason = str(error).splitlines()[0]
        return ColdStartRow(cache=cache, folder=folder, status="failed", reason=reason, cache_state=state), False
    process = result.manifest.processes[0]
    well = process.ended == "ok"
    row = ColdStartRow(
        cache=cache,
        folder=folder,
        status="ok" if well else "failed",
        reason=None if well else f"the process ended with {process.signal or process.exit_code} ({process.ended})",
        cache_state=state,
        startup=startup_of(result.folder, process) if well else None,
    )
    return row, process.ended == "interrupted"


def _conclude(
    rows: list[ColdStartRow], cold_reason: str | None, plan: LaunchPlan, output_dir: Path, output: Output
) -> ColdStart:
    from perfharness.report.cold_start import print_cold_start, spreads, write_cold_start

    found = ColdStart(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=["perfharness", *sys.argv[1:]],
        script=plan.options.script,
        script_arguments=list(plan.options.script_arguments),
        tracer=plan.tracer.kind,
        rows=rows,
        cold=spreads(rows, "cold"),
        warm=spreads(rows, "warm"),
        cold_reason=cold_reason,
    )
    output_dir.mkdir(parents=True, exist_ok=True)
    if not write_cold_start(found, output_dir):
        output.message(f"{output_dir} keeps the results of an earlier launch: nothing was measured in this one")
    if output.is_json:
        output.json(found.model_dump(mode="json"))
    else:
        print_cold_start(output.results, found)
    output.message(f"results: {output_dir.absolute()}")
    return found


def conflicts(options: LaunchOptions, count: int, *, swept: bool) -> Iterator[str]:
    """What is wrong with the command line."""
    if count < 1:
        yield f"--cold-start {count}: at least one process is needed"
    if swept:
        yield "--cold-start starts one process at a time, so --np-sweep cannot go with it; leave one of the two away"
    elif options.num_processes != 1 or (options.num_gpus or 1) != 1 or len(options.gpus) > 1:
        yield "--cold-start starts one process at a time; leave -np and -ng away, and name one GPU at most"
