"""Benchmark models in this process: PyTorch modules, ONNX Runtime sessions, any function.

The timed loop is that of `bench`. Inputs are one batch: an array or tensor, a tuple of positional ones, or a dictionary
by name; the first dimension is the batch. Models share the process, so host memory, caches and the allocator are those
of all models.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from perfharness.analysis.suites.bench_figures import cell_of
from perfharness.analysis.suites.recommend import recommend
from perfharness.backends.session import DeviceTimer, LayerTime, Session, translation
from perfharness.backends.torch_layers import EventTimer, held_bytes, layer_times
from perfharness.bench.accuracy.metrics import ClassAccumulator
from perfharness.bench.accuracy.outputs import DifferenceAccumulator, figures_by_output
from perfharness.bench.accuracy.run import record_of
from perfharness.bench.case import CaseRecord, measure_passes, status_of
from perfharness.bench.latency import measure_latency, stats_of, warm_up, work_for
from perfharness.bench.memory import GpuView
from perfharness.bench.plan import machine_of
from perfharness.bench.search import MEMORY_ENDS, search_batches
from perfharness.bench.spec import CaseSpec, LatencySettings, TelemetrySettings
from perfharness.bench.suite import doubling_sizes
from perfharness.bench.telemetry import TelemetryFigures, measure_telemetry
from perfharness.errors import BackendError, PerfHarnessError, UsageError
from perfharness.model.bench import (
    AccuracyRecord,
    BenchCase,
    CaseResult,
    LatencyPercentile,
    LatencyStats,
    Precision,
)
from perfharness.model.bench_suite import BatchSearch, BenchSuiteResult, Constraints
from perfharness_launcher.gpus import find_gpus

Model = Any
"""A PyTorch module, an ONNX Runtime session, or a function of the inputs."""

Inputs = Any
Batch = Any
"""Inputs, or a pair of inputs and labels."""

Outputs = dict[str, npt.NDArray[Any]]

SHARED = "models share this process: the peak includes what ran before"
MODEL = "live"
PRECISIONS: dict[str, Precision] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "int8": "int8",
    "qint8": "int8",
    "float32": "fp32",
}
"""Precision of a model by type of its tensors; the first match counts."""

Kind = Literal["torch", "onnxruntime", "function"]


def kind_of(model: Model) -> Kind:
    """Kind of a model. Raises `UsageError` if it cannot be called."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return "torch"
    if hasattr(model, "get_inputs") and hasattr(model, "run"):
        return "onnxruntime"
    if callable(model):
        return "function"
    raise UsageError(f"a {type(model).__name__} cannot be called; give a module, a session or a function")


class LiveSession(Session):
    """A model and one batch, for the timed loop.

    A round calls the model and waits for its device. For a model on a GPU, inputs on the host are copied in each round;
    outputs stay on the device. A module is in evaluation mode, without gradients, until `close`.
    """

    no_layer_times = "only PyTorch modules have layer times"

    def __init__(self, model: Model, inputs: Inputs, device: str | None = None) -> None:
        super().__init__()
        self.kind, self.model = kind_of(model), model
        self._torch: Any = sys.modules.get("torch")
        self._modes = [(one, one.training) for one in model.modules()] if self.kind == "torch" else []
        if self._modes:
            model.eval()
        self._given = self._on_device = self._arranged(inputs)
        self._value: Any = None
        self.device: Any = None
        self._cuda: Any = None
        if self._torch is not None:
            self.device = self._torch.device(device) if device is not None else self._own_device()
            self._cuda = self._torch.cuda if self.device is not None and self.device.type == "cuda" else None

    @property
    def gpu(self) -> Any:
        """PyTorch's properties of the model's GPU, or None."""
        return None if self._cuda is None else self._cuda.get_device_properties(self.device)

    def _own_device(self) -> Any:
        """Device of the parameters, else of the inputs; for a function without either, the current GPU if in use."""
        placed, named = self._given
        tensors = [*self._tensors_of_model(), *placed, *named.values()]
        found = next((one.device for one in tensors if isinstance(one, self._torch.Tensor)), None)
        if self.kind == "function" and (found is None or found.type == "cpu") and self._torch.cuda.is_initialized():
            return self._torch.device("cuda", self._torch.cuda.current_device())
        return found

    def _tensors_of_model(self) -> list[Any]:
        if self.kind != "torch":
            return []
        return [*self.model.parameters(), *self.model.buffers()]

    def _arranged(self, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and named inputs; for ONNX Runtime, all by name as NumPy arrays."""
        named = dict(inputs) if isinstance(inputs, Mapping) else {}
        placed = () if named else tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
        if self.kind != "onnxruntime":
            return placed, named
        names = [one.name for one in self.model.get_inputs()]
        if len(placed) > len(names):
            raise UsageError(f"{len(placed)} inputs were given, but the model has {', '.join(names)}")
        return (), {name: to_numpy(one) for name, one in (named or dict(zip(names, placed, strict=False))).items()}

    def copy_in(self) -> None:
        """Copy inputs on the host to the model's GPU."""
        if self._cuda is not None:
            placed, named = self._given
            self._on_device = tuple(map(self._moved, placed)), {name: self._moved(one) for name, one in named.items()}

    def _moved(self, value: Any) -> Any:
        is_tensor = isinstance(value, self._torch.Tensor)
        return value.to(self.device, non_blocking=True) if is_tensor and self.kind == "torch" else value

    def execute(self) -> None:
        """Call the model once."""
        placed, named = self._on_device
        try:
            if self.kind == "onnxruntime":
                self._value = self.model.run(None, named)
            elif self._torch is None:
                self._value = self.model(*placed, **named)
            else:
                with self._torch.inference_mode():
                    self._value = self.model(*placed, **named)
        except Exception as error:
            raise translation(error, "the model could not be run") from error

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self._cuda is not None:
            self._cuda.synchronize()

    def outputs_of_round(self) -> Outputs:
        """Outputs of one round, by name or index."""
        self.run_round()
        found = self._value
        if isinstance(found, Mapping):
            return {str(name): to_numpy(one) for name, one in found.items()}
        several = found if isinstance(found, (tuple, list)) else (found,)
        names = [one.name for one in self.model.get_outputs()] if self.kind == "onnxruntime" else range(len(several))
        return {str(name): to_numpy(one) for name, one in zip(names, several, strict=True)}

    def device_timer(self) -> DeviceTimer | None:
        """Timer on PyTorch's current stream on a GPU."""
        return None if self._cuda is None else EventTimer(self._torch, self._cuda.current_stream())

    def device_memory_bytes(self) -> int | None:
        """Peak of PyTorch's allocator since the last `forget_peak`."""
        return None if self._cuda is None else int(self._cuda.max_memory_reserved())

    def forget_peak(self) -> None:
        """Reset the peak of the allocator."""
        if self._cuda is not None:
            self._cuda.empty_cache()
            self._cuda.reset_peak_memory_stats()

    def layer_times(self, rounds: int) -> list[LayerTime] | str:
        """Times of each PyTorch module, in order of execution."""
        if self.kind != "torch":
            return self.no_layer_times
        stream = None if self._cuda is None else self._cuda.current_stream()
        return layer_times(self._torch, self.model, self.execute, stream, rounds)

    def parameter_bytes(self) -> int | None:
        """Size of a module's parameters and buffers."""
        return held_bytes(self.model) if self.kind == "torch" else None

    def file_bytes(self) -> int | None:
        """Size of the file of an ONNX Runtime session."""
        path = Path(str(getattr(self.model, "_model_path", None) or ""))
        return path.stat().st_size if path.is_file() else None

    def gpu_uuids(self) -> tuple[str, ...]:
        """UUID of the model's GPU as in NVML; empty without a GPU."""
        return () if self.gpu is None else (f"GPU-{self.gpu.uuid}",)

    def spec(self, name: str, batch_size: int, latency: LatencySettings, telemetry_seconds: float = 0.0) -> CaseSpec:
        """Specification of a measurement at a batch size; without telemetry seconds, no sampler runs."""
        kinds = {str(one.dtype).removeprefix("torch.") for one in self._tensors_of_model()}
        case = BenchCase(
            case_id=f"{name}-b{batch_size}",
            model=MODEL,
            backend=self.kind,
            mode=name,
            precision=next((precision for kind, precision in PRECISIONS.items() if kind in kinds), None),
            device="cpu" if self.gpu is None else "cuda",
            gpu=self.gpu and self.gpu.name.removeprefix("NVIDIA "),
            batch_size=batch_size,
        )
        return CaseSpec(
            case=case,
            model=MODEL,
            passes=("latency", "telemetry") if telemetry_seconds else ("latency",),
            latency=latency,
            telemetry=TelemetrySettings(seconds=telemetry_seconds or 1.0, gpu_uuids=self.gpu_uuids()),
        )

    def close(self) -> None:
        """Restore the modes of the modules."""
        super().close()
        for module, was_training in self._modes:
            module.training = was_training

    def __enter__(self) -> LiveSession:
        return self


def to_numpy(value: Any) -> npt.NDArray[Any]:
    """Convert a tensor or array to NumPy, bfloat16 to float32. Raises `UsageError` for anything else."""
    if hasattr(value, "detach"):
        value = value.detach()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).cpu().numpy()
    found = np.asarray(value)
    if found.dtype.kind not in "fiub":
        raise UsageError(f"a {type(value).__name__} is not an array of numbers; return arrays or tensors")
    return found


def batch_size_of(inputs: Inputs) -> int:
    """First dimension of the first array, or 1 without arrays."""
    several = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
    several = several if isinstance(several, (tuple, list)) else [several]
    return next((int(one.shape[0]) for one in several if getattr(one, "shape", ())), 1)


def resized(inputs: Inputs, batch_size: int) -> Inputs:
    """Resize a batch by repeating or dropping items."""
    before = batch_size_of(inputs)
    if before == batch_size:
        return inputs
    places = [place % before for place in range(batch_size)]

    def one(value: Any) -> Any:
        return value[places] if getattr(value, "shape", ()) and value.shape[0] == before else value

    if isinstance(inputs, Mapping):
        return {name: one(value) for name, value in inputs.items()}
    return type(inputs)(map(one, inputs)) if isinstance(inputs, (tuple, list)) else one(inputs)


def split_batch(batch: Batch) -> tuple[Inputs, npt.NDArray[np.int64] | None]:
    """Split a loader's batch into inputs and labels: the second part of a pair, if it has one integer per item."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        labels = batch[1]
        if hasattr(labels, "shape") and len(labels.shape) == 1:
            found = to_numpy(labels)
            if found.dtype.kind in "iu":
                return batch[0], found.astype(np.int64)
    return batch, None


def _measured(
    model: Model,
    inputs: Inputs,
    name: str,
    latency: LatencySettings,
    *,
    device: str | None = None,
    telemetry_seconds: float = 0.0,
) -> CaseResult:
    """Measure one model at one batch size; failures are in the status."""
    folder = tempfile.TemporaryDirectory(prefix="perfharness-")
    with folder, LiveSession(model, inputs, device) as session:
        spec = session.spec(name, batch_size_of(inputs), latency, telemetry_seconds)
        record = CaseRecord(Path(folder.name), spec)
        try:
            session.forget_peak()
            session.run_round()
            measure_passes(spec, record, session, GpuView(None), warm_up(session, latency))
            allocated = record.result.memory.device_allocator_bytes
            record.keep_part(
                "memory",
                device_peak_bytes=allocated,  # the driver's figure includes all models
                device_total_bytes=session.gpu and session.gpu.total_memory,
                model_file_bytes=session.file_bytes(),
                parameter_bytes=session.parameter_bytes(),
            )
            record.add_reasons(
                host_peak_bytes=SHARED,
                device_peak_bytes=session.gpu and SHARED,
                model_file_bytes="the model lives in this process",
                precision=None if spec.case.precision else f"the model ({session.kind}) does not show its precision",
            )
            record.end("ok", None)
        except PerfHarnessError as error:
            record.end(status_of(error) or "failed", str(error))
    return record.result.model_copy(update={"process": None})


class LatencyBenchmark:
    """Latency of a model.

    Args:
        device: of the model and its inputs, such as `cuda:0`; None for that of the model's parameters.
    """

    def __init__(self, model: Model, device: str | None = None) -> None:
        self.model, self.device = model, device

    def benchmark(self, inputs: Inputs, num_iterations: int = 1000, warmup: int = 50) -> LatencyStats:
        """Milliseconds per call: mean and percentiles with intervals, std. Raises `BackendError`."""
        settings = LatencySettings(iterations=num_iterations, warmup=warmup)
        with LiveSession(self.model, inputs, self.device) as session:
            before = warm_up(session, settings)
            timed = measure_latency(session, settings)
        return stats_of(timed, before)

    def profile_layers(self, inputs: Inputs, rounds: int = 20) -> list[LayerTime]:
        """Own time of each PyTorch module in one call. Raises `BackendError` for other models."""
        with LiveSession(self.model, inputs, self.device) as session:
            session.run_round()
            found = session.layer_times(rounds)
        if isinstance(found, str):
            raise BackendError(found)
        return found


class ThroughputBenchmark:
    """Items per second over batch sizes.

    Args:
        inputs: a batch, which is resized for other sizes.
        device: as for `LatencyBenchmark`.
    """

    def __init__(self, inputs: Inputs, device: str | None = None) -> None:
        self.inputs, self.device = inputs, device

    def benchmark_batch_sizes(
        self, model: Model, batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32), duration_sec: float = 1.0
    ) -> list[CaseResult]:
        """Measure each size for this long, until one does not fit in memory."""
        found: list[CaseResult] = []
        for size in sorted(batch_sizes):
            found.append(self._measure(model, size, duration_sec))
            if found[-1].status in MEMORY_ENDS:
                break
        return found

    def find_optimal_batch_size(
        self,
        model: Model,
        target_latency_ms: float,
        figure: LatencyPercentile = "p95",
        *,
        largest: int = 1024,
        duration_sec: float = 0.5,
    ) -> BatchSearch:
        """Find the largest batch with a latency within the target, like `bench --find-batch`."""
        with LiveSession(model, resized(self.inputs, 1), self.device) as session:
            cell = session.spec("model", 1, LatencySettings()).case.model_dump(exclude={"case_id", "batch_size"})
        return search_batches(
            lambda size: self._measure(model, size, duration_sec), cell, 1, largest, target_latency_ms, figure
        )

    def _measure(self, model: Model, size: int, seconds: float) -> CaseResult:
        settings = LatencySettings(iterations=60, warmup=5, min_seconds=seconds, max_seconds=max(10 * seconds, 10.0))
        return _measured(model, resized(self.inputs, size), "model", settings, device=self.device)


@dataclass(frozen=True)
class NsightProfile:
    """A run folder with an nsys trace, or the `reason` for none."""

    folder: Path | None
    reason: str | None = None


PROFILED = """
import pickle, sys
from pathlib import Path
from perfharness import PerfRecorder
from perfharness.bench.live import LiveSession

model, inputs, device = pickle.loads(Path(sys.argv[1]).read_bytes())
perf = PerfRecorder("live")
with LiveSession(model, inputs, device) as session:
    session.run_round()
    with perf.range("model"):
        for index in range(int(sys.argv[2])):
            with perf.batch(index, total_items=int(sys.argv[3])):
                session.run_round()
perf.finalize()
"""


class GPUProfiler:
    """Activity of a model's GPU. Args: `device` as for `LatencyBenchmark`."""

    def __init__(self, device: str | None = None) -> None:
        self.device = device

    def analyze_gpu_utilization(self, model: Model, inputs: Inputs, duration_sec: float = 5.0) -> TelemetryFigures:
        """Utilisation, power, energy per item and memory while the model runs for that long."""
        with LiveSession(model, inputs, self.device) as session:
            session.run_round()
            settings = TelemetrySettings(seconds=duration_sec, gpu_uuids=session.gpu_uuids())
            with tempfile.TemporaryDirectory(prefix="perfharness-") as folder:
                work = partial(work_for, session, duration_sec)
                return measure_telemetry(Path(folder), settings, batch_size_of(inputs), work)

    def profile_with_nsight(
        self, model: Model, inputs: Inputs, output_dir: str | Path = "nsight", iterations: int = 50
    ) -> NsightProfile:
        """Launch the model in a separate process under nsys; the model and its inputs must be picklable."""
        from perfharness.runs.launch import launch  # here, because it loads slowly

        out = Path(output_dir)
        try:
            content = pickle.dumps((model, inputs, self.device))
        except Exception as error:
            return NsightProfile(None, f"the model cannot be passed to another process: {error}")
        with tempfile.TemporaryDirectory(prefix="perfharness-") as scratch:
            script, data = Path(scratch) / "live_model.py", Path(scratch) / "model.pickle"
            script.write_text(PROFILED)
            data.write_bytes(content)
            words = (str(data), str(iterations), str(batch_size_of(inputs)))
            try:
                done = launch(script, *words, output_dir=out, tracer="nsys", warmup_batches=1)
            except PerfHarnessError as error:
                return NsightProfile(None, str(error))
        if not done.all_processes_well:
            return NsightProfile(None, f"its process failed; see {out}")
        return NsightProfile(out)


class AccuracyBenchmark:
    """Compare the outputs of two models over a loader's batches."""

    def __init__(self, device: str | None = None) -> None:
        self.device = device

    def compare_outputs(self, baseline: Model, optimized: Model, loader: Iterable[Batch]) -> AccuracyRecord:
        """Cosine, MSE, largest differences, NaN and Inf; with labels also top-1, precision, recall, F1.

        Raises `BackendError` if a model cannot be run, `SampleError` if outputs do not match.
        """
        batches = list(loader)
        before = list(outputs_of(baseline, batches, self.device))
        return accuracy_of(outputs_of(optimized, batches, self.device), batches, before, "baseline")

    def analyze_numerical_stability(self, model: Model, loader: Iterable[Batch]) -> AccuracyRecord:
        """NaN, Inf, and differences between the outputs of two calls."""
        batches = list(loader)
        first = list(outputs_of(model, batches, self.device))
        again = outputs_of(model, batches, self.device)
        return accuracy_of(again, batches, first, "its own first call", with_labels=False)


def outputs_of(model: Model, batches: Iterable[Batch], device: str | None) -> Iterator[Outputs]:
    """Outputs of each batch, by name."""
    for batch in batches:
        with LiveSession(model, split_batch(batch)[0], device) as session:
            yield session.outputs_of_round()


def accuracy_of(
    outputs: Iterable[Outputs],
    batches: Sequence[Batch],
    before: Sequence[Outputs] | None,
    against: str,
    *,
    with_labels: bool = True,
) -> AccuracyRecord:
    """Figures over all batches: differences from `before`, and classes if there are labels."""
    differences: dict[str, DifferenceAccumulator] = {}
    classes, samples = ClassAccumulator(), 0
    for place, (found, batch) in enumerate(zip(outputs, batches, strict=True)):
        inputs, labels = split_batch(batch)
        samples += batch_size_of(inputs)
        base = None if before is None else before[place]
        for name, values in found.items() if base is not None else ():
            if base is None or name not in base:
                raise UsageError(f"the baseline has no output {name!r}; it has: {', '.join(base or ())}")
            differences.setdefault(name, DifferenceAccumulator()).update(values, base[name], f"batch {place}")
        if with_labels and labels is not None:
            first = next(iter(found))
            classes.update(found[first], labels, None if base is None else base[first])
    figures = figures_by_output(differences)
    if classes.samples:
        figures |= classes.figures()
    return record_of(against, samples, figures, classes.lost())


class LiveSuite:
    """Compare models of one task, the first as the baseline: `run_all_benchmarks(loader)`.

    Args:
        models: by name.
        device: as for `LatencyBenchmark`.
    """

    def __init__(self, models: Mapping[str, Model], device: str | None = None) -> None:
        if not models:
            raise UsageError("give at least one model: BenchmarkSuite({'fp32': model})")
        self.models, self.device = dict(models), device
        self.result: BenchSuiteResult | None = None

    def run_all_benchmarks(
        self,
        loader: Iterable[Batch],
        *,
        batch_sizes: Sequence[int] = (),
        num_iterations: int = 200,
        warmup: int = 20,
        duration_sec: float = 2.0,
    ) -> BenchSuiteResult:
        """Measure latency, throughput, memory, utilisation, accuracy and size of each model.

        Args:
            loader: batches of inputs, or pairs of inputs and labels; all for accuracy, the first for the rest.
            batch_sizes: additional sizes; empty for 1, 2, 4, ... up to the loader's own.
            num_iterations, warmup: of the timed loop.
            duration_sec: minimum for throughput, and duration of the telemetry pass.

        Raises `UsageError` if the loader is empty.
        """
        batches = list(loader)
        if not batches:
            raise UsageError("the loader has no batches")
        inputs = split_batch(batches[0])[0]
        own = batch_size_of(inputs)
        sizes = sorted({*(batch_sizes or doubling_sizes(own, 1)), own})
        settings = LatencySettings(iterations=num_iterations, warmup=warmup, min_seconds=duration_sec)
        cases: list[CaseResult] = []
        before: list[Outputs] | None = None
        for name, model in self.models.items():
            for size in sizes:
                batch = resized(inputs, size)
                found = _measured(model, batch, name, settings, device=self.device, telemetry_seconds=duration_sec)
                if size == own and found.status == "ok":
                    outputs = list(outputs_of(model, batches, self.device))
                    against = "the labels" if before is None else next(iter(self.models))
                    accuracy = accuracy_of(outputs, batches, before, against)
                    before = before or outputs
                    found = found.model_copy(update={"accuracy": accuracy})
                cases.append(found)
                if found.status in MEMORY_ENDS:
                    break
        self.result = _suite_of(cases, duration_sec)
        return self.result


def _suite_of(cases: Sequence[CaseResult], duration_sec: float) -> BenchSuiteResult:
    baseline = cell_of(cases[0].case)
    on_gpu = any(one.case.device == "cuda" for one in cases)
    facts = find_gpus()
    remarks = ["The models shared one process and were measured one after the other."]
    unread = next((why for one in cases if (why := one.reasons.get("energy_per_item_j"))), None)
    if on_gpu and unread is not None and duration_sec < (enough := TelemetrySettings().seconds):
        remarks.append(f"Energy was not measured: {unread}. Pass duration_sec={enough:g}.")
    return BenchSuiteResult(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        name="live models",
        baseline=baseline,
        machine=machine_of(facts, [gpu.uuid for gpu in facts.gpus[:1] if on_gpu]),
        settings={"latency.min_seconds": duration_sec},
        cases=list(cases),
        recommendations=recommend(cases, Constraints(), baseline),
        remarks=remarks,
    )
