"""Programs that start ranks."""

from __future__ import annotations

import pytest

from perfharness_launcher.plan.options import LaunchOptions
from perfharness_launcher.plan.ranks import own_arguments


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
