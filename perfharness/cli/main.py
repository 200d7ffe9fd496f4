"""Console entry point: errors and exit codes."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from perfharness.cli.support.help import VERBS, VerbGroup
from perfharness.cli.support.options import (
    CONTEXT,
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    CommandLineError,
    command_line_error,
)
from perfharness.distribution import VERSION
from perfharness.errors import PerfHarnessError, UsageError
from perfharness.files import reason_of
from perfharness.render.text import keep_encodable, safe

REMOVED = {
    "baseline": "perfharness compare OLD NEW",
    "bench merge": "perfharness report DIR DIR",
    "bench run": "perfharness bench SUITE.toml",
    "bench show": "perfharness report DIR",
    "bench start-up": "perfharness bench --start-up",
    "bench sweep": "perfharness bench --find-batch",
    "compare-layers": "polygraphy run FIRST.onnx SECOND.onnx --onnx-outputs mark all (from NVIDIA's polygraphy)",
    "diagnose": "perfharness analyze RUN --stage NAME, or analyze -v RUN",
    "explain": "perfharness launch --explain SCRIPT",
    "open": "perfharness report RUN --open",
    "ranges": "perfharness export TRACE --table ranges",
    "runs": "perfharness history",
    "share": "perfharness report RUN --anonymous",
    "slowest": "perfharness analyze RUN --slowest N",
}
"""Removed verbs and their replacements."""

GUIDE = Path(__file__).parents[1] / "programs.md"

DEBUG_VARIABLE = "PERFHARNESS_DEBUG"
"""If set, print the traceback of an internal error instead of writing it to a file."""

EXIT_INTERRUPTED = 130
"""Typer's exit code after Ctrl-C."""


def build_app() -> typer.Typer:
    """Create the application; `VerbGroup` imports the verbs."""
    app = typer.Typer(
        name="perfharness",
        cls=VerbGroup,
        context_settings=CONTEXT,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def perfharness(
        context: typer.Context,
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
        ] = False,
        guide: Annotated[
            bool,
            typer.Option(
                "--guide", help="Print the guide for programs and exit.", is_eager=True, callback=_print_guide
            ),
        ] = False,
    ) -> None:
        del context, version, guide

    return app


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"perfharness {VERSION}")
        raise typer.Exit


def _print_guide(asked: bool) -> None:
    if asked:
        typer.echo(GUIDE.read_text(encoding="utf-8").rstrip())
        raise typer.Exit


def main() -> None:
    """Run the command line of this process and exit."""
    code = run(sys.argv[1:])
    gc.freeze()  # saves the 0.1 s of a last garbage collection
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return the exit code; user errors print one sentence, never a traceback."""
    for verb in (" ".join(arguments[:1]), " ".join(arguments[:2])):
        if verb in REMOVED:
            _say(f"'{verb}' was removed; use: {REMOVED[verb]}")
            return EXIT_USAGE
    return reporting_errors(lambda: _call(arguments))


def _call(arguments: Sequence[str]) -> object:
    try:
        return typer.main.get_command(build_app()).main(
            args=list(arguments) or ["--help"], prog_name="perfharness", standalone_mode=False
        )
    except CommandLineError as error:
        _say(command_line_error(error))
        context = getattr(error, "ctx", None)
        verb = " ".join(["perfharness", *(name for name in arguments[:1] if name in VERBS)])
        _say(f"see `{context.command_path if context else verb} --help`")
        return EXIT_USAGE


def reporting_errors(call: Callable[[], object]) -> int:
    """Call a function that returns an exit code; print its error and return the matching code."""
    keep_encodable()
    try:
        code = call()
    except (typer.Abort, KeyboardInterrupt):
        _say("interrupted")
        return EXIT_FAILED
    except PerfHarnessError as error:
        _say(str(error))
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    except BrokenPipeError:  # the reader of stdout has exited, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        _say(f"{error.filename or 'a file'}: {reason_of(error)}; check the path, the disk and the permissions")
        return EXIT_FAILED
    except Exception as error:
        _say_internal_error(error)
        return EXIT_FAILED
    if code == EXIT_INTERRUPTED:
        _say("interrupted")
        return EXIT_FAILED
    return code if isinstance(code, int) else EXIT_OK


def _say(text: str) -> None:
    for line in text.splitlines() or ["failed"]:
        line = safe(line)
        print(f"perfharness: {line}" if not line.startswith(" ") else line, file=sys.stderr)


def _say_internal_error(error: Exception) -> None:
    text = "".join(traceback.format_exception(error))
    if os.environ.get(DEBUG_VARIABLE):
        print(text, file=sys.stderr)
        _say("this is a bug in perfharness, not in your pipeline; the traceback is above")
        return
    try:
        with tempfile.NamedTemporaryFile("w", prefix="perfharness-", suffix=".traceback", delete=False) as file:
            file.write(text)
        where = f"the traceback is in {Path(file.name)}"
    except OSError:
        where = f"set {DEBUG_VARIABLE}=1 to see the traceback"
    _say(f"this is a bug in perfharness, not in your pipeline ({type(error).__name__}: {error}); {where}")


if __name__ == "__main__":
    main()
