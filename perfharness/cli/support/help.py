"""How help is laid out: options in groups, summaries in full."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from perfharness.cli.support.options import CONTEXT

VERBS = {
    "demo": "Find the bottleneck of a small example pipeline.",
    "launch": "Run a script in N processes on M GPUs, traced, and say where the time went.",
    "explain": "Run a script twice, or a run once more, and say what explains its times.",
    "analyze": "Compute the results again from what is on disk.",
    "diagnose": "Say why each stage takes its time, and what to try next.",
    "slowest": "Show the slowest requests beside the typical one, and what was different.",
    "compare": "Compare versions: which stages are faster or slower, and a gate on that.",
    "ranges": "Print one row for each range.",
    "report": "Write a page with all that is known of runs, for people.",
    "open": "Show that page in a browser.",
    "export": "Write a timeline for trace viewers, or tables for notebooks.",
    "share": "Write a run for others, without secrets and names.",
    "bench": "Measure models over backends, precisions and batch sizes.",
    "stress": "Put a target under load: latency from the intended moment, and what it comes from.",
    "mlperf": "Run a test of MLPerf LoadGen on a model.",
    "compare-engines": "Compare engines that make a map of an image.",
    "compare-layers": "Find where the outputs of two ONNX models begin to differ.",
    "history": "List earlier runs, or one number over all of them.",
    "clocks": "Set the GPUs' clocks to their maximum, and restore them.",
    "doctor": "Check what a measurement needs, and say what is missing.",
}
"""Summaries in the order of the help; each verb is a module here with `register(app)`, imported when it is called."""

OTHER = "Other options"


def _print_whole_help(context: typer.Context, asked: bool) -> None:
    if asked:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        help="Show all options.",
        is_eager=True,
        hidden=True,
        callback=_print_whole_help,
    ),
]
"""The option of a verb that hides its rare options from `--help`."""


class GroupedCommand(TyperCommand):
    """A command whose options are in groups: the `rich_help_panel` of each."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then the groups in the order of their first option; those without a group are last.

        Types are in plain terms: `<str>` where Typer writes `<list[str]>`, `<int>` for `<int range>`.
        """
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        ungrouped = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            record = (record[0].replace("<list[", "<").replace("]>", ">").replace(" range>", ">"), record[1])
            if parameter.param_type_name == "argument":
                groups["Arguments"].append((record[0].partition(" <")[0], record[1]))
            elif panel := getattr(parameter, "rich_help_panel", None):
                groups.setdefault(panel, []).append(record)
            else:
                ungrouped.append(record)
        groups[OTHER if len(groups) > 1 else "Options"] = ungrouped
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


class FullSummaries(TyperGroup):
    """A group whose commands are listed with their whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A row a command."""
        rows = [
            (name, " ".join((command.help or "").split("\n\n")[0].split()))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class VerbGroup(TyperGroup):
    """The verbs; each is imported when it is called, for all of them together take longer than most of them work."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All verbs, imported or not."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb, imported now; None where there is none of that name."""
        if cmd_name in VERBS and cmd_name not in self.commands:
            app = typer.Typer(context_settings=CONTEXT, rich_markup_mode=None)
            import_module(f"perfharness.cli.{cmd_name.replace('-', '_')}").register(app)
            self.commands.update(typer.main.get_group(app).commands)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; `main` reports an interrupt, with its own exit code; Typer would end with 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Every verb with its whole summary."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))
