"""`perfharness explain`: a launch with an explaining pass; or the explaining pass of a run that was measured before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perfharness.cli.launch import (
    EPILOG,
    ConfigOption,
    DryRunOption,
    ScriptArguments,
    Shown,
    planned,
    read_command_line,
    show_launch,
    show_result,
)
from perfharness.cli.support.help import GroupedCommand, HelpAll
from perfharness.cli.support.options import CONTEXT_OF_A_COMMAND_LINE, EXIT_OK, command_line
from perfharness.cli.support.output import Format, FormatOption, Output, RareQuietOption, RareVerboseOption
from perfharness.cli.support.settings import given, with_settings
from perfharness.errors import ResultError, UsageError
from perfharness.model.conventions import printable
from perfharness.model.manifest import MANIFEST_NAME, RunManifest
from perfharness.model.secrets import MASK
from perfharness.render.terminal.plan import print_plan
from perfharness.runs.launch import explain_run
from perfharness_launcher.plan.launch_plan import explaining_pass
from perfharness_launcher.plan.options import LaunchOptions, TerminalOptions, launch_options

LAUNCHED_BY = ("launch", "explain")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("explain", cls=GroupedCommand, context_settings=CONTEXT_OF_A_COMMAND_LINE, epilog=EPILOG)(explain_verb)


@with_settings(LaunchOptions, TerminalOptions, rare=("explain",))
def explain_verb(
    context: typer.Context,
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT_OR_RUN", help="A .py file, any program, or the folder of a run.", show_default=False
        ),
    ],
    script_arguments: ScriptArguments = None,
    *,
    output_format: FormatOption = Format.TEXT,
    quiet: RareQuietOption = False,
    verbose: RareVerboseOption = False,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    help_all: HelpAll = False,
    **settings: Any,
) -> None:
    """Run SCRIPT twice, measured and then explained, as `perfharness launch --explain` does.

    The first pass gives the times; the second may cost time and records what explains them. Of the folder of a run that
    `perfharness launch` measured, only the second pass is run, with the options of that launch.

    Exit codes: 0 all well; 1 a process failed; 2 usage; 3 measured, but a check failed, or nothing could be measured.
    """
    del help_all
    output = Output.of(output_format, quiet=quiet, verbose=verbose)
    chosen = given(context, settings)
    run_dir = Path(script)
    if (run_dir / MANIFEST_NAME).is_file():
        if chosen or script_arguments or config is not None:
            raise UsageError(f"{run_dir} is a run, whose launch had its options; leave all others away")
        raise typer.Exit(_explain_run(context, run_dir, output, dry_run=dry_run))
    if not chosen.setdefault("explain", True):
        raise UsageError("--no-explain: this verb explains; use `perfharness launch` to measure alone")
    options, terminal = launch_options(script, script_arguments or (), chosen, config)
    shown = Shown(output, terminal)
    (plan,) = planned(context, [options], shown, dry_run=dry_run)
    if not dry_run:
        raise typer.Exit(show_launch(plan, shown))


def _explain_run(context: typer.Context, run_dir: Path, output: Output, *, dry_run: bool) -> int:
    from perfharness.runs.explain import longest_s
    from perfharness.runs.files.run_folder import read_manifest

    shown = Shown(output)
    manifest = read_manifest(run_dir)
    options = options_of_run(run_dir, manifest)
    (plan,) = planned(context, [options], shown, dry_run=False)
    second = explaining_pass(plan, longest_s(manifest))
    if dry_run:
        print_plan(second, output.results)
        return EXIT_OK
    with shown.watching(second) as observer:
        result = explain_run(run_dir, second, command_line(), observer)
    return show_result(result, output)


def options_of_run(run_dir: Path, manifest: RunManifest) -> LaunchOptions:
    """The options that a run was launched with, from its command line.

    Raises `ResultError` where they cannot be had any more.
    """
    why = _why_not(manifest)
    if why is not None:
        raise ResultError(f"{run_dir} cannot be launched again: {why}. Launch it anew with --explain.")
    context, values = read_command_line(manifest.command[2:])
    if any(values.pop(name, None) is not None for name in ("np_sweep", "cold_start")):
        raise ResultError(f"{run_dir} is a part of a series; launch it alone with --explain")
    values.pop("repeat", None)  # one of these launches can be explained, as each is the same
    names = {*LaunchOptions.model_fields, *TerminalOptions.model_fields} - {"script", "script_arguments"}
    chosen = given(context, {name: values[name] for name in names if name in values})
    chosen |= {"explain": False, "output_dir": run_dir}
    options, _ = launch_options(values["script"], values["script_arguments"] or (), chosen, values["config"])
    return options


def _why_not(manifest: RunManifest) -> str | None:
    if len(manifest.command) < 3 or manifest.command[1] not in LAUNCHED_BY:
        return "its manifest has no command line of `perfharness launch`"
    if manifest.tracer.kind in ("ranges", "none"):
        return f"it was launched with --tracer {manifest.tracer.kind}, which records nothing that explains"
    if any(MASK in word for word in manifest.command):
        return "its command line held secrets, which are not kept"
    here = printable(str(Path.cwd()))
    if manifest.working_dir not in (None, here):
        return f"it was launched in {manifest.working_dir}, and this is {here}"
    return None
