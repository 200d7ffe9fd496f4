"""Where a verb's text goes: results to stdout, in the format that was asked for; progress and messages to stderr."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel

from perfharness.model.findings import Finding, Severity
from perfharness.model.settings import Option
from perfharness.render.console import Console, print_blocks, say
from perfharness.render.text import AsciiJson
from perfharness.render.views.findings import findings_view

OUTPUT = "Output"
"""The group of these options in the help."""


class Output(BaseModel):
    """The two streams of a verb."""

    format: Annotated[Literal["text", "json", "md"], Option(("--format",), OUTPUT, "Format of the results.")] = "text"
    quiet: bool = False
    verbose: bool = False

    @cached_property
    def results(self) -> Console:
        """Stdout."""
        return Console(markdown=self.format == "md")

    @cached_property
    def errors(self) -> Console:
        """Stderr."""
        return Console(stderr=True)

    @cached_property
    def messages(self) -> Console:
        """Stderr; of a quiet verb, a console that prints nothing."""
        messages = Console(stderr=True)
        messages.quiet = self.quiet
        return messages

    @property
    def is_json(self) -> bool:
        """Whether stdout is one JSON document."""
        return self.format == "json"

    def message(self, text: str) -> None:
        """A line on stderr."""
        say(self.messages, text)

    def findings(self, findings: Iterable[Finding]) -> None:
        """Findings on stderr."""
        least = Severity.ERROR if self.quiet else Severity.NOTE if self.verbose else Severity.WARNING
        print_blocks(self.errors, findings_view(findings, least=least))

    def json_document(self, content: Mapping[str, Any]) -> None:
        """The document on stdout."""
        from perfharness.runs.files.json_files import json_bytes  # its libraries are not needed for text

        AsciiJson().write(json_bytes(content).decode())

    def json_documents(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """A document on stdout: the only one, or an object of several by their names."""
        if len(documents) == 1:
            self.json_document(next(iter(documents.values())))
            return
        for place, (name, content) in enumerate(documents.items()):
            AsciiJson().write(f"{',' if place else '{'}\n{json.dumps(name)}: ")
            self.json_document(content)
        AsciiJson().write("}\n" if documents else "{}\n")


class FullOutput(Output):
    """The same for a verb that has much to say."""

    quiet: Annotated[bool, Option(("-q", "--quiet"), OUTPUT, "Print errors only, no progress and no warnings.")] = False
    verbose: Annotated[
        bool, Option(("-v", "--verbose"), OUTPUT, "Print notes and details too, and what launched processes print.")
    ] = False
