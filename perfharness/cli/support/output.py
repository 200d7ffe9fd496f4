"""Output of a verb: results to stdout, in the chosen format; progress and messages to stderr."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from perfharness.model.findings import Finding, Severity
from perfharness.model.settings import option
from perfharness.render.text import ascii_json

if TYPE_CHECKING:
    from perfharness.model.result import ProcessResult, Tree
    from perfharness.render.blocks import Block, Span
    from perfharness.render.console import Console

OUTPUT = "Output"


class Output(BaseModel):
    """Streams of a verb, and the option --format."""

    format: Literal["text", "json", "md"] = option("Format of the results.", OUTPUT, default="text")
    quiet: bool = False
    verbose: bool = False

    @cached_property
    def results(self) -> Console:
        """Stdout."""
        results: Console = _printing().Console(markdown=self.format == "md")
        return results

    @cached_property
    def errors(self) -> Console:
        """Stderr."""
        errors: Console = _printing().Console(stderr=True)
        return errors

    @cached_property
    def messages(self) -> Console:
        """Stderr, silent with --quiet."""
        messages: Console = _printing().Console(stderr=True)
        messages.quiet = self.quiet
        return messages

    @property
    def is_json(self) -> bool:
        """Whether stdout is one JSON document."""
        return self.format == "json"

    def show(self, blocks: Iterable[Block]) -> None:
        """Print blocks to stdout."""
        _printing().print_blocks(self.results, blocks)

    def result(self, tree: Tree, results: Mapping[str, ProcessResult], *, has_gpu: bool | None = None) -> list[Block]:
        """Blocks of a run's results; with --verbose, also of its diagnosis."""
        from perfharness.render.views.diagnosis import diagnoses_of, diagnosis_view
        from perfharness.render.views.result import result_view

        shown = result_view(tree, results, has_gpu=has_gpu, whole=self.verbose) if tree else []
        return [*shown, *diagnosis_view(diagnoses_of(results))] if self.verbose else shown

    def line(self, *parts: str | Span) -> None:
        """Print a line to stdout."""
        _printing().say(self.results, *parts)

    def message(self, text: str) -> None:
        """Print a line to stderr unless --quiet is given."""
        _printing().say(self.messages, text)

    def error(self, text: str) -> None:
        """Print a line to stderr."""
        _printing().say(self.errors, text)

    def findings(self, findings: Iterable[Finding]) -> None:
        """Print findings to stderr."""
        from perfharness.render.views.findings import findings_view

        least = Severity.ERROR if self.quiet else Severity.NOTE if self.verbose else Severity.WARNING
        _printing().print_blocks(self.errors, findings_view(findings, least=least))

    def document(self, content: BaseModel | Mapping[str, Any], blocks: Iterable[Block]) -> None:
        """Print blocks, or with --format json the content that they show."""
        if self.is_json:
            self.json_document(content.model_dump(mode="json") if isinstance(content, BaseModel) else content)
        else:
            self.show(blocks)

    def json_document(self, content: Mapping[str, Any]) -> None:
        """Print a JSON document to stdout."""
        from perfharness.runs.files.json_files import json_bytes

        sys.stdout.write(ascii_json(json_bytes(content).decode()))

    def json_documents(self, documents: Mapping[str, Mapping[str, Any]]) -> None:
        """Print the only document, or an object with all documents by name."""
        if len(documents) == 1:
            self.json_document(next(iter(documents.values())))
            return
        for place, (name, content) in enumerate(documents.items()):
            print("," if place else "{", f"{json.dumps(name)}: ", sep="\n", end="")
            self.json_document(content)
        print("}" if documents else "{}")


def results_line(folder: Path) -> str:
    """Path of the results and the next command."""
    from perfharness_launcher.staging import has_numbers

    typed = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    step = f". Next: perfharness report {shlex.quote(str(typed))}" if has_numbers(folder) else ""
    return f"Results: {folder}{step}"


def _printing() -> Any:
    from perfharness.render import console  # slow to import; --help does not need it

    return console


class FullOutput(Output):
    """The same with --quiet and --verbose."""

    quiet: bool = option("Print errors only: no progress, no warnings.", OUTPUT, flags="-q --quiet", default=False)
    verbose: bool = option(
        "Print the diagnosis, all notes, and the output of launched processes.",
        OUTPUT,
        flags="-v --verbose",
        default=False,
    )
