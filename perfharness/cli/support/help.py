"""Layout of --help: grouped verbs and options."""

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
        "compare-engines": "Compare engines that compute depth maps.",
    },
    "Read": {
        "analyze": "Recompute results; explain a stage or slow batches.",
        "compare": "Compare runs: faster or slower stages; a CI gate.",
        "report": "Write a report: HTML, PDF or Markdown.",
        "export": "Write a timeline, tables or sampled stacks.",
        "history": "List earlier runs, or one metric over them.",
        "dashboard": "Show earlier and running launches in a browser.",
    },
    "Machine": {
        "demo": "Find the bottleneck of a small example pipeline.",
        "doctor": "Check what a measurement needs, and what is missing.",
        "clocks": "Lock GPU clocks at their maximum; restore them.",
    },
}
"""Verbs and their summaries in the order of --help; each is a module in `perfharness.cli` with `register(app)`."""

VERBS = {verb: summary for verbs in GROUPS.values() for verb, summary in verbs.items()}

FIRST_PAGE = """\
Profile inference pipelines per stage and per item, on CPU and GPU.

  perfharness launch app.py               stage times, bottleneck, what to try
  perfharness launch -np 4 -ng 2 app.py   4 processes on each of 2 GPUs
  perfharness compare out_old out_new     faster or slower, beyond noise
"""

LAST_LINE = "Help: perfharness VERB --help. Also: --version, --guide (for programs)"

OTHER = "Other options"


def argument(metavar: str, text: str) -> Any:
    """Argument of a verb."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


class GroupedCommand(TyperCommand):
    """A command whose --help groups options by their `rich_help_panel`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """List the arguments by their metavars, optional ones in brackets."""
        arguments = [one for one in self.get_params(ctx) if one.param_type_name == "argument"]
        names = [(one.metavar or str(one.name).upper(), one.required) for one in arguments]
        return ["[OPTIONS]", *(name if needed or name.startswith("[") else f"[{name}]" for name, needed in names)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then groups in the order of their first option, then ungrouped options.

        Writes `<str>` for Typer's `<list[str]>`, and `<int>` for `<int range>`.
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
    """The verbs; each is imported only when called, because importing all of them is slow."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all verbs."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a verb, or return None if it does not exist."""
        if cmd_name in VERBS and cmd_name not in self.commands:
            app = typer.Typer(context_settings=CONTEXT, rich_markup_mode=None)
            import_module(f"perfharness.cli.{cmd_name.replace('-', '_')}").register(app)
            self.commands.update(typer.main.get_group(app).commands)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; leave an interrupt to `main`, because Typer would exit with 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write examples and all verbs on one screen."""
        del ctx
        lines = [FIRST_PAGE]
        for group, verbs in GROUPS.items():
            heads = [group, *[""] * len(verbs)]
            lines += [f"{head:8} {verb:16} {text}" for head, (verb, text) in zip(heads, verbs.items(), strict=False)]
        formatter.write("\n".join([*lines, "", LAST_LINE, ""]))
