"""The machine and the software that a run was measured on. No environment variables, for they carry secrets."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path

from perfharness.model.manifest import EnvironmentRecord
from perfharness.model.plan import InterpreterFacts
from perfharness.model.version import VERSION
from perfharness_launcher.gpus import GpuFacts


def fingerprint(gpus: GpuFacts, interpreter: InterpreterFacts) -> EnvironmentRecord:
    """The environment of a run."""
    return EnvironmentRecord(
        hostname=socket.gethostname(),
        os=operating_system(),
        kernel=platform.release(),
        cpu=cpu_model(),
        cpu_count=len(os.sched_getaffinity(0)),
        python=interpreter.version,
        perfharness=VERSION,
        nvtx=interpreter.nvtx,
        driver=gpus.driver,
        cuda_driver=".".join(map(str, gpus.cuda_driver)) if gpus.cuda_driver else None,
        gpus=list(gpus.gpus),
    )


def operating_system() -> str:
    """`Debian GNU/Linux 12 (bookworm)`, or what the platform module says."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Model name of the first CPU, or its architecture where the kernel names none."""
    try:
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.machine() or None
