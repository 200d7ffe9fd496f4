"""Programs that start ranks: how each is told their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perfharness.errors import UsageError
from perfharness.python_command import PYTHON_NAME, read_python_command
from perfharness_launcher.plan.options import LaunchOptions

PLACEHOLDER = "{ranks}"

PER_NODE = ("--nproc-per-node", "--nproc_per_node")
ACCELERATE = ("--num_processes", "--num-processes")
MPI = ("-n", "-np", "--np")

RANK_OPTIONS: Mapping[str, Sequence[str]] = {
    "torchrun": PER_NODE,
    "torch.distributed.run": PER_NODE,
    "torch.distributed.launch": PER_NODE,
    "accelerate": ACCELERATE,
    "accelerate-launch": ACCELERATE,
    "accelerate.commands.launch": ACCELERATE,
    "deepspeed": ("--num_gpus",),
    "mpirun": MPI,
    "mpiexec": MPI,
    "orterun": MPI,
    "prterun": MPI,
    "srun": ("-n", "--ntasks"),
}
"""By the name of the program or module: its options for the number of ranks."""

PYTHON_LAUNCHERS = frozenset(RANK_OPTIONS) - {"mpirun", "mpiexec", "orterun", "prterun", "srun"}
"""Those that are written in Python, and are given a Python file, or a module, rather than a command."""


def rank_options(options: LaunchOptions) -> Sequence[str]:
    """The options by which SCRIPT is told the number of its ranks; empty where it is no program that starts ranks."""
    return RANK_OPTIONS.get(options.script if options.module else Path(options.script).name, ())


def with_ranks(options: LaunchOptions, number: int) -> tuple[str, ...]:
    """The arguments of SCRIPT for so many ranks: in place of `{ranks}`, or of the number that its option has.

    Raises `UsageError` where neither is there and the program is not known.
    """
    words = options.script_arguments
    if any(PLACEHOLDER in word for word in words):
        return tuple(word.replace(PLACEHOLDER, str(number)) for word in words)
    flags = rank_options(options)
    if not flags:
        raise UsageError(
            f"--ranks-sweep: how {options.script} is told the number of its ranks is not known; write {PLACEHOLDER}"
            " where it belongs, as in `mpirun -n {ranks} python script.py`"
        )
    for place, word in enumerate(words[: _inner(words)]):
        name, equals, _ = word.partition("=")
        if name in flags and equals:
            return (*words[:place], f"{name}={number}", *words[place + 1 :])
        if name in flags and place + 1 < len(words):
            return (*words[: place + 1], str(number), *words[place + 2 :])
    first = 1 if words[:1] == ("launch",) else 0  # of `accelerate launch`
    return (*words[:first], flags[0], str(number), *words[first:])


def own_arguments(options: LaunchOptions) -> Sequence[str]:
    """The arguments of SCRIPT itself: of a program that starts ranks, those of what it starts, if that is known."""
    words = options.script_arguments
    if not rank_options(options):
        return words
    place = _inner(words)
    python = read_python_command(words[place:])
    return words[place + 1 :] if python is None else python.arguments


def _inner(words: Sequence[str]) -> int:
    """Where the program that has the ranks begins, whose options are its own; after the last word: it is not seen."""
    is_inner = (word.endswith(".py") or PYTHON_NAME.fullmatch(Path(word).name) for word in words)
    return next((place for place, found in enumerate(is_inner) if found), len(words))
