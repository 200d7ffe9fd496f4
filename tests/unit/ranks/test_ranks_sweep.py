"""A sweep over ranks: how their number gets into the command, and what the curve says of each launch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from perfharness.model.measured import MeasuredProcess
from perfharness.runs.files.run_folder import RunSummary
from perfharness.runs.series.scaling import ScalingRow, find_knee, scaling_points
from perfharness.runs.series.sweep import scaling_row
from perfharness_launcher.plan.options import LaunchOptions
from perfharness_launcher.plan.ranks import own_arguments, with_ranks
from tests.unit.run_records import manifest_of, process


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun --nproc-per-node 1 a.py --nproc-per-node 9", "--nproc-per-node 4 a.py --nproc-per-node 9"),
        ("/venv/bin/torchrun --nproc_per_node=gpu a.py", "--nproc_per_node=4 a.py"),
        ("torchrun a.py", "--nproc-per-node 4 a.py"),
        ("torchrun --nnodes 1 -m pkg.mod", "--nproc-per-node 4 --nnodes 1 -m pkg.mod"),
        ("mpirun -np 2 python -n a.py -np 3", "-np 4 python -n a.py -np 3"),
        ("mpiexec ./a.out", "-n 4 ./a.out"),
        ("srun --ntasks=2 python3 a.py", "--ntasks=4 python3 a.py"),
        ("accelerate launch a.py", "launch --num_processes 4 a.py"),
        ("accelerate launch --num_processes 2 a.py", "launch --num_processes 4 a.py"),
        ("deepspeed --num_gpus 1 a.py", "--num_gpus 4 a.py"),
        ("run.sh --ranks={ranks} {ranks}", "--ranks=4 4"),
        ("torchrun --nproc-per-node 2 a.py --shards {ranks}", "--nproc-per-node 2 a.py --shards 4"),
    ],
)
def test_the_number_of_ranks_is_put_into_the_command(command: str, expected: str) -> None:
    script, *arguments = command.split()
    assert " ".join(with_ranks(LaunchOptions(script=script, script_arguments=tuple(arguments)), 4)) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("a.py -np 2", "-np 2"),
        ("torchrun --nproc-per-node 2 a.py -w 1", "-w 1"),
        ("mpirun -np 4 python -m pkg -w 1", "-w 1"),
        ("mpirun -np 4 python -u a.py", ""),
        ("mpirun -np 4 ./a.out -o x", ""),
    ],
)
def test_which_arguments_are_the_script_s_own(command: str, expected: str) -> None:
    script, *arguments = command.split()
    options = LaunchOptions(script=script, script_arguments=tuple(arguments))
    assert list(own_arguments(options)) == expected.split()


def row(ranks: dict[str, Any] | None, world_sizes: list[int | None], number: int = 2) -> ScalingRow:
    """Of a launch whose throughput was 8 items/s."""
    launched = process(0).model_copy(
        update={
            "measured": [
                MeasuredProcess(folder=f"proc_0_gpu_0/rank_{rank}", launched_index=0, pid=rank + 1, world_size=size)
                for rank, size in enumerate(world_sizes)
            ]
        }
    )
    throughput = {"items_per_second": 8.0, "reason": None, "window_ms": 1.0, "concurrency": None}
    mean = {"throughput": throughput, "stats_minus_warmup": {}, **({"ranks": ranks} if ranks else {})}
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(RunSummary)}
    summary = RunSummary(**{**values, "mean": mean, "results": {}, "findings": []})
    return scaling_row(number, "ranks_2", manifest_of(launched), summary, "ranks")


GROUP = {"ranks": [{"communication_share": 0.2}, {"communication_share": 0.4}], "reason": None}


@pytest.mark.parametrize(
    ("ranks", "share", "reason"),
    [
        ({"groups": [GROUP]}, 0.3, None),
        ({"groups": [{"ranks": [], "reason": "no collectives"}]}, None, "no collectives"),
        ({"groups": [GROUP, GROUP]}, None, "there are 2 groups of ranks"),
        (None, None, "fewer than two ranks were measured"),
    ],
)
def test_the_share_of_communication_is_the_mean_over_the_ranks(
    ranks: dict[str, Any] | None, share: float | None, reason: str | None
) -> None:
    found = row(ranks, [2, 2])
    assert (found.status, found.items_per_second) == ("ok", 8.0)
    assert found.communication_share == (None if share is None else pytest.approx(share))
    assert found.communication_reason == reason


def test_a_launch_with_another_number_of_ranks_has_no_numbers() -> None:
    """The number did not reach the program, so its throughput is no point of the curve."""
    wrong = row({"groups": [GROUP]}, [4, 4, 4, 4])
    assert (wrong.status, wrong.items_per_second) == ("failed", None)
    unknown = row({"groups": [GROUP]}, [None, None])
    assert (unknown.status, unknown.items_per_second) == ("ok", 8.0)


def test_strong_scaling_by_hand() -> None:
    """100, 180 and 220 items/s with 1, 2 and 4 ranks: efficiencies 1, 0.9 and 0.55; from 2 on a rank brings 0.2."""
    rows = [
        ScalingRow(num_processes=number, folder=f"ranks_{number}", status="ok", items_per_second=items)
        for number, items in ((1, 100.0), (2, 180.0), (4, 220.0))
    ]
    points = scaling_points(rows)
    assert [point.efficiency for point in points] == pytest.approx([1.0, 0.9, 0.55])
    assert find_knee(points, "ranks").num_processes == 2
