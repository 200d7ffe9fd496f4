"""How help is laid out: options in groups, summaries in full."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from perfharness.cli.support.options import CONTEXT

GROUPS = {
    "Measure": {
        "launch": "Profile a script: stage times and the bottleneck.",
        "bench": "Benchmark models: backends, precisions, batch sizes.",
        "record": "Record the next batches of a running process.",
        "stress": "Load-test a function, model, script or service.",
        "mlperf": "Run an MLPerf LoadGen scenario on a model.",
        "compare-engines": "Compare engines that make depth maps.",
    },
    "Read": {
        "analyze": "Recompute results; explain a stage or slow batches.",
        "compare": "Compare runs: what got faster or slower; a CI gate.",
        "report": "Write a report: HTML, PDF or Markdown.",
        "export": "Write a timeline, tables or sampled stacks.",
        "history": "List earlier runs, or one number over all of them.",
        "dashboard": "Show earlier runs and what is running in a browser.",
    },
    "Machine": {
        "demo": "Find the bottleneck of a small example pipeline.",
        "doctor": "Check what a measurement needs, and what is missing.",
        "clocks": "Lock GPU clocks at their maximum; restore them.",
    },
}
"""Summaries in the order of the help; each verb is a module here with `register(app)`, imported when it is called."""

VERBS = {verb: summary for verbs in GROUPS.values() for verb, summary in verbs.items()}

FIRST_PAGE = """\
Profile inference pipelines per stage and per item, on CPU and GPU.

  perfharness launch app.py               stage times, bottleneck, what to try
  perfharness launch -np 4 -ng 2 app.py   4 processes on each of 2 GPUs
  perfharness compare out_old out_new     did it get faster, and is that sure?
"""

LAST_LINE = "Options: perfharness VERB --help. --guide is for programs, --version"

OTHER = "Other options"


class GroupedCommand(TyperCommand):
    """A command whose options are in groups: the `rich_help_panel` of each."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then the groups in the order of their first option; those without a group are last.

        Types are in plain terms: `<str>` where Typer writes `<list[str]>`, `<int>` for `<int range>`.
        """
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        parameters = self.get_params(ctx)
        for parameter in parameters:
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            name = record[0].replace("<list[", "<").replace("]>", ">").replace(" range>", ">")
            panel = getattr(parameter, "rich_help_panel", None) or OTHER
            if parameter.param_type_name == "argument":
                panel, name = "Arguments", name.partition(" <")[0]
            groups.setdefault(panel, []).append((name, record[1]))
        groups[OTHER if len(groups) > 2 else "Options"] = groups.pop(OTHER)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if any(getattr(parameter, "hidden", False) and parameter.name != "help_all" for parameter in parameters):
            formatter.write_paragraph()
            formatter.write_text(f"`{ctx.command_path} --help-all` shows all options.")


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

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Three commands to copy, then all verbs in their groups: no more than a screen."""
        del ctx
        lines = [FIRST_PAGE]
        for group, verbs in GROUPS.items():
            heads = [group, *[""] * len(verbs)]
            lines += [f"{head:8} {verb:16} {text}" for head, (verb, text) in zip(heads, verbs.items(), strict=False)]
        formatter.write("\n".join([*lines, "", LAST_LINE, ""]))
