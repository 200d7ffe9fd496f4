"""The words of a `python …` command line: the interpreter, its own options, and what it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

PYTHON_NAME = re.compile(r"(python|pypy)(\d+(\.\d+)*t?)?")
FLAGS = frozenset("bBdEiIOPqRsSuv")
"""One-letter options of Python that change how a script runs, and nothing else."""


@dataclass(frozen=True)
class PythonCommand:
    """The words of a `python …` that runs a file or a module.

    Args:
        options: of Python itself, `("-X", "dev")`.
        target: the file, or the name of the module.
        arguments: of the script.
    """

    python: str
    options: tuple[str, ...]
    target: str
    is_module: bool
    arguments: tuple[str, ...]


def read_python_command(words: Sequence[str]) -> PythonCommand | None:
    """The words `python [options] FILE …` or `python [options] -m NAME …`; None of any others.

    Python that reads its program from `-c`, from its input or from a folder is None too: it is started as it is.
    """
    if not words or not PYTHON_NAME.fullmatch(os.path.basename(words[0])):  # noqa: PTH119
        return None
    place = 1
    while place < len(words) and words[place].startswith("-"):
        word, place = words[place], place + 1
        if word == "--check-hash-based-pycs":
            place += 1
            continue
        if len(word) == 1 or word.startswith("--"):
            return None
        letters = word[1:].lstrip("".join(FLAGS))
        if not letters:
            continue
        if letters[0] in "WX":
            place += len(letters) == 1
        elif letters[0] == "m" and (name := letters[1:] or "".join(words[place : place + 1])):
            rest = words[place + (len(letters) == 1) :]
            flags = word[: len(word) - len(letters)]  # `-um NAME` is `-u -m NAME`
            options = (*words[1 : place - 1], *((flags,) if flags != "-" else ()))
            return PythonCommand(words[0], options, name, is_module=True, arguments=tuple(rest))
        else:
            return None
    if place >= len(words):
        return None
    options = tuple(words[1:place])
    return PythonCommand(words[0], options, words[place], is_module=False, arguments=tuple(words[place + 1 :]))
