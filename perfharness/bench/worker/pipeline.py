"""A whole pipeline around a case's model, annotated: preprocess, engine, postprocess. Run by `stages.py` in a launch.

Preprocessing is that of an image service: bytes to float, normalised, in the model's layout; inputs that are not
float32 of rank 3 or more are copied as they are. Postprocessing takes the outputs and the largest along the last axis.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness import PerfRecorder
from perfharness.backends import backend, model_source
from perfharness.bench.spec import CaseSpec
from perfharness.bench.worker.frame import options_of
from perfharness.bench.worker.inputs import input_arrays, input_shapes
from perfharness.model.bench import TensorSpec

MEAN, DEVIATION = np.float32(118.0), np.float32(58.0)
"""Of 8-bit images, approximately ImageNet's."""


def main(spec_file: str, batches: str) -> None:
    """Run the case's pipeline for a number of batches."""
    spec = CaseSpec.model_validate_json(Path(spec_file).read_text())
    perf = PerfRecorder("pipeline")
    with backend(spec.case.backend).load(model_source(spec.model, spec.model_name), options_of(spec)) as session:
        shapes = input_shapes(session.inputs, spec)
        session.allocate(shapes)
        arrays = input_arrays(session.inputs, shapes, spec)
        raw = {one.name: _raw(one, arrays[one.name]) for one in session.inputs}
        for index in range(int(batches)):
            with perf.batch(index, spec.case.batch_size):
                with perf.range("preprocess"):
                    prepared = {name: _prepared(value, arrays[name].dtype) for name, value in raw.items()}
                with perf.range("write_inputs"):
                    session.write_inputs(prepared)
                with perf.range("engine"):
                    for step in ("copy_in", "execute", "copy_out", "synchronize"):
                        with perf.range(step):
                            getattr(session, step)()
                with perf.range("postprocess"):
                    _ = {
                        name: value.argmax(-1) if value.ndim else value
                        for name, value in session.read_outputs().items()
                    }
    perf.finalize()


def _raw(one: TensorSpec, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Raw input as a service receives it: bytes, channels last, where the input has the shape of an image."""
    if one.dtype != "float32" or array.ndim < 3:
        return array
    pixels = np.clip(array * DEVIATION + MEAN, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(pixels, 1, -1))


def _prepared(value: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if value.dtype != np.uint8 or dtype == np.uint8:
        return np.array(value)
    scaled = (value.astype(np.float32) - MEAN) / DEVIATION
    return np.ascontiguousarray(np.moveaxis(scaled, -1, 1))
