"""`perfharness compare`: which stages of a version are faster or slower than those of another, and a gate on that."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfharness.cli.support.help import GroupedCommand
from perfharness.cli.support.options import (
    EXIT_CHECK_FAILED,
    EXIT_OK,
    BatchPatternOption,
    CommandLineError,
    DomainOption,
    NsysOption,
    WarmupOption,
    command_line,
    command_line_error,
    split_commas,
)
from perfharness.cli.support.output import Format, FormatOption, Output, QuietOption
from perfharness.cli.support.settings import given
from perfharness.errors import LaunchError, UsageError
from perfharness.model.text import ascii_json
from perfharness.render.terminal.console import Console, say

if TYPE_CHECKING:
    from perfharness.runs.comparison.compared_figure import Unit
    from perfharness.runs.comparison.result import CompareRule, Comparison
    from perfharness_launcher.plan.options import LaunchOptions

MATCHING, DECIDING, GATE, MEASURE = "What is compared", "What counts as a difference", "Gate", "Measure both"
"""Groups of options in the help."""

OUTPUT_DIR, DEFAULT_COUNT = "compare_out", 5


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("compare", cls=GroupedCommand)(compare_verb)


def compare_verb(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BASE NEW…",
            help="The launches of each version: runs, repeats, suites of bench, traces, trtexec's results, history:ID;"
            " or several of them joined by commas.",
            show_default=False,
        ),
    ] = None,
    *,
    renamed: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="OLD=NEW", help="A stage with another name in NEW.", rich_help_panel=MATCHING),
    ] = None,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only this stage; fewer rows are decided sooner. Repeatable.", rich_help_panel=MATCHING
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only this figure, as cpu_time_per_item. Repeatable.", rich_help_panel=MATCHING
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIFFERENCE",
            help="Compare although this differs: gpu, cpu, tracer, processes, warm-up, clocks, reading, batches, load, "
            "validity, pass.",
            rich_help_panel=MATCHING,
        ),
    ] = None,
    min_effect: Annotated[
        str, typer.Option(metavar="PERCENT", help="Smallest change that counts.", rich_help_panel=DECIDING)
    ] = "2%",
    min_abs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AMOUNT",
            help="And smallest difference, as 5us or 1MB; for each kind of unit. Repeatable.",
            rich_help_panel=DECIDING,
        ),
    ] = None,
    alpha: Annotated[
        str,
        typer.Option(metavar="PERCENT", help="Most false alarms, of all rows together.", rich_help_panel=DECIDING),
    ] = "5%",
    spread: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Standard deviation between launches that you know of; without it one launch a side decides nothing.",
            show_default=False,
            rich_help_panel=DECIDING,
        ),
    ] = None,
    drift: Annotated[
        bool,
        typer.Option(
            "--drift/--no-drift",
            help="Whether the machine may drift, where one side was measured after the other.",
            rich_help_panel=DECIDING,
        ),
    ] = True,
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="VERDICT,…",
            help="Exit with 3 where a row is slower, undecided, not-comparable, …",
            show_default=False,
            rich_help_panel=GATE,
        ),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT",
            help="Exit with 3 where NEW meets this, as 'inference.p95 > 20ms' or 'throughput < -5%'. Repeatable.",
            rich_help_panel=GATE,
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(
            "--run",
            metavar="LAUNCH",
            help="Measure it: what stands behind `perfharness launch`. The first is BASE; all are launched in turns.",
            rich_help_panel=MEASURE,
        ),
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(metavar="N", help="Launches of each --run. [default: 5]", rich_help_panel=MEASURE, min=1),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output-dir",
            help=f"Folder of the launches of --run. [default: {OUTPUT_DIR}]",
            show_default=False,
            rich_help_panel=MEASURE,
        ),
    ] = None,
    warmup_batches: WarmupOption = None,
    domain: DomainOption = None,
    batch_pattern: BatchPatternOption = None,
    nsys: NsysOption = None,
    output_format: FormatOption = Format.TEXT,
    quiet: QuietOption = False,
) -> None:
    """Whether stages, throughput, latency, memory, energy and start-up of NEW differ from those of BASE.

    The launch is the unit: make several of each version with --repeat. Verdicts: faster, slower, same, undecided,
    not-comparable.

    Exit codes: 0 compared; 1 a side cannot be read, or --run was interrupted; 2 usage; 3 --fail-on or --fail-if was
    met, or nothing could be compared.
    """
    from perfharness.runs.comparison.compare import CompareOptions, compare_sides, read_side
    from perfharness.runs.comparison.limits import parse_limit
    from perfharness.runs.files.run_folder import ReadAs

    output = Output.of(quiet=quiet)
    verdicts = _verdicts(fail_on)
    options = CompareOptions(
        rule=_rule(min_effect, min_abs or (), alpha, spread, drift=drift),
        renamed=dict(_renaming(text) for text in renamed or ()),
        allowed=frozenset(name for text in allow or () for name in split_commas(text)),
        stages=tuple(stage or ()),
        metrics=tuple(metric or ()),
        limits=tuple(parse_limit(text) for text in fail_if or ()),
    )
    if run:
        if sides:
            raise UsageError(f"--run measures both sides, so {sides[0]} cannot be one; leave one of the two away")
        sides = _measure(run, repeat or DEFAULT_COUNT, output_dir or Path(OUTPUT_DIR), output)
    elif repeat is not None or output_dir is not None:
        raise UsageError("--repeat and -o are about launches of --run; without it, nothing is launched")
    if len(sides or ()) < 2:
        raise UsageError("compare needs BASE and NEW: run folders, repeats, or several joined by commas")
    read_as = ReadAs(warmup_batches, domain, batch_pattern)
    base, *others = [read_side(side, nsys, read_as) for side in sides or ()]
    comparison = compare_sides(base, others, options, command_line())
    _show(comparison, output_format, output.results)
    raise typer.Exit(_exit_code(comparison, verdicts, output))


def _measure(runs: Sequence[str], count: int, output_dir: Path, output: Output) -> list[str]:
    """Launch all in turns; returns the folder of each.

    Raises:
        UsageError: a command line is wrong; nothing was started.
        LaunchError: it was interrupted, and what was measured is not compared.
    """
    from perfharness.cli.launch import Shown
    from perfharness.runs.series.repeat import plan_repeats, repeat_request, run_repeats
    from perfharness_launcher.plan.options import command_of

    if len(runs) < 2:
        raise UsageError("--run is given once; give it once for BASE and once for each NEW")
    names = ["base", "new"] if len(runs) == 2 else ["base", *(f"new_{place}" for place in range(1, len(runs)))]
    cases = [_launch_of(text, output_dir / name) for text, name in zip(runs, names, strict=True)]
    commands = [command_of(case, "--repeat", str(count)) for case in cases]
    shown = Shown(output)
    for one in run_repeats(plan_repeats(cases, repeat_request(count), commands), shown.watching_one):
        if one.error is not None:
            say(output.errors, str(one.error))
        if one.interrupted:
            raise LaunchError(f"interrupted; what was measured lies in {output_dir}")
    return [str(case.output_dir) for case in cases]


def _launch_of(text: str, folder: Path) -> LaunchOptions:
    """The options of a launch from what stands behind `perfharness launch`. Raises `UsageError`."""
    from perfharness.cli.launch import read_command_line
    from perfharness_launcher.plan.options import LaunchOptions, launch_options

    try:
        context, values = read_command_line(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--run '{text}': {error}") from error
    except CommandLineError as error:
        raise UsageError(
            f"--run '{text}': {command_line_error(error)}; give what stands behind `perfharness launch`"
        ) from error
    named = given(context, values)
    settings = {*LaunchOptions.model_fields} - {"script", "script_arguments", "output_dir", "explain"}
    if other := sorted({*named} - settings - {"script", "script_arguments", "config"}):
        name = "-o" if other[0] == "output_dir" else f"--{other[0].replace('_', '-')}"
        raise UsageError(f"--run '{text}': {name} is no option of one launch among several; leave it away there")
    chosen = {name: value for name, value in named.items() if name in settings}
    chosen |= {"explain": False, "output_dir": folder}
    options, _ = launch_options(values["script"], values["script_arguments"] or (), chosen, values["config"])
    return options


def _show(comparison: Comparison, output_format: Format, console: Console) -> None:
    if output_format is Format.JSON:
        sys.stdout.write(ascii_json(comparison.model_dump_json(indent=2)) + "\n")
    elif output_format is Format.MD:
        from perfharness.render.comparison.markdown import comparison_markdown

        sys.stdout.write(comparison_markdown(comparison))
    else:
        from perfharness.render.comparison.terminal import print_comparison

        print_comparison(console, comparison)


def _exit_code(comparison: Comparison, verdicts: Sequence[str], output: Output) -> int:
    met = sorted(comparison.verdicts().intersection(verdicts))
    failed = [result for result in comparison.limits if result.failed]
    if met:
        output.message(f"--fail-on: {', '.join(met)}")
    if failed:
        output.message(f"--fail-if: {'; '.join(result.limit for result in failed)}")
    if comparison.has_nothing:
        names = sorted({one.name for version in comparison.versions for one in version.deciding})
        hint = f"{', '.join(names)} differ (--allow NAME where that is what is compared)" if names else "see the notes"
        output.message(f"nothing could be compared: {hint}")
    return EXIT_CHECK_FAILED if met or failed or comparison.has_nothing else EXIT_OK


def _verdicts(text: str | None) -> tuple[str, ...]:
    from perfharness.runs.comparison.result import VERDICTS

    chosen = split_commas(text)
    if unknown := [one for one in chosen if one not in VERDICTS]:
        raise UsageError(f"--fail-on {unknown[0]}: no such verdict; there are {', '.join(VERDICTS)}")
    return chosen


def _rule(min_effect: str, min_abs: Sequence[str], alpha: str, spread: str | None, *, drift: bool) -> CompareRule:
    from perfharness.runs.comparison.limits import parse_quantity
    from perfharness.runs.comparison.result import CompareRule

    amounts: dict[Unit, float] = {}
    for text in min_abs:
        quantity = parse_quantity(text, "--min-abs")
        if quantity.unit is None or quantity.unit == "%" or quantity.value < 0:
            raise UsageError(f"--min-abs {text}: must be an amount with its unit, as 5us, 1MB or 0.1J")
        amounts[quantity.unit] = quantity.value
    rate = _share(alpha, "--alpha")
    if not 0 < rate < 0.5:
        raise UsageError(f"--alpha {alpha}: must be more than 0 and less than 50%")
    known = None if spread is None else _share(spread, "--spread")
    if known == 0:
        raise UsageError("--spread 0: launches always differ; give the standard deviation between them, as 3%")
    return CompareRule(
        alpha=rate, min_effect=_share(min_effect, "--min-effect"), min_abs=amounts, spread=known, allow_drift=drift
    )


def _share(text: str, option: str) -> float:
    """`2%` and `0.02` -> 0.02. Raises `UsageError`, also of a number that lacks its %."""
    from perfharness.runs.comparison.limits import parse_quantity

    quantity = parse_quantity(text, option)
    if quantity.unit not in (None, "%") or quantity.value < 0 or (quantity.unit is None and quantity.value >= 1):
        raise UsageError(f"{option} {text}: must be a percentage, as 2%, or a part of 1, as 0.02")
    return quantity.value / 100 if quantity.unit == "%" else quantity.value


def _renaming(text: str) -> tuple[str, str]:
    old, _, new = text.partition("=")
    if not old or not new:
        raise UsageError(f"--map {text}: must be OLD=NEW, names or paths of a stage in BASE and in NEW")
    return old, new
