"""The process of one engine, `python -m perfharness.bench.engines.engine FOLDER/spec.json`.

A case of one image: loaded like any case, run on the image and the data set, timed, then run in the telemetry pass.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import numpy as np

from perfharness.analysis.suites.bench_figures import deviation_percent, drift_line
from perfharness.backends import Session, backend, model_source
from perfharness.bench.accuracy.figure import SampleError
from perfharness.bench.accuracy.of_case import measure_accuracy, read_outputs
from perfharness.bench.accuracy.preprocess import CHANNELS, Preprocessor
from perfharness.bench.accuracy.samples import as_map
from perfharness.bench.accuracy.settings import AccuracySettings
from perfharness.bench.engines.model import (
    ENGINE_ENTRY,
    IMAGE_FOLDER,
    MAPS_FOLDER,
    CompareSettings,
    EngineCase,
    EngineSpec,
    GpuUse,
)
from perfharness.bench.worker.case import keep_latency
from perfharness.bench.worker.frame import gpu_view, loaded, main
from perfharness.bench.worker.latency import quiet_collector, warm_up, work_for
from perfharness.bench.worker.record import CaseRecord
from perfharness.bench.worker.telemetry import measure_telemetry
from perfharness.errors import BackendError
from perfharness.model.bench import Precision, TensorSpec

Shape = tuple[int, ...]


def measure_engine(spec: EngineSpec, record: CaseRecord, stack: ExitStack) -> None:
    """Run all passes in this process; each result is written to the folder as soon as it is known."""
    record.start_phase("import")
    record.keep(versions=backend(spec.case.backend).versions())
    precision = spec.precision or _precision(spec)
    record.keep(precision=precision)
    spec = spec.model_copy(update={"case": spec.case.model_copy(update={"precision": precision})})
    view = gpu_view(spec, stack)
    session = stack.enter_context(loaded(spec, record, view))
    shapes = engine_shapes(session.inputs, spec.settings, record)
    record.start_phase("allocate")
    session.allocate(shapes)
    mode = spec.case.mode or backend(spec.case.backend).modes_on(spec.case.device)[0]
    record.keep(settings=session.settings(), mode=mode)
    record.start_phase("image")
    _image(session, shapes, spec.settings, record)
    record.start_phase("data set")
    _data_set(session, shapes, spec.settings, record)
    record.start_phase("warm-up")
    inputs = Preprocessor(spec.settings.preprocess, session.inputs, shapes)(spec.settings.image)
    session.write_inputs({name: array[np.newaxis] for name, array in inputs.items()})
    timed = keep_latency(spec, record, session, view, warm_up(session, spec.latency))
    for remark in (timed.ended, drift_line(record.result.latency)):
        if remark is not None:
            _remark(record, remark)
    if spec.telemetry.gpu_uuids:  # without a GPU there is nothing to sample
        record.start_phase("telemetry")
        _gpu(session, spec, record)


def _result(record: CaseRecord) -> EngineCase:
    return cast("EngineCase", record.result)


def _remark(record: CaseRecord, text: str) -> None:
    """Add a remark for the reader of the numbers."""
    record.keep(remarks=[*_result(record).remarks, text])


def _precision(spec: EngineSpec) -> Precision:
    """Precision of an ONNX file; fp32 for other files, whose precision is unknown."""
    source = model_source(spec.model)
    if spec.case.backend != "onnxruntime" or source.path is None:
        return "fp32"
    from perfharness.backends.onnx_files import model_precision

    return model_precision(str(source.path)) or "fp32"


def engine_shapes(specs: tuple[TensorSpec, ...], settings: CompareSettings, record: CaseRecord) -> dict[str, Shape]:
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
        asked = f"{settings.input_size[0]} x {settings.input_size[1]}"
        _remark(record, f"it takes images of {size[0]} x {size[1]} only, not of {asked}")
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


def _image(session: Session, shapes: dict[str, Shape], settings: CompareSettings, record: CaseRecord) -> None:
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
        _remark(record, f"{int((~np.isfinite(values)).sum())} of {values.size} values of its map are NaN or infinite")
    if settings.truth is not None:
        record.keep(image_accuracy=found)


def _data_set(session: Session, shapes: dict[str, Shape], settings: CompareSettings, record: CaseRecord) -> None:
    if settings.metric_images is None:
        return
    given = _accuracy_settings(settings, settings.metric_images, settings.metric_truth)
    found = measure_accuracy(session, shapes, given, store=record.folder / MAPS_FOLDER, details=record.folder)
    if settings.metric_truth is not None:
        record.keep(accuracy=found)
    elif found.reasons.get("failed_samples"):
        record.keep(engine_reasons={"accuracy": found.reasons["failed_samples"]})


def _gpu(session: Session, spec: EngineSpec, record: CaseRecord) -> None:
    """The telemetry pass: the same rounds with the sampler."""
    times_ns: list[int] = []  # when the rounds began, then the end of each

    def work() -> list[int]:
        with quiet_collector():
            times_ns.append(time.time_ns())
            times_ns.extend(work_for(session, spec.telemetry.seconds))
        return times_ns[1:]

    seen = measure_telemetry(record.folder, spec.telemetry, 1, work)
    use = GpuUse(
        utilization_percent=seen.utilization_percent,
        power_mean_w=seen.power_mean_w,
        energy_per_inference_j=None if seen.energy_per_item_j is None else seen.energy_per_item_j.value,
        memory_peak_bytes=seen.device_peak_bytes,
        clock_drop_percent=seen.clock_drop_percent,
        start_unix_ns=times_ns[0] if times_ns else None,
        end_unix_ns=times_ns[-1] if times_ns else None,
        inferences=len(times_ns) - 1 if times_ns else None,
    )
    reasons = {name: why for name, why in seen.reasons.items() if name != "telemetry_items_per_second"}
    record.keep(gpu=use, engine_reasons={**_result(record).engine_reasons, **reasons})
    latency, rate, again = record.result.latency, record.result.items_per_second, seen.telemetry_items_per_second
    if latency and rate and again and deviation_percent(rate, again) is not None:
        means = f"{latency.mean.value:.4g} ms in the timed rounds, {1e3 / again:.4g} ms in those with the sampler"
        _remark(record, f"its speed was not reproducible: a mean of {means}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], ENGINE_ENTRY, measure_engine, EngineSpec, EngineCase))
