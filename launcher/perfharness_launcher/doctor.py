"""Everything that a measurement needs, checked one by one: what was found, what is missing, what to do."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from perfharness.model.distribution import install_command
from perfharness.model.version import VERSION
from perfharness.telemetry.clocks import RESTORE_COMMAND, settings_left
from perfharness.telemetry.nvml import open_nvml
from perfharness.tracer.cupti import Cupti, CuptiError, find_libraries
from perfharness_launcher.clocks import left_text
from perfharness_launcher.nsys.command_line import NsysInstall
from perfharness_launcher.nsys.probe import (
    INSTALL_NSYS,
    NSYS_VARIABLE,
    NVTX_PINNED,
    TRIAL_RANGES,
    dotted,
    find_nsys,
    too_old_for_driver,
    try_nsys,
)
from perfharness_launcher.plan.gpus import GpuFacts, find_gpus
from perfharness_launcher.plan.machine import InterpreterFacts, ask_interpreter, cpu_model, operating_system

PACKAGES = ("nvtx", "nvidia-ml-py", "cupti-python", "numpy", "pyarrow", "adbc-driver-sqlite", "torch", "onnxruntime")
OPTIONAL_PACKAGES = frozenset({"cupti-python", "torch", "onnxruntime"})


class Health(str, Enum):
    """The result of a check."""

    GOOD = "good"
    ABSENT = "absent"  # not there, and not needed on this machine
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True)
class Check:
    """One check.

    Args:
        topic: a group, e.g. `nsys`.
        hint: the next step; empty where none is needed.
        measures: whether this alone makes measuring possible.
    """

    topic: str
    health: Health
    text: str
    hint: str = ""
    measures: bool = False


def check_up(
    python: str, environ: Mapping[str, str], *, nsys: Path | None = None, root: Path = Path("/")
) -> list[Check]:
    """Check everything; takes a few seconds, for each nsys is tried for real.

    Args:
        python: the interpreter that would run scripts.
        root: where /proc is looked for.
    """
    gpus = find_gpus()
    interpreter = ask_interpreter(python)
    return [
        Check("system", Health.GOOD, f"{operating_system()}, {cpu_model()}, {len(os.sched_getaffinity(0))} CPUs"),
        *check_interpreter(interpreter),
        *check_nsys(find_nsys(nsys, environ), interpreter, gpus),
        *check_gpus(gpus, environ),
        *check_embedded(gpus, interpreter),
        *check_permissions(root, has_gpu=bool(gpus.gpus)),
        *check_clocks(gpus, root),
        *check_packages(has_gpu=bool(gpus.gpus)),
    ]


def check_interpreter(interpreter: InterpreterFacts) -> Iterator[Check]:
    """The interpreter and its nvtx."""
    if interpreter.problem:
        yield Check("python", Health.BAD, interpreter.problem, "name a Python interpreter with --python")
        return
    yield Check("python", Health.GOOD, f"{interpreter.executable}, Python {interpreter.version}")
    if interpreter.nvtx is None:
        yield Check(
            "nvtx", Health.BAD, f"{interpreter.executable} has no nvtx: a script cannot annotate", "pip install nvtx"
        )
    else:
        yield Check("nvtx", Health.GOOD, f"nvtx {interpreter.nvtx}")


def check_nsys(installs: tuple[NsysInstall, ...], interpreter: InterpreterFacts, gpus: GpuFacts) -> Iterator[Check]:
    """Every nsys found; the usable ones are tried."""
    if not installs:
        yield Check(
            "nsys",
            Health.ABSENT,
            "no nsys in PATH, /opt/nvidia, a CUDA toolkit, Nsight Compute or .nsys: the embedded tracer will be used",
            f"`{INSTALL_NSYS}` gets one without root; --nsys or {NSYS_VARIABLE} names one elsewhere",
        )
    for install in installs:
        name = f"nsys {install.version_text or '?'} at {install.path} ({install.source})"
        if not install.usable:
            yield Check("nsys", Health.BAD, f"{name}: {'; '.join(install.problems)}", _nsys_hint(install))
            continue
        yield _trial_check(name, install, interpreter)
        yield _details(install)
        if reason := too_old_for_driver(install, gpus.cuda_driver):
            yield Check("nsys", Health.WARNING, reason, "install a newer Nsight Systems, or take --tracer embedded")


def _nsys_hint(install: NsysInstall) -> str:
    text = " ".join(install.problems)
    if "not found" in text:
        return "install the libraries named (Debian: libssh-4 libpfm4 libdw1), or put them next to the importer"
    if "importer" in text:
        return f"install the whole of Nsight Systems (its host-linux-* folder), or `{INSTALL_NSYS}`"
    return "name another with --nsys"


def _trial_check(name: str, install: NsysInstall, interpreter: InterpreterFacts) -> Check:
    if interpreter.nvtx is None:
        return Check("nsys", Health.WARNING, f"{name}: not tried, for there is no nvtx to try it with")
    trial = try_nsys(install, interpreter.executable)
    if trial.records_nvtx:
        return Check("nsys", Health.GOOD, f"{name}: recorded {TRIAL_RANGES} of {TRIAL_RANGES} ranges", measures=True)
    if trial.ranges is not None:
        return Check(
            "nsys",
            Health.WARNING,
            f"{name} records no range of nvtx {interpreter.nvtx} ({trial.reason})",
            f"pip install nvtx=={NVTX_PINNED}, or nsys 2025.3 or newer, or --tracer embedded",
        )
    return Check("nsys", Health.BAD, f"{name} records nothing here: {trial.reason}", "name another with --nsys")


def _details(install: NsysInstall) -> Check:
    importer = f"importer {install.importer}" if install.importer else "importer not visible from here"
    if install.importer and not install.finds_importer:
        importer += " (nsys does not look there, so the launcher calls it)"
    cupti = f", CUPTI up to {dotted(install.cupti)}" if install.cupti else ""
    return Check("nsys", Health.GOOD, f"  {importer}{cupti}, {len(install.profile_options)} options of `profile`")


def check_gpus(gpus: GpuFacts, environ: Mapping[str, str]) -> Iterator[Check]:
    """Driver and GPUs."""
    for line in gpus.lost:
        yield Check(
            "gpu", Health.BAD, line, "nvidia-smi and the kernel's log (Xid) say more; a reset or restart may help"
        )
    if not gpus.gpus:
        yield Check("gpu", Health.ABSENT, f"no GPU ({gpus.problem}): CPU times only")
        return
    yield Check("gpu", Health.GOOD, f"driver {gpus.driver}, CUDA {dotted(gpus.cuda_driver or ())}; NVML answers")
    for gpu in gpus.gpus:
        yield Check("gpu", Health.GOOD, f"GPU {gpu.index}{' (MIG)' if gpu.mig else ''}: {gpu.name}, {gpu.uuid}")
    if visible := environ.get("CUDA_VISIBLE_DEVICES"):
        yield Check("gpu", Health.WARNING, f"CUDA_VISIBLE_DEVICES={visible} limits what -ng and -go choose from")


def check_embedded(gpus: GpuFacts, interpreter: InterpreterFacts) -> Iterator[Check]:
    """The embedded tracer: the interpreter, and CUPTI that matches the driver."""
    if interpreter.problem:
        return
    if not interpreter.has_perfharness:
        yield Check(
            "embedded", Health.BAD, f"{interpreter.executable} cannot import perfharness", "install perfharness there"
        )
        return
    yield Check("embedded", Health.GOOD, "the embedded tracer records ranges with host times", measures=True)
    if not gpus.gpus or gpus.cuda_driver is None:
        return
    major = gpus.cuda_driver[0]
    hint = f'pip install "cupti-python~={major}.0"'
    found = next(iter(find_libraries(major)), None)
    if found is None:
        text = f"no libcupti.so.{major} (the driver runs CUDA {major}): the embedded tracer cannot record GPU work"
        yield Check("cupti", Health.WARNING, text, hint)
        return
    try:
        yield Check("cupti", Health.GOOD, f"{found}, version {Cupti(found).version}, matches the driver")
    except (OSError, CuptiError, AttributeError) as error:
        yield Check("cupti", Health.WARNING, f"{found} cannot be used: {error}", hint)


def check_permissions(root: Path, *, has_gpu: bool) -> Iterator[Check]:
    """What the kernel and the driver let a user do."""
    paranoid = _read(root / "proc/sys/kernel/perf_event_paranoid")
    if paranoid is not None:
        yield Check("permissions", Health.GOOD, f"perf_event_paranoid {paranoid}: of no concern, CPU sampling is off")
    parameters = _read(root / "proc/driver/nvidia/params")
    if parameters is None:
        if has_gpu:
            yield Check("permissions", Health.WARNING, "/proc/driver/nvidia/params cannot be read")
        return
    admin_only = re.search(r"RmProfilingAdminOnly: (\d)", parameters)
    if admin_only is None or admin_only.group(1) == "0" or os.geteuid() == 0:
        yield Check("permissions", Health.GOOD, "GPU performance counters are open to this user")
    else:
        yield Check(
            "permissions",
            Health.ABSENT,
            "GPU performance counters are for administrators only (RmProfilingAdminOnly 1); kernels and copies are"
            " recorded all the same",
            "for counters: option nvidia NVreg_RestrictProfilingToAdminUsers=0 of the driver",
        )


def check_clocks(gpus: GpuFacts, root: Path = Path("/")) -> Iterator[Check]:
    """Whether this user may lock clocks, and whether a launch that was killed has left them changed."""
    if not gpus.gpus:
        return
    yield _clock_permission(root)
    for index in sorted({gpu.index for gpu in gpus.gpus if gpu.mig}):
        yield Check("clocks", Health.ABSENT, f"GPU {index} is divided by MIG: its clocks are left alone")
    with open_nvml() as nvml:
        for device in nvml.gpus:
            if left := settings_left(device):
                yield Check("clocks", Health.WARNING, left_text(device.uuid, left), RESTORE_COMMAND)


CAP_SYS_ADMIN = 21
WHOLE_UID_MAP = ["0", "0", "4294967295"]


def _clock_permission(root: Path) -> Check:
    """The driver asks the kernel `capable(CAP_SYS_ADMIN)`, which a user namespace cannot give."""
    effective = re.search(r"CapEff:\s*([0-9a-f]+)", _read(root / "proc/self/status") or "")
    uid_map = (_read(root / "proc/self/uid_map") or "").split()
    if effective is None:
        return Check(
            "clocks", Health.WARNING, "whether clocks may be locked is not known: /proc/self/status does not say"
        )
    if not int(effective.group(1), 16) >> CAP_SYS_ADMIN & 1:
        text = "clocks cannot be locked by this user: the driver asks for CAP_SYS_ADMIN"
        return Check("clocks", Health.ABSENT, text, "for -m: root, or a container with --cap-add SYS_ADMIN")
    if uid_map != WHOLE_UID_MAP:
        text = "clocks cannot be locked in a user namespace (rootless container), whatever capabilities it shows"
        return Check("clocks", Health.ABSENT, text, "for -m: run outside, as root")
    return Check("clocks", Health.GOOD, "clocks may be locked by this user (CAP_SYS_ADMIN); the GPU may still refuse")


def check_packages(*, has_gpu: bool) -> Iterator[Check]:
    """Versions of the Python packages that matter."""
    yield Check("packages", Health.GOOD, f"perfharness {VERSION}")
    for name in PACKAGES:
        version = _version(name)
        if version is not None:
            yield Check("packages", Health.GOOD, f"{name} {version}")
        elif name not in OPTIONAL_PACKAGES:
            yield Check("packages", Health.BAD, f"{name} is missing", f"pip install {name}")
        elif name == "cupti-python" and has_gpu:
            yield Check("packages", Health.ABSENT, "cupti-python is missing", install_command("cupti"))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
