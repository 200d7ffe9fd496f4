"""Nsight Systems: find the installs, probe their capabilities, and build command lines."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from perfharness.errors import LaunchError, ToolNotFoundError
from perfharness.model.conventions import CAPTURE_RANGE

NSYS_VARIABLE = "PERFHARNESS_NSYS"
"""Path of the preferred nsys."""

INSTALL_NSYS = "perfharness doctor --install-nsys"
REPORT_STEM = "trace"
REPORT_SUFFIX = ".nsys-rep"
TRACER_LOG = "tracer.log"
IMPORTER = "QdstrmImporter"
PROBE_TIMEOUT_S = 60

SEARCH_PATHS = (
    ("/opt/nvidia/nsight-systems*/*/bin/nsys", "Nsight Systems in /opt/nvidia"),
    ("/opt/nvidia/nsight-systems*/*/target-linux-*/nsys", "Nsight Systems in /opt/nvidia"),
    ("/usr/local/cuda*/bin/nsys", "a CUDA toolkit"),
    ("/usr/local/cuda*/nsight-systems*/target-linux-*/nsys", "a CUDA toolkit"),
    ("/usr/local/cuda*/nsight-systems*/bin/nsys", "a CUDA toolkit"),
    ("/usr/lib/nsight-systems/target-linux-*/nsys", "a package of the distribution"),
    ("/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys", "inside Nsight Compute"),
    ("/usr/local/cuda*/nsight-compute*/host/target-linux-*/nsys", "inside Nsight Compute"),
)


@dataclass(frozen=True)
class NsysInstall:
    """An nsys and its capabilities.

    Args:
        importer: program that converts `.qdstrm` to `.nsys-rep`.
        profile_options: long options of `nsys profile`, without dashes.
        traces: values of `--trace`.
        cupti: newest CUPTI, and so the newest supported CUDA, as `(12, 4)`.
        records_nvtx: whether a trial recorded the ranges of this interpreter's nvtx, or None if not tried.
        source: location for messages.
        problems: one sentence per reason why it is not usable.
    """

    path: Path
    version: tuple[int, ...] | None = None
    version_text: str | None = None
    importer: Path | None = None
    profile_options: frozenset[str] = frozenset()
    traces: frozenset[str] = frozenset()
    cupti: tuple[int, int] | None = None
    records_nvtx: bool | None = None
    source: str = ""
    problems: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether it can record, and its recordings can be read."""
        return not self.problems

    @property
    def gpu_metrics_option(self) -> str | None:
        """The option that samples GPU counters; its name depends on the version."""
        return next((name for name in GPU_METRICS_OPTIONS if name in self.profile_options), None)


# ---- differences between versions ----

NVTX_PINNED = "0.2.11"
"""Newest nvtx that every nsys records."""

NSYS_WITHOUT = (2023, 4)
"""Newest nsys seen to record no range of a newer nvtx, without a warning."""

NSYS_RECORDS = (2025, 3)
"""Oldest nsys seen to record every nvtx."""

FORKED = "trace-fork-before-exec"


def is_2023(version: tuple[int, ...] | None) -> bool:
    """Whether this nsys may have the faults of version 2023.4."""
    return (version or (0,)) < (2024,)


def attempts(nsys: NsysInstall) -> int:
    """Number of attempts to start or import: nsys 2023.4 fails at one start and two imports in 600."""
    return 3 if is_2023(nsys.version) else 1


def records_nvtx(nsys: NsysInstall, nvtx: str | None) -> bool | None:
    """Whether nsys records the ranges of an nvtx, by a trial or by version; None if unknown."""
    if nsys.records_nvtx is not None:
        return nsys.records_nvtx
    if nvtx is None or numbers(nvtx) <= numbers(NVTX_PINNED):
        return True
    version = (nsys.version or ())[:2]
    if not version or NSYS_WITHOUT < version < NSYS_RECORDS:
        return None
    return version >= NSYS_RECORDS


def too_old_for_driver(nsys: NsysInstall, cuda_driver: tuple[int, int] | None) -> str | None:
    """Why nsys would lose GPU work with this driver, or None."""
    if cuda_driver is None or nsys.cupti is None or nsys.cupti[0] >= cuda_driver[0]:
        return None
    return (
        f"nsys {nsys.version_text} supports CUDA up to {dotted(nsys.cupti)}, but the driver has CUDA"
        f" {dotted(cuda_driver)}: kernels would be missing without a warning"
    )


def numbers(version: str) -> tuple[int, ...]:
    """`0.2.12` -> (0, 2, 12)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def dotted(version: Sequence[int]) -> str:
    """`(12, 4)` -> 12.4."""
    return ".".join(map(str, version))


# ---- find and probe ----


def find_nsys(
    asked: Path | None, environ: Mapping[str, str], *, root: Path = Path("/"), project: Path | None = None
) -> tuple[NsysInstall, ...]:
    """Find all installs of nsys, usable ones first, newest first; or probe only `asked`.

    `project`: checkout with a `.nsys` folder (default: this one).
    """
    if asked is not None:
        return (probe(asked, "--nsys"),)
    distinct: dict[Path, tuple[Path, str]] = {}
    for path, source in _candidates(environ, root, project or Path(__file__).resolve().parents[2]):
        distinct.setdefault(path.resolve(), (path, source))
    with ThreadPoolExecutor(max_workers=4) as pool:
        installs = list(pool.map(lambda candidate: probe(*candidate), distinct.values()))

    def rank(install: NsysInstall) -> tuple[bool, bool, tuple[int, ...]]:
        return install.usable, NSYS_VARIABLE in install.source, install.version or ()

    return tuple(sorted(installs, key=rank, reverse=True))


def _candidates(environ: Mapping[str, str], root: Path, project: Path) -> Iterator[tuple[Path, str]]:
    if named := environ.get(NSYS_VARIABLE):
        yield Path(named), f"the environment variable {NSYS_VARIABLE}"
    if on_path := shutil.which("nsys", path=environ.get("PATH", os.defpath)):
        yield Path(on_path), "PATH"
    places = [(Path(environ[name]), "bin/nsys", name) for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    places += [(root, pattern.lstrip("/"), source) for pattern, source in SEARCH_PATHS]
    places += [(installed_nsys(environ), "target-linux-*/nsys", INSTALL_NSYS)]
    places += [(project / ".nsys", "target-linux-*/nsys", "scripts/install_nsys")]
    for folder, pattern, source in places:
        yield from ((found, source) for found in sorted(folder.glob(pattern)))


def probe(path: Path, source: str) -> NsysInstall:
    """Find the capabilities of an nsys."""
    if not path.is_file() or not os.access(path, os.X_OK):
        return NsysInstall(path, source=source, problems=(f"{path} is not a program",))
    answer = output_of([str(path), "--version"])
    match = re.search(r"Nsight Systems version (\S+)", answer)
    if match is None:
        problem = f"{path} is not Nsight Systems: --version prints {answer.strip().partition(chr(10))[0][:80]!r}"
        return NsysInstall(path, source=source, problems=(problem,))
    listing = output_of([str(path), "profile", "--help"])
    traces = re.search(r"^\s*-t, --trace=.*?(?=^\s*-{1,2}[a-z])", listing + "\n-z", re.MULTILINE | re.DOTALL)
    options = frozenset(re.findall(r"--([a-z][a-z0-9-]+)", listing))
    folder = path.resolve().parent
    is_wrapper = not folder.name.startswith("target-linux-") and not (folder / "libToolsInjection64.so").exists()
    importer = None if is_wrapper else _find_importer(folder)
    problems = [] if "trace" in options else [f"{path} has no `profile --trace`"]
    if not is_wrapper:  # the importer of a wrapper script is unknown
        problems += _importer_problems(path, importer)
    return NsysInstall(
        path=path,
        version=numbers(match.group(1).partition("-")[0]),
        version_text=match.group(1),
        importer=importer,
        profile_options=options,
        traces=frozenset(re.findall(r"'([a-z][a-z0-9-]*)'", traces.group())) if traces else frozenset(),
        cupti=_newest_cupti(folder),
        source=source,
        problems=tuple(problems),
    )


def _find_importer(folder: Path) -> Path | None:
    """Importer next to a `target-linux-*` folder; nsys itself does not find that of Nsight Compute."""
    places = ("host-linux-*", "linux-desktop-*")
    return next((path for place in places for path in sorted(folder.parent.glob(f"{place}/{IMPORTER}"))), None)


def _importer_problems(nsys: Path, importer: Path | None) -> list[str]:
    if importer is None:
        return [f"{nsys} has no importer ({IMPORTER}), so its recordings cannot be read"]
    missing = sorted(set(re.findall(r"^\s*(\S+) => not found", output_of(["ldd", str(importer)]), re.MULTILINE)))
    return [f"{importer} cannot run: {', '.join(missing)} not found"] if missing else []


def _newest_cupti(folder: Path) -> tuple[int, int] | None:
    names = [library.name for library in folder.glob("libcupti.so.*")]
    found = [match for name in names if (match := re.fullmatch(r"libcupti\.so\.(\d+)\.(\d+)", name))]
    return max(((int(match[1]), int(match[2])) for match in found), default=None)


def output_of(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """Output of a short program; empty if it cannot run."""
    stdin = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, env=environ, stdin=stdin, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).decode(errors="replace")


def installed_nsys(environ: Mapping[str, str]) -> Path:
    """Folder for `perfharness doctor --install-nsys`, in the user's data folder."""
    data = Path(environ.get("XDG_DATA_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".local/share")
    return data / "perfharness" / "nsys"


def install_nsys(environ: Mapping[str, str]) -> int:
    """Install an nsys without root; return the exit code. Progress goes to stderr."""
    script = Path(__file__).with_name("install_nsys.sh")
    command = ["bash", str(script), "--dest", str(installed_nsys(environ))]
    return subprocess.run(command, env=dict(environ), stdout=subprocess.DEVNULL, check=False).returncode


# ---- command lines ----

WANTED_OPTIONS = (
    ("sample", "none"),  # CPU samples and context switches are slow and need permissions
    ("cpuctxsw", "none"),
    (FORKED, "true"),  # record workers made by fork()
    ("wait", "primary"),  # do not wait for daemons of the script
    ("force-overwrite", "true"),
)
"""Used if nsys has them. CUDA graphs are traced as nsys does by default, because `node` is slow."""

CAPTURE_OPTIONS = {
    "capture-range": "nvtx",
    "nvtx-capture": f"{CAPTURE_RANGE}@{CAPTURE_RANGE}",
    "capture-range-end": "stop",
}
"""Record while the range is open, then let the program continue."""

NVTX_BY_NAME = "NSYS_NVTX_PROFILER_REGISTER_ONLY"
"""`0`: the capture range need not be a registered string."""

INTERPRETER_LOCK = "python-gil"
GPU_METRICS_OPTIONS = ("gpu-metrics-devices", "gpu-metrics-device")
GPU_METRICS_HZ = 10_000
LOWEST_GPU_METRICS_HZ = 10
GPU_METRICS_READINGS = 600_000
"""Most readings per GPU if the duration is known: a minute at 10 kHz. Each takes 1.4 KB."""


@dataclass(frozen=True)
class NsysTracing:
    """Settings of nsys for the processes of a launch.

    Args:
        cuda: whether to trace CUDA; without a GPU it only prints warnings.
        os_calls: whether to trace blocking system calls.
        explain: whether this is the profiling pass, which also traces the interpreter lock.
        gpu_metrics: options that sample GPU counters.
        captures: whether to record only while the recorder's capture range is open.
    """

    install: NsysInstall
    cuda: bool = False
    os_calls: bool = False
    explain: bool = False
    gpu_metrics: tuple[str, ...] = ()
    captures: bool = False


def profile_command(tracing: NsysTracing, folder: Path, command: Sequence[str]) -> list[str]:
    """`nsys profile` of `command` with its report in `folder`."""
    nsys = tracing.install
    left_out = {FORKED} if tracing.explain and is_2023(nsys.version) else set()  # crashes with the host probe
    options = [f"--{name}={value}" for name, value in WANTED_OPTIONS if name in nsys.profile_options - left_out]
    options += tracing.gpu_metrics
    trace = ("cuda,nvtx" if tracing.cuda else "nvtx") + (",osrt" if tracing.os_calls else "")
    if tracing.explain and INTERPRETER_LOCK in nsys.traces:
        trace += f",{INTERPRETER_LOCK}"
    if tracing.captures:
        options += [f"--{name}={value}" for name, value in CAPTURE_OPTIONS.items()]
    output = str(folder / REPORT_STEM).replace("%", "%%")  # nsys replaces `%p` and others
    return [str(nsys.path), "profile", f"--trace={trace}", *options, f"--output={output}", *command]


def import_command(nsys: NsysInstall, recording: Path, report: Path) -> list[str]:
    """Import of a recording (`.qdstrm`) that nsys did not import."""
    if nsys.importer is None:
        raise ToolNotFoundError(f"{recording.name} cannot be imported: {nsys.path} has no importer")
    return [str(nsys.importer), "--input-file", str(recording), "--output-file", str(report), "--force-overwrite"]


def export_command(nsys: NsysInstall, report: Path, database: Path) -> list[str]:
    """`nsys export` to sqlite."""
    options = ["--type=sqlite", "--force-overwrite=true", "--quiet=true", f"--output={database}"]
    return [str(nsys.path), "export", *options, str(report)]


# ---- GPU counters ----

VISIBLE = "cuda-visible"
"""The GPUs of CUDA_VISIBLE_DEVICES in newer versions."""

NOT_SUPPORTED = "Some GPUs are not supported"
REFUSED = re.compile(
    r"already under profiling|illegal|insufficient|privilege|permission|not (supported|available|found)|no such gpu"
    r"|unrecognised",
    re.IGNORECASE,
)


def find_gpu_metrics(nsys: NsysInstall, environ: Mapping[str, str], expected_s: float | None = None) -> tuple[str, ...]:
    """Find options that sample the GPUs of a process, and try them with an empty program.

    Raises `LaunchError` with nsys's refusal, such as missing permission or another profiler.

    Args:
        environ: environment of the process.
        expected_s: expected duration; long runs are sampled less often to limit the size of the trace.
    """
    if nsys.gpu_metrics_option is None:
        raise LaunchError(f"nsys {nsys.version_text} cannot sample them")
    listing = output_of([str(nsys.path), "profile", f"--{nsys.gpu_metrics_option}=help"], environ)
    listed = re.findall(r"^\s*(\d+):\s", listing.partition(NOT_SUPPORTED)[0], re.MULTILINE)
    if len(listed) > 1 and VISIBLE not in listing:
        raise LaunchError(f"nsys {nsys.version_text} cannot select one of several GPUs")
    if not listed:
        raise LaunchError(_refusal(listing) or "nsys lists no GPU that it can sample")
    gpus = listed[0] if len(listed) == 1 else VISIBLE  # every version understands a number
    most_hz = GPU_METRICS_READINGS / expected_s if expected_s else math.inf
    hz = int(max(LOWEST_GPU_METRICS_HZ, min(GPU_METRICS_HZ, most_hz)))
    options = f"--{nsys.gpu_metrics_option}={gpus}", f"--gpu-metrics-frequency={hz}"
    with tempfile.TemporaryDirectory(prefix="perfharness-") as folder:
        output, program = f"--output={folder}/trial", shutil.which("true") or "/bin/true"
        command = [str(nsys.path), "profile", "--trace=nvtx", *options, output, program]
        if refusal := _refusal(output_of(command, {**environ, "TMPDIR": folder})):
            raise LaunchError(refusal)
    return options


def _refusal(text: str) -> str | None:
    """Line with the reason, preferably about another profiler, or None."""
    lines = [line.strip().rstrip(".") for line in text.splitlines() if REFUSED.search(line)]
    return min(lines, key=lambda line: "under profiling" not in line, default=None)
