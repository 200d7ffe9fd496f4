"""Number and count of the nodes of a launch, from the engine's environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfharness.errors import UsageError
from perfharness.model import environment

HINT = (
    "Start it with srun, mpirun, SkyPilot or an Indexed Job of Kubernetes, or set "
    f"{environment.NODE_RANK} and {environment.NODES}."
)


@dataclass(frozen=True)
class Engine:
    """Environment variables of an engine. Those in `launch` identify a launch; `hint` is the step without `count`."""

    rank: str
    count: str
    launch: tuple[str, ...] = ()
    hint: str = ""


ENGINES = (
    Engine(environment.NODE_RANK, environment.NODES, hint=f"Set {environment.NODES} to the number of nodes."),
    Engine("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", ("SKYPILOT_TASK_ID",)),
    Engine("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    Engine(
        "SLURM_NODEID",
        "SLURM_STEP_NUM_NODES",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        "In a batch script, start it with srun.",
    ),
    Engine("JOB_COMPLETION_INDEX", environment.NODES, hint=f"Set {environment.NODES} to the completions of the Job."),
)
"""The first engine whose `rank` is set counts, so inner engines precede outer ones."""

ELASTIC = re.compile(r"--nnodes[= ](\d*:\d+)")
RESTARTS = re.compile(r"--max[-_]restarts[= ]0*[1-9]")


@dataclass(frozen=True)
class Node:
    """A node of a launch; `launch` identifies it, and is empty if unknown.

    Args:
        address: host and port of node 0, or None if node 0 writes them to a file in the output folder.
    """

    rank: int
    count: int
    launch: str = ""
    address: tuple[str, int] | None = None
    token: bytes = b""


def find_node(environ: Mapping[str, str]) -> Node:
    """Return the node of this launch. Raises `UsageError` if the environment does not identify it."""
    engine = next((one for one in ENGINES if environ.get(one.rank)), None)
    if engine is None:
        raise UsageError(f"--nodes: the environment does not say which node this is. {HINT}")
    if not environ.get(engine.count):
        raise UsageError(f"--nodes: {engine.rank} is set but {engine.count} is not. {engine.hint}".rstrip())
    rank, count = _number(environ, engine.rank), _number(environ, engine.count)
    if rank >= count:
        raise UsageError(f"--nodes: {engine.rank}={rank} must be below {engine.count}={count}.")
    launch = "-".join(re.sub(r"[^\w.]", "_", environ[name]) for name in engine.launch if environ.get(name))
    return Node(rank, count, launch, *_address(environ))


def _number(environ: Mapping[str, str], name: str) -> int:
    if not re.fullmatch(r"\d{1,6}", environ[name], re.ASCII):
        raise UsageError(f"--nodes: {name}={environ[name]} must be a number.")
    return int(environ[name])


def _address(environ: Mapping[str, str]) -> tuple[tuple[str, int] | None, bytes]:
    coordinator, token = (environ.get(name, "") for name in (environment.COORDINATOR, environment.NODES_TOKEN))
    if not coordinator:
        return None, b""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"{environment.COORDINATOR}={coordinator} must be HOST:PORT of node 0.")
    if not token:
        raise UsageError(f"{environment.COORDINATOR} needs {environment.NODES_TOKEN}, the same secret on all nodes.")
    return (host.strip("[]"), int(port)), token.encode()


def refuse_elastic(command: Sequence[str]) -> None:
    """Raise `UsageError` if torchrun may change the number of nodes or restart ranks."""
    words = " ".join(command)
    if (found := ELASTIC.search(words)) is not None:
        raise UsageError(f"--nodes needs a fixed number of nodes; give torchrun --nnodes N, not {found[1]}.")
    if RESTARTS.search(words):
        raise UsageError("--nodes cannot measure restarted ranks; remove --max-restarts.")
