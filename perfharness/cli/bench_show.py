"""`perfharness bench show` and `bench merge`: results that are there already, asked again or side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfharness.cli.bench_options import (
    Baseline,
    Charts,
    MaxEnergy,
    MaxLatency,
    MaxLoss,
    MemoryBudget,
    Metric,
    MetricDirection,
    Percentile,
)
from perfharness.cli.bench_setup import check_charts, say, say_drawn
from perfharness.cli.options import EXIT_CHECK_FAILED, EXIT_OK
from perfharness.errors import UsageError
from perfharness.report.console import Console

if TYPE_CHECKING:
    from perfharness.model.bench_suite import BenchSuiteResult, Constraints


def show(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="What `perfharness bench -o`, or `bench sweep -o`, wrote.", show_default=False
        ),
    ],
    baseline: Baseline = None,
    max_latency_ms: MaxLatency = None,
    latency_percentile: Percentile = None,
    max_memory: MemoryBudget = None,
    max_accuracy_loss: MaxLoss = None,
    accuracy_metric: Metric = None,
    accuracy_direction: MetricDirection = None,
    max_energy_per_item_j: MaxEnergy = None,
    charts: Charts = None,
) -> None:
    """Print the results of a suite again, under other constraints or against another baseline; or those of a sweep.

    Measures nothing. Exit codes: 0 printed; 3 printed, and no measured case meets the constraints.
    """
    from perfharness.analysis.recommendation import is_any_unmet, recommend
    from perfharness.bench.suite.store import is_of_sweep, read_suite_result
    from perfharness.render.charts.bench import BENCH_PAGE, bench_pictures
    from perfharness.report.bench_table import print_suite

    asked = {
        "max_latency_ms": max_latency_ms,
        "latency_percentile": latency_percentile,
        "memory_limit": max_memory,
        "max_accuracy_loss": max_accuracy_loss,
        "accuracy_metric": accuracy_metric,
        "accuracy_direction": accuracy_direction,
        "max_energy_per_item_j": max_energy_per_item_j,
    }
    if is_of_sweep(folder):
        if baseline is not None or any(value is not None for value in asked.values()):
            raise UsageError(f"{folder} holds a sweep, which has neither baseline nor constraints; leave them out")
        _show_sweep(folder, charts)
        return
    suite = read_suite_result(folder)
    constraints = _constraints(suite.constraints, **asked)
    if baseline is not None:
        _check_baseline(suite, baseline)
    base = baseline or suite.baseline
    suite = suite.model_copy(
        update={
            "constraints": constraints,
            "baseline": base,
            "recommendations": recommend(suite.cases, constraints, base),
        }
    )
    console = Console()
    print_suite(console, suite)
    if check_charts(charts):
        say_drawn(Console(stderr=True), lambda: bench_pictures(suite), _beside(folder), BENCH_PAGE)
    raise typer.Exit(EXIT_CHECK_FAILED if is_any_unmet(suite) else EXIT_OK)


def _beside(result: Path) -> Path:
    """The folder of a result, which may be named by its file."""
    return result if result.is_dir() else result.parent


def _show_sweep(folder: Path, charts: bool | None) -> None:
    from perfharness.bench.suite.store import read_sweep_result
    from perfharness.render.charts.bench import SWEEP_PAGE, sweep_pictures
    from perfharness.report.sweep import print_sweep

    found = read_sweep_result(folder)
    console = Console()
    print_sweep(console, found)
    if check_charts(charts):
        say_drawn(Console(stderr=True), lambda: sweep_pictures(found), _beside(folder), SWEEP_PAGE)


def _constraints(known: Constraints, **given: Any) -> Constraints:
    """Those of the suite with others over them."""
    from pydantic import ValidationError

    from perfharness.analysis.bench_figures import direction_of
    from perfharness.bench.suite.check import in_words
    from perfharness.bench.suite.suite import ConstraintsTable

    kept = known.model_dump(exclude={"memory_limit_bytes"}) | {"memory_limit": known.memory_limit_bytes}
    if given["accuracy_metric"] not in (None, known.accuracy_metric):
        kept["accuracy_direction"] = None
    try:
        table = ConstraintsTable.model_validate(
            kept | {key: value for key, value in given.items() if value is not None}
        )
    except ValidationError as error:
        raise UsageError(in_words(error.errors()[0])) from error
    metric = table.accuracy_metric
    if metric is not None and direction_of(metric, table.accuracy_direction) is None:
        raise UsageError(
            f"it is not known whether higher or lower values of {metric!r} are better; say it with --accuracy-direction"
        )
    return table.constraints()


def _check_baseline(suite: BenchSuiteResult, name: str) -> None:
    from perfharness.analysis.bench_figures import cell_of, is_named

    if not any(is_named(case.case, name) for case in suite.cases):
        cells = ", ".join(dict.fromkeys(cell_of(case.case) for case in suite.cases))
        raise UsageError(f"--baseline {name!r} is no cell of these results; there are: {cells}")


def merge(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Results of `perfharness bench`, two at least.", show_default=False),
    ],
    output_dir: Annotated[
        Path, typer.Option("-o", "--output-dir", help="Folder of the comparison.", show_default=False)
    ],
    charts: Charts = None,
) -> None:
    """Put results of several machines side by side: the same cases in one row, each machine against its own baseline.

    Exit codes: 0 done; 2 fewer than two results; 3 done, and versions or models differ.
    """
    from perfharness.bench.suite.merge import merge_suites, write_merged
    from perfharness.bench.suite.store import read_suite_result
    from perfharness.render.charts.bench import MERGED_PAGE, merged_pictures
    from perfharness.report.bench_merge_table import print_merged

    check_charts(charts)
    if len(folders) < 2:
        raise UsageError("bench merge needs results of two runs at least")
    merged = merge_suites([(str(folder), read_suite_result(folder)) for folder in folders])
    write_merged(output_dir, merged)
    console, messages = Console(), Console(stderr=True)
    print_merged(console, merged)
    if charts is not False:
        say_drawn(messages, lambda: merged_pictures(merged), output_dir, MERGED_PAGE)
    say(messages, f"results: {output_dir.absolute()}")
    raise typer.Exit(EXIT_CHECK_FAILED if merged.differences else EXIT_OK)
