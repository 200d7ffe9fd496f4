"""The contract of all backends, kept by the TensorRT adapter with a TensorRT that computes on the host.

The adapter is the real one; TensorRT and CUDA are stood in for by fakes that take exactly what the real bindings of
each version take (tests/tensorrt).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("cuda.bindings.runtime")

from perfharness.backends import BackendOptions, Session, backend, model_source
from perfharness.errors import BackendError
from tests.contract.test_backends import (
    TINY,
    TOLERANCE,
    assert_equal,
    inputs,
    one_round,
    run,
    shapes_of,
    test_any_batch_size_and_allocated_again,
    test_arrays_that_were_not_allocated,
    test_calls_before_allocate,
    test_closed_twice_and_then_of_no_use,
    test_each_round_takes_what_was_written_last,
    test_inputs_and_outputs_are_described,
    test_inputs_need_not_be_contiguous,
    test_layer_times_are_of_one_inference_or_a_reason,
    test_outputs_stay_valid_after_further_rounds,
    test_settings_are_text,
    test_shapes_that_the_model_does_not_take,
    test_the_same_inputs_give_the_same_bits,
    test_what_is_written_is_copied,
)
from tests.tensorrt.fake_cuda import FakeCuda
from tests.tensorrt.fake_tensorrt import fake_tensorrt
from tests.tensorrt.signatures import RTX, TENSORRT

__all__ = [
    "test_any_batch_size_and_allocated_again",
    "test_arrays_that_were_not_allocated",
    "test_calls_before_allocate",
    "test_closed_twice_and_then_of_no_use",
    "test_each_round_takes_what_was_written_last",
    "test_inputs_and_outputs_are_described",
    "test_inputs_need_not_be_contiguous",
    "test_layer_times_are_of_one_inference_or_a_reason",
    "test_outputs_stay_valid_after_further_rounds",
    "test_settings_are_text",
    "test_shapes_that_the_model_does_not_take",
    "test_the_same_inputs_give_the_same_bits",
    "test_what_is_written_is_copied",
]

VERSIONS = [*TENSORRT, RTX]


@pytest.fixture(params=VERSIONS)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend's name, its library stood in for."""
    cuda = FakeCuda()
    module, _ = fake_tensorrt(request.param, cuda)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx" if request.param == RTX else "tensorrt", module)
    return "tensorrt-rtx" if request.param == RTX else "tensorrt"


@pytest.fixture(params=["stream", "cudagraph"])
def session(request: pytest.FixtureRequest, name: str) -> Iterator[Session]:
    """On the fake GPU, nothing allocated yet."""
    options = BackendOptions(device="cuda", mode=request.param)
    with backend(name).load(model_source(TINY), options) as loaded:
        yield loaded


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_outputs_are_those_of_numpy_on_the_gpu(name: str, precision: Any) -> None:
    arrays = inputs(3)
    with backend(name).load(model_source(TINY), BackendOptions(device="cuda", precision=precision)) as session:
        assert_equal(run(session, arrays), arrays, TOLERANCE[precision])


def test_two_sessions_at_once_on_the_gpu(name: str) -> None:
    made, options = backend(name), BackendOptions(device="cuda")
    with made.load(model_source(TINY), options) as one, made.load(model_source(TINY), options) as other:
        few, many = inputs(1, seed=1), inputs(6, seed=2)
        for session, arrays in ((one, few), (other, many)):
            session.allocate(shapes_of(arrays))
            session.write_inputs(arrays)
        for _ in range(2):
            assert_equal(one_round(one), few, TOLERANCE["fp32"])
            assert_equal(one_round(other), many, TOLERANCE["fp32"])


def test_the_gpu_is_timed_by_its_own_events(session: Session) -> None:
    run(session, inputs(2))
    timer = session.device_timer()
    assert timer is not None
    timer.start()
    session.execute()
    timer.stop()
    assert timer.milliseconds() == 1.5  # what the fake takes; copies are not in it


def test_an_engine_file_that_is_broken(name: str, tmp_path: Any) -> None:
    for suffix in (".engine", ".plan", ".onnx"):
        path = tmp_path / f"model{suffix}"
        path.write_bytes(b"this is no model")
        with pytest.raises(BackendError) as caught:
            backend(name).load(model_source(str(path)), BackendOptions(device="cuda"))
        assert "\n" not in str(caught.value)


def test_outputs_are_not_there_before_they_are_waited_for(session: Session) -> None:
    arrays = inputs(2)
    run(session, arrays)
    before = session.read_outputs()["logits"]
    session.write_inputs(inputs(2, seed=5))
    session.copy_in()
    session.execute()
    session.copy_out()
    np.testing.assert_array_equal(session.read_outputs()["logits"], before)
    session.synchronize()
    assert not np.array_equal(session.read_outputs()["logits"], before)
