"""Nsight Systems: the installs on this machine, what each can do, and their command lines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from perfharness.errors import ToolNotFoundError
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
        version: `(2023, 4, 4)`; None where `--version` gave nothing to read.
        importer: the program that turns a `.qdstrm` into a `.nsys-rep`; None where there is none.
        finds_importer: whether nsys finds that importer by itself; otherwise the launcher calls it afterwards.
        profile_options: the long options of `nsys profile --help`, without dashes.
        traces: what its `--trace` can name, `cuda` and so on.
        cupti: newest CUPTI that it carries, i.e. the newest CUDA it knows, `(12, 4)`.
        records_nvtx: whether it recorded the ranges of this interpreter's nvtx when that was tried; None: not tried.
        source: where it was found, for messages.
        problems: what keeps it from measuring, one sentence each; empty: usable.
    """

    path: Path
    version: tuple[int, ...] | None = None
    version_text: str | None = None
    importer: Path | None = None
    finds_importer: bool = False
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
        """The option by which it samples counters of GPUs; it has had two names."""
        return next((name for name in GPU_METRICS_OPTIONS if name in self.profile_options), None)


# ---- what nsys 2023.4 needs ----

NVTX_PINNED = "0.2.11"
"""Newest nvtx that every nsys records; from 0.2.12 on it uses an interface that older ones do not record."""

NSYS_WITHOUT = (2023, 4)
"""Newest nsys seen to record no range of a newer nvtx, without a warning."""

NSYS_RECORDS = (2025, 3)
"""Oldest nsys seen to record both."""

FORKED = "trace-fork-before-exec"


def is_2023(nsys: NsysInstall) -> bool:
    """Whether it may have the faults of nsys 2023.4."""
    return (nsys.version or (0,)) < (2024,)


def attempts(nsys: NsysInstall) -> int:
    """How often to try a start or an import: of nsys 2023.4, one start and two imports in 600 fail by themselves."""
    return 3 if is_2023(nsys) else 1


# ---- find and probe ----


def find_nsys(
    asked: Path | None, environ: Mapping[str, str], *, root: Path = Path("/"), project: Path | None = None
) -> tuple[NsysInstall, ...]:
    """Every nsys found, usable ones first, newest first; only `asked` where one is asked for.

    Args:
        root: what absolute paths are relative to.
        project: the checkout whose `.nsys` folder is looked into; None: this one.
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
    """What one nsys can do."""

    def unusable(problem: str) -> NsysInstall:
        return NsysInstall(path, source=source, problems=(problem,))

    if not path.exists():
        return unusable(f"{path} does not exist")
    if path.is_dir():
        return unusable(f"{path} is a folder; name the nsys program in it")
    if not os.access(path, os.X_OK):
        return unusable(f"{path} is not executable")
    answer = _output_of([str(path), "--version"])
    match = re.search(r"Nsight Systems version (\S+)", answer)
    if match is None:
        first = answer.strip().partition("\n")[0][:80]
        what = f"to --version it prints {first!r}" if first else "it does not answer --version"
        return unusable(f"{path} is not Nsight Systems: {what}")
    listing = _output_of([str(path), "profile", "--help"])
    traces = re.search(r"^\s*-t, --trace=.*?(?=^\s*-{1,2}[a-z])", listing + "\n-z", re.MULTILINE | re.DOTALL)
    options = frozenset(re.findall(r"--([a-z][a-z0-9-]+)", listing))
    home = _home(path)
    importer, finds_importer = _importer(home)
    return NsysInstall(
        path=path,
        version=numbers(match.group(1).partition("-")[0]),
        version_text=match.group(1),
        importer=importer,
        finds_importer=finds_importer,
        profile_options=options,
        traces=frozenset(re.findall(r"'([a-z][a-z0-9-]*)'", traces.group())) if traces else frozenset(),
        cupti=_newest_cupti(home),
        source=source,
        problems=tuple(_problems(path, home, importer, options)),
    )


def _problems(path: Path, home: Path | None, importer: Path | None, options: frozenset[str]) -> Iterator[str]:
    if "trace" not in options:
        yield f"{path} has no `profile --trace`"
    if home is None:
        return  # a wrapper script: where it keeps its importer cannot be seen; the run will show
    if importer is None:
        yield (
            f"{path} has no importer ({IMPORTER}) in host-linux-* next to {home.name}: it records, but the recording"
            " cannot be turned into a report"
        )
        return
    missing = sorted(set(re.findall(r"^\s*(\S+) => not found", _output_of(["ldd", str(importer)]), re.MULTILINE)))
    if missing:
        yield f"{importer} cannot run: {', '.join(missing)} not found"


def _home(path: Path) -> Path | None:
    """The real `target-linux-*` folder of an nsys; None where the path is a wrapper script."""
    folder = path.resolve().parent
    return folder if folder.name.startswith("target-linux-") or (folder / "libToolsInjection64.so").exists() else None


def _importer(home: Path | None) -> tuple[Path | None, bool]:
    """The importer that belongs to a `target-linux-*` folder, and whether nsys itself finds it.

    Nsight Systems has it next to that folder. Nsight Compute has it where its own nsys does not look.
    """
    for pattern, is_found in ((f"host-linux-*/{IMPORTER}", True), (f"linux-desktop-*/{IMPORTER}", False)):
        for importer in sorted(home.parent.glob(pattern)) if home is not None else ():
            return importer, is_found
    return None, False


def _newest_cupti(home: Path | None) -> tuple[int, int] | None:
    names = [library.name for library in home.glob("libcupti.so.*")] if home is not None else []
    found = [match for name in names if (match := re.fullmatch(r"libcupti\.so\.(\d+)\.(\d+)", name))]
    return max(((int(match[1]), int(match[2])) for match in found), default=None)


def _output_of(command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
    """What a short program prints; empty where it cannot be run."""
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")


def installed_nsys(environ: Mapping[str, str]) -> Path:
    """Where `perfharness doctor --install-nsys` puts an nsys: the user's folder for data of programs."""
    data = Path(environ.get("XDG_DATA_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".local/share")
    return data / "perfharness" / "nsys"


def install_nsys(environ: Mapping[str, str]) -> int:
    """Get an nsys from Debian's packages, without root; returns the exit code. What is done goes to stderr."""
    script = Path(__file__).with_name("install_nsys.sh")
    command = ["bash", str(script), "--dest", str(installed_nsys(environ))]
    return subprocess.run(command, env=dict(environ), stdout=subprocess.DEVNULL, check=False).returncode


# ---- does it fit to nvtx and to the driver? ----


class Pair(Enum):
    """Whether an nsys records the ranges of an nvtx."""

    GOOD = "good"
    UNKNOWN = "unknown"
    BAD = "bad"


def pair(nsys: NsysInstall, nvtx: str | None) -> Pair:
    """Judge a pair by a trial on this machine, else by what is known.

    `UNKNOWN`: between the newest nsys that does not record it and the oldest that does.
    """
    if nsys.records_nvtx is not None:
        return Pair.GOOD if nsys.records_nvtx else Pair.BAD
    if nvtx is None or numbers(nvtx) <= numbers(NVTX_PINNED):
        return Pair.GOOD
    if nsys.version is None:
        return Pair.UNKNOWN
    if nsys.version[:2] <= NSYS_WITHOUT:
        return Pair.BAD
    return Pair.GOOD if nsys.version[:2] >= NSYS_RECORDS else Pair.UNKNOWN


def numbers(version: str) -> tuple[int, ...]:
    """`0.2.12` -> (0, 2, 12)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def dotted(version: Sequence[int]) -> str:
    """`(12, 4)` -> 12.4."""
    return ".".join(map(str, version))


def too_old_for_driver(nsys: NsysInstall, cuda_driver: tuple[int, int] | None) -> str | None:
    """Why this nsys would lose GPU work on this driver, or None."""
    if cuda_driver is None or nsys.cupti is None or nsys.cupti[0] >= cuda_driver[0]:
        return None
    return (
        f"nsys {nsys.version_text} knows CUDA up to {dotted(nsys.cupti)} but the driver runs CUDA"
        f" {dotted(cuda_driver)}: it would lose kernels without a word"
    )


# ---- command lines ----

WANTED_OPTIONS = (
    ("sample", "none"),  # no CPU sampling and no context switches: both cost, and need rights that few have
    ("cpuctxsw", "none"),
    (FORKED, "true"),  # workers made by fork() record their ranges too
    ("wait", "primary"),  # a daemon that the script leaves behind must not hold the run up
    ("force-overwrite", "true"),
)
"""Taken where this nsys has them; the CUDA graph granularity is left as it is, for `node` costs too much."""

CAPTURE_OPTIONS = {
    "capture-range": "nvtx",
    "nvtx-capture": f"{CAPTURE_RANGE}@{CAPTURE_RANGE}",
    "capture-range-end": "stop",
}
"""Record while the range is open, and let the program go on afterwards."""

NVTX_BY_NAME = "NSYS_NVTX_PROFILER_REGISTER_ONLY"
"""`0`: the range of a capture is known by its name, without being registered."""

INTERPRETER_LOCK = "python-gil"
GPU_METRICS_OPTIONS = ("gpu-metrics-devices", "gpu-metrics-device")
GPU_METRICS_HZ = 10_000
LOWEST_GPU_METRICS_HZ = 10
GPU_METRICS_READINGS = 600_000
"""Most readings of a GPU, where the length of the run is known: a minute at that rate. Each takes 1.4 KB."""


@dataclass(frozen=True)
class NsysTracing:
    """How nsys traces the processes of a launch.

    Args:
        cuda: False on a machine without a GPU, where tracing CUDA would only bring warnings.
        os_calls: whether the operating system's calls are recorded.
        explain: whether this is the profiling pass, which may cost time: holders of the interpreter lock are recorded,
            where this nsys can. The system's calls are not, unless asked for: the host probe shows what threads wait
            for, and nsys 2023.4 crashed one process in four that forked while both were recorded.
        gpu_metrics: GPUs whose counters are sampled, in nsys's words; None: none.
        gpu_metrics_hz: how often.
        captures: only while the recorder has a range open for that is recorded.
    """

    install: NsysInstall
    cuda: bool = False
    os_calls: bool = False
    explain: bool = False
    gpu_metrics: str | None = None
    gpu_metrics_hz: int = GPU_METRICS_HZ
    captures: bool = False


def profile_command(tracing: NsysTracing, folder: Path, command: Sequence[str]) -> list[str]:
    """`nsys profile` around `command`, its report in `folder`.

    nsys 2023.4 crashed forking processes that started the host probe: there, a profiling pass follows no fork.
    """
    nsys = tracing.install
    left_out = {FORKED} if tracing.explain and is_2023(nsys) else set()
    options = [f"--{name}={value}" for name, value in WANTED_OPTIONS if name in nsys.profile_options - left_out]
    trace = ("cuda,nvtx" if tracing.cuda else "nvtx") + (",osrt" if tracing.os_calls else "")
    if tracing.explain and INTERPRETER_LOCK in nsys.traces:
        trace += f",{INTERPRETER_LOCK}"
    if tracing.gpu_metrics is not None:
        options += gpu_metrics_options(nsys, tracing.gpu_metrics, tracing.gpu_metrics_hz)
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


@dataclass(frozen=True)
class GpuSampling:
    """Which GPUs nsys is to sample, in its words (`0`, `cuda-visible`); or None, and the line in which it refuses."""

    gpus: str | None
    reason: str = ""

    @property
    def hint(self) -> str:
        """What helps against the reason, where that is known."""
        if re.search("under profiling", self.reason):
            return "let the other profiler end, and launch again with --explain"
        if re.search("privilege|permission", self.reason, re.IGNORECASE):
            return "https://developer.nvidia.com/ERR_NVGPUCTRPERM says how users may read them"
        return ""


def gpu_metrics_options(nsys: NsysInstall, gpus: str, hz: int = GPU_METRICS_HZ) -> list[str]:
    """Sample the counters of these GPUs; empty where this nsys cannot."""
    option = nsys.gpu_metrics_option
    return [] if option is None else [f"--{option}={gpus}", f"--gpu-metrics-frequency={hz}"]


def gpu_metrics_hz(expected_s: float | None) -> int:
    """How often to sample a run of that length, so that its trace does not fill the disk."""
    if not expected_s:
        return GPU_METRICS_HZ
    return max(LOWEST_GPU_METRICS_HZ, min(GPU_METRICS_HZ, int(GPU_METRICS_READINGS / expected_s)))


def find_gpu_metrics(nsys: NsysInstall, environ: Mapping[str, str]) -> GpuSampling:
    """What to sample for a process with that environment: nsys is asked once, about a program that does nothing.

    Counters may be reserved to administrators, taken by another profiler, or not there (old GPUs, MIG).
    """
    if nsys.gpu_metrics_option is None:
        return GpuSampling(None, f"nsys {nsys.version_text} has no option for it")
    listing = _output_of([str(nsys.path), "profile", f"--{nsys.gpu_metrics_option}=help"], environ)
    listed = re.findall(r"^\s*(\d+):\s", listing.partition(NOT_SUPPORTED)[0], re.MULTILINE)
    if len(listed) > 1 and VISIBLE not in listing:
        return GpuSampling(None, "this nsys cannot sample only the GPUs that a process uses, and there are several")
    if not listed:
        return GpuSampling(None, _refusal(listing) or "it lists no GPU that it can sample")
    gpus = listed[0] if len(listed) == 1 else VISIBLE  # every version understands a number
    with tempfile.TemporaryDirectory(prefix="perfharness-") as folder:
        options = ["--trace=nvtx", *gpu_metrics_options(nsys, gpus), f"--output={Path(folder) / 'trial'}"]
        command = [str(nsys.path), "profile", *options, shutil.which("true") or "/bin/true"]
        refusal = _refusal(_output_of(command, {**environ, "TMPDIR": folder}))
    return GpuSampling(gpus) if refusal is None else GpuSampling(None, refusal)


def _refusal(text: str) -> str | None:
    """The line that says why not, without a full stop; that another profiler has the GPUs is said late."""
    lines = [line.strip() for line in text.splitlines() if REFUSED.search(line)]
    lines.sort(key=lambda line: "under profiling" not in line)
    return lines[0].rstrip(".") if lines else None
