"""Other processes on the GPUs of a launch: before its first process, and after its last one.

NVML lists who has a context on a GPU, except processes of another container. So use of a GPU without a listed process
counts too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from perfharness.errors import LaunchError
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import Device, Nvml, open_nvml
from perfharness_launcher.conditions import Condition, Run
from perfharness_launcher.process import carries

LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
MPS_SERVER = "nvidia-cuda-mps-server"
"""Does no work of its own; its clients are listed too."""

IDLE_UTILISATION_PERCENT = 5
IDLE_MEMORY_BYTES = 256 << 20
"""Above either, a GPU without a listed process is in use. The driver's own reserve is not counted."""

FREE_GPU = "Wait until the GPU is free, or choose another one with --gpus."


@dataclass(frozen=True)
class GpuUser:
    """A process on a GPU, with its name and memory if they are known."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None

    def __str__(self) -> str:
        memory = "" if self.memory_bytes is None else f", {self.memory_bytes / 2**20:.0f} MiB"
        return f"{self.pid} ({self.name or 'name unknown'}{memory})"


@dataclass(frozen=True)
class _Use:
    """Use of one GPU at one time; `reason`: why its processes are not known."""

    gpu: GpuRecord
    users: dict[int, GpuUser] = field(default_factory=dict)
    signs: str = ""
    reason: str | None = None

    def findings(self, severity: Severity) -> Iterator[Finding]:
        """Who else used the GPU before the run."""
        yield from _shared(self.gpu, "before the run", self.users, severity)
        if self.signs:
            message = f"{_label(self.gpu)} was in use before the run ({self.signs}), and no process is listed on it."
            hint = "See `nvidia-smi` on the host, outside of containers."
            yield Finding("gpu-in-use-before", severity, message, hint)
        if self.reason is not None:
            message = f"{_label(self.gpu)}: other users are not known ({self.reason})."
            yield Finding("gpu-sharing-unknown", Severity.NOTE, message, "See `nvidia-smi` on the host.")


def other_users(*, required: bool = False) -> Condition:
    """List who else uses the GPUs of the run.

    Args:
        required: whether another user before the first process calls the launch off (`LaunchError`), and one after the
            last process makes it exit with 3.
    """
    severity = Severity.ERROR if required else Severity.WARNING

    @contextmanager
    def condition(run: Run) -> Iterator[None]:
        before = _use_of(run.gpus)
        found = [finding for use in before for finding in use.findings(severity)]
        if required and found:
            reasons = " ".join(finding.message for finding in found)
            raise LaunchError(f"--require-exclusive: {reasons}\nNothing was started. {FREE_GPU}")
        run.findings += found
        yield
        records = []
        for first, last in zip(before, _use_of(run.gpus), strict=True):
            came = {pid: user for pid, user in last.users.items() if pid not in first.users and _is_other(pid, run)}
            run.findings += _shared(first.gpu, "when the run ended", came, severity)
            listed = {
                "foreign_before": [asdict(user) for user in first.users.values()],
                "foreign_after": [asdict(user) for user in came.values()],
            }
            records.append({"uuid": first.gpu.uuid, **listed, "reason": first.reason or last.reason})
        if records:
            run.records["exclusive"] = {"gpus": records}

    return condition


def _use_of(gpus: tuple[GpuRecord, ...]) -> list[_Use]:
    if not gpus:
        return []
    with open_nvml() as nvml:
        return [_use(nvml, gpu) for gpu in gpus]


def _use(nvml: Nvml, gpu: GpuRecord) -> _Use:
    device = nvml.device(gpu.uuid) if nvml.opened.ok else None
    if device is None:
        return _Use(gpu, reason=nvml.opened.reason or "NVML does not know this GPU")
    answers = [device.ask(name) for name in LISTS]
    users = {}
    for process in (one for answer in answers for one in answer.value or ()):
        memory, name = getattr(process, "usedGpuMemory", None), nvml.ask("nvmlSystemGetProcessName", process.pid).value
        if Path(name or "").name != MPS_SERVER:
            users[int(process.pid)] = GpuUser(int(process.pid), name, None if memory is None else int(memory))
    signs = "" if any(answer.value for answer in answers) else " and ".join(_signs_of_use(device))
    return _Use(gpu, users, signs, answers[0].reason)


def _signs_of_use(device: Device) -> Iterator[str]:
    rates = device.ask("nvmlDeviceGetUtilizationRates")
    if rates.ok and rates.value.gpu >= IDLE_UTILISATION_PERCENT:
        yield f"{rates.value.gpu} % utilisation"
    version: Any = getattr(device.nvml, "nvmlMemory_v2", None)
    memory = None if version is None else device.ask("nvmlDeviceGetMemoryInfo", version)
    if memory is not None and memory.ok and memory.value.used >= IDLE_MEMORY_BYTES:
        yield f"{memory.value.used / 2**20:.0f} MiB used"


def _shared(gpu: GpuRecord, when: str, users: dict[int, GpuUser], severity: Severity) -> Iterator[Finding]:
    if users:
        message = f"{_label(gpu)} had other users {when}: {', '.join(map(str, users.values()))}."
        yield Finding("gpu-shared", severity, message, FREE_GPU)


def _is_other(pid: int, run: Run) -> bool:
    """Whether a process lives and is not of the run."""
    try:
        return not carries(psutil.Process(pid), run.run_id)
    except psutil.Error:
        return False


def _label(gpu: GpuRecord) -> str:
    return f"GPU {gpu.index}{' (MIG)' if gpu.mig else ''} {gpu.uuid}"
