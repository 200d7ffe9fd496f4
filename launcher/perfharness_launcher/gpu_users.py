"""Other processes on the GPUs of a launch: before its first process, and after its last one.

NVML lists who has a context on a GPU, except processes of another container.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from perfharness.errors import LaunchError
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import Nvml, open_nvml
from perfharness_launcher.conditions import Condition, Run
from perfharness_launcher.process import carries

LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
MPS_SERVER = "nvidia-cuda-mps-server"
"""Does no work of its own; its clients are listed too."""

FREE_GPU = "Wait until the GPU is free, or choose another one with --gpus."

Users = dict[int, dict[str, Any]]
"""Processes on a GPU by pid: `pid`, and `name` and `memory_bytes` if they are known."""


def other_users(*, required: bool = False) -> Condition:
    """List who else uses the GPUs of the run.

    Args:
        required: whether another user before the first process calls the launch off (`LaunchError`), and one after the
            last process makes it exit with 3.
    """
    severity = Severity.ERROR if required else Severity.WARNING

    @contextmanager
    def condition(run: Run) -> Iterator[None]:
        before, found = _use_of(run.gpus), list[Finding]()
        for gpu, (users, reason) in zip(run.gpus, before, strict=True):
            found += _shared(gpu, "before the run", users, severity)
            if reason is not None:
                message = f"{_label(gpu)}: other users are not known ({reason})."
                found.append(Finding("gpu-sharing-unknown", Severity.NOTE, message, "See `nvidia-smi` on the host."))
        if required and found:
            reasons = " ".join(finding.message for finding in found)
            raise LaunchError(f"--require-exclusive: {reasons}\nNothing was started. {FREE_GPU}")
        run.findings += found
        yield
        records = []
        for gpu, (users, reason), (last, last_reason) in zip(run.gpus, before, _use_of(run.gpus), strict=True):
            came = {pid: user for pid, user in last.items() if pid not in users and _is_other(pid, run)}
            run.findings += _shared(gpu, "when the run ended", came, severity)
            listed = {"foreign_before": list(users.values()), "foreign_after": list(came.values())}
            records.append({"uuid": gpu.uuid, **listed, "reason": reason or last_reason})
        if records:
            run.records["exclusive"] = {"gpus": records}

    return condition


def _use_of(gpus: Sequence[GpuRecord]) -> list[tuple[Users, str | None]]:
    """Who uses each GPU now, and why that is not known."""
    if not gpus:
        return []
    with open_nvml() as nvml:
        return [_users(nvml, gpu) for gpu in gpus]


def _users(nvml: Nvml, gpu: GpuRecord) -> tuple[Users, str | None]:
    device = nvml.device(gpu.uuid) if nvml.opened.ok else None
    if device is None:
        return {}, nvml.opened.reason or "NVML does not know this GPU"
    answers = [device.ask(name) for name in LISTS]
    users: Users = {}
    for process in (one for answer in answers for one in answer.value or ()):
        memory, name = getattr(process, "usedGpuMemory", None), nvml.ask("nvmlSystemGetProcessName", process.pid).value
        if Path(name or "").name != MPS_SERVER:
            users[process.pid] = {"pid": process.pid, "name": name, "memory_bytes": memory}
    return users, answers[0].reason


def _shared(gpu: GpuRecord, when: str, users: Users, severity: Severity) -> Iterator[Finding]:
    if users:
        message = f"{_label(gpu)} had other users {when}: {', '.join(map(_text, users.values()))}."
        yield Finding("gpu-shared", severity, message, FREE_GPU)


def _text(user: dict[str, Any]) -> str:
    memory = "" if user["memory_bytes"] is None else f", {user['memory_bytes'] / 2**20:.0f} MiB"
    return f"{user['pid']} ({user['name'] or 'name unknown'}{memory})"


def _is_other(pid: int, run: Run) -> bool:
    """Whether a process lives and is not of the run."""
    try:
        return not carries(psutil.Process(pid), run.run_id)
    except psutil.Error:
        return False


def _label(gpu: GpuRecord) -> str:
    return f"GPU {gpu.index}{' (MIG)' if gpu.mig else ''} {gpu.uuid}"
