"""`perfharness compare`: compare the stages of versions, and fail on a regression."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel

from perfharness.cli.support.help import GroupedCommand, argument
from perfharness.cli.support.options import (
    EXIT_CHECK_FAILED,
    EXIT_OK,
    CommandLineError,
    command_line,
    command_line_error,
    split_commas,
)
from perfharness.cli.support.output import Output
from perfharness.cli.support.reading import Reading
from perfharness.cli.support.settings import given, with_settings
from perfharness.errors import LaunchError, UsageError
from perfharness.model.settings import option

if TYPE_CHECKING:
    from perfharness.runs.comparison.result import Comparison
    from perfharness.runs.comparison.revision import Worktree
    from perfharness_launcher.options import LaunchOptions
    from perfharness_launcher.plan import LaunchPlan
    from perfharness_launcher.supervise import Observer

MATCHING, DECIDING, GATE, MEASURE = "Matching", "Significance", "Gate", "Launching"

OUTPUT_DIR, DEFAULT_COUNT = "compare_out", 5

REV, LAUNCH = "--rev", "perfharness.launch"
"""Last option of `compare`, and the context's key for the words after its commit."""


class CompareCommand(GroupedCommand):
    """A command whose options end at `--rev REV`, which is followed by arguments of a launch."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Keep the arguments of the launch in `ctx.meta`."""
        end = next((place for place, word in enumerate(args) if word.partition("=")[0] == REV), len(args))
        end += 1 if args[end : end + 1] != [REV] else 2
        ctx.meta[LAUNCH] = args[end:]
        return super().parse_args(ctx, args[:end])


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("compare", cls=CompareCommand)(compare_verb)


def percentage(text: Any) -> Any:
    """`2%` and `0.02` -> 0.02. Raises `ValueError`, also for 1 and more without %."""
    has_sign = str(text).endswith("%")
    try:
        value = float(str(text).removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 <= value < (math.inf if has_sign else 1):
        raise ValueError("must be a percentage such as 2%, or a fraction such as 0.02")
    return value / 100 if has_sign else value


class CompareSettings(BaseModel):
    """Options of `compare`."""

    renamed: list[str] = option(
        "A stage that was renamed in NEW. Repeatable.", MATCHING, "OLD=NEW", flags="--map", default=[]
    )
    stage: list[str] = option(
        "Compare only this stage; fewer rows need fewer launches. Repeatable.", MATCHING, "NAME", default=[]
    )
    allow: list[str] = option(
        "Compare despite this difference: gpu, cpu, tracer, processes, warm-up, clocks, load, pass (of profiling), "
        "reading (--domain, --batch-pattern), batches (--capture-batches), validity (MLPerf).",
        MATCHING,
        "DIFFERENCE",
        default=[],
    )
    min_effect: float = option(
        "Smallest change that counts. [default: 2%]", DECIDING, "PERCENT", default=0.02, parse=percentage
    )
    alpha: float = option(
        "False-alarm rate over all rows. [default: 5%]",
        DECIDING,
        "PERCENT",
        default=0.05,
        parse=percentage,
        gt=0,
        lt=0.5,
    )
    spread: float | None = option(
        "Known standard deviation between launches; needed with one launch per version.",
        DECIDING,
        "PERCENT",
        parse=percentage,
        gt=0,
    )
    fail_on: str | None = option(
        "Exit with 3 if a row is slower, faster, same, undecided ('not proven') or not-comparable.", GATE, "VERDICT,…"
    )
    fail_if: list[str] = option(
        "Exit with 3 if NEW meets this: 'inference.p95 > 20ms', 'throughput < -5%'. Repeatable.",
        GATE,
        "LIMIT",
        default=[],
    )
    run: list[str] = option(
        "Launch with these arguments of `perfharness launch`, in turns; the first --run is BASE. Repeatable.",
        MEASURE,
        "LAUNCH",
        default=[],
    )
    rev: str | None = option(
        "Launch SCRIPT of this commit (BASE) and of the working tree in turns. Must be the last option: arguments "
        "of `perfharness launch` follow.",
        MEASURE,
        "REV … SCRIPT",
        flags=REV,
    )
    repeat: int | None = option(f"Launches of each version. [default: {DEFAULT_COUNT}]", MEASURE, "N", ge=1)
    output_dir: Path | None = option(
        f"Folder of the launches. [default: {OUTPUT_DIR}]", MEASURE, flags="-o --output-dir"
    )


@with_settings()
def compare_verb(
    context: typer.Context,
    sides: Annotated[
        list[str] | None,
        argument(
            "BASE NEW…",
            "The launches of each version, joined by commas: runs, repeats, suites of bench, traces, results of"
            " trtexec, history:ID.",
        ),
    ] = None,
    *,
    asked: CompareSettings,
    reading: Reading,
    output: Output,
) -> None:
    """Compare stages, throughput, latency, memory, energy and start-up of NEW with BASE.

    Launches vary, so measure each version several times: with `perfharness launch --repeat 5`, --run or --rev.

    Exit codes: 0 compared; 1 a version cannot be read, or --run was interrupted; 2 usage; 3 a --fail-on or --fail-if
    condition is met or cannot be judged, or nothing could be compared.
    """
    from perfharness.analysis.comparison.compare import Rule
    from perfharness.render.views.compare import compare_view
    from perfharness.runs.comparison.compare import compare_sides
    from perfharness.runs.comparison.limits import parse_limit
    from perfharness.runs.comparison.match import CompareOptions
    from perfharness.runs.comparison.sides import read_side

    verdicts = _verdicts(asked.fail_on)
    options = CompareOptions(
        rule=Rule(alpha=asked.alpha, min_effect=asked.min_effect, spread=asked.spread),
        renamed=dict(_renaming(text) for text in asked.renamed),
        allowed=frozenset(name for text in asked.allow for name in split_commas(text)),
        stages=tuple(asked.stage),
        limits=tuple(parse_limit(text) for text in asked.fail_if),
    )
    chosen = [name for name, value in (("BASE NEW", sides), ("--run", asked.run), (REV, asked.rev)) if value]
    if len(chosen) > 1:
        raise UsageError(f"give either {chosen[0]} or {chosen[1]}")
    folder = asked.output_dir or Path(OUTPUT_DIR)
    if asked.run:
        sides = _measure_runs(asked.run, asked.repeat or DEFAULT_COUNT, folder, output)
    elif asked.rev is not None:
        sides = _measure_revision(asked.rev, context.meta[LAUNCH], asked.repeat or DEFAULT_COUNT, folder, output)
    elif asked.repeat is not None or asked.output_dir is not None:
        raise UsageError("--repeat and -o need --run or --rev")
    if len(sides or ()) < 2:
        raise UsageError("give BASE and NEW: run folders or repeats, several of a version joined by commas")
    base, *others = [read_side(side, reading.read_as()) for side in sides or ()]
    comparison = compare_sides(base, others, options, command_line())
    output.document(comparison, compare_view(comparison, fold=output.format == "md"))
    if not output.is_json:
        output.findings(finding for version in comparison.versions for finding in version.findings)
    raise typer.Exit(_exit_code(comparison, verdicts, output))


def _measure_runs(runs: Sequence[str], count: int, folder: Path, output: Output) -> list[str]:
    if len(runs) < 2:
        raise UsageError("give --run at least twice: for BASE and for each NEW")
    return _measure([_launch_of(text, f"--run '{text}'") for text in runs], count, folder, output)


def _measure_revision(revision: str, words: Sequence[str], count: int, folder: Path, output: Output) -> list[str]:
    from perfharness.runs.comparison.revision import worktree_of

    new = _launch_of(shlex.join(words), f"{REV} {revision}")
    with worktree_of(revision, new.script) as tree:
        return _measure([tree.options(new), new], count, folder, output, tree)


def _measure(
    cases: Sequence[LaunchOptions], count: int, folder: Path, output: Output, tree: Worktree | None = None
) -> list[str]:
    """Launch all cases in turns and return the folder of each.

    Args:
        tree: worktree for the launches of the first case.

    Raises:
        UsageError: a command line is wrong; nothing was started.
        LaunchError: interrupted.
    """
    from perfharness.cli.launch import watching_series
    from perfharness.runs.series.launching import labels_of_turns, series_in_turns

    labels = labels_of_turns(len(cases))
    series = series_in_turns(cases, folder.absolute() if tree is not None else folder, count)
    watch = watching_series(output, len(series.launches))

    def place(label: str) -> AbstractContextManager[None]:
        return tree.entered() if tree is not None and label == labels[0] else nullcontext()

    @contextmanager
    def observe(plan: LaunchPlan) -> Iterator[Observer]:
        with place(plan.options.output_dir.parent.name), watch(plan) as observer:
            yield observer

    series.plan(place)
    for one in series.run(observe, output.message):
        if one.error is not None:
            output.error(str(one.error))
        if one.interrupted:
            raise LaunchError(f"interrupted; the launches so far are in {folder}")
    measured = folder if series.folder.absolute() == folder.absolute() else series.folder
    return [str(measured / label) for label in labels]


def _launch_of(text: str, where: str) -> LaunchOptions:
    """Parse the words after `perfharness launch`. Raises `UsageError`."""
    from perfharness.cli.launch import read_command_line
    from perfharness_launcher.options import LaunchOptions, launch_options

    try:
        context, values = read_command_line(shlex.split(text))
    except (CommandLineError, ValueError) as error:
        raise UsageError(f"{where}: {command_line_error(error)}; give the words after `perfharness launch`") from error
    named = given(context, values)
    arguments = {"script", "script_arguments", "config"}
    settings = {*LaunchOptions.model_fields} - arguments - {"output_dir", "explain"}
    if other := sorted({*named} - settings - arguments):
        name = "-o" if other[0] == "output_dir" else f"--{other[0].replace('_', '-')}"
        raise UsageError(f"{where}: {name} is not possible here; drop it, or give it to compare")
    chosen = {name: value for name, value in named.items() if name in settings}
    return launch_options(
        values["script"], values["script_arguments"] or (), {**chosen, "explain": False}, values["config"]
    )


def _exit_code(comparison: Comparison, verdicts: Sequence[str], output: Output) -> int:
    met = sorted(comparison.verdicts().intersection(verdicts))
    failed = [result for result in comparison.limits if result.failed]
    withheld = [one for one in comparison.versions if one.withheld in verdicts]
    if met:
        output.message(f"--fail-on: {', '.join(met)}")
    if failed:
        output.message(f"--fail-if: {'; '.join(result.limit for result in failed)}")
    for one in withheld:
        output.message(f"--fail-on: {one.withheld} not proven: the machine changed with {one.side.name}; repeat")
    if comparison.has_nothing:
        output.message("Nothing could be compared.")
    return EXIT_CHECK_FAILED if met or failed or withheld or comparison.has_nothing else EXIT_OK


def _verdicts(text: str | None) -> tuple[str, ...]:
    from perfharness.runs.comparison.result import VERDICTS

    chosen = split_commas(text)
    if unknown := [one for one in chosen if one not in VERDICTS]:
        raise UsageError(f"--fail-on {unknown[0]}: must be {', '.join(VERDICTS)} (undecided: 'not proven' in tables)")
    return chosen


def _renaming(text: str) -> tuple[str, str]:
    old, _, new = text.partition("=")
    if not old or not new:
        raise UsageError(f"--map {text}: must be OLD=NEW, a stage of BASE and its name in NEW")
    return old, new
