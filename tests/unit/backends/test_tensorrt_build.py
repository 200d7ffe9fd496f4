"""Engines built by the real TensorRT-RTX, which needs no GPU for that; they are not run here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from perfharness.backends import BackendOptions, backend, model_source
from perfharness.backends.tensorrt.engine import DTYPES
from perfharness.errors import BackendError
from samples.mobilenet_v3.structure import INPUT
from samples.mobilenet_v3.weights import example_images
from tests.contract import tiny_models
from tests.contract.test_backends import TINY

real = pytest.importorskip("tensorrt_rtx")
pytestmark = pytest.mark.slow

MOBILENET = "samples.mobilenet_v3.factory:create"
SHAPES = {"features": (3, 6), "shift": (3, 1)}
PROFILES = "features:1x6,4x6,8x6; shift:1x1,4x1,8x1 | features:9x6,16x6,32x6; shift:9x1,16x1,32x1"


def network(model: str = TINY, precision: Any = "fp32", calibration: Path | None = None, **extra: str) -> Any:
    """A parsed network of the backend."""
    made: Any = backend("tensorrt-rtx")
    options = BackendOptions(device="cuda", precision=precision, extra=extra, calibration=calibration)
    return made.source(made.library(), model_source(model), options)


def layers(made: Any) -> dict[str, tuple[str, str]]:
    """Name -> kind and type of the first output of each layer, before TensorRT fuses them."""
    found = (made.network.get_layer(index) for index in range(made.network.num_layers))
    return {layer.name: (layer.type.name, layer.get_output(0).dtype.name) for layer in found}


def refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(BackendError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_an_engine_is_built_without_a_gpu(precision: str) -> None:
    made = network(precision=precision)
    dtype, kind = ("float16", "HALF") if precision == "fp16" else ("float32", "FLOAT")
    assert [(spec.name, spec.shape, spec.dtype) for spec in made.inputs] == [
        (spec.name, spec.shape, dtype) for spec in tiny_models.INPUTS
    ]
    assert [(spec.name, spec.dtype) for spec in made.outputs] == [("hidden", dtype), ("logits", dtype)]
    assert layers(made)["first_product"] == ("MATRIX_MULTIPLY", kind)
    assert layers(made)["rectified"] == ("ACTIVATION", kind)
    engine = made.engine(SHAPES)
    assert engine.build_ms
    assert engine.blob[:4] in (b"vtrt", b"ftrt")
    assert engine.settings["builder flags"] == ("TF32" if precision == "tf32" else "none")
    assert engine.settings["profiles"] == "features:3x6; shift:3x1"


def test_mobilenet_is_built_in_each_precision(tmp_path: Path) -> None:
    """int8 as `perfharness bench --precision int8 --calibration` gives it to TensorRT."""
    samples: dict[str, Any] = {INPUT: example_images(4)}
    np.savez(tmp_path / "samples.npz", **samples)
    sizes = {}
    for precision in ("fp32", "fp16", "int8"):
        made = network(MOBILENET, precision, tmp_path / "samples.npz")
        assert made.inputs[0].shape[1:] == (3, 224, 224)
        assert ({("QUANTIZE", "INT8"), ("DEQUANTIZE", "FLOAT")} <= set(layers(made).values())) == (precision == "int8")
        engine = made.engine({INPUT: (2, 3, 224, 224)})
        sizes[precision] = len(engine.blob)
        print(precision, len(engine.blob), engine.build_ms)
    assert sizes["fp16"] < 0.7 * sizes["fp32"]  # weights are most of it


def test_types_of_tensors_are_numpys() -> None:
    assert {name: np.dtype(real.nptype(getattr(real.DataType, name))).name for name in DTYPES} == DTYPES
    assert {"FLOAT", "HALF", "INT8", "INT32", "INT64", "BOOL", "UINT8"} == DTYPES.keys()


def test_profiles() -> None:
    engine = network(profile=PROFILES, workspace_bytes="200000000").engine()
    assert engine.settings["profiles"].count("features:") == 2
    assert engine.settings["workspace_bytes"] == "200000000"
    for wrong in ("features:4x6,2x6,8x6", "features:4x6,2x6", "features:axb", "4x6"):
        problem = backend("tensorrt-rtx").problem(BackendOptions(device="cuda", extra={"profile": wrong}))
        assert "profile" in str(problem)
    for other in ("features:1x6,2x6,4x6", "features:1x7;shift:1x1", "image:1x7", "features:1x6x1;shift:1x1"):
        refused(network(profile=other).engine, "^(?!.*did not say why)")


def test_what_cannot_be_built_is_one_sentence_with_tensorrts_own_reason(tmp_path: Path) -> None:
    (tmp_path / "fp32.onnx").write_bytes(tiny_models.onnx_model("fp32"))
    for precision in ("fp16", "int8"):
        refused(partial(network, f"{tmp_path}/fp32.onnx", precision), "a model in fp32")
    small = network(workspace_bytes="1000")
    refused(lambda: small.engine(SHAPES), "could not build an engine of .*workspace")
    model = onnx.load_from_string(tiny_models.onnx_model("fp32"))
    model.graph.node[2].op_type = "Frobnicate"
    onnx.save_model(model, str(tmp_path / "unknown.onnx"))
    refused(lambda: network(f"{tmp_path}/unknown.onnx"), "cannot be read by TensorRT-RTX .*Frobnicate")


def test_a_kept_engine_is_that_of_the_model_the_options_and_the_profiles(tmp_path: Path) -> None:
    """Weights in a file of their own are part of the model."""
    model = onnx.load_from_string(tiny_models.onnx_model("fp32"))
    path, weights = tmp_path / "model.onnx", tmp_path / "weights.bin"
    onnx.save_model(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)

    def built(batch: int = 3, precision: Any = "fp32", **extra: str) -> bool:
        made: Any = backend("tensorrt-rtx")
        options = BackendOptions(device="cuda", precision=precision, extra=extra, cache_dir=tmp_path)
        source = made.source(made.library(), model_source(str(path)), options)
        return source.engine({"features": (batch, 6), "shift": (batch, 1)}).build_ms is not None

    assert [built(), built(), built(4), built(precision="tf32"), built(optimization_level="1"), built()] == [
        *(True, False, True, True, True, False),
    ]
    weights.write_bytes(bytes(8) + weights.read_bytes()[8:])
    assert built()


def test_the_fakes_have_no_call_that_the_real_library_lacks() -> None:
    """Of the classes that both have, by name."""
    from tests.tensorrt import fake_tensorrt

    names = {
        "Builder": "Builder",
        "BuilderConfig": "IBuilderConfig",
        "Engine": "ICudaEngine",
        "ExecutionContext": "IExecutionContext",
        "Network": "INetworkDefinition",
        "OnnxParser": "OnnxParser",
        "OptimizationProfile": "IOptimizationProfile",
        "Runtime": "Runtime",
    }
    for fake, name in names.items():
        calls = {each for each, value in vars(getattr(fake_tensorrt, fake)).items() if callable(value)}
        wanted = {each for each in calls if not each.startswith("_")} - {"computed", "empty"}
        assert wanted <= set(dir(getattr(real, name))), fake
