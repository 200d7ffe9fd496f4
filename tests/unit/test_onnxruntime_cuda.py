"""ONNX Runtime's CUDA and TensorRT providers on a CUDA that is the host: their options, and the order of a round.

The CUDA provider itself: tests/gpu/test_backends_gpu.py. The TensorRT provider was never run (docs/guides/backends.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.backends import BackendOptions, Session, cuda_memory
from perfharness.backends.onnxruntime import OnnxRuntimeBackend, OnnxRuntimeSession
from perfharness.errors import BackendUnavailableError, OutOfMemoryError
from tests.contract import tiny_models

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("cuda.bindings.runtime")

from tests.tensorrt.fake_cuda import FakeCuda  # noqa: E402


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

    def __init__(self, cuda: FakeCuda, source: bytes, name: str, options: dict[str, str]) -> None:
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
    def __init__(self, cuda: FakeCuda) -> None:
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


def opened(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, **options: Any) -> tuple[Session, FakeLibrary]:
    monkeypatch.setattr(cuda_memory, "runtime", lambda: cuda)
    library = FakeLibrary(cuda)
    asked = BackendOptions(device="cuda", **options)
    return OnnxRuntimeSession(library, tiny_models.onnx_model("fp32"), asked), library


def inputs(batch: int) -> dict[str, Any]:
    random = np.random.default_rng(batch)
    shapes = {"features": (batch, tiny_models.FEATURES), "shift": (batch, 1)}
    return {name: random.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_round_is_copies_one_run_and_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    session, _ = opened(monkeypatch, cuda)
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
        copy, wait = "cudaMemcpyAsync", "cudaStreamSynchronize"
        assert cuda.calls == [copy, copy, "run", copy, copy, wait]
        for name, expected in tiny_models.reference(**arrays).items():
            np.testing.assert_allclose(session.read_outputs()[name], expected, rtol=0, atol=1e-6)
    kept = session.read_outputs()
    session.close()
    session.close()
    assert (cuda.used_bytes("host"), cuda.used_bytes("device")) == (0, 0)
    assert not any(stream.is_open for stream in cuda.streams.values())
    np.testing.assert_allclose(kept["logits"], tiny_models.reference(**inputs(5))["logits"], rtol=0, atol=1e-6)


def test_the_timer_stands_around_the_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    session, _ = opened(monkeypatch, cuda)
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
    assert cuda.events == 0


def test_buffers_that_do_not_fit_are_all_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(room_bytes=1000)
    session, _ = opened(monkeypatch, cuda)
    with pytest.raises(OutOfMemoryError, match="no room for device memory of 4800 bytes"):
        session.allocate({name: array.shape for name, array in inputs(200).items()})
    session.allocate({name: array.shape for name, array in inputs(2).items()})
    session.close()
    assert (cuda.used_bytes("host"), cuda.used_bytes("device")) == (0, 0)


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
def test_what_the_providers_are_told(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], provider: str, told: dict[str, str]
) -> None:
    session, library = opened(monkeypatch, FakeCuda(), **options)
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


def test_whether_a_gpu_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made = OnnxRuntimeBackend()
    cuda = FakeCuda()
    monkeypatch.setattr(cuda_memory, "runtime", lambda: cuda)
    monkeypatch.setattr(made, "_library", lambda: FakeLibrary(cuda))
    assert made.problem(BackendOptions(device="cuda")) is None
    cuda.capability = None
    assert made.problem(BackendOptions(device="cuda")) == "there is no GPU that CUDA can use here (cudaErrorNoDevice)"


def test_libraries_come_from_wheels_and_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The provider itself does not look into site-packages, and falls back to the CPU with a line in a log."""
    cuda = FakeCuda()
    monkeypatch.setattr(cuda_memory, "runtime", lambda: cuda)
    monkeypatch.setattr(FakeSession, "get_providers", lambda self: ["CPUExecutionProvider"])
    monkeypatch.setattr(FakeLibrary, "preload_dlls", lambda self: print("Failed to load\nlibcudnn.so.9"), raising=False)
    with pytest.raises(BackendUnavailableError, match=r"fell back to CPUExec.*\(Failed to load libcudnn\.so\.9\)"):
        OnnxRuntimeSession(FakeLibrary(cuda), tiny_models.onnx_model("fp32"), BackendOptions(device="cuda"))
    assert capsys.readouterr().out == ""
