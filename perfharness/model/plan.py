"""What a launch is asked to do, what the machine offers, and the plan that comes of both. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from perfharness.model import environment
from perfharness.model.annotations import Annotations
from perfharness.model.findings import Finding
from perfharness.model.manifest import GpuRecord, TracerRecord
from perfharness.model.placement import CpuBind, CpuTopology, GpuLocality, Placement

TracerChoice = Literal["auto", "nsys", "embedded", "none"]
ClockRefusalChoice = Literal["go-on", "stop"]
LogLevel = Literal["debug", "info", "warning", "error"]

DEFAULT_COOL_DOWN_LIMIT_S = 300.0
DEFAULT_WARMUP_BATCHES = 1
DEFAULT_OUTPUT_DIR = "out"
DEFAULT_SAMPLE_INTERVAL_MS = 50.0
DEFAULT_MEASURE_IDLE_S = 1.0
DEFAULT_BARRIER_TIMEOUT_S = 300.0
"""Between the first process and the last one: their imports and models are the same, so minutes mean that one hangs."""


@dataclass(frozen=True)
class LaunchOptions:
    """The command line of `perfharness launch`, checked for form only.

    Args:
        script: a `.py` file, or any program (a path, or a name on PATH).
        num_processes: per GPU.
        num_gpus, gpu_offset: None where not given, so that they can be told from a clash with `gpus`.
        gpus: `UUID`, `INDEX` or `INDEX:MIG` each; empty: choose by number.
        warmup_batches: at the front and at the end.
        nsys: the one nsys to use; None: look for it.
        python: the interpreter of a `.py` script.
        timeout_s: for each measured process, from its start; None: no limit.
        reject_throttled: batches during which the GPU's clocks were kept down are left out of the statistics.
        trace_os: whether nsys records the operating system's calls too, so that waits between threads are known.
        annotate: TOML file that annotates the script from outside.
        barrier: whether the processes enter their first measured batches together.
        barrier_timeout_s: how long those that are there wait for the others, from the first one on.
        cpu_bind: what CPUs the processes are bound to; `auto`: those near their GPUs where that can only help.
        require_exclusive: whether a GPU on which others are is an error.
        annotate_torch: PyTorch modules down to this depth become stages; None: none do.
        telemetry: whether the GPUs and the host are sampled beside the run.
        sample_interval_ms: how often.
        measure_idle_s: how long the GPUs are sampled before the first process, for their idle power.
        maximize_clocks: GPU clocks at their maximum for the time of the run.
        clock_refusal: whether a run whose clocks cannot all be set goes on.
        cool_down_c: the run begins when its GPUs are at most that warm (degrees Celsius); None: at once.
        cool_down_limit_s: how long it waits for that.
        plots: whether the telemetry is drawn at the end.
    """

    script: str
    script_arguments: tuple[str, ...] = ()
    num_processes: int = 1
    num_gpus: int | None = None
    gpu_offset: int | None = None
    gpus: tuple[str, ...] = ()
    warmup_batches: int = DEFAULT_WARMUP_BATCHES
    output_dir: Path = Path(DEFAULT_OUTPUT_DIR)
    log_level: LogLevel = "info"
    tracer: TracerChoice = "auto"
    nsys: Path | None = None
    python: str = "python3"
    timeout_s: float | None = None
    domain: str | None = None
    batch_pattern: str | None = None
    reject_throttled: bool = False
    annotate: Path | None = None
    annotate_torch: int | None = None
    trace_os: bool = False
    barrier: bool = True
    barrier_timeout_s: float = DEFAULT_BARRIER_TIMEOUT_S
    telemetry: bool = True
    sample_interval_ms: float = DEFAULT_SAMPLE_INTERVAL_MS
    measure_idle_s: float = DEFAULT_MEASURE_IDLE_S
    plots: bool = False
    require_exclusive: bool = False
    cpu_bind: CpuBind = "auto"
    maximize_clocks: bool = False
    clock_refusal: ClockRefusalChoice = "go-on"
    cool_down_c: float | None = None
    cool_down_limit_s: float = DEFAULT_COOL_DOWN_LIMIT_S

    @property
    def is_python_script(self) -> bool:
        """Whether SCRIPT runs under a Python interpreter; any other runs as a program."""
        return self.script.endswith(".py")


@dataclass(frozen=True)
class NsysInstall:
    """One nsys found on the machine, and what was found out about it.

    Args:
        version: `(2023, 4, 4)`; None where `--version` gave nothing to read.
        importer: the QdstrmImporter that turns a `.qdstrm` into a `.nsys-rep`; None where there is none.
        importer_beside: whether nsys finds that importer by itself; otherwise the launcher calls it afterwards.
        profile_options: the long options of `nsys profile --help`, without dashes.
        cupti: newest CUPTI that it carries, i.e. the newest CUDA it knows, `(12, 4)`.
        hears_nvtx: whether it recorded the ranges of this interpreter's nvtx when that was tried; None: not tried.
        source: where it was looked for, in words.
        problems: what keeps it from measuring, one sentence each; empty: usable.
    """

    path: Path
    version: tuple[int, ...] | None = None
    version_text: str | None = None
    importer: Path | None = None
    importer_beside: bool = False
    profile_options: frozenset[str] = frozenset()
    cupti: tuple[int, int] | None = None
    hears_nvtx: bool | None = None
    source: str = ""
    problems: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether it can record and its recording can be read."""
        return not self.problems


@dataclass(frozen=True)
class InterpreterFacts:
    """The interpreter that runs a `.py` script.

    Args:
        nvtx: version of the nvtx package that it would import, or None.
        has_perfharness: whether it can import perfharness, which the embedded tracer needs.
        problem: why nothing could be found out, one sentence.
    """

    executable: str
    version: str | None = None
    nvtx: str | None = None
    has_perfharness: bool = False
    problem: str | None = None


@dataclass(frozen=True)
class MachineFacts:
    """What the plan rests on.

    Args:
        gpus: what CUDA can be pointed at, one each: a GPU, or each MIG instance of a GPU that has MIG on.
        gpu_problem: why no GPU could be listed, one sentence.
        visible_devices: CUDA_VISIBLE_DEVICES of the launcher; None where unset.
        nsys: newest first.
        cuda_driver: newest CUDA that the driver runs, `(13, 0)`.
        script_problem, output_problem: why SCRIPT or the output folder cannot be used, one sentence.
        program: SCRIPT as a path, where it is a program that was found.
        annotations: what `--annotate` and `--annotate-torch` ask for.
        annotation_problems: why they cannot be done, one sentence each.
        topology: the CPUs; None where nobody asked.
        near_gpus: what is near each GPU, by UUID.
    """

    gpus: tuple[GpuRecord, ...] = ()
    gpu_problem: str | None = None
    visible_devices: str | None = None
    nsys: tuple[NsysInstall, ...] = ()
    interpreter: InterpreterFacts = InterpreterFacts("python3")
    cuda_driver: tuple[int, int] | None = None
    script_problem: str | None = None
    output_problem: str | None = None
    program: str | None = None
    annotations: Annotations | None = None
    annotation_problems: tuple[str, ...] = ()
    topology: CpuTopology | None = None
    near_gpus: Mapping[str, GpuLocality] = field(default_factory=dict)


@dataclass(frozen=True)
class ProcessSpec:
    """One process of a plan.

    Args:
        index: over all GPUs.
        gpu_index: on the machine; 0 without a GPU.
        folder: its name inside the run folder, `proc_X_gpu_Y`.
        command: the measured command, the embedded tracer included.
        environment: what is added to, or set over, the launcher's own environment.
        placement: CPUs and memory of the measured process, its tracer's own processes left out.
    """

    index: int
    gpu_index: int
    gpu: GpuRecord | None
    folder: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)

    def environment_in(self, run_dir: Path) -> dict[str, str]:
        """The environment, the folder of the process included."""
        return {**self.environment, environment.OUTPUT_DIR: str(run_dir / self.folder)}


@dataclass(frozen=True)
class LaunchPlan:
    """All that will be started, and what is known to be wrong with it beforehand."""

    options: LaunchOptions
    tracer: TracerRecord
    nsys: NsysInstall | None
    gpus: tuple[GpuRecord, ...]
    processes: tuple[ProcessSpec, ...]
    interpreter: InterpreterFacts
    traces_cuda: bool
    placement_reason: str = ""
    annotations: Annotations | None = None
    findings: tuple[Finding, ...] = ()
