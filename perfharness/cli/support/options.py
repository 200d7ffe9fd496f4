"""Exit codes, option spelling, and command-line errors."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import typer

from perfharness.model.findings import Finding, Severity

EXIT_OK = 0
"""Success."""

EXIT_FAILED = 1
"""A process or perfharness failed, results could not be written, or Ctrl-C."""

EXIT_USAGE = 2
"""The command line is wrong; nothing was started."""

EXIT_CHECK_FAILED = 3
"""A check failed (a finding of severity `error`), or nothing could be measured."""


def spelled_with_dashes(token: str) -> str:
    """`--maximize_clocks` -> `--maximize-clocks`. Typer calls it for option names and choices."""
    return token.replace("_", "-")


CONTEXT: dict[str, Any] = {"token_normalize_func": spelled_with_dashes, "help_option_names": ["-h", "--help"]}
"""Context settings of every verb."""

CONTEXT_OF_A_COMMAND_LINE: dict[str, Any] = {**CONTEXT, "allow_interspersed_args": False}
"""The same for a verb that ends in another command line: its options end at the first argument."""


CommandLineError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""Typer's error for a wrong command line, from click or from the click inside newer versions."""


def command_line_error(error: Exception) -> str:
    """Describe an error of the command line; name the option in errors of pydantic."""
    cause: Any = error.__cause__
    if hasattr(cause, "errors") and (option := getattr(error, "param", None)) is not None:
        return f"{option.opts[0]} {problem_text(cause.errors()[0])}"
    return error.format_message() if hasattr(error, "format_message") else str(error)


def problem_text(problem: Any) -> str:
    """Describe a pydantic error: the wrong value and what it must be."""
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
    """3 if any finding is an error, else 0."""
    return EXIT_CHECK_FAILED if any(finding.severity is Severity.ERROR for finding in findings) else EXIT_OK


def split_commas(text: str | None) -> tuple[str, ...]:
    """`a, b,` -> ("a", "b")."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def command_line() -> list[str]:
    """Command line of this process, for the results."""
    return ["perfharness", *sys.argv[1:]]
