"""What a launch is asked to do, what the machine offers, and the plan that comes of both. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfharness.model.placement import CpuBind

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
