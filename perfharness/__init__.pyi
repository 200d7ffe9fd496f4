from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, TypedDict

from typing_extensions import Unpack

from perfharness.bench.live import AccuracyBenchmark as AccuracyBenchmark
from perfharness.bench.live import GPUProfiler as GPUProfiler
from perfharness.bench.live import LatencyBenchmark as LatencyBenchmark
from perfharness.bench.live import ThroughputBenchmark as ThroughputBenchmark
from perfharness.bench.run import run_suite as run_suite
from perfharness.bench.suite import load_suite as load_suite
from perfharness.load.live import StressTest as StressTest
from perfharness.load.mlperf import MlperfRun
from perfharness.load.stress import StressResult
from perfharness.recorder import PerfRecorder as PerfRecorder
from perfharness.recorder import get_default_arg_parser as get_default_arg_parser
from perfharness.recorder import parse_validate_default_args as parse_validate_default_args
from perfharness.recorder import startup_range as startup_range
from perfharness.render.report.files import report as report
from perfharness.render.report.live import BenchmarkSuite as BenchmarkSuite
from perfharness.runs.analyze import analyze as analyze
from perfharness.runs.comparison.result import Comparison
from perfharness.runs.launch import LaunchResult
from perfharness.runs.run import open_run as open_run
from perfharness.runs.series.launching import SeriesRun
from perfharness.runs.series.launching import launch_in_turns as launch_in_turns
from perfharness.runs.series.machine import changes_between as machine_changes
from perfharness_launcher.clocks import maximize_clocks as maximize_clocks
from perfharness_launcher.plan import LaunchPlan
from perfharness_launcher.supervise import Observer

__all__ = [
    "AccuracyBenchmark",
    "BenchmarkSuite",
    "GPUProfiler",
    "LatencyBenchmark",
    "PerfRecorder",
    "StressTest",
    "ThroughputBenchmark",
    "analyze",
    "compare",
    "get_default_arg_parser",
    "launch",
    "launch_in_turns",
    "launch_series",
    "load_suite",
    "machine_changes",
    "maximize_clocks",
    "open_run",
    "parse_validate_default_args",
    "report",
    "run_mlperf",
    "run_suite",
    "startup_range",
    "stress",
]

__version__: str

_Path = str | Path
_Observe = Callable[[LaunchPlan], AbstractContextManager[Observer]]
_Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8"]
_Device = Literal["auto", "cpu", "cuda"]

class LaunchSettings(TypedDict, total=False):
    num_processes: int
    num_gpus: int | None
    gpu_offset: int | None
    gpus: str | Sequence[str]
    gpus_per_process: int
    cpu_bind: Literal["auto", "none", "numa"]
    require_exclusive: bool
    module: bool
    python: str
    timeout_s: float | None
    log_level: Literal["debug", "info", "warning", "error"]
    warmup_batches: int
    annotate: _Path | None
    annotate_torch: int | None
    annotate_collectives: bool
    parallel: Literal["auto", "data", "model"]
    domain: str | None
    batch_pattern: str | None
    capture_batches: str | None
    tracer: Literal["auto", "nsys", "embedded", "ranges", "none"]
    nsys: _Path | None
    trace_os: bool
    explain: bool
    sampling: bool
    barrier: bool
    barrier_timeout_s: float
    nodes: bool
    telemetry: bool
    metrics: str | None
    measure_idle_s: float
    cool_down_c: float | None
    cool_down_limit_s: float
    maximize_clocks: bool
    output_dir: _Path
    history: bool

class StressSettings(LaunchSettings, total=False):
    backend: str | None
    device: _Device
    precision: _Precision
    shapes: Mapping[str, Sequence[int | str]]
    seed: int
    concurrency: int
    rate: float | None
    rates: Sequence[float]
    arrivals: Literal["constant", "poisson", "bursty"]
    duration_s: float
    warmup_s: float
    phases: Sequence[Mapping[str, Any]]
    mix: Sequence[Mapping[str, Any]]
    items: float
    input: Any
    request_timeout_s: float | None
    grace_s: float
    max_error_rate: float | None
    error_window_s: float
    objective: Any

class MlperfOptions(LaunchSettings, total=False):
    backend: str
    precision: _Precision
    device: _Device
    shape: Sequence[str]
    backend_option: Sequence[str]
    threads: int | None
    max_batch: int | None
    batch_timeout_ms: float
    warmup_rounds: int
    scenario: Literal["SingleStream", "MultiStream", "Server", "Offline"]
    benchmark: str | None
    user_conf: _Path | None
    target_qps: float | None
    target_latency_ms: float | None
    min_duration_s: float | None
    max_duration_s: float | None
    min_queries: int | None
    max_queries: int | None
    samples_per_query: int | None
    seed: int | None
    dataset: str
    samples: int | None
    performance_samples: int | None

def compare(
    base: _Path,
    *others: _Path,
    renamed: Mapping[str, str] | None = None,
    allowed: Iterable[str] = (),
    stages: Iterable[str] = (),
    limits: Iterable[str] = (),
    alpha: float = ...,
    min_effect: float = ...,
    spread: float | None = None,
) -> Comparison: ...
def launch(
    script: _Path,
    *script_arguments: str,
    config: _Path | None = None,
    observer: Observer | None = None,
    **settings: Unpack[LaunchSettings],
) -> LaunchResult: ...
def launch_series(
    script: _Path,
    *script_arguments: str,
    repeat: int | None = None,
    np_sweep: Sequence[int] | None = None,
    cold: bool = False,
    overhead: bool = False,
    seed: int | None = None,
    config: _Path | None = None,
    observe: _Observe = ...,
    **settings: Unpack[LaunchSettings],
) -> SeriesRun: ...
def stress(
    target: str,
    profile: _Path | None = None,
    start: str | None = None,
    request: Mapping[str, Any] | None = None,
    observe: _Observe = ...,
    *,
    command: Sequence[str] | None = None,
    **settings: Unpack[StressSettings],
) -> StressResult: ...
def run_mlperf(
    model: str,
    *,
    command: Sequence[str] | None = None,
    observe: _Observe = ...,
    **settings: Unpack[MlperfOptions],
) -> MlperfRun: ...
