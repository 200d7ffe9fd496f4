"""What SCRIPT is: a Python file, a module, a console script, or a program that may become Python later."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfharness.python_command import PYTHON_NAME, PythonCommand, read_python_command
from perfharness_launcher.plan.options import LaunchOptions
from perfharness_launcher.plan.ranks import PYTHON_LAUNCHERS, starts_ranks

FIRST_BYTES = 1024
SHELLS = ("sh", "bash", "dash")
CHANGE_FOLDER = frozenset({"cd", "pushd", "chroot"})
PYTHON_RUNNERS = ("uv", "pdm", "rye")
"""Their `run FILE` runs a Python file."""

ENVIRONMENT_RUNNERS = ("conda", "mamba", "micromamba")
"""Their `run …` starts a command in an environment of its own; the Python that some are written in is none of ours."""

SAME_PYTHON = ""
"""Where only a file or module is named: it runs in the interpreter of its launcher."""

NO_PYTHON = ("--no-python", "--no_python")
TRAMPOLINE = re.compile(r"'''exec'\s+(?P<words>.+?)\s+\"\$0\"\s+\"\$@\"")
"""The second line of a console script whose interpreter does not fit into a first one, as pip and uv write it."""

OWN_FOLDER = '"$(dirname -- "$(realpath -- "$0")")"'
"""In that line of a script that uv made to be moved with its environment."""


@dataclass(frozen=True)
class Program:
    """What a launch starts.

    Args:
        name: as it was given.
        interpreter: the Python that runs it, with `interpreter_options`; None: it is another program.
        path: of the file; None: a module, or nothing was found.
        module: its name; None: it is no module.
        inner: the Python script that it starts (of torchrun, of `mpirun -n 4 python FILE`), as far as its arguments
            tell; None: it starts none, or what it starts is not known.
        problem: why it cannot be started, one sentence.
    """

    name: str
    interpreter: str | None = None
    interpreter_options: tuple[str, ...] = ()
    path: str | None = None
    module: str | None = None
    inner: Program | None = None
    problem: str | None = None

    @property
    def script(self) -> Program:
        """What makes the ranges, as far as it is known: the script that it starts, or itself."""
        return self.inner or self

    @property
    def is_python(self) -> bool:
        """Whether a Python interpreter is started to run it."""
        return self.interpreter is not None

    @property
    def target(self) -> tuple[str, ...]:
        """What follows the interpreter."""
        return ("-m", self.module) if self.module is not None else (self.path or self.name,)


def find_program(options: LaunchOptions) -> Program:
    """What SCRIPT is, by its name, the files on PATH and their first lines; and what that starts, by its arguments."""
    program = _find(options)
    return replace(program, inner=_inner(program, options))


def _inner(program: Program, options: LaunchOptions) -> Program | None:
    if not program.is_python:
        command = started_python((options.script, *options.script_arguments))
    elif starts_ranks(options):
        command = _of_python_launcher(options.script_arguments)
    else:
        return None
    if command is None:
        return None
    python = command.python or program.interpreter or "python"
    name, module = (None, command.target) if command.is_module else (command.target, None)
    return Program(command.target, python, command.options, name, module)


def started_python(words: Sequence[str]) -> PythonCommand | None:
    """The first `python FILE` or `python -m MODULE` that a command line starts, through any programs that start others:
    `env A=1 python FILE`, `mpirun -n 4 python FILE`, `nice torchrun FILE`, `bash -c "python FILE"`, `uv run FILE`.

    None where it starts none, or what it starts is not known.
    """
    for place, word in enumerate(words):
        rest = words[place + 1 :]
        command = read_python_command(words[place:])
        if command is not None:
            return _of_python_launcher(command.arguments) if command.target in PYTHON_LAUNCHERS else command
        name = Path(word).name
        if name in PYTHON_LAUNCHERS:
            return _of_python_launcher(rest)
        if name in PYTHON_RUNNERS and rest[:1] == ("run",):
            return _of_python_launcher(rest[1:])
        if name in SHELLS:
            return _of_shell(rest)
    return None


def _of_python_launcher(words: Sequence[str]) -> PythonCommand | None:
    """What a program that runs Python files and modules is given: `[options] FILE …`, `[options] -m MODULE …`, or a
    command with `--no-python`.
    """
    module = False
    for place, word in enumerate(words):
        rest = tuple(words[place + 1 :])
        if word in NO_PYTHON or PYTHON_NAME.fullmatch(Path(word).name):
            return started_python(words[place:] if word not in NO_PYTHON else rest)
        if word.endswith(".py") and Path(word).is_file():
            return PythonCommand(SAME_PYTHON, (), word, is_module=False, arguments=rest)
        if module and all(part.isidentifier() for part in word.split(".")):
            return PythonCommand(SAME_PYTHON, (), word, is_module=True, arguments=rest)
        module |= word in ("-m", "--module")
    return None


def _of_shell(words: Sequence[str]) -> PythonCommand | None:
    """What `bash -c TEXT` starts, as far as that is written in the text; None of one that goes to another folder."""
    flags = next((place for place, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)), None)
    if flags is None or flags + 1 >= len(words):
        return None
    lexer = shlex.shlex(words[flags + 1], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        tokens = list(lexer)
    except ValueError:
        return None
    if CHANGE_FOLDER & set(tokens):
        return None
    while tokens:
        end = next(
            (place for place, token in enumerate(tokens) if not token.strip(lexer.punctuation_chars)), len(tokens)
        )
        if (command := started_python(tokens[:end])) is not None:
            return command
        tokens = tokens[end + 1 :]
    return None


def _find(options: LaunchOptions) -> Program:
    name = options.script
    python, *python_options = options.python_command or (options.python,)
    if options.module:
        return Program(name, python, tuple(python_options), module=name)
    if name.endswith(".py") or options.python_command:
        problem = _file_problem(Path(name))
        return Program(name, python, tuple(python_options), name, problem=problem)
    path = shutil.which(name)
    if path is None:
        return Program(name, problem=_program_problem(Path(name)))
    starts_another = Path(name).name in ENVIRONMENT_RUNNERS and options.script_arguments[:1] == ("run",)
    words = None if starts_another else _interpreter_of(Path(path))
    if words is None:
        return Program(name, path=path)
    return Program(name, words[0], tuple(words[1:]), path)


def _interpreter_of(script: Path) -> list[str] | None:
    """The Python and its options that the first line of an executable names; None where it is something else."""
    try:
        with script.open("rb") as file:
            head = file.read(FIRST_BYTES)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    first, _, rest = head[2:].decode(errors="surrogateescape").partition("\n")
    words = _words(first)
    if words and Path(words[0]).name in SHELLS and (found := TRAMPOLINE.match(rest)):
        words = _words(found["words"].replace(OWN_FOLDER, shlex.quote(str(script.resolve().parent))))
    elif words and Path(words[0]).name == "env":
        words = _words(" ".join(words[2:])) if words[1:2] == ["-S"] else words[1:]
    return words if words and PYTHON_NAME.fullmatch(Path(words[0]).name) else None


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return []


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
        return (
            f"{script} does not end in .py, so it runs as a program, but it is not executable; `python {script}` runs"
            " it with Python"
        )
    return f"there is no program {script}, neither as a path nor on PATH (--module names a Python module)"
