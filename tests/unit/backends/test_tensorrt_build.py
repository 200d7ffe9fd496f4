"""Engines built by the real TensorRT-RTX, which needs no GPU for that; they are not run here."""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from perfharness.backends import BackendOptions, call_factory, model_source
from perfharness.backends.tensorrt.engine import (
    EngineCache,
    Network,
    Profile,
    ShapeRange,
    model_sha256,
    profiles_of,
)
from perfharness.backends.tensorrt.library import TensorRTLibrary
from perfharness.errors import BackendError
from perfharness.model.bench import Precision
from tests.contract import tiny_models
from tests.tensorrt.signatures import RTX, read_table, table_of

pytest.importorskip("tensorrt_rtx")

pytestmark = pytest.mark.slow

SHAPES = {"features": (3, 6), "shift": (3, 1)}


@pytest.fixture(scope="module")
def library() -> TensorRTLibrary:
    return TensorRTLibrary(import_module("tensorrt_rtx"), "TensorRT-RTX")


def options(precision: Precision = "fp32", **extra: str) -> BackendOptions:
    return BackendOptions(device="cuda", precision=precision, extra=extra)


def network(library: TensorRTLibrary, precision: Precision = "fp32", model: Any = None, **extra: str) -> Network:
    return Network(library, model or tiny_models.onnx_model(precision), "tiny", options(precision, **extra))


def layers(made: Network) -> dict[str, tuple[str, str]]:
    """Name -> kind and type of the first output of each layer, before TensorRT fuses them."""
    found = (made.network.get_layer(index) for index in range(made.network.num_layers))
    return {layer.name: (layer.type.name, layer.get_output(0).dtype.name) for layer in found}


def refused(call: Any, says: str) -> None:
    with pytest.raises(BackendError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def quantized(folder: Path) -> Path:
    """The tiny model with QuantizeLinear and DequantizeLinear around its products."""
    quantization: Any = pytest.importorskip("onnxruntime.quantization")
    reader: Any = quantization.CalibrationDataReader
    made, source = folder / "int8.onnx", folder / "fp32.onnx"
    source.write_bytes(tiny_models.onnx_model("fp32"))
    random = np.random.default_rng(3)
    samples = [{name: random.uniform(-1, 1, shape).astype(np.float32) for name, shape in SHAPES.items()}]

    class Reader(reader):  # type: ignore[misc]
        def get_next(self) -> Any:
            return samples.pop() if samples else None

    symmetric = {"ActivationSymmetric": True, "WeightSymmetric": True}  # all that TensorRT takes
    int8 = quantization.QuantType.QInt8
    quantization.quantize_static(
        source, made, Reader(), activation_type=int8, weight_type=int8, extra_options=symmetric
    )
    return made


def test_the_table_of_signatures_is_that_of_the_real_library(library: TensorRTLibrary) -> None:
    """The fakes of the other tests take what this table has."""
    assert library.version == RTX, "another version is installed: scripts/check_tensorrt --update"
    assert json.loads(json.dumps(table_of(library.module))) == read_table(RTX)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_an_engine_is_built_without_a_gpu(library: TensorRTLibrary, precision: Precision) -> None:
    made = network(library, precision)
    dtype, kind = ("float16", "HALF") if precision == "fp16" else ("float32", "FLOAT")
    assert [(spec.name, spec.shape, spec.dtype) for spec in made.inputs] == [
        (spec.name, spec.shape, dtype) for spec in tiny_models.INPUTS
    ]
    assert [(spec.name, spec.dtype) for spec in made.outputs] == [("hidden", dtype), ("logits", dtype)]
    assert made.is_dynamic
    assert layers(made)["first_product"] == ("MATRIX_MULTIPLY", kind)
    assert layers(made)["rectified"] == ("ACTIVATION", kind)
    engine = made.build(made.profiles(SHAPES))
    assert engine.build_ms
    assert engine.blob[:4] in (b"vtrt", b"ftrt")
    assert engine.settings["builder flags"] == ("TF32" if precision == "tf32" else "none")
    assert engine.settings["profiles"] == "features:3x6; shift:3x1"


def test_an_int8_model_has_int8_layers_and_is_built(library: TensorRTLibrary, tmp_path: Path) -> None:
    made = network(library, "int8", quantized(tmp_path))
    assert {("QUANTIZE", "INT8"), ("DEQUANTIZE", "FLOAT")} <= set(layers(made).values())
    engine = made.build(made.profiles(SHAPES))
    assert len(engine.blob) > 1000


def test_mobilenet_is_built_in_two_precisions(library: TensorRTLibrary) -> None:
    sizes = {}
    for precision in ("fp32", "fp16"):
        model = call_factory(model_source("samples.mobilenet_v3.factory:create"), "tensorrt", precision)
        made = network(library, precision, model)
        assert made.inputs[0].shape[1:] == (3, 224, 224)
        engine = made.build(made.profiles({made.inputs[0].name: (2, 3, 224, 224)}))
        sizes[precision] = len(engine.blob)
    assert sizes["fp16"] < 0.7 * sizes["fp32"]  # weights are most of it


def test_profiles(library: TensorRTLibrary) -> None:
    text = "features:1x6,4x6,8x6; shift:1x1,4x1,8x1 | features:9x6,16x6,32x6; shift:9x1,16x1,32x1"
    made = network(library, profile=text, workspace_bytes="200000000")
    engine = made.build(made.profiles(None))
    assert engine.settings["profiles"].count("features:") == 2
    assert engine.settings["workspace_bytes"] == "200000000"
    for wrong in ("features:4x6,2x6,8x6", "features:4x6,2x6", "features:axb", "4x6"):
        refused(lambda wrong=wrong: profiles_of(options(profile=wrong)), "the profile")
    for other in ("features:1x6,2x6,4x6", "features:1x7;shift:1x1", "image:1x7", "features:1x6x1;shift:1x1"):
        made = network(library, profile=other)
        refused(lambda made=made: made.build(made.profiles(None)), "^(?!.*did not say why)")


def test_what_cannot_be_built_is_one_sentence_with_tensorrts_own_reason(library: TensorRTLibrary) -> None:
    fp32 = tiny_models.onnx_model("fp32")
    for precision in ("fp16", "int8"):
        refused(lambda precision=precision: network(library, precision, fp32), "tiny is a model in fp32")
    made = network(library, workspace_bytes="1000")
    refused(lambda: made.build(made.profiles(SHAPES)), r"built no engine of tiny: .*workspace")
    model = onnx.load_from_string(tiny_models.onnx_model("fp32"))
    model.graph.node[2].op_type = "Frobnicate"
    unknown = model.SerializeToString()
    refused(lambda: network(library, model=unknown), r"tiny cannot be read by TensorRT-RTX .*Frobnicate")


def test_an_engine_is_found_by_all_that_it_depends_on(library: TensorRTLibrary, tmp_path: Path) -> None:
    one: tuple[Profile, ...] = ({"features": ShapeRange((1, 6), (2, 6), (4, 6))},)
    other: tuple[Profile, ...] = ({"features": ShapeRange((1, 6), (3, 6), (4, 6))},)
    cache = EngineCache(tmp_path, library, "A 8.9")
    built = [("m", options(), one), ("n", options(), one), ("m", options("tf32"), one), ("m", options(), other)]
    paths = [cache.path(*each) for each in (*built, ("m", options(optimization_level="1"), one))]
    assert len(set(paths)) == len(paths)
    elsewhere = EngineCache(tmp_path, library, "B 8.6")
    assert elsewhere.path("m", options(), one) == paths[0], "RTX's engines are portable"
    assert EngineCache(None, library, "A 8.9").path(*built[0]) is None


def test_weights_in_files_of_their_own_are_part_of_the_model(tmp_path: Path) -> None:
    model = onnx.load_from_string(tiny_models.onnx_model("fp32"))
    path, weights = tmp_path / "model.onnx", tmp_path / "weights.bin"
    onnx.save_model(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = model_sha256(path)
    weights.write_bytes(hashlib.sha256(b"other").digest() + weights.read_bytes()[32:])
    assert model_sha256(path) != before
    weights.unlink()
    refused(lambda: model_sha256(path), "cannot be read")
