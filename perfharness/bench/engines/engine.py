"""The process of one engine, `python -m perfharness.bench.engines.engine FOLDER/spec.json`.

A case with one image: loaded like any case, run on the image and the data set, timed, then sampled.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from perfharness.analysis.suites.bench_figures import drift_line, unsteady_speed
from perfharness.backends import Session, backend, model_source
from perfharness.backends.onnx_files import model_precision
from perfharness.bench.accuracy.data import CHANNELS, Preprocessor, SampleError, as_map
from perfharness.bench.accuracy.run import measure_accuracy, read_outputs
from perfharness.bench.accuracy.settings import AccuracySettings
from perfharness.bench.case import CaseRecord, gpu_view, keep_latency, keep_telemetry, loaded, main
from perfharness.bench.engines.model import (
    ENGINE_ENTRY,
    IMAGE_FOLDER,
    MAPS_FOLDER,
    CompareSettings,
    EngineResult,
    EngineSpec,
)
from perfharness.bench.latency import warm_up
from perfharness.errors import BackendError
from perfharness.model.bench import TensorSpec

Shape = tuple[int, ...]


def measure_engine(spec: EngineSpec, record: CaseRecord, stack: ExitStack) -> None:
    """Run all passes in this process; each result is written immediately."""
    settings, made = spec.settings, backend(spec.case.backend)
    record.start_phase("import")
    record.keep(versions=made.versions(), engine=spec.model)
    mode = spec.case.mode or made.modes_on(spec.case.device)[0]
    path = model_source(spec.model).path  # the precision of other files is unknown
    own = model_precision(path) if path is not None and path.suffix.lower() == ".onnx" else None
    case = spec.case.model_copy(update={"precision": spec.case.precision or own or "fp32", "mode": mode})
    record.keep(case=case)
    spec = spec.model_copy(update={"case": case})
    view = gpu_view(spec, stack)
    session = stack.enter_context(loaded(spec, record, view))
    shapes, remarks = engine_shapes(session.inputs, settings)
    ((name, shape),) = shapes.items()
    record.keep(remarks=remarks, input=session.inputs[0].model_copy(update={"name": name, "shape": shape}))
    record.start_phase("allocate")
    session.allocate(shapes)
    record.keep(settings=session.settings())
    record.start_phase("image")
    remarks += _image(session, shapes, settings, record)
    if settings.metric_images is not None:
        record.start_phase("data set")
        given = _accuracy_settings(settings, settings.metric_images, settings.metric_truth)
        store = record.folder / MAPS_FOLDER if settings.keep_maps else None
        if settings.metric_truth is not None or store is not None:
            found = measure_accuracy(session, shapes, given, store=store, details=record.folder)
            record.keep(accuracy=found if settings.metric_truth is not None else None)
    record.start_phase("warm-up")
    inputs = Preprocessor(settings.preprocess, session.inputs, shapes)(settings.image)
    session.write_inputs({key: array[np.newaxis] for key, array in inputs.items()})
    timed = keep_latency(spec, record, session, view, warm_up(session, spec.latency))
    if spec.telemetry.gpu_uuids:  # only GPUs are sampled
        record.start_phase("telemetry")
        begin_ns = time.time_ns()
        ends_ns = keep_telemetry(spec, record, session, len(timed.wall_ns))
        record.keep(telemetry_unix_ns=(begin_ns, ends_ns[-1]))
    remarks += filter(None, (timed.ended, drift_line(record.result.latency), unsteady_speed(record.result)))
    record.keep(remarks=remarks)


def engine_shapes(specs: tuple[TensorSpec, ...], settings: CompareSettings) -> tuple[dict[str, Shape], list[str]]:
    """Shapes for one image, and a remark if it has another size. Raises `BackendError` if the input is not an image."""
    name = settings.preprocess.input_name or specs[0].name
    if len(specs) != 1 or specs[0].name != name:
        names = ", ".join(one.name for one in specs)
        raise BackendError(f"the model has the inputs {names}; only models with one image input can be compared")
    given = specs[0].shape
    if len(given) != 4:
        raise BackendError(f"input {name!r} is {given}, not a batch of images")
    if given[0] not in (None, 1):
        raise BackendError(f"the model needs batches of {given[0]}, but images are compared one at a time")
    is_last = given[3] in CHANNELS and given[1] not in CHANNELS
    wanted = (1, *settings.input_size, 3) if is_last else (1, 3, *settings.input_size)
    shape = tuple(want if size is None else size for size, want in zip(given, wanted, strict=True))
    height, width = shape[1:3] if is_last else shape[2:]
    if (height, width) == settings.input_size:
        return {name: shape}, []
    asked = f"{settings.input_size[0]} x {settings.input_size[1]}"
    return {name: shape}, [f"it supports only images of {height} x {width}, not {asked}"]


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


def _image(session: Session, shapes: dict[str, Shape], settings: CompareSettings, record: CaseRecord) -> list[str]:
    """Keep the map of the image and its errors; returns remarks.

    Raises `BackendError` if the output is not a map.
    """
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
    record.keep(
        output=TensorSpec(name=name, shape=values.shape, dtype=str(outputs[name].dtype)),
        image_accuracy=found if settings.truth is not None else None,
    )
    bad = int((~np.isfinite(values)).sum())
    return [f"{bad} of {values.size} values of its map are NaN or infinite"] if bad else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], ENGINE_ENTRY, measure_engine, EngineSpec, EngineResult))
