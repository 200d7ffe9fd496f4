"""An nsys, and the command lines of it and its importer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfharness.errors import ToolNotFoundError
from perfharness.model.conventions import CAPTURE_RANGE

REPORT_STEM = "trace"
TRACER_LOG = "tracer.log"

FORKED = "trace-fork-before-exec"
FORKS_WITH_THE_PROBE = (2024,)
"""From this nsys on forks are followed in the explaining pass too: 2023.4 crashed processes now and then that started
the host probe then, none of twelve without. Their workers have no ranges there, so those stages are not explained."""

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
GPU_METRICS_READINGS = 600_000
"""Of a GPU at most, as far as the length of the run is known: a minute at that rate. Each is about 40 rows of a trace,
and 1.4 KB of it."""


@dataclass(frozen=True)
class NsysInstall:
    """One nsys on the machine, and its capabilities.

    Args:
        version: `(2023, 4, 4)`; None where `--version` gave nothing to read.
        importer: the QdstrmImporter that turns a `.qdstrm` into a `.nsys-rep`; None where there is none.
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


@dataclass(frozen=True)
class NsysTracing:
    """How nsys traces the processes of a launch.

    Args:
        cuda: False on a machine without a GPU, where tracing CUDA would only bring warnings.
        os_calls: whether the operating system's calls are recorded.
        explain: whether this is the explaining pass, which may cost time: who holds the interpreter lock is recorded
            then, where this nsys can. The system's calls are not, unless asked for: the host probe shows what threads
            wait for, and nsys 2023.4 crashed one process in four that forked while both were recorded.
        gpu_metrics: GPUs whose counters are sampled, in nsys's words; None: of none.
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
    """`nsys profile` around `command`, its report in `folder`."""
    nsys = tracing.install
    left_out = {FORKED} if tracing.explain and (nsys.version or (0,)) < FORKS_WITH_THE_PROBE else set()
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


def gpu_metrics_options(nsys: NsysInstall, gpus: str, hz: int = GPU_METRICS_HZ) -> list[str]:
    """Sample the counters of these GPUs; none where this nsys cannot."""
    option = nsys.gpu_metrics_option
    if option is None:
        return []
    return [f"--{option}={gpus}", f"--gpu-metrics-frequency={hz}"]


def import_command(nsys: NsysInstall, recording: Path, report: Path) -> list[str]:
    """The importer, for a recording (`.qdstrm`) that nsys left as it was."""
    if nsys.importer is None:
        raise ToolNotFoundError(f"{recording.name} cannot be imported: no importer belongs to {nsys.path}")
    return [str(nsys.importer), "--input-file", str(recording), "--output-file", str(report), "--force-overwrite"]


def export_command(nsys: NsysInstall, report: Path, database: Path) -> list[str]:
    """`nsys export` to sqlite."""
    return [
        str(nsys.path),
        "export",
        "--type=sqlite",
        "--force-overwrite=true",
        "--quiet=true",
        f"--output={database}",
        str(report),
    ]
