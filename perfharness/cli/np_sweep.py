"""`perfharness launch --np-sweep 1,2,4,8`: the same launch with each number of processes, and the scaling curve."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from perfharness.cli.options import EXIT_CHECK_FAILED, EXIT_FAILED, EXIT_OK
from perfharness.cli.output import Output
from perfharness.errors import LaunchError, PerfHarnessError, UsageError
from perfharness.model.result import path_text
from perfharness.model.scaling import Scaling, ScalingRow
from perfharness.report.console import say
from perfharness.runs.launch import LaunchResult
from perfharness_launcher.plan.launch_plan import LaunchPlan
from perfharness_launcher.plan.options import LaunchOptions

if TYPE_CHECKING:
    from perfharness.report.run_folder import RunSummary

Run = Callable[[LaunchPlan], LaunchResult]


def parse_np_sweep(text: str | None) -> tuple[int, ...]:
    """`1,2,4` -> (1, 2, 4). Raises `UsageError` where that is no list of different numbers from 1 on."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts) or len({int(part) for part in parts}) < len(parts):
        raise UsageError(f"--np-sweep {text}: must be different numbers of processes, as in 1,2,4,8")
    return tuple(int(part) for part in parts)


def sweep_options(options: LaunchOptions, numbers: Sequence[int]) -> list[LaunchOptions]:
    """The options of each launch, in folders of their own."""
    return [
        replace(options, num_processes=number, output_dir=options.output_dir / f"np_{number}") for number in numbers
    ]


def run_np_sweep(plans: Sequence[LaunchPlan], output_dir: Path, output: Output, run: Run) -> int:
    """Run all plans, one after the other; returns the exit code.

    A launch that fails is a row that says so, and the sweep goes on; an interrupt ends it. 0: all well; 3: some were
    measured, or none gave a throughput; 1: none was measured, or the user ended it.
    """
    from perfharness.report.scaling import loop_path

    rows: list[ScalingRow] = []
    loop: tuple[str, ...] | None = None
    interrupted = False
    worst = EXIT_OK
    for plan in plans:
        number, folder = plan.options.num_processes, plan.options.output_dir.name
        if interrupted:
            rows.append(
                ScalingRow(num_processes=number, folder=folder, status="not_run", reason="the sweep was interrupted")
            )
            continue
        output.message(f"\n-np {number} -> {plan.options.output_dir}")
        row, summary, interrupted = _row(plan, run, output)
        rows.append(row)
        if summary is not None:
            loop = loop or loop_path(summary.results)
            if any(finding.severity.value == "error" for finding in summary.findings):
                worst = EXIT_CHECK_FAILED
        elif row.status == "failed":
            worst = EXIT_CHECK_FAILED
    scaling = _conclude(rows, plans[0], output_dir, loop)
    _show(scaling, output_dir, output)
    if interrupted or not any(row.status == "ok" for row in rows):
        return EXIT_FAILED
    return worst if any(row.items_per_second is not None for row in rows) else EXIT_CHECK_FAILED


def _row(plan: LaunchPlan, run: Run, output: Output) -> tuple[ScalingRow, RunSummary | None, bool]:
    """The row of a launch, its results, and whether the user interrupted it."""
    from perfharness.report.scaling import scaling_row

    number, folder = plan.options.num_processes, plan.options.output_dir.name
    try:
        result = run(plan)
    except (LaunchError, PerfHarnessError) as error:
        say(output.errors, str(error))
        reason = str(error).splitlines()[0]
        return ScalingRow(num_processes=number, folder=folder, status="failed", reason=reason), None, False
    summary = result.summary
    output.findings(summary.findings)
    row = scaling_row(number, folder, result.manifest, summary.mean, summary.results, summary.findings)
    return row, summary, any(process.ended == "interrupted" for process in result.manifest.processes)


def _conclude(rows: list[ScalingRow], plan: LaunchPlan, output_dir: Path, loop: tuple[str, ...] | None) -> Scaling:
    from perfharness.analysis.scaling import find_knee, scaling_points

    points = scaling_points(rows)
    measured = [row.num_processes for row in rows if row.items_per_second]
    scaling = Scaling(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=["perfharness", *sys.argv[1:]],
        script=plan.options.script,
        script_arguments=list(plan.options.script_arguments),
        num_gpus=max(1, len(plan.gpus)),
        warmup_batches=plan.options.warmup_batches,
        loop=path_text(loop) if loop else None,
        base_num_processes=min(measured, default=None),
        points=points,
        knee=find_knee(points),
    )
    output_dir.mkdir(parents=True, exist_ok=True)
    return scaling


def _show(scaling: Scaling, output_dir: Path, output: Output) -> None:
    from perfharness.report.scaling import draw_scaling, print_scaling, write_scaling

    written = write_scaling(scaling, output_dir)
    if output.is_json:
        output.json(scaling.model_dump(mode="json"))
    else:
        print_scaling(output.results, scaling)
    if not written:
        output.message(f"{output_dir} keeps the results of an earlier sweep: nothing was measured in this one")
        return
    try:
        draw_scaling(scaling, output_dir)
    except PerfHarnessError as error:
        output.message(str(error))
    output.message(f"results: {output_dir.absolute()}")
