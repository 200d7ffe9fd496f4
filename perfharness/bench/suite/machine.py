"""The machine of a suite: its GPU, the cases on it, and its description in the results."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from perfharness.bench.suite.matrix import PlannedCase, plan_cases
from perfharness.bench.suite.suite import Suite
from perfharness.errors import UsageError
from perfharness.model.bench import MachineRecord
from perfharness.model.manifest import GpuRecord
from perfharness.model.version import VERSION
from perfharness_launcher.plan.gpus import GpuFacts, choose_gpus, find_gpus
from perfharness_launcher.plan.machine import cpu_model


def gpu_of(suite: Suite, facts: GpuFacts) -> GpuRecord | None:
    """The GPU of the suite's CUDA cases; None where there is none, or all run on the CPU. Raises `UsageError`."""
    if suite.run.gpu is not None and not facts.gpus:
        raise UsageError(f"--gpu {suite.run.gpu}: {facts.problem}")
    if not facts.gpus or (suite.device == "cpu" and all(one.device != "cuda" for one in suite.backend)):
        return None
    names = (suite.run.gpu,) if suite.run.gpu is not None else ()
    return choose_gpus(facts.gpus, names=names, visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"))[0]


class Plan(NamedTuple):
    """The cases of a suite on this machine, and the GPU that is used."""

    cases: list[PlannedCase]
    gpu: GpuRecord | None
    machine: MachineRecord


def plan_suite(suite: Suite) -> Plan:
    """Plan a suite for this machine. Raises `UsageError`."""
    facts = find_gpus()
    gpu = gpu_of(suite, facts)
    return Plan(plan_cases(suite, gpu), gpu, machine_of(facts, gpu.uuid if gpu is not None else None))


def machine_of(facts: GpuFacts, uuid: str | None) -> MachineRecord:
    """Description of the machine; `uuid` is that of the GPU in use."""
    return MachineRecord(
        hostname=socket.gethostname(),
        machine_id=_machine_id(),
        cpu=cpu_model(),
        gpus=[gpu.name or gpu.uuid for gpu in facts.gpus if gpu.uuid == uuid],
        driver=facts.driver,
        python=platform.python_version(),
        perfharness=VERSION,
    )


def _machine_id() -> str | None:
    """Digest of the operating system's machine id: the id itself should not leave the machine (machine-id(5))."""
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        with suppress(OSError, UnicodeDecodeError):
            if text := path.read_text(encoding="ascii").strip():
                return hashlib.sha256(f"perfharness {text}".encode()).hexdigest()[:16]
    return None
