"""What of the ONNX Runtime backend needs a fault to be seen: fallback, profiles, memory, precision, open shapes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfharness.backends import BackendOptions, backend, model_source
from perfharness.backends.onnxruntime import OnnxRuntimeSession, layer_times_of_profile
from perfharness.errors import BackendError, BackendUnavailableError, OutOfMemoryError
from tests.contract import tiny_models

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def write(
    path: Path, nodes: list[Any], outputs: list[Any], inputs: list[Any], weights: list[Any] | None = None
) -> Path:
    graph = onnx.helper.make_graph(nodes, "made", inputs, outputs, weights or [])
    opsets = [onnx.helper.make_opsetid("", 17)]
    path.write_bytes(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    return path


def value(name: str, shape: list[int | str], kind: str = "FLOAT") -> Any:
    return onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), shape)


class FallingBack:
    """ONNX Runtime as it behaves where CUDA's libraries are missing: it logs, and takes the CPU."""

    def __init__(self, used: list[str], nodes: dict[str, int]) -> None:
        self.used, self.nodes = used, nodes
        self.GraphOptimizationLevel = onnxruntime.GraphOptimizationLevel
        self.SessionOptions = onnxruntime.SessionOptions
        self.RunOptions = onnxruntime.RunOptions

    def InferenceSession(self, *_: Any, **__: Any) -> Any:  # noqa: N802
        parts = [
            SimpleNamespace(ep_name=name, get_nodes=lambda c=count: range(c)) for name, count in self.nodes.items()
        ]
        return SimpleNamespace(
            disable_fallback=lambda: None,
            get_inputs=list,
            get_outputs=list,
            get_providers=lambda: self.used,
            get_provider_graph_assignment_info=lambda: parts,
        )


@pytest.mark.parametrize(
    ("used", "nodes", "says"),
    [
        (["AzureExecutionProvider"], {}, "could not be started and it fell back to AzureExecutionProvider"),
        (["CPUExecutionProvider"], {"XnnpackExecutionProvider": 4}, "takes no node of this model"),
    ],
)
def test_another_provider_than_asked_for_is_an_error(used: list[str], nodes: dict[str, int], says: str) -> None:
    with pytest.raises(BackendUnavailableError, match=says):
        OnnxRuntimeSession(FallingBack(used, nodes), b"", BackendOptions())


def test_the_build_without_cuda_says_so() -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this build has CUDA")
    problem = backend("onnxruntime").problem(BackendOptions(device="cuda"))
    assert problem is not None
    assert "has no CUDAExecutionProvider" in problem
    assert problem.endswith("install onnxruntime-gpu")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (BackendOptions(mode="cuda"), "mode cuda does not run on cpu"),
        (BackendOptions(mode="cpu", device="cuda"), "mode cpu does not run on cuda"),
        (BackendOptions(precision="tf32"), "a CPU has no tf32"),
        (BackendOptions(extra={"optimization": "most"}), "optimization cannot be 'most'; it can be: all"),
    ],
)
def test_options_that_do_not_go_together(options: BackendOptions, says: str) -> None:
    assert says in str(backend("onnxruntime").problem(options))


def test_a_model_in_another_precision_is_not_measured_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    path.write_bytes(tiny_models.onnx_model("fp16"))
    with pytest.raises(BackendError, match=r"tiny is a model in fp16, .* ask for fp16, or give a model in fp32"):
        backend("onnxruntime").load(model_source(str(path)), BackendOptions())
    with backend("onnxruntime").load(model_source(str(path)), BackendOptions(precision="fp16")) as session:
        assert {spec.dtype for spec in (*session.inputs, *session.outputs)} == {"float16"}
        assert session.settings()["arithmetic"] == "fp32, between casts, in operators that have no fp16 on the CPU"


def test_a_quantised_model_is_int8(tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    path.write_bytes(tiny_models.quantised_model())
    with backend("onnxruntime").load(model_source(str(path)), BackendOptions(precision="int8")) as session:
        session.allocate({"x": (1, 2)})
        session.write_inputs({"x": np.array([[0.44, -0.16]], np.float32)})
        session.run_round()
        np.testing.assert_allclose(session.read_outputs()["y"], [[0.4, -0.2]], atol=1e-6)


def test_an_output_whose_shape_depends_on_the_data(tmp_path: Path) -> None:
    """Indices of what is not zero: as many as there are. Beside it one whose shape is known, declared after it."""
    nodes = [onnx.helper.make_node("NonZero", ["x"], ["where"]), onnx.helper.make_node("Neg", ["x"], ["less"])]
    outputs = [value("where", [1, "found"], "INT64"), value("less", ["n"])]
    path = write(tmp_path / "w.onnx", nodes, outputs, [value("x", ["n"])])
    with backend("onnxruntime").load(model_source(str(path)), BackendOptions()) as session:
        session.allocate({"x": (4,)})
        assert session.settings()["allocated in each round"] == "where"
        for x, expected in [([0, 1, 0, 2], [1, 3]), ([0, 0, 0, 0], []), ([5, 0, 0, 0], [0])]:
            session.write_inputs({"x": np.array(x, np.float32)})
            session.execute()
            session.copy_out()
            found = session.read_outputs()
            assert found["where"].tolist() == [expected]
            assert found["less"].tolist() == [-number for number in x]


def test_one_name_of_a_dimension_is_one_size(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Add", ["a", "b"], ["y"])]
    path = write(tmp_path / "a.onnx", nodes, [value("y", ["n"])], [value("a", ["n"]), value("b", ["n"])])
    with (
        backend("onnxruntime").load(model_source(str(path)), BackendOptions()) as session,
        pytest.raises(BackendError, match="dimension 'n' would be 2 and 3"),
    ):
        session.allocate({"a": (2,), "b": (3,)})


def test_text_cannot_be_measured(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Identity", ["x"], ["y"])]
    path = write(tmp_path / "t.onnx", nodes, [value("y", ["n"], "STRING")], [value("x", ["n"], "STRING")])
    with pytest.raises(BackendError, match=r"'x' is tensor\(string\), which cannot be measured"):
        backend("onnxruntime").load(model_source(str(path)), BackendOptions())


def test_memory_that_is_not_there(tmp_path: Path) -> None:
    """An output of 2^50 bytes from one number."""
    weights = [onnx.numpy_helper.from_array(np.array([2**24, 2**24], np.int64), "shape")]
    nodes = [
        onnx.helper.make_node("Expand", ["x", "shape"], ["big"]),
        onnx.helper.make_node("ReduceSum", ["big"], ["y"], keepdims=0),
    ]
    path = write(tmp_path / "m.onnx", nodes, [value("y", [])], [value("x", [1])], weights)
    options = BackendOptions(extra={"optimization": "none"})
    with backend("onnxruntime").load(model_source(str(path)), options) as session:
        session.allocate({"x": (1,)})
        with pytest.raises(OutOfMemoryError, match="the model could not be run: "):
            session.execute()


def test_threads_are_told() -> None:
    with backend("onnxruntime").load(
        model_source("tests.contract.tiny_models:create"), BackendOptions(threads=2)
    ) as session:
        told = session.settings()
    assert told["intra_op_num_threads"] == "2"
    assert told["provider"] == "CPUExecutionProvider"


def test_layers_of_a_profile_without_its_first_run() -> None:
    """Two operators, one of them twice a run (a loop): 100 us of allocation in the first run do not count."""

    def node(name: str, ts: int, dur: int) -> dict[str, Any]:
        return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur}

    def run(ts: int) -> dict[str, Any]:
        return {"cat": "Session", "name": "model_run", "ts": ts, "dur": 1000}

    events = [node("conv", 10, 100), run(0), node("conv", 2010, 20), node("body", 2040, 3), node("body", 2050, 5)]
    events += [run(2000), node("conv", 4010, 40), node("body", 4060, 4), node("body", 4070, 4), run(4000)]
    events.append({"cat": "Session", "name": "model_loading_array", "ts": 0, "dur": 7})
    told = {layer.name: layer.milliseconds for layer in layer_times_of_profile(events, rounds=2)}
    assert told == pytest.approx({"conv": 0.030, "body": 0.008})
    with pytest.raises(BackendError, match="has 3 runs, not 4"):
        layer_times_of_profile(events, rounds=3)


def test_layers_are_the_operators_that_run() -> None:
    """Four as written, two where ONNX Runtime fuses product, sum and rectifier."""
    source = model_source("tests.contract.tiny_models:create")
    for level, names in [
        ("none", ["first_product", "shifted", "rectified", "second_product"]),
        ("all", ["first_product", "second_product"]),
    ]:
        with backend("onnxruntime").load(source, BackendOptions(extra={"optimization": level})) as session:
            session.allocate({"features": (2, 6), "shift": (2, 1)})
            layers = session.layer_times(5)
        assert not isinstance(layers, str)
        assert [any(name in layer.name for layer in layers) for name in names] == [True] * len(names)
        assert len(layers) == len(names)
