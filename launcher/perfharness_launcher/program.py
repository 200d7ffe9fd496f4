"""Find the program to launch, and the Python script that it runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PYTHON_NAME = re.compile(r"(python|pypy)(\d+(\.\d+)*t?)?")
PYTHON_OPTION = re.compile(r"-(?P<flags>[bBdEiIOPqRsSuv]*)(?P<key>[cmWX]?)(?P<value>.*)")

PYTHON_LAUNCHERS = (
    *("torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed"),
    *("accelerate", "accelerate-launch", "accelerate.commands.launch"),
)
"""Programs and modules that start a Python file as ranks."""

COMMAND_LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "srun")
"""Programs that start a command as ranks."""


@dataclass(frozen=True)
class PythonCommand:
    """A command that runs a Python file or module (`target`)."""

    python: str
    options: tuple[str, ...]
    target: str
    is_module: bool
    arguments: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The command line after the interpreter."""
        return (*self.options, *(("-m",) if self.is_module else ()), self.target, *self.arguments)

    @property
    def ignored_hook(self) -> str | None:
        """Why Python does not import the start-up hook, or None."""
        options = ((word, PYTHON_OPTION.fullmatch(word)) for word in self.options)
        off = next((word for word, option in options if option and {*"EIS"} & {*option["flags"]}), None)
        return f"Python with {off} does not import the start-up hook; drop {off}" if off else None


@dataclass(frozen=True)
class Program:
    """A program to launch, or the `problem` with it.

    Args:
        python: the command, if it is Python.
        script: the Python script with the ranges, if known; for torchrun, the script that it starts.
    """

    command: tuple[str, ...]
    python: PythonCommand | None = None
    script: PythonCommand | None = None
    problem: str | None = None

    @property
    def script_arguments(self) -> tuple[str, ...]:
        """Arguments of the script, also if a launcher of ranks starts it."""
        if self.script is not None:
            return self.script.arguments
        starts_ranks = self.python is not None or Path(self.command[0]).name in COMMAND_LAUNCHERS
        return () if starts_ranks else self.command[1:]


def find_program(
    script: str, arguments: Sequence[str], python: Sequence[str], *, is_module: bool, is_file: bool
) -> Program:
    """Find the program for SCRIPT, by its name and the files on PATH.

    Args:
        python: interpreter and options for a `.py` file or module.
        is_file: whether SCRIPT is a Python file even without the suffix `.py`.
    """
    if is_module or is_file or script.endswith(".py"):
        command = PythonCommand(python[0], tuple(python[1:]), script, is_module, tuple(arguments))
        words = (shutil.which(python[0]) or python[0], *command.words)
        problem = None if is_module else _file_problem(Path(script))
        starts_ranks = is_module and script in PYTHON_LAUNCHERS
        return Program(words, command, _started_python(arguments, python[0]) if starts_ranks else command, problem)
    path = shutil.which(script)
    if path is None:
        return Program((script, *arguments), problem=_program_problem(Path(script)))
    words = (path, *arguments)
    interpreter = _interpreter_of(Path(path))
    if interpreter is None:
        return Program(words, None, _started_python((script, *arguments)))
    command = PythonCommand(interpreter[0], tuple(interpreter[1:]), path, is_module=False, arguments=tuple(arguments))
    if Path(script).name in PYTHON_LAUNCHERS:
        return Program(words, command, _started_python(arguments, command.python))
    inner = _started_python(arguments)  # as `conda run python FILE`
    return Program(words, command, command) if inner is None else Program(words, None, inner)


def read_python_command(words: Sequence[str]) -> PythonCommand | None:
    """Read `python [options] FILE …` or `python [options] -m NAME …`.

    Other commands, such as `python -c …` and `python` with a program on its input, return None.
    """
    if not words or not PYTHON_NAME.fullmatch(Path(words[0]).name):
        return None
    options: list[str] = []
    rest = list(words[1:])
    while rest and (option := PYTHON_OPTION.fullmatch(rest[0])):
        word, flags, key, value = rest.pop(0), *option.groups()
        takes = [value] if value else rest[:1]
        if not flags + key or key == "c" or (value and not key) or (key and not takes):
            return None
        if key and not value:
            del rest[:1]
        if key == "m":
            options += [f"-{flags}"] if flags else []  # `-um NAME` is `-u -m NAME`
            return PythonCommand(words[0], tuple(options), takes[0], is_module=True, arguments=tuple(rest))
        options += [word] if value or not key else [word, *takes]
    return PythonCommand(words[0], tuple(options), rest[0], False, tuple(rest[1:])) if rest else None


def _started_python(words: Sequence[str], python: str | None = None) -> PythonCommand | None:
    """First Python script that a command starts, as in `env A=1 python FILE` or `nice torchrun FILE`.

    Args:
        python: interpreter of a launcher of ranks, which takes `FILE` or `-m MODULE`; None for other commands.
    """
    for place, word in enumerate(words):
        rest = tuple(words[place + 1 :])
        if (command := read_python_command(words[place:])) is not None:
            starts_ranks = command.is_module and command.target in PYTHON_LAUNCHERS
            return _started_python(command.arguments, command.python) if starts_ranks else command
        if Path(word).name in PYTHON_LAUNCHERS:
            return _started_python(rest, "python")
        if python is not None and word.endswith(".py") and Path(word).is_file():
            return PythonCommand(python, (), word, is_module=False, arguments=rest)
        if python is not None and word in ("-m", "--module") and rest and not rest[0].startswith("-"):
            return PythonCommand(python, (), rest[0], is_module=True, arguments=rest[1:])
    return None


def _interpreter_of(script: Path) -> list[str] | None:
    """Python and its options in the first line of a console script, or None."""
    try:
        with script.open("rb") as file:
            first = file.readline(1024).decode(errors="surrogateescape")
        words = shlex.split(first[2:]) if first.startswith("#!") else []
    except (OSError, ValueError):
        return None
    if words and Path(words[0]).name == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    return words if words and PYTHON_NAME.fullmatch(Path(words[0]).name) else None


def _file_problem(script: Path) -> str | None:
    if script.is_dir():
        return None if (script / "__main__.py").is_file() else f"{script} is a folder, not a script"
    if not script.exists():
        return f"script {script} not found"
    return None if os.access(script, os.R_OK) else f"{script} cannot be read"


def _program_problem(script: Path) -> str:
    if script.is_dir():
        return f"{script} is a folder, not a program"
    if script.exists():
        return f"{script} is not executable; to run it with Python: python {script}"
    return f"program {script} not found; for a Python module, add --module"
