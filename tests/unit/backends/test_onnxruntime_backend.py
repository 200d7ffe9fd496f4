"""What the contract does not see of ONNX Runtime: faults, open shapes, profiles, and a GPU that is the host.

The CUDA provider itself: tests/gpu/test_backends_gpu.py. The TensorRT provider was never run (docs/guides/backends.md).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfharness.backends import BackendOptions, Session, backend, cuda_memory, model_source
from perfharness.backends.onnxruntime import OnnxRuntimeBackend, OnnxRuntimeSession, layer_times_of_profile
from perfharness.errors import BackendError, BackendUnavailableError, OutOfMemoryError
from tests.contract import tiny_models

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
    session.allocate({name: np.shape(array) for name, array in arrays.items()})
    session.write_inputs({name: np.array(array, np.float32) for name, array in arrays.items()})
    session.run_round()
    return session.read_outputs()


@pytest.mark.parametrize(
    ("used", "nodes"),
    [(["AzureExecutionProvider"], {}), (["CPUExecutionProvider"], {"XnnpackExecutionProvider": 4})],
)
def test_another_provider_than_asked_for_is_an_error(used: list[str], nodes: dict[str, int]) -> None:
    """ONNX Runtime where CUDA's libraries are missing: it logs, and takes the CPU."""
    parts = [SimpleNamespace(ep_name=name, get_nodes=lambda c=count: range(c)) for name, count in nodes.items()]
    session = SimpleNamespace(
        disable_fallback=lambda: None,
        get_inputs=list,
        get_outputs=list,
        get_providers=lambda: used,
        get_provider_graph_assignment_info=lambda: parts,
    )
    library = SimpleNamespace(
        GraphOptimizationLevel=onnxruntime.GraphOptimizationLevel,
        SessionOptions=onnxruntime.SessionOptions,
        RunOptions=onnxruntime.RunOptions,
        InferenceSession=lambda *_, **__: session,
    )
    with pytest.raises(BackendUnavailableError):
        OnnxRuntimeSession(library, b"", BackendOptions())


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


def test_layers_of_a_profile_without_its_first_run() -> None:
    """Two operators, one of them twice a run (a loop): 100 us of allocation in the first run do not count."""

    def node(name: str, ts: int, dur: int) -> dict[str, Any]:
        return {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": dur}

    def run(ts: int) -> dict[str, Any]:
        return {"cat": "Session", "name": "model_run", "ts": ts, "dur": 1000}

    events = [node("conv", 10, 100), run(0), node("conv", 2010, 20), node("body", 2040, 3), node("body", 2050, 5)]
    events += [run(2000), node("conv", 4010, 40), node("body", 4060, 4), node("body", 4070, 4), run(4000)]
    events.append({"cat": "Session", "name": "model_loading_array", "ts": 0, "dur": 7})
    found = {layer.name: layer.milliseconds for layer in layer_times_of_profile(events, rounds=2)}
    assert found == pytest.approx({"conv": 0.030, "body": 0.008})
    with pytest.raises(BackendError):
        layer_times_of_profile(events, rounds=3)


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


# On a GPU that is the host
class FakeBinding:
    def __init__(self) -> None:
        self.inputs: dict[str, tuple[Any, list[int], int]] = {}
        self.outputs: dict[str, tuple[Any, list[int], int]] = {}

    def bind_input(self, name: str, device: str, number: int, dtype: Any, shape: list[int], pointer: int) -> None:
        assert (device, number) == ("cuda", 0)
        self.inputs[name] = (dtype, shape, pointer)

    def bind_output(self, name: str, device: str, number: int, dtype: Any, shape: list[int], pointer: int) -> None:
        assert (device, number) == ("cuda", 0)
        self.outputs[name] = (dtype, shape, pointer)


class FakeSession:
    """Computes on the CPU what was bound, once the stream that it was given comes to it."""

    def __init__(self, cuda: Any, source: bytes, name: str, options: dict[str, str]) -> None:
        self.cuda, self.name = cuda, name
        self.stream = cuda.streams[int(options["user_compute_stream"])]
        self.real = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)  # inputs, outputs, ...

    def get_providers(self) -> list[str]:
        return [self.name, "CPUExecutionProvider"]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        return []

    def io_binding(self) -> FakeBinding:
        return FakeBinding()

    def run_with_iobinding(self, binding: FakeBinding, options: Any) -> None:
        assert options.get_run_config_entry("disable_synchronize_execution_providers") == "1"
        self.cuda.calls.append("run")

        def compute() -> None:
            feeds = {name: self.array(*place) for name, place in binding.inputs.items()}
            for array, place in zip(self.real.run(list(binding.outputs), feeds), binding.outputs.values(), strict=True):
                self.array(*place)[...] = array
            self.cuda.now_ms += 4

        self.stream.put(compute)

    def array(self, dtype: Any, shape: list[int], pointer: int) -> Any:
        size = int(np.prod(shape))
        block = self.cuda.bytes_at("device", pointer, size * np.dtype(dtype).itemsize)
        return np.frombuffer(memoryview(block), dtype=dtype, count=size).reshape(shape)


class FakeLibrary:
    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        self.told: list[tuple[str, dict[str, str]]] = []
        self.SessionOptions, self.RunOptions = onnxruntime.SessionOptions, onnxruntime.RunOptions
        self.GraphOptimizationLevel = onnxruntime.GraphOptimizationLevel

    def get_available_providers(self) -> list[str]:
        return ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]

    def InferenceSession(self, source: bytes, options: Any, providers: list[Any]) -> FakeSession:  # noqa: N802
        del options
        ((name, told),) = providers
        self.told.append((name, told))
        return FakeSession(self.cuda, source, name, told)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("cuda.bindings.runtime")
    from tests.tensorrt.fake_cuda import FakeCuda

    made = FakeCuda(room_bytes=10_000)
    monkeypatch.setattr(cuda_memory, "runtime", lambda: made)
    return made


def opened(cuda: Any, **options: Any) -> tuple[Session, FakeLibrary]:
    library = FakeLibrary(cuda)
    asked = BackendOptions(device="cuda", **options)
    return OnnxRuntimeSession(library, tiny_models.onnx_model("fp32"), asked), library


def inputs(batch: int) -> dict[str, Any]:
    random = np.random.default_rng(batch)
    shapes = {"features": (batch, tiny_models.FEATURES), "shift": (batch, 1)}
    return {name: random.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_round_is_copies_one_run_and_one_wait(cuda: Any) -> None:
    session, _ = opened(cuda)
    for batch in (2, 5):
        arrays = inputs(batch)
        session.allocate({name: array.shape for name, array in arrays.items()})
        session.write_inputs(arrays)
        cuda.calls.clear()
        session.copy_in()
        session.execute()
        session.copy_out()
        assert not session.read_outputs()["logits"].any()  # nothing is done before it is waited for
        session.synchronize()
        assert cuda.calls.count("cudaStreamSynchronize") == cuda.calls.count("run") == 1
        for name, expected in tiny_models.reference(**arrays).items():
            np.testing.assert_allclose(session.read_outputs()[name], expected, rtol=0, atol=1e-6)
    kept = session.read_outputs()
    session.close()
    session.close()
    assert (cuda.used_bytes("host"), cuda.used_bytes("device")) == (0, 0)
    assert not any(stream.is_open for stream in cuda.streams.values())
    np.testing.assert_allclose(kept["logits"], tiny_models.reference(**inputs(5))["logits"], rtol=0, atol=1e-6)


def test_the_timer_stands_around_the_run_alone_and_all_is_freed(cuda: Any) -> None:
    session, _ = opened(cuda)
    with pytest.raises(OutOfMemoryError, match="48000"):
        session.allocate({name: array.shape for name, array in inputs(2000).items()})
    session.allocate({name: array.shape for name, array in inputs(1).items()})
    timer = session.device_timer()
    assert timer is not None
    session.copy_in()
    timer.start()
    session.execute()
    timer.stop()
    session.copy_out()
    assert timer.milliseconds() == 4
    del timer
    session.close()
    assert (cuda.events, cuda.used_bytes("host"), cuda.used_bytes("device")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("options", "provider", "told"),
    [
        ({}, "CUDAExecutionProvider", {"use_tf32": "0", "cudnn_conv_algo_search": "EXHAUSTIVE"}),
        ({"precision": "tf32"}, "CUDAExecutionProvider", {"use_tf32": "1"}),
        (
            {"extra": {"cudnn_conv_algo_search": "HEURISTIC"}},
            "CUDAExecutionProvider",
            {"cudnn_conv_algo_search": "HEURISTIC"},
        ),
        (
            {"mode": "tensorrt", "precision": "fp16", "cache_dir": Path("/c")},
            "TensorrtExecutionProvider",
            {"trt_fp16_enable": "1", "trt_engine_cache_path": "/c"},
        ),
    ],
)
def test_what_the_providers_are_told(cuda: Any, options: dict[str, Any], provider: str, told: dict[str, str]) -> None:
    session, library = opened(cuda, **options)
    ((name, given),) = library.told
    assert name == provider
    assert told.items() <= given.items()
    assert given["has_user_compute_stream"] == "1"
    settings = session.settings()
    assert settings["provider"] == provider
    assert told.items() <= settings.items()
    assert "user_compute_stream" not in settings
    assert isinstance(session.layer_times(3), str)
    session.close()


def test_whether_a_gpu_can_be_used(cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = OnnxRuntimeBackend()
    monkeypatch.setattr(made, "_library", lambda: FakeLibrary(cuda))
    assert made.problem(BackendOptions(device="cuda")) is None
    cuda.capability = None
    assert "cudaErrorNoDevice" in str(made.problem(BackendOptions(device="cuda")))


def test_libraries_come_from_wheels_and_what_is_missing_is_said(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The provider itself does not look into site-packages, and falls back to the CPU with a line in a log."""
    monkeypatch.setattr(FakeSession, "get_providers", lambda self: ["CPUExecutionProvider"])
    monkeypatch.setattr(FakeLibrary, "preload_dlls", lambda self: print("Failed to load\nlibcudnn.so.9"), raising=False)
    with pytest.raises(BackendUnavailableError, match="libcudnn"):
        opened(cuda)
    assert capsys.readouterr().out == ""
