"""Where a verb's text goes: results to stdout, in the format that was asked for; progress and messages to stderr."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import typer

from perfharness.model.findings import Finding, Severity
from perfharness.model.text import AsciiJson
from perfharness.render.terminal.console import Console, say
from perfharness.render.terminal.results import print_findings
from perfharness.runs.files.json_files import json_bytes


class Format(str, Enum):
    """Words of --format."""

    TEXT = "text"
    JSON = "json"
    MD = "md"


OUTPUT = "Output"
"""The group of these options in the help."""

FormatOption = Annotated[
    Format,
    typer.Option("--format", help="Of what goes to stdout: text, JSON, or Markdown tables.", rich_help_panel=OUTPUT),
]
QUIET_HELP, VERBOSE_HELP = "No progress and no warnings; errors only.", "More: notes, and details of a diagnosis."

QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help=QUIET_HELP, rich_help_panel=OUTPUT)]
VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help=VERBOSE_HELP, rich_help_panel=OUTPUT)]

RareQuietOption = Annotated[bool, typer.Option("-q", "--quiet", help=QUIET_HELP, rich_help_panel=OUTPUT, hidden=True)]
RareVerboseOption = Annotated[
    bool, typer.Option("-v", "--verbose", help=VERBOSE_HELP, rich_help_panel=OUTPUT, hidden=True)
]
"""The same for a verb that has many options, in `--help-all` only."""


@dataclass(frozen=True)
class Output:
    """The two streams of a verb.

    Args:
        results: stdout.
        messages: stderr; of a quiet verb, a console that prints nothing.
    """

    results: Console
    messages: Console
    errors: Console
    format: Format = Format.TEXT
    quiet: bool = False
    verbose: bool = False

    @staticmethod
    def of(format: Format = Format.TEXT, *, quiet: bool = False, verbose: bool = False) -> Output:  # noqa: A002
        """The streams as the options want them."""
        messages = Console(stderr=True)
        messages.quiet = quiet
        return Output(Console(markdown=format is Format.MD), messages, Console(stderr=True), format, quiet, verbose)

    @property
    def is_json(self) -> bool:
        """Whether stdout is one JSON document."""
        return self.format is Format.JSON

    def message(self, text: str) -> None:
        """A line on stderr."""
        say(self.messages, text)

    def findings(self, findings: Iterable[Finding]) -> None:
        """Findings on stderr."""
        least = Severity.ERROR if self.quiet else Severity.NOTE if self.verbose else Severity.WARNING
        print_findings(self.errors, findings, least=least)

    def json(self, content: Mapping[str, Any]) -> None:
        """The document on stdout."""
        AsciiJson().write(json_bytes(content).decode())

    def json_of(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """A document on stdout: the only one, or an object of several by their names."""
        if len(documents) == 1:
            self.json(next(iter(documents.values())))
            return
        for place, (name, content) in enumerate(documents.items()):
            AsciiJson().write(f"{',' if place else '{'}\n{json.dumps(name)}: ")
            self.json(content)
        AsciiJson().write("}\n" if documents else "{}\n")
