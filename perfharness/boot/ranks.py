"""Rank of this process in a distributed program, from its environment or library, and its start time.

Standard library only, because it runs in the measured process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from perfharness.model import environment

SOURCES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE", "PMI_ID"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "PMI_FD"),
    ("PMIX_RANK", "PMIX_LOCAL_RANK", "PMIX_SIZE", "PMIX_NAMESPACE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_ID"),
)
"""Variables with the rank, local rank, number of ranks, and a value that identifies the start.

The first source with a rank counts, so torchrun precedes the Slurm step that contains it.
"""


def rank_facts(environ: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """Return `rank`, `local_rank`, `world_size` and `source` (the variable or module), or None.

    Ignores the rank of the launch itself, such as that of its Slurm step, unless PyTorch or mpi4py
    uses it: independent programs in one step have these variables, too.

    Args:
        environ: environment to read, or None for that of this process, then its libraries.
    """
    given = os.environ if environ is None else environ
    outer = dict(part.partition("=")[::2] for part in given.get(environment.OUTER_RANK, "").split(";"))
    for names in SOURCES:
        rank, local_rank, world_size = (_number(given.get(name)) for name in names[:3])
        if rank is not None and any(given.get(name) != outer.get(name) for name in names):
            return {"rank": rank, "local_rank": local_rank, "world_size": world_size, "source": names[0]}
    return _rank_of_library() if environ is None else None


def _rank_of_library() -> dict[str, Any] | None:
    """Rank in a group of several processes of PyTorch or mpi4py, if imported."""
    for module, read in LIBRARIES.items():
        with suppress(Exception):  # not imported, or not completely
            rank, world_size = read(sys.modules[module])
            if world_size > 1:
                return {"rank": rank, "local_rank": None, "world_size": world_size, "source": module}
    return None


def _torch_rank(distributed: Any) -> tuple[int, int]:
    return (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)


def _mpi_rank(mpi: Any) -> tuple[int, int]:
    if mpi.Is_finalized() or not mpi.Is_initialized():  # other calls would end the process
        return 0, 1
    return mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()


LIBRARIES: dict[str, Callable[[Any], tuple[int, int]]] = {"torch.distributed": _torch_rank, "mpi4py.MPI": _mpi_rank}
"""Functions of a library's module that return the rank and the number of ranks."""

LOCAL_SIZES = {
    "RANK": "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_RANK": "MV2_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK": "MPI_LOCALNRANKS",
}
"""Variable with the number of ranks on this host, by variable with the rank."""


def ranks_here(facts: Mapping[str, Any]) -> int | None:
    """Number of ranks on this host, else in all, or None if unknown."""
    local = _number(os.environ.get(LOCAL_SIZES.get(facts["source"], "")))
    size: int | None = facts["world_size"] if local is None else local
    return size


def outer_rank(environ: Mapping[str, str]) -> str:
    """Rank variables of the launch itself, for `environment.OUTER_RANK`."""
    names = dict.fromkeys(name for source in SOURCES for name in source)
    return ";".join(f"{name}={environ[name]}" for name in names if name in environ and ";" not in environ[name])


def ancestors() -> list[int]:
    """Process IDs of the ancestors, nearest first; only the parent if others are hidden."""
    pid, found = os.getppid(), [os.getppid()]
    try:
        while pid > 1 and len(found) < 64:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib costs start-up time
                pid = int(file.read().rpartition(b")")[2].split()[1])
            found.append(pid)
    except (OSError, ValueError, IndexError):
        pass
    return found


def start_ticks() -> int | None:
    """Start of this process in clock ticks (10 ms) since boot, or None if hidden. `os.exec…` keeps it."""
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib costs start-up time
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
