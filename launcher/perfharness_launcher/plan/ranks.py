"""Programs that start ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfharness.python_command import PYTHON_NAME, read_python_command
from perfharness_launcher.plan.options import LaunchOptions

PYTHON_LAUNCHERS = frozenset(
    {
        "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "accelerate-launch",
        "accelerate.commands.launch", "deepspeed",
    }
)  # fmt: skip
"""Those that are written in Python, and are given a Python file, or a module, rather than a command."""

RANK_LAUNCHERS = PYTHON_LAUNCHERS | {"mpirun", "mpiexec", "orterun", "prterun", "srun"}
"""By the name of the program or module."""


def starts_ranks(options: LaunchOptions) -> bool:
    """Whether SCRIPT is a known program that starts ranks."""
    return (options.script if options.module else Path(options.script).name) in RANK_LAUNCHERS


def own_arguments(options: LaunchOptions) -> Sequence[str]:
    """The arguments of SCRIPT itself: of a program that starts ranks, those of what it starts, if that is known."""
    words = options.script_arguments
    if not starts_ranks(options):
        return words
    place = _inner(words)
    python = read_python_command(words[place:])
    return words[place + 1 :] if python is None else python.arguments


def _inner(words: Sequence[str]) -> int:
    """Where the program that has the ranks begins, whose options are its own; after the last word: it is not seen."""
    is_inner = (word.endswith(".py") or PYTHON_NAME.fullmatch(Path(word).name) for word in words)
    return next((place for place, found in enumerate(is_inner) if found), len(words))
