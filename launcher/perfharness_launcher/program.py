"""What SCRIPT is, and which Python script it runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PYTHON_NAME = re.compile(r"(python|pypy)(\d+(\.\d+)*t?)?")
FLAGS = "bBdEiIOPqRsSuv"
"""One-letter options of Python that change how a script runs, and nothing else."""

RANK_LAUNCHERS = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), True),
    **dict.fromkeys(("accelerate", "accelerate-launch", "accelerate.commands.launch", "deepspeed"), True),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", "srun"), False),
}
"""Programs and modules that start ranks, and whether they are given a Python file rather than a command."""


@dataclass(frozen=True)
class PythonCommand:
    """A command that runs a Python file or module.

    Args:
        python: the interpreter.
        options: of the interpreter, `("-X", "dev")`.
        target: the file, or the name of the module.
        arguments: of the script.
    """

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
        """Why Python does not import the start-up hook, if that is known."""
        off = [word for word in self.options if re.fullmatch(f"-[{FLAGS}]*[EIS][a-zA-Z]*", word)]
        return f"Python with {off[0]} does not import the start-up hook; drop {off[0]}" if off else None


@dataclass(frozen=True)
class Program:
    """A program to launch.

    Args:
        command: the program and its arguments.
        python: how it runs, if it is Python.
        script: the Python script that has the ranges, if it is known: of torchrun, the one that it starts.
        starts_ranks: whether it is a known launcher of ranks.
        problem: why it cannot be started.
    """

    command: tuple[str, ...]
    python: PythonCommand | None = None
    script: PythonCommand | None = None
    starts_ranks: bool = False
    problem: str | None = None

    @property
    def script_arguments(self) -> tuple[str, ...]:
        """The arguments of the script; of a launcher of ranks, those of the script that it starts."""
        if self.script is not None:
            return self.script.arguments
        return () if self.starts_ranks else self.command[1:]


def find_program(
    script: str, arguments: Sequence[str], python: Sequence[str], *, is_module: bool = False, is_file: bool = False
) -> Program:
    """Find out what SCRIPT is by its name and the file on PATH.

    Args:
        python: the interpreter of a `.py` file or module, and its options.
        is_module: SCRIPT is the name of a module.
        is_file: SCRIPT is a Python file, whatever its name ends in.
    """
    if is_module or is_file or script.endswith(".py"):
        command = PythonCommand(python[0], tuple(python[1:]), script, is_module, tuple(arguments))
        words = (shutil.which(python[0]) or python[0], *command.words)
        starts_ranks = is_module and script in RANK_LAUNCHERS
        inner = _of_rank_launcher(arguments, python[0]) if starts_ranks else command
        return Program(words, command, inner, starts_ranks, None if is_module else _file_problem(Path(script)))
    starts_ranks = Path(script).name in RANK_LAUNCHERS
    path = shutil.which(script)
    if path is None:
        return Program((script, *arguments), starts_ranks=starts_ranks, problem=_program_problem(Path(script)))
    words = (path, *arguments)
    interpreter = _interpreter_of(Path(path))
    if interpreter is None:
        return Program(words, None, started_python((script, *arguments)), starts_ranks)
    command = PythonCommand(interpreter[0], tuple(interpreter[1:]), path, is_module=False, arguments=tuple(arguments))
    if starts_ranks:
        return Program(words, command, _of_rank_launcher(arguments, command.python), starts_ranks)
    inner = started_python(arguments)  # a program that starts others, as `conda run python FILE`
    return Program(words, command, command) if inner is None else Program(words, None, inner)


def read_python_command(words: Sequence[str]) -> PythonCommand | None:
    """Read `python [options] FILE …` or `python [options] -m NAME …`; None for any other command.

    Python that reads its program from `-c` or from its input is None too: it is started as it is.
    """
    if not words or not PYTHON_NAME.fullmatch(Path(words[0]).name):
        return None
    options: list[str] = []
    rest = list(words[1:])
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        letters = word[1:].lstrip(FLAGS)
        flags = word[: len(word) - len(letters)]
        if word == "-" or (word.startswith("--") and word != "--check-hash-based-pycs"):
            return None
        if letters[:1] == "m" and (name := letters[1:] or (rest.pop(0) if rest else "")):
            options += [flags] if flags != "-" else []  # `-um NAME` is `-u -m NAME`
            return PythonCommand(words[0], tuple(options), name, is_module=True, arguments=tuple(rest))
        if letters and letters[0] not in "WX-":
            return None
        options.append(word)
        if letters in ("W", "X") or word.startswith("--"):
            options += rest[:1]
            del rest[:1]
    if not rest:
        return None
    return PythonCommand(words[0], tuple(options), rest[0], is_module=False, arguments=tuple(rest[1:]))


def started_python(words: Sequence[str]) -> PythonCommand | None:
    """The first Python script that a command starts, through programs that start others, as in
    `env A=1 python FILE`, `mpirun -n 4 python FILE` or `nice torchrun FILE`, if it can be read off the words.
    """
    for place, word in enumerate(words):
        command = read_python_command(words[place:])
        if command is not None:
            known = command.is_module and command.target in RANK_LAUNCHERS
            return _of_rank_launcher(command.arguments, command.python) if known else command
        if RANK_LAUNCHERS.get(Path(word).name):
            return _of_rank_launcher(words[place + 1 :], "python")
    return None


def _of_rank_launcher(words: Sequence[str], python: str) -> PythonCommand | None:
    """The script in `[options] FILE …`, `[options] -m MODULE …` or `[options] python FILE …`."""
    for place, word in enumerate(words):
        rest = tuple(words[place + 1 :])
        if PYTHON_NAME.fullmatch(Path(word).name):
            return read_python_command(words[place:])
        if word.endswith(".py") and Path(word).is_file():
            return PythonCommand(python, (), word, is_module=False, arguments=rest)
        if word in ("-m", "--module") and rest and not rest[0].startswith("-"):
            return PythonCommand(python, (), rest[0], is_module=True, arguments=rest[1:])
    return None


def _interpreter_of(script: Path) -> list[str] | None:
    """The Python, and its options, that the first line of a console script names."""
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
        return f"there is no script {script}"
    return None if os.access(script, os.R_OK) else f"{script} cannot be read"


def _program_problem(script: Path) -> str:
    if script.is_dir():
        return f"{script} is a folder, not a program"
    if script.exists():
        return f"{script} is not executable; to run it with Python: python {script}"
    return f"there is no program {script}; for a Python module, add --module"
