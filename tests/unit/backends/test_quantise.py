"""An ONNX model in fp32 is quantised on samples, and refused without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.backends import BackendOptions, backend, model_source
from perfharness.errors import BackendError
from tests.contract.test_backends import inputs, run
from tests.contract.tiny_models import onnx_model, quantised_model

pytest.importorskip("onnxruntime.quantization")


def outputs(model: Path, **options: Any) -> dict[str, Any]:
    arrays = inputs(8, seed=3)
    with backend("onnxruntime").load(model_source(str(model)), BackendOptions(**options)) as session:
        assert (session.build_ms is not None) == ("calibration" in options)
        return run(session, arrays)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m.onnx").write_bytes(onnx_model("fp32"))
    return tmp_path / "m.onnx"


def samples(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "samples.npz", **{**inputs(64), **arrays})
    return folder / "samples.npz"


def test_int8_is_near_fp32_and_not_equal(model: Path, tmp_path: Path) -> None:
    exact = outputs(model)
    found = outputs(model, precision="int8", calibration=samples(tmp_path))
    for name, values in exact.items():
        cosine = (found[name] * values).sum() / np.linalg.norm(found[name]) / np.linalg.norm(values)
        assert 0.98 < cosine < 0.999999, name


def test_without_samples_it_is_refused_with_the_next_step(model: Path) -> None:
    with pytest.raises(BackendError, match="--calibration"):
        outputs(model, precision="int8")


@pytest.mark.parametrize(
    ("arrays", "word"),
    [({"more": np.ones((64, 1))}, "more"), ({"shift": np.ones((3, 1))}, "number"), (None, "NumPy")],
)
def test_samples_that_do_not_fit(arrays: dict[str, Any] | None, word: str, model: Path, tmp_path: Path) -> None:
    path = model if arrays is None else samples(tmp_path, **arrays)
    with pytest.raises(BackendError, match=word):
        outputs(model, precision="int8", calibration=path)


def test_a_quantised_model_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "q.onnx").write_bytes(quantised_model())
    options = BackendOptions(precision="int8", calibration=samples(tmp_path))
    with backend("onnxruntime").load(model_source(str(tmp_path / "q.onnx")), options) as session:
        assert [spec.name for spec in session.inputs] == ["x"]
