"""The process of one engine: load, run the image and the data set, time, then the same beside the sampler."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from perfharness.analysis.bench_figures import apart_percent
from perfharness.analysis.latency_statistics import latency_stats, rate_estimate
from perfharness.backends import BackendOptions, ModelSource, Session, backend, model_source
from perfharness.bench.accuracy.figure import SampleError
from perfharness.bench.accuracy.of_case import measure_accuracy, read_outputs
from perfharness.bench.accuracy.preprocess import CHANNELS, Preprocessor
from perfharness.bench.accuracy.samples import as_map
from perfharness.bench.accuracy.settings import AccuracySettings
from perfharness.bench.compare_engines.model import (
    IMAGE_FOLDER,
    MAPS_FOLDER,
    RESULT_NAME,
    WALL_NAME,
    CompareSettings,
    EngineJob,
    EngineResult,
    EngineStatus,
    GpuUse,
)
from perfharness.bench.spec import LatencySettings, TelemetrySettings
from perfharness.bench.worker.latency import (
    measure_device_time,
    measure_latency,
    quiet_collector,
    warm_up,
    work_for,
)
from perfharness.bench.worker.telemetry import measure_beside
from perfharness.errors import BackendError, BackendUnavailableError, OutOfMemoryError, PerfHarnessError
from perfharness.files import replacing
from perfharness.model.bench import Precision, TensorSpec
from perfharness.report.bench_words import drift_line

Shape = tuple[int, ...]
NS_PER_MS = 1e6


class Record:
    """The result while it grows; on disk as a whole after each step."""

    def __init__(self, folder: Path, job: EngineJob) -> None:
        self.folder = folder
        self.result = EngineResult(
            name=job.name, engine=job.engine, backend=job.backend, device=job.device, mode=job.mode,
            precision=job.precision, reason="it has not come to its end",
        )  # fmt: skip

    def keep(self, **fields: Any) -> None:
        """Something is known."""
        self.result = self.result.model_copy(update=fields)
        with replacing(self.folder / RESULT_NAME) as path:
            path.write_text(self.result.model_dump_json(indent=2) + "\n", encoding="utf-8")

    def because(self, reasons: Mapping[str, str]) -> None:
        """Why something is not known."""
        self.keep(reasons={**self.result.reasons, **reasons})

    def remark(self, text: str) -> None:
        """Something a reader must know."""
        self.keep(remarks=[*self.result.remarks, text])


def main(arguments: list[str]) -> int:
    """Run the job of a file; 0 where all was done."""
    path = Path(arguments[0])
    try:
        job = EngineJob.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        sys.stderr.write(f"{path} is no job of an engine: {error}\n")
        return 2
    return run_engine(job, path.parent)


def run_engine(job: EngineJob, folder: Path) -> int:
    """Everything, in this process; what is known is in the folder, whatever happens."""
    record = Record(folder, job)
    try:
        _run(job, record)
    except Exception as error:
        record.keep(status=_status(error), reason=_reason(error))
        if not isinstance(error, PerfHarnessError):
            traceback.print_exc()
        return 1
    record.keep(status="ok", reason=None)
    return 0


def _status(error: Exception) -> EngineStatus:
    if isinstance(error, BackendUnavailableError):
        return "unavailable"
    return "out-of-memory" if isinstance(error, OutOfMemoryError | MemoryError) else "failed"


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, PerfHarnessError) else f"{type(error).__name__}: {error}"


def _run(job: EngineJob, record: Record) -> None:
    settings, runner, source = job.settings, backend(job.backend), model_source(job.engine)
    record.keep(versions=runner.versions())
    options = BackendOptions(
        device=job.device,
        precision=job.precision or _precision(source, job.backend),
        mode=job.mode,
        threads=settings.threads,
    )
    record.keep(precision=options.precision)
    begin = time.perf_counter_ns()
    with runner.load(source, options) as session:
        record.keep(load_ms=(time.perf_counter_ns() - begin) / NS_PER_MS)
        shapes = engine_shapes(session.inputs, settings, record)
        session.allocate(shapes)
        record.keep(settings=session.settings(), mode=job.mode or runner.modes_on(job.device)[0])
        _image(session, shapes, settings, record)
        _data_set(session, shapes, settings, record)
        _speed(session, shapes, settings, record)
        _gpu(session, job, record)


def _precision(source: ModelSource, backend_name: str) -> Precision:
    """Of an ONNX file what it says; of others what they were built for cannot be told, and fp32 is asked for."""
    if backend_name != "onnxruntime" or source.path is None:
        return "fp32"
    from perfharness.backends.onnx_precision import model_precision

    return model_precision(str(source.path)) or "fp32"


def engine_shapes(specs: tuple[TensorSpec, ...], settings: CompareSettings, record: Record) -> dict[str, Shape]:
    """Shapes for one image. Raises `BackendError` where the model does not take one."""
    name = settings.preprocess.input_name or specs[0].name
    chosen = [one for one in specs if one.name == name]
    if len(specs) != 1 or not chosen:
        names = ", ".join(one.name for one in specs)
        raise BackendError(f"the model takes the inputs {names}; only models that take one image can be compared")
    (spec,) = chosen
    if len(spec.shape) != 4:
        raise BackendError(f"input {name!r} is {spec.shape}, which is no batch of images")
    if spec.shape[0] not in (None, 1):
        raise BackendError(f"the model is made for batches of {spec.shape[0]}, and one image at a time is compared")
    is_last = spec.shape[3] in CHANNELS and spec.shape[1] not in CHANNELS
    wanted = (1, *settings.input_size, 3) if is_last else (1, 3, *settings.input_size)
    shape = tuple(want if size is None else size for size, want in zip(spec.shape, wanted, strict=True))
    size = shape[1:3] if is_last else shape[2:]
    if size != settings.input_size:
        told = f"{settings.input_size[0]} x {settings.input_size[1]}"
        record.remark(f"it takes images of {size[0]} x {size[1]} only, not of {told}")
    record.keep(input=TensorSpec(name=name, shape=shape, dtype=spec.dtype))
    return {name: shape}


def _accuracy_settings(settings: CompareSettings, inputs: Path, truth: Path | None) -> AccuracySettings:
    return AccuracySettings(
        inputs=inputs,
        truth=truth,
        truth_scale=settings.truth_scale,
        depth=settings.depth,
        preprocess=settings.preprocess,
        output_name=settings.output_name,
        metrics=settings.metrics if truth is not None else (),
        limit=settings.metric_limit,
    )


def _image(session: Session, shapes: dict[str, Shape], settings: CompareSettings, record: Record) -> None:
    """The map of the one image, and its errors. Raises `BackendError` where the output is no map."""
    given = _accuracy_settings(settings, settings.image, settings.truth)
    store = record.folder / IMAGE_FOLDER
    found = measure_accuracy(session, shapes, given, store=store)
    try:
        outputs = read_outputs(store, settings.image.stem)
        name = settings.output_name or next(iter(outputs))
        if name not in outputs:
            raise BackendError(f"the model has no output {name!r}; it has: {', '.join(outputs)}")
        values = as_map(outputs[name])
    except SampleError as error:
        raise BackendError(found.reasons.get("failed_samples", str(error))) from error
    record.keep(output=TensorSpec(name=name, shape=values.shape, dtype=str(outputs[name].dtype)))
    if not np.isfinite(values).all():
        record.remark(f"{int((~np.isfinite(values)).sum())} of {values.size} values of its map are NaN or infinite")
    if settings.truth is not None:
        record.keep(image_accuracy=found)


def _data_set(session: Session, shapes: dict[str, Shape], settings: CompareSettings, record: Record) -> None:
    if settings.metric_images is None:
        return
    given = _accuracy_settings(settings, settings.metric_images, settings.metric_truth)
    found = measure_accuracy(session, shapes, given, store=record.folder / MAPS_FOLDER, details=record.folder)
    if settings.metric_truth is not None:
        record.keep(accuracy=found)
    elif found.reasons.get("failed_samples"):
        record.because({"accuracy": found.reasons["failed_samples"]})


def _speed(session: Session, shapes: dict[str, Shape], settings: CompareSettings, record: Record) -> None:
    """Latency with no sampler running, on the one image."""
    inputs = Preprocessor(settings.preprocess, session.inputs, shapes)(settings.image)
    session.write_inputs({name: array[np.newaxis] for name, array in inputs.items()})
    asked = LatencySettings(
        warmup=settings.warmup,
        iterations=settings.iterations,
        max_seconds=settings.max_seconds,
    )
    warmed = warm_up(session, asked)
    timed = measure_latency(session, asked)
    np.save(record.folder / WALL_NAME, timed.wall_ns)
    stats = latency_stats(timed.milliseconds, len(warmed.wall_ns))
    assert stats is not None
    device = latency_stats(measure_device_time(session, asked), len(warmed.wall_ns))
    record.keep(latency=stats, device_latency=device, images_per_second=1000 / stats.mean.value)
    if timed.ended is not None:
        record.remark(timed.ended)
    if (drift := drift_line(stats)) is not None:
        record.remark(drift)
    if device is None:
        record.because({"device_latency": "there is no device timer where the engine runs"})


@dataclass
class _Work:
    """Rounds beside the sampler, and when they were done."""

    session: Session
    seconds: float
    start_unix_ns: int | None = None
    end_unix_ns: int | None = None
    rounds: int | None = None

    def __call__(self) -> list[int]:
        with quiet_collector():
            self.start_unix_ns = time.time_ns()
            ends = work_for(self.session, self.seconds)
            self.end_unix_ns = time.time_ns()
        self.rounds = len(ends)
        return ends


def _gpu(session: Session, job: EngineJob, record: Record) -> None:
    """The same rounds beside the sampler; without a GPU there is nothing to sample."""
    if job.gpu_uuid is None:
        return
    work = _Work(session, job.settings.sample_seconds)
    asked = TelemetrySettings(
        seconds=job.settings.sample_seconds,
        interval_ms=job.settings.sample_interval_s * 1000,
        gpu_uuids=(job.gpu_uuid,),
    )
    seen = measure_beside(record.folder, asked, 1, work)
    use = GpuUse(
        utilization_percent=seen.utilization_percent,
        power_mean_w=seen.power_mean_w,
        energy_per_inference_j=None if seen.energy_per_item_j is None else seen.energy_per_item_j.value,
        memory_peak_bytes=seen.device_peak_bytes,
        clock_drop_percent=seen.clock_drop_percent,
        start_unix_ns=work.start_unix_ns,
        end_unix_ns=work.end_unix_ns,
        inferences=work.rounds,
    )
    record.keep(gpu=use)
    record.because({name: why for name, why in seen.reasons.items() if name != "telemetry_items_per_second"})
    latency, again = record.result.latency, seen.telemetry_items_per_second
    if latency and again and apart_percent(rate_estimate(latency.mean, 1), again) is not None:
        told = f"{latency.mean.value:.4g} ms in the timed rounds, {1e3 / again:.4g} ms in those beside the sampler"
        record.remark(f"its speed did not hold: a mean of {told}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
