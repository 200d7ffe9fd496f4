"""Check what a measurement needs: what was found, what is missing, what to do."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from perfharness.distribution import VERSION
from perfharness.errors import PerfHarnessError
from perfharness.model.machines import gpu_name
from perfharness.telemetry.clocks import RESTORE_COMMAND, settings_left
from perfharness.telemetry.nvml import open_nvml
from perfharness.tracer.cupti import Cupti, CuptiError, find_libraries
from perfharness_launcher.clocks import left_text
from perfharness_launcher.collect import TRIAL_RANGES, try_nsys
from perfharness_launcher.gpus import GpuFacts, find_gpus
from perfharness_launcher.machine import InterpreterFacts, ask_interpreter, cpu_model, operating_system
from perfharness_launcher.nsys import INSTALL_NSYS, NVTX_PINNED, NsysInstall, dotted, find_nsys, too_old_for_driver

PACKAGES = ("nvtx", "nvidia-ml-py", "cupti-python", "numpy", "pyarrow", "adbc-driver-sqlite", "torch", "onnxruntime")


class Health(str, Enum):
    """Result of a check; `ABSENT` means missing, but not needed here."""

    GOOD = "good"
    ABSENT = "absent"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True)
class Check:
    """One check. `topic`: the group, such as `nsys`; `hint`: the next step; `measures`: whether a tracer works."""

    topic: str
    health: Health
    text: str
    hint: str = ""
    measures: bool = False


def check_up(python: str, environ: Mapping[str, str], *, nsys: Path | None = None) -> list[Check]:
    """Check everything, and try each nsys (seconds); `python` is the interpreter of scripts."""
    gpus = find_gpus()
    interpreter = ask_interpreter(python)
    checks = [
        Check("system", Health.GOOD, f"{operating_system()}, {cpu_model()}, {len(os.sched_getaffinity(0))} CPUs"),
        *_check_interpreter(interpreter),
        *_check_nsys(find_nsys(nsys, environ), interpreter, gpus),
        *_check_embedded(gpus, interpreter),
    ]
    if gpus.gpus:
        checks += [*_check_gpus(gpus, environ), _check_counters(), *check_clocks(gpus)]
    else:
        checks.append(Check("gpu", Health.ABSENT, f"no GPU ({gpus.problem}); CPU times only"))
    hint = "See nvidia-smi and the kernel log (Xid); reset the GPU or restart."
    checks += [Check("gpu", Health.BAD, line, hint) for line in gpus.lost]
    return [*checks, *_packages()]


def _check_interpreter(interpreter: InterpreterFacts) -> Iterator[Check]:
    if interpreter.problem:
        yield Check("python", Health.BAD, interpreter.problem, "Name a Python interpreter with --python.")
        return
    yield Check("python", Health.GOOD, f"{interpreter.executable}, Python {interpreter.version}")
    if interpreter.nvtx is None:
        yield Check("nvtx", Health.BAD, f"{interpreter.executable} has no nvtx", "pip install nvtx")
    else:
        yield Check("nvtx", Health.GOOD, f"nvtx {interpreter.nvtx}")


def _check_nsys(installs: tuple[NsysInstall, ...], interpreter: InterpreterFacts, gpus: GpuFacts) -> Iterator[Check]:
    if not installs:
        hint = f"Install one without root: `{INSTALL_NSYS}`, or name one with --nsys."
        yield Check("nsys", Health.ABSENT, "no nsys found; the embedded tracer is used", hint)
    for install in installs:
        name = f"nsys {install.version_text or '?'} at {install.path} ({install.source})"
        other = "Name another one with --nsys, or use --tracer embedded."
        if not install.usable:
            hint = f"Install all of Nsight Systems and its libraries, or run `{INSTALL_NSYS}`."
            yield Check("nsys", Health.BAD, f"{name}: {'; '.join(install.problems)}", hint)
            continue
        if interpreter.nvtx is None:
            yield Check("nsys", Health.WARNING, f"{name}: not tried, because nvtx is missing", "pip install nvtx")
        else:
            try:
                ranges = try_nsys(install, interpreter.executable)
                text = f"{name}: recorded {ranges} of {TRIAL_RANGES} ranges"
                if ranges == TRIAL_RANGES:
                    yield Check("nsys", Health.GOOD, text, measures=True)
                else:
                    hint = f"pip install nvtx=={NVTX_PINNED}, or nsys 2025.3 or newer, or --tracer embedded"
                    yield Check("nsys", Health.WARNING, f"{text} of nvtx {interpreter.nvtx}", hint)
            except PerfHarnessError as error:
                yield Check("nsys", Health.BAD, f"{name} records nothing here: {error}", other)
        if reason := too_old_for_driver(install, gpus.cuda_driver):
            yield Check("nsys", Health.WARNING, reason, "Install a newer Nsight Systems, or use --tracer embedded.")


def _check_embedded(gpus: GpuFacts, interpreter: InterpreterFacts) -> Iterator[Check]:
    """Check the embedded tracer: the interpreter, and a CUPTI that matches the driver."""
    if interpreter.problem:
        return
    if not interpreter.has_perfharness:
        text = f"perfharness is not installed in {interpreter.executable}"
        yield Check("embedded", Health.BAD, text, "Install perfharness there.")
        return
    yield Check("embedded", Health.GOOD, "the embedded tracer records ranges and CPU times", measures=True)
    if not gpus.gpus or gpus.cuda_driver is None:
        return
    major = gpus.cuda_driver[0]
    found = next(iter(find_libraries(major)), None)
    problem = f"no libcupti.so.{major} for CUDA {major}"
    if found is not None:
        try:
            yield Check("cupti", Health.GOOD, f"{found}, version {Cupti(found).version}, matches the driver")
            return
        except (OSError, CuptiError, AttributeError) as error:
            problem = f"{found} cannot be used: {error}"
    text = f"{problem}; the embedded tracer cannot record GPU work"
    yield Check("cupti", Health.WARNING, text, f'pip install "cupti-python~={major}.0"')


def _check_gpus(gpus: GpuFacts, environ: Mapping[str, str]) -> Iterator[Check]:
    yield Check("gpu", Health.GOOD, f"driver {gpus.driver}, CUDA {dotted(gpus.cuda_driver or ())}")
    for gpu in gpus.gpus:
        yield Check("gpu", Health.GOOD, f"GPU {gpu.index}{' (MIG)' if gpu.mig else ''}: {gpu.name}, {gpu.uuid}")
    if visible := environ.get("CUDA_VISIBLE_DEVICES"):
        yield Check("gpu", Health.WARNING, f"CUDA_VISIBLE_DEVICES={visible} limits -ng and -go")


def _check_counters() -> Check:
    parameters = _read(Path("/proc/driver/nvidia/params"))
    if parameters is None:
        return Check("permissions", Health.WARNING, "/proc/driver/nvidia/params cannot be read")
    if "RmProfilingAdminOnly: 1" in parameters and os.geteuid() != 0:
        text = "GPU performance counters need root; kernels and copies are recorded without them"
        hint = "For counters, set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module."
        return Check("permissions", Health.ABSENT, text, hint)
    return Check("permissions", Health.GOOD, "this user may read GPU performance counters")


def check_clocks(gpus: GpuFacts, root: Path = Path("/")) -> Iterator[Check]:
    """Check whether this user may lock clocks, and whether a killed launch left them locked."""
    yield _check_clock_permission(root)
    for index in sorted({gpu.index for gpu in gpus.gpus if gpu.mig}):
        yield Check("clocks", Health.ABSENT, f"GPU {index} is in MIG mode: its clocks stay unchanged")
    with open_nvml() as nvml:
        for device in nvml.gpus:
            if left := settings_left(device):
                text = left_text(gpu_name(device.index, device.uuid), left)
                yield Check("clocks", Health.WARNING, text, RESTORE_COMMAND)


CAP_SYS_ADMIN = 21
WHOLE_UID_MAP = ["0", "0", "4294967295"]


def _check_clock_permission(root: Path) -> Check:
    """The driver asks the kernel for `capable(CAP_SYS_ADMIN)`, which a user namespace cannot give."""
    effective = re.search(r"CapEff:\s*([0-9a-f]+)", _read(root / "proc/self/status") or "")
    if effective is None or not int(effective.group(1), 16) >> CAP_SYS_ADMIN & 1:
        text = "this user may not lock clocks (no CAP_SYS_ADMIN)"
        return Check("clocks", Health.ABSENT, text, "For -m: root, or a container with --cap-add SYS_ADMIN.")
    if (_read(root / "proc/self/uid_map") or "").split() != WHOLE_UID_MAP:
        text = "a user namespace (rootless container) cannot lock clocks"
        return Check("clocks", Health.ABSENT, text, "For -m: run outside, as root.")
    return Check("clocks", Health.GOOD, "this user may lock clocks (CAP_SYS_ADMIN); the GPU may still refuse")


def _packages() -> Iterator[Check]:
    yield Check("packages", Health.GOOD, f"perfharness {VERSION}")
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            yield Check("packages", Health.GOOD, f"{name} {importlib.metadata.version(name)}")


def _read(path: Path) -> str | None:
    with suppress(OSError):
        return path.read_text(errors="replace").strip()
    return None
