"""Which node a launch is on, by its environment; what cannot be measured on several nodes; clock offsets."""

from __future__ import annotations

import pytest

from perfharness.cluster import find_node
from perfharness.cluster.member import measure_offset
from perfharness.errors import UsageError

ENGINES = {
    "own": {"PERFHARNESS_NODE_RANK": "1", "PERFHARNESS_NODES": "2"},
    "Slurm": {"SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "a@1"},
    "Kubernetes": {"JOB_COMPLETION_INDEX": "1", "PERFHARNESS_NODES": "2"},
    "SkyPilot": {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_TASK_ID": "t"},
}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_environment_tells_the_node(engine: str) -> None:
    node = find_node(ENGINES[engine])
    assert (node.rank, node.count) == (1, 2)
    assert "/" not in node.launch


def test_an_engine_inside_another_counts() -> None:
    own = {"PERFHARNESS_NODE_RANK": "3", "PERFHARNESS_NODES": "4"}
    assert find_node({**ENGINES["Slurm"], **own}).rank == 3
    assert find_node({**ENGINES["Slurm"], **ENGINES["Open MPI"], "OMPI_COMM_WORLD_RANK": "0"}).rank == 0


OWN = ENGINES["own"]
WRONG = {
    "nothing": ({}, "srun"),
    "batch script": ({"SLURM_NODEID": "0"}, "srun"),
    "no count": ({"JOB_COMPLETION_INDEX": "0"}, "PERFHARNESS_NODES"),
    "no number": ({**OWN, "PERFHARNESS_NODES": "two"}, "two"),
    "beyond": ({**OWN, "PERFHARNESS_NODE_RANK": "2"}, "PERFHARNESS_NODE_RANK"),
    "no port": ({**OWN, "PERFHARNESS_COORDINATOR": "host"}, "HOST:PORT"),
    "no secret": ({**OWN, "PERFHARNESS_COORDINATOR": "host:29400"}, "PERFHARNESS_NODES_TOKEN"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_the_environment_lacks_is_named(case: str) -> None:
    environ, named = WRONG[case]
    with pytest.raises(UsageError, match=named):
        find_node(environ)


@pytest.mark.parametrize("ahead_ns", [3_217_000_000, -86_400_000_000_000, 0])
@pytest.mark.parametrize("delays_ns", [(900, 100), (100, 900), (50_000, 700)])
def test_the_error_of_a_clock_offset_bounds_it(ahead_ns: int, delays_ns: tuple[int, int]) -> None:
    there_ns, back_ns = delays_ns
    now_ns = 1_000_000_000

    def wait(ns: int) -> int:
        nonlocal now_ns
        now_ns += ns
        return now_ns

    def ask() -> int:
        read_ns = wait(there_ns) + ahead_ns
        wait(back_ns)
        return read_ns

    offset = measure_offset(ask, lambda: wait(20))
    assert abs(offset.offset_ns - ahead_ns) <= offset.error_ns <= there_ns + back_ns
