"""How options are spelled: dashes or underscores, and several letters after one dash as in CV-CUDA's samples."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

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
    cause: Any = error.__cause__
    if hasattr(cause, "errors") and (option := getattr(error, "param", None)) is not None:
        return f"{option.opts[0]} {problem_text(cause.errors()[0])}"
    return error.format_message() if hasattr(error, "format_message") else str(error)


def problem_text(problem: Any) -> str:
    """A wrong value and what it must be, from a problem that pydantic found."""
    limits = problem.get("ctx", {})
    numbers = {
        "int_parsing": "must be a whole number",
        "float_parsing": "must be a number",
        "greater_than_equal": f"must be {limits.get('ge', 0):g} or more",
        "greater_than": f"must be more than {limits.get('gt', 0):g}",
    }
    text = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{problem['input']}: {numbers.get(problem['type'], text)}"


def exit_code(findings: Iterable[Finding]) -> int:
    """3 where any finding is an error, else 0."""
    return EXIT_CHECK_FAILED if any(finding.severity is Severity.ERROR for finding in findings) else EXIT_OK


def split_commas(text: str | None) -> tuple[str, ...]:
    """`a,b` -> ("a", "b"); blanks and empty parts are left out."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def command_line() -> list[str]:
    """What the user typed, for the results."""
    return ["perfharness", *sys.argv[1:]]
