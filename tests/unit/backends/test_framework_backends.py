"""What of TensorFlow and Keras differs from the contract: files, precision, refusals."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.backends import SAVED_MODEL, BackendOptions, FactoryModel, ModelSource, backend, model_source
from perfharness.errors import BackendError
from perfharness.model.bench import TensorSpec
from tests.contract import tiny_models
from tests.contract.test_backends import inputs, run

X = (TensorSpec(name="x", shape=(None, 2), dtype="float32"),)
HERE = f"{Path(__file__)}"


def closing_over_its_weights(backend: str, precision: str) -> FactoryModel:
    del precision
    ones = np.ones((2, 3), np.float32)
    weights: Any = import_module(backend).Variable(ones)
    return FactoryModel(lambda x: x @ weights, X)


def undescribed(backend: str, precision: str) -> Any:
    del backend, precision
    return lambda x: x


def outputs_of(source: ModelSource, name: str, options: BackendOptions) -> dict[str, Any]:
    with backend(name).load(source, options) as session:
        return run(session, inputs(2))


@pytest.mark.slow
def test_weights_that_a_session_cannot_cast_keep_their_precision() -> None:
    name = "tensorflow"
    pytest.importorskip(name)
    source = model_source(f"{HERE}:closing_over_its_weights")
    with backend(name).load(source, BackendOptions()) as session:
        assert [(spec.name, spec.shape) for spec in session.outputs] == [("output_0", (None, 3))]
    with pytest.raises(BackendError, match="is a model in fp32, and TensorFlow computes in a model's own precision"):
        backend(name).load(source, BackendOptions(precision="bf16"))
    with pytest.raises(BackendError, match=f"returned a function for {name}; it must return a FactoryModel with"):
        backend(name).load(model_source(f"{HERE}:undescribed"), BackendOptions())


@pytest.mark.slow
def test_a_saved_model(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    folder = tmp_path / "tiny"
    tf.saved_model.save(tiny_models.tensorflow_model("fp32").model, str(folder))
    source = model_source(str(folder))
    assert source.suffix == SAVED_MODEL
    expected = tiny_models.reference(**inputs(2))
    for mode in ("tf", "tfxla"):
        found = outputs_of(source, "tensorflow", BackendOptions(mode=mode))
        assert set(found) == {"hidden", "logits"}
        np.testing.assert_allclose(found["logits"], expected["logits"], atol=1e-5)
    with pytest.raises(BackendError, match="other"):
        backend("tensorflow").load(source, BackendOptions(extra={"signature": "other"}))
    with pytest.raises(BackendError, match="fp32"):
        backend("tensorflow").load(source, BackendOptions(precision="fp16"))
    (folder / "saved_model.pb").write_bytes(b"this is no model")
    with pytest.raises(BackendError, match="tiny"):
        backend("tensorflow").load(source, BackendOptions())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of TensorFlow, in Keras's save
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_keras_file(tmp_path: Path, precision: Any) -> None:
    """In bf16 the layers compute in it: results are off by its rounding, and by more than that of fp32."""
    made = backend("keras")
    options = BackendOptions(precision=precision)
    if (problem := made.problem(options)) is not None:
        pytest.skip(problem)
    made.load(model_source("tests.contract.tiny_models:create"), options).close()  # imports keras on this framework
    tiny_models.keras_model("fp32").save(tmp_path / "tiny.keras")
    found = outputs_of(model_source(str(tmp_path / "tiny.keras")), "keras", options)
    expected = tiny_models.reference(**inputs(2))
    difference = max(float(np.abs(found[name] - array).max()) for name, array in expected.items())
    assert difference < (1e-5 if precision == "fp32" else 6e-2)
    assert (difference > 1e-4) == (precision == "bf16")
