"""What the contract does not see of ONNX Runtime: faults, open shapes, layers.

The CUDA provider itself: tests/gpu/test_backends_gpu.py. The TensorRT provider was never run (docs/guides/backends.md).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfharness.backends import BackendOptions, Session, backend, model_source
from perfharness.errors import BackendError, BackendUnavailableError, OutOfMemoryError
from tests.contract import tiny_models
from tests.contract.test_backends import run

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
TINY = "tests.contract.tiny_models:create"


def loaded(model: str | bytes, folder: Path, **options: Any) -> Session:
    """A session of a model: its bytes, or a graph in ONNX's text format."""
    path = folder / "made.onnx"
    if isinstance(model, str):
        onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> made {model}'), path)
    else:
        path.write_bytes(model)
    return backend("onnxruntime").load(model_source(str(path)), BackendOptions(**options))


def outputs_of(session: Session, **arrays: Any) -> dict[str, Any]:
    return run(session, {name: np.array(array, np.float32) for name, array in arrays.items()})


@pytest.mark.parametrize(
    ("method", "answer", "says"),
    [
        ("get_providers", ["AzureExecutionProvider"], "fell back to Azure"),
        (
            "get_provider_graph_assignment_info",
            [SimpleNamespace(ep_name="XnnpackExecutionProvider", get_nodes=lambda: range(4))],
            "all run on Xnnpack",
        ),
    ],
)
def test_another_provider_than_asked_for_is_an_error(
    method: str, answer: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime where CUDA's libraries are missing: it logs, and takes the CPU."""
    monkeypatch.setattr(onnxruntime.InferenceSession, method, lambda self: answer)
    with pytest.raises(BackendUnavailableError, match=says):
        backend("onnxruntime").load(model_source(TINY), BackendOptions())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (BackendOptions(mode="cuda"), "cuda"),
        (BackendOptions(mode="cpu", device="cuda"), "cpu"),
        (BackendOptions(precision="tf32"), "tf32"),
        (BackendOptions(extra={"optimization": "most"}), "most"),
    ],
)
def test_options_that_do_not_go_together(options: BackendOptions, says: str) -> None:
    assert says in str(backend("onnxruntime").problem(options))


NUMBERS = ["float", "double", "float16", "bool", *(f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64))]


def test_types_of_inputs_are_numpys(tmp_path: Path) -> None:
    """As ONNX itself translates them."""
    for name in NUMBERS:
        expected = onnx.helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, name.upper())).name
        precision = "fp16" if name == "float16" else "fp32"
        graph = f"({name}[n] x) => ({name}[n] y) {{ y = Identity(x) }}"
        with loaded(graph, tmp_path, precision=precision) as session:
            assert [spec.dtype for spec in (*session.inputs, *session.outputs)] == [expected] * 2


def test_models_in_other_precisions(tmp_path: Path) -> None:
    fp16 = tiny_models.onnx_model("fp16")
    with pytest.raises(BackendError, match="fp16"):
        loaded(fp16, tmp_path)
    with loaded(fp16, tmp_path, precision="fp16") as session:
        assert {spec.dtype for spec in (*session.inputs, *session.outputs)} == {"float16"}
    with loaded(tiny_models.quantised_model(), tmp_path, precision="int8") as session:
        np.testing.assert_allclose(outputs_of(session, x=[[0.44, -0.16]])["y"], [[0.4, -0.2]], atol=1e-6)


def test_an_output_whose_shape_depends_on_the_data(tmp_path: Path) -> None:
    """Indices of what is not zero: as many as there are. Beside it one whose shape is known, declared after it."""
    graph = "(float[n] x) => (int64[1, found] where, float[n] less) { where = NonZero(x) less = Neg(x) }"
    with loaded(graph, tmp_path) as session:
        for x, expected in [([0, 1, 0, 2], [1, 3]), ([0, 0, 0, 0], []), ([5, 0, 0, 0], [0])]:
            found = outputs_of(session, x=x)
            assert found["where"].tolist() == [expected]
            assert found["less"].tolist() == [-number for number in x]
        assert session.settings()["allocated in each round"] == "where"


def test_models_and_shapes_that_cannot_be_measured(tmp_path: Path) -> None:
    with (
        loaded("(float[n] a, float[n] b) => (float[n] y) { y = Add(a, b) }", tmp_path) as session,
        pytest.raises(BackendError, match="'n'"),
    ):
        session.allocate({"a": (2,), "b": (3,)})
    with pytest.raises(BackendError, match="string"):
        loaded("(string[n] x) => (string[n] y) { y = Identity(x) }", tmp_path)


def test_memory_that_is_not_there(tmp_path: Path) -> None:
    """2^48 floats from one number."""
    graph = """(float[1] x) => (float y) <int64[2] shape = {16777216, 16777216}>
        { big = Expand(x, shape) y = ReduceSum <keepdims = 0> (big) }"""
    with (
        loaded(graph, tmp_path, extra={"optimization": "none"}) as session,
        pytest.raises(OutOfMemoryError),
    ):
        outputs_of(session, x=[1])


@pytest.mark.parametrize(
    ("level", "names"),
    [
        ("none", ["first_product", "shifted", "rectified", "second_product"]),
        ("all", ["first_product", "second_product"]),
    ],
)
def test_layers_are_the_operators_that_run(level: str, names: list[str]) -> None:
    """Four as written, two where ONNX Runtime fuses product, sum and rectifier."""
    options = BackendOptions(threads=2, extra={"optimization": level})
    with backend("onnxruntime").load(model_source(TINY), options) as session:
        session.allocate({"features": (2, 6), "shift": (2, 1)})
        layers = session.layer_times(5)
        assert {"intra_op_num_threads": "2", "provider": "CPUExecutionProvider"}.items() <= session.settings().items()
    assert not isinstance(layers, str)
    assert [any(name in layer.name for layer in layers) for name in names] == [True] * len(names)
    assert len(layers) == len(names)
