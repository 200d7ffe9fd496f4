"""How options are spelled: dashes or underscores, and several letters after one dash as in CV-CUDA's samples."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from perfharness.model.findings import Finding, Severity

EXIT_OK = 0
"""All well."""

EXIT_FAILED = 1
"""A process failed, or perfharness did; Ctrl-C; or results could not be written."""

EXIT_USAGE = 2
"""The command line is wrong; nothing was started."""

EXIT_CHECK_FAILED = 3
"""Measured, but a check failed (a finding of severity `error`), or nothing that was asked for could be measured."""


def spelled_with_dashes(token: str) -> str:
    """`--maximize_clocks` -> `--maximize-clocks`; only option names and choices come through here, no values."""
    return token.replace("_", "-")


CONTEXT: dict[str, Any] = {"token_normalize_func": spelled_with_dashes, "help_option_names": ["-h", "--help"]}
"""Context settings of every verb."""

CONTEXT_OF_A_COMMAND_LINE: dict[str, Any] = {**CONTEXT, "allow_interspersed_args": False}
"""The same for a verb that ends in another command line: the own options end where the first argument begins."""


CommandLineError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""What a wrong command line raises. Found so, for Typer used to build on click and now carries it inside."""


def command_line_error(error: Exception) -> str:
    """What is wrong with a command line. Typer lets pydantic read values, which does not name them."""
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    cause: Any = error.__cause__
    if not hasattr(cause, "errors"):
        return text
    text, value = text.replace(": Value error, ", ": "), repr(cause.errors()[0]["input"])
    expected = getattr(getattr(error, "param", None), "metavar", None)
    return text if value in text else f"{text} (it is {value}{f', and should be {expected}' if expected else ''})"


MEANING = "Batches and ranges"
"""The group of options that say what is read as what."""

WarmupOption = Annotated[
    int | None,
    typer.Option(
        "-w",
        "--warmup-batches",
        min=0,
        help="Batches excluded as warm-up at both ends of each loop. [default: as launched; 0 for a trace]",
        show_default=False,
        rich_help_panel=MEANING,
    ),
]
PlotsOption = Annotated[
    bool,
    typer.Option(
        "--plots",
        help="Draw the telemetry: telemetry_gpu_N.png, telemetry_host.png and telemetry.html.",
        rich_help_panel="Output",
    ),
]
NsysOption = Annotated[Path | None, typer.Option(help="The nsys that exports an .nsys-rep; else it is looked for.")]


class Parallel(str, Enum):
    """Whether ranks share their items; auto: find out."""

    AUTO = "auto"
    DATA = "data"
    MODEL = "model"


ParallelOption = Annotated[
    Parallel | None,
    typer.Option(
        "--parallel",
        help="Ranks have items of their own (data), or all work on the same ones (model). [default: as the run]",
        show_default=False,
        rich_help_panel=MEANING,
    ),
]
RejectThrottledOption = Annotated[
    bool | None,
    typer.Option(
        "--reject-throttled/--keep-throttled",
        help="Leave out batches that ran while the GPU's clocks were throttled. [default: as the run]",
        show_default=False,
        rich_help_panel=MEANING,
    ),
]
DomainOption = Annotated[
    str | None,
    typer.Option(
        help="Read only this NVTX domain, as plain NVTX; `nvtx` is the default domain.", rich_help_panel=MEANING
    ),
]
BatchPatternOption = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Names of plain NVTX ranges that are batches.", rich_help_panel=MEANING),
]
"""Options of the verbs that read traces."""


SOURCE = "RUN_OR_TRACE"
SOURCE_HELP = "A run, a process of it, a repeat, a sweep, cold starts, or a trace (.sqlite or .nsys-rep)."
"""The argument of every verb that reads results."""


class ClockRefusal(str, Enum):
    """Words of --clock-refusal."""

    GO_ON = "go-on"
    STOP = "stop"


ClockRefusalOption = Annotated[
    ClockRefusal,
    typer.Option("--clock-refusal", help="What to do where a clock setting is refused; stop: restore what was set."),
]


def exit_code(findings: Iterable[Finding]) -> int:
    """3 where any finding is an error, else 0."""
    return EXIT_CHECK_FAILED if any(finding.severity is Severity.ERROR for finding in findings) else EXIT_OK


def split_commas(text: str | None) -> tuple[str, ...]:
    """`a,b` -> ("a", "b"); blanks and empty parts are left out."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def command_line() -> list[str]:
    """What the user typed, for the results."""
    return ["perfharness", *sys.argv[1:]]
