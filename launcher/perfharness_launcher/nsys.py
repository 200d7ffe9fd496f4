"""Nsight Systems: the installs on this machine, what each can do, and their command lines."""

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
"""Path of an nsys, preferred to all others."""

INSTALL_NSYS = "perfharness doctor --install-nsys"
"""The command that gets an nsys without root."""

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
    """One nsys on the machine, and its capabilities.

    Args:
        importer: the program that turns a `.qdstrm` into a `.nsys-rep`.
        profile_options: the long options of `nsys profile --help`, without dashes.
        traces: values of its `--trace`.
        cupti: its newest CUPTI, i.e. the newest CUDA it knows, `(12, 4)`.
        records_nvtx: whether it recorded the ranges of this interpreter's nvtx in a trial; None: not tried.
        source: where it was found, for messages.
        problems: what keeps it from measuring, one sentence each.
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
        """Whether it can record and its recording can be read."""
        return not self.problems

    @property
    def gpu_metrics_option(self) -> str | None:
        """The option that samples counters of GPUs; it has had two names."""
        return next((name for name in GPU_METRICS_OPTIONS if name in self.profile_options), None)


# ---- differences between versions ----

NVTX_PINNED = "0.2.11"
"""Newest nvtx that every nsys records."""

NSYS_WITHOUT = (2023, 4)
"""Newest nsys seen to record no range of a newer nvtx, without a warning."""

NSYS_RECORDS = (2025, 3)
"""Oldest nsys seen to record every nvtx."""

FORKED = "trace-fork-before-exec"


def is_2023(nsys: NsysInstall) -> bool:
    """Whether it may have the faults of nsys 2023.4."""
    return (nsys.version or (0,)) < (2024,)


def attempts(nsys: NsysInstall) -> int:
    """How often to try a start or an import: nsys 2023.4 fails at one start and two imports in 600."""
    return 3 if is_2023(nsys) else 1


def records_nvtx(nsys: NsysInstall, nvtx: str | None) -> bool | None:
    """Whether an nsys records the ranges of an nvtx: by a trial, else by what is known; None: unknown."""
    if nsys.records_nvtx is not None:
        return nsys.records_nvtx
    if nvtx is None or numbers(nvtx) <= numbers(NVTX_PINNED):
        return True
    version = (nsys.version or ())[:2]
    if not version or NSYS_WITHOUT < version < NSYS_RECORDS:
        return None
    return version >= NSYS_RECORDS


def too_old_for_driver(nsys: NsysInstall, cuda_driver: tuple[int, int] | None) -> str | None:
    """Why this nsys would lose GPU work on this driver, or None."""
    if cuda_driver is None or nsys.cupti is None or nsys.cupti[0] >= cuda_driver[0]:
        return None
    return (
        f"nsys {nsys.version_text} knows CUDA up to {dotted(nsys.cupti)}, but the driver runs CUDA"
        f" {dotted(cuda_driver)}: it would lose kernels silently"
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
    """Every nsys found, usable ones first, newest first; only `asked` if one is asked for.

    Args:
        project: the checkout with a `.nsys` folder; None: this one.
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
    """Ask one nsys what it can do."""
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
    if not is_wrapper:  # where a wrapper script keeps its importer is unknown; the run will show
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
    """The importer of a `target-linux-*` folder; in Nsight Compute it is where nsys itself does not look."""
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
    """What a short program prints; empty if it cannot be run."""
    stdin = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, env=environ, stdin=stdin, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).decode(errors="replace")


def installed_nsys(environ: Mapping[str, str]) -> Path:
    """Where `perfharness doctor --install-nsys` puts an nsys: the user's folder for data of programs."""
    data = Path(environ.get("XDG_DATA_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".local/share")
    return data / "perfharness" / "nsys"


def install_nsys(environ: Mapping[str, str]) -> int:
    """Get an nsys from Debian's packages, without root; return the exit code. Progress goes to stderr."""
    script = Path(__file__).with_name("install_nsys.sh")
    command = ["bash", str(script), "--dest", str(installed_nsys(environ))]
    return subprocess.run(command, env=dict(environ), stdout=subprocess.DEVNULL, check=False).returncode


# ---- command lines ----

WANTED_OPTIONS = (
    ("sample", "none"),  # CPU samples and context switches cost time, and need rights that few have
    ("cpuctxsw", "none"),
    (FORKED, "true"),  # workers made by fork() record their ranges too
    ("wait", "primary"),  # do not wait for a daemon that the script leaves behind
    ("force-overwrite", "true"),
)
"""Used if this nsys has them. The granularity of CUDA graphs stays at nsys's default: `node` costs too much."""

CAPTURE_OPTIONS = {
    "capture-range": "nvtx",
    "nvtx-capture": f"{CAPTURE_RANGE}@{CAPTURE_RANGE}",
    "capture-range-end": "stop",
}
"""Record while the range is open, and let the program continue afterwards."""

NVTX_BY_NAME = "NSYS_NVTX_PROFILER_REGISTER_ONLY"
"""`0`: the range of a capture is known by its name, without being registered."""

INTERPRETER_LOCK = "python-gil"
GPU_METRICS_OPTIONS = ("gpu-metrics-devices", "gpu-metrics-device")
GPU_METRICS_HZ = 10_000
LOWEST_GPU_METRICS_HZ = 10
GPU_METRICS_READINGS = 600_000
"""Most readings of a GPU if the length of the run is known, a minute at 10 kHz. Each takes 1.4 KB."""


@dataclass(frozen=True)
class NsysTracing:
    """How nsys traces the processes of a launch.

    Args:
        cuda: without a GPU that would only print warnings.
        os_calls: whether system calls that block are recorded.
        explain: whether this is the profiling pass, which also records holders of the interpreter lock.
        gpu_metrics: options that sample counters of GPUs.
        captures: whether to record only while the recorder has its capture range open.
    """

    install: NsysInstall
    cuda: bool = False
    os_calls: bool = False
    explain: bool = False
    gpu_metrics: tuple[str, ...] = ()
    captures: bool = False


def profile_command(tracing: NsysTracing, folder: Path, command: Sequence[str]) -> list[str]:
    """`nsys profile` around `command`, its report in `folder`."""
    nsys = tracing.install
    left_out = {FORKED} if tracing.explain and is_2023(nsys) else set()  # crashes if the host probe is started too
    options = [f"--{name}={value}" for name, value in WANTED_OPTIONS if name in nsys.profile_options - left_out]
    options += tracing.gpu_metrics
    trace = ("cuda,nvtx" if tracing.cuda else "nvtx") + (",osrt" if tracing.os_calls else "")
    if tracing.explain and INTERPRETER_LOCK in nsys.traces:
        trace += f",{INTERPRETER_LOCK}"
    if tracing.captures:
        options += [f"--{name}={value}" for name, value in CAPTURE_OPTIONS.items()]
    output = str(folder / REPORT_STEM).replace("%", "%%")  # `%p` and the like are replaced by nsys
    return [str(nsys.path), "profile", f"--trace={trace}", *options, f"--output={output}", *command]


def import_command(nsys: NsysInstall, recording: Path, report: Path) -> list[str]:
    """The importer, for a recording (`.qdstrm`) that nsys left as it was."""
    if nsys.importer is None:
        raise ToolNotFoundError(f"{recording.name} cannot be imported: no importer belongs to {nsys.path}")
    return [str(nsys.importer), "--input-file", str(recording), "--output-file", str(report), "--force-overwrite"]


def export_command(nsys: NsysInstall, report: Path, database: Path) -> list[str]:
    """`nsys export` to sqlite."""
    options = ["--type=sqlite", "--force-overwrite=true", "--quiet=true", f"--output={database}"]
    return [str(nsys.path), "export", *options, str(report)]


# ---- counters of the GPUs ----

VISIBLE = "cuda-visible"
"""What newer versions call the GPUs of CUDA_VISIBLE_DEVICES."""

NOT_SUPPORTED = "Some GPUs are not supported"
REFUSED = re.compile(
    r"already under profiling|illegal|insufficient|privilege|permission|not (supported|available|found)|no such gpu"
    r"|unrecognised",
    re.IGNORECASE,
)


def find_gpu_metrics(nsys: NsysInstall, environ: Mapping[str, str], expected_s: float | None = None) -> tuple[str, ...]:
    """Find options that sample the GPUs of a process, and try them with a program that does nothing.

    Args:
        environ: of the process.
        expected_s: how long it will run: a long run is sampled less often, so that its trace does not fill the disk.

    Raises:
        LaunchError: it refuses, in its own words: they may be reserved to administrators, or in use.
    """
    if nsys.gpu_metrics_option is None:
        raise LaunchError(f"nsys {nsys.version_text} has no option for it")
    listing = output_of([str(nsys.path), "profile", f"--{nsys.gpu_metrics_option}=help"], environ)
    listed = re.findall(r"^\s*(\d+):\s", listing.partition(NOT_SUPPORTED)[0], re.MULTILINE)
    if len(listed) > 1 and VISIBLE not in listing:
        raise LaunchError("this nsys cannot sample only the GPUs of one process, and there are several")
    if not listed:
        raise LaunchError(_refusal(listing) or "it lists no GPU that it can sample")
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
    """The line that says why not; the one about another profiler comes last in nsys's output."""
    lines = [line.strip().rstrip(".") for line in text.splitlines() if REFUSED.search(line)]
    return min(lines, key=lambda line: "under profiling" not in line, default=None)
