"""Plans of launches on machines that are described, not found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfharness.errors import UsageError
from perfharness.model.manifest import GpuRecord
from perfharness_launcher.gpus import GpuFacts
from perfharness_launcher.machine import InterpreterFacts, MachineFacts
from perfharness_launcher.nsys import NsysInstall
from perfharness_launcher.options import LaunchOptions
from perfharness_launcher.plan import LaunchPlan, make_plan
from perfharness_launcher.program import find_program

PYTHON = InterpreterFacts("/usr/bin/python3", "3.11.7", "0.2.11", has_perfharness=True)
NSYS = NsysInstall(
    Path("/opt/nsys"),
    version=(2025, 3, 1),
    version_text="2025.3.1",
    profile_options=frozenset({"trace", "sample", "cpuctxsw", "wait", "force-overwrite"}),
    source="PATH",
)
ONE_GPU = GpuFacts((GpuRecord(index=0, uuid="GPU-aaaa", name="H200"),))
TWO_GPUS = GpuFacts((*ONE_GPU.gpus, GpuRecord(index=1, uuid="GPU-bbbb", name="H200")))
MIG = GpuFacts((GpuRecord(index=0, uuid="MIG-1111", mig=True),))


def plan_of(options: LaunchOptions, facts: dict[str, Any] | None = None) -> LaunchPlan:
    """The plan of a launch, whether or not there is such a script."""
    python = options.python_command or (options.python,)
    kind = {"is_module": options.module, "is_file": bool(options.python_command)}
    program = replace(find_program(options.script, options.script_arguments, python, **kind), problem=None)
    machine = {"program": program, "interpreter": PYTHON, **(facts or {})}
    return make_plan(options, MachineFacts(**machine))


def plan(facts: dict[str, Any] | None = None, **options: Any) -> LaunchPlan:
    """The plan of `pipeline.py` with options."""
    return plan_of(LaunchOptions(**{"script": "pipeline.py", **options}), facts)


def refusal(facts: dict[str, Any] | None = None, **options: Any) -> str:
    """Why there is no such plan."""
    with pytest.raises(UsageError) as caught:
        plan(facts, **options)
    return str(caught.value)
