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

from perfharness.backends import BackendOptions, backend, call_factory, model_source
from perfharness.backends.tensorrt.engine import (
    BuildOptions,
    EngineCache,
    Network,
    Profile,
    ShapeRange,
    build_options,
    model_sha256,
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


def options(precision: Precision = "fp32", **extra: str) -> BuildOptions:
    return build_options(BackendOptions(device="cuda", precision=precision, extra=extra))


def network(library: TensorRTLibrary, precision: Precision = "fp32", **extra: str) -> Network:
    return Network(library, tiny_models.onnx_model(precision), "tiny", options(precision, **extra))


def layers(made: Network) -> list[tuple[str, str, str]]:
    """Name, kind and type of the first output of each layer, before TensorRT fuses them."""
    found = (made.network.get_layer(index) for index in range(made.network.num_layers))
    return [(layer.name, layer.type.name, layer.get_output(0).dtype.name) for layer in found]


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
    real = json.loads(json.dumps(table_of(library.module)))
    kept = read_table(RTX)
    assert sorted(real["classes"]) == sorted(kept["classes"])
    for name, described in real["classes"].items():
        assert described == kept["classes"][name]
    assert real["enums"] == kept["enums"]


def test_a_network_is_described_before_it_is_built(library: TensorRTLibrary) -> None:
    made = network(library)
    assert made.inputs == tiny_models.INPUTS
    assert [spec.name for spec in made.outputs] == ["hidden", "logits"]
    assert made.is_dynamic
    kinds = {name: (kind, dtype) for name, kind, dtype in layers(made)}
    assert kinds["first_product"] == ("MATRIX_MULTIPLY", "FLOAT")
    assert kinds["rectified"] == ("ACTIVATION", "FLOAT")


def test_an_fp16_model_has_fp16_layers(library: TensorRTLibrary) -> None:
    made = network(library, "fp16")
    assert {spec.dtype for spec in (*made.inputs, *made.outputs)} == {"float16"}
    assert {dtype for _, _, dtype in layers(made)} == {"HALF"}


def test_an_int8_model_has_int8_layers_and_is_built(library: TensorRTLibrary, tmp_path: Path) -> None:
    made = Network(library, quantized(tmp_path), "quantized", options("int8"))
    kinds = [(kind, dtype) for _, kind, dtype in layers(made)]
    assert ("QUANTIZE", "INT8") in kinds
    assert ("DEQUANTIZE", "FLOAT") in kinds
    engine, _ = made.build(made.profiles(SHAPES))
    assert len(engine.blob) > 1000


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_an_engine_is_built_without_a_gpu(library: TensorRTLibrary, precision: Precision) -> None:
    made = network(library, precision)
    ticks = iter((1_000_000, 4_500_000))
    engine, timing = made.build(made.profiles(SHAPES), clock_ns=lambda: next(ticks))
    assert engine.build_ms == 3.5
    assert engine.blob[:4] in (b"vtrt", b"ftrt")
    assert engine.settings["builder flags"] == ("TF32" if precision == "tf32" else "none")
    assert engine.settings["profiles"] == "features:3x6; shift:3x1"
    assert timing is None, "RTX times nothing when it builds"


def test_profiles_are_set(library: TensorRTLibrary) -> None:
    text = "features:1x6,4x6,8x6; shift:1x1,4x1,8x1 | features:9x6,16x6,32x6; shift:9x1,16x1,32x1"
    made = network(library, profile=text, workspace_bytes="200000000")
    engine, _ = made.build(made.profiles(None))
    assert engine.settings["profiles"].count("features:") == 2
    assert engine.settings["workspace_bytes"] == "200000000"


def test_mobilenet_is_built_in_two_precisions(library: TensorRTLibrary) -> None:
    sizes = {}
    for precision in ("fp32", "fp16"):
        model = call_factory(model_source("samples.mobilenet_v3.factory:create"), "tensorrt", precision)
        made = Network(library, model, "mobilenet_v3", options(precision))
        assert made.inputs[0].shape[1:] == (3, 224, 224)
        engine, _ = made.build(made.profiles({made.inputs[0].name: (2, 3, 224, 224)}))
        sizes[precision] = len(engine.blob)
    assert sizes["fp16"] < 0.7 * sizes["fp32"]  # weights are most of it


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_precisions_that_the_model_has_not(library: TensorRTLibrary, precision: Precision) -> None:
    with pytest.raises(BackendError, match="tiny is a model in fp32"):
        Network(library, tiny_models.onnx_model("fp32"), "tiny", options(precision))


@pytest.mark.parametrize(
    "profile",
    ["features:1x6,2x6,4x6", "features:1x7;shift:1x1", "image:1x7", "features:1x6x1;shift:1x1"],
)
def test_profiles_that_the_model_does_not_take(library: TensorRTLibrary, profile: str) -> None:
    made = network(library, profile=profile)
    with pytest.raises(BackendError) as caught:
        made.build(made.profiles(None))
    assert "did not say why" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("profile", ["features:4x6,2x6,8x6", "features:4x6,2x6", "features:axb", "4x6"])
def test_profiles_that_are_wrong(profile: str) -> None:
    with pytest.raises(BackendError):
        options(profile=profile)


def test_what_tensorrt_cannot_build_is_one_sentence_with_its_own_reason(library: TensorRTLibrary) -> None:
    made = network(library, workspace_bytes="1000")
    with pytest.raises(BackendError, match=r"built no engine of tiny: .*workspace") as caught:
        made.build(made.profiles(SHAPES))
    assert "\n" not in str(caught.value)


def test_an_operator_that_there_is_not(library: TensorRTLibrary) -> None:
    model = onnx.load_from_string(tiny_models.onnx_model("fp32"))
    model.graph.node[2].op_type = "Frobnicate"
    with pytest.raises(BackendError, match=r"tiny cannot be read by TensorRT-RTX .*Frobnicate") as caught:
        Network(library, model.SerializeToString(), "tiny", options())
    assert "\n" not in str(caught.value)


def test_a_gpu_that_rtx_does_not_know(library: TensorRTLibrary) -> None:
    """The H200 is 9.0, which is not in the library's own list; what is newer than the list is left to it."""
    assert "does not run on compute capability 9.0; it does on 7.5, 8.0, 8.6, 8.9" in str(library.gpu_problem(9, 0))
    assert library.gpu_problem(8, 9) is None
    assert library.gpu_problem(15, 0) is None


def test_without_a_gpu_there_is_one_sentence() -> None:
    made = backend("tensorrt-rtx")
    assert made.problem(BackendOptions(device="cpu")) == "TensorRT-RTX runs on a GPU only; choose the device cuda"
    if (told := made.problem(BackendOptions(device="cuda"))) is not None:
        assert len(told.splitlines()) == 1
    assert made.versions() == {"tensorrt_rtx": RTX}


def test_engines_are_kept_and_found_again(library: TensorRTLibrary, tmp_path: Path) -> None:
    cache = EngineCache(tmp_path, library, "Some GPU 8.9")
    made = network(library)
    profiles = made.profiles(SHAPES)
    model = model_sha256(tiny_models.onnx_model("fp32"))
    key = cache.key(model, options(), profiles)
    assert cache.engine(key) is None
    engine, _ = made.build(profiles)
    cache.keep_engine(key, engine, model="tiny")
    kept = cache.engine(key)
    assert kept is not None
    assert kept.blob == engine.blob
    assert kept.build_ms is None
    assert kept.settings["built"].startswith("earlier, in ")
    (tmp_path / "tensorrt" / f"{key}.engine").write_bytes(engine.blob[:-1])
    assert cache.engine(key) is None, "one that is cut off is built again"


def test_a_key_is_of_all_that_an_engine_depends_on(library: TensorRTLibrary) -> None:
    one: tuple[Profile, ...] = ({"features": ShapeRange((1, 6), (2, 6), (4, 6))},)
    other: tuple[Profile, ...] = ({"features": ShapeRange((1, 6), (3, 6), (4, 6))},)
    cache = EngineCache(None, library, "A 8.9")
    keys = [
        cache.key("m", options(), one),
        cache.key("n", options(), one),
        cache.key("m", options("tf32"), one),
        cache.key("m", options(optimization_level="1"), one),
        cache.key("m", options(), other),
    ]
    assert len(set(keys)) == len(keys)
    elsewhere = EngineCache(None, library, "B 8.6")
    assert elsewhere.key("m", options(), one) == keys[0], "RTX's engines are portable"


def test_weights_in_files_of_their_own_are_part_of_the_model(tmp_path: Path) -> None:
    model = onnx.load_from_string(tiny_models.onnx_model("fp32"))
    path = tmp_path / "model.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = model_sha256(path)
    weights = tmp_path / "weights.bin"
    weights.write_bytes(hashlib.sha256(b"other").digest() + weights.read_bytes()[32:])
    assert model_sha256(path) != before
    weights.unlink()
    with pytest.raises(BackendError, match="cannot be read"):
        model_sha256(path)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"workspace_bytes": "12GB"}, "workspace_bytes is a whole number"),
        ({"optimization_level": "6"}, "optimization_level cannot be '6'; it can be: 0, 1"),
    ],
)
def test_options_that_are_wrong(extra: dict[str, str], says: str) -> None:
    assert says in str(backend("tensorrt-rtx").problem(BackendOptions(device="cuda", extra=extra)))
