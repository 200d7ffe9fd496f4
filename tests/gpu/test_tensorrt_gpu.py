"""TensorRT on a real GPU, whichever of TensorRT 10, 11 and TensorRT-RTX is installed and runs on it.

`python3 -m pytest tests/gpu/test_tensorrt_gpu.py -m gpu -s -q -rs`; needs cuda-python, and for all but the first test a
TensorRT. What is skipped says why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.runtime")

from perfharness.backends import BackendOptions, Session, backend, model_source
from perfharness.backends.cuda_memory import CudaStream, PairedBuffer, StreamTimer, gpu_problem
from perfharness.backends.tensorrt.session import CudaGraph
from perfharness.errors import BackendError, BackendUnavailableError
from samples.mobilenet_v3.reference import forward
from samples.mobilenet_v3.structure import INPUT, OUTPUT
from samples.mobilenet_v3.weights import example_images, seeded
from tests.contract import tiny_models
from tests.contract.test_backends import TINY, TOLERANCE, assert_equal, inputs, one_round, run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

NAMES = ("tensorrt", "tensorrt-rtx")
MOBILENET = "samples.mobilenet_v3.factory:create"


@pytest.fixture(autouse=True)
def _gpu() -> None:
    pytest.importorskip("cuda.bindings.runtime")
    if (problem := gpu_problem()) is not None:
        pytest.skip(problem)


def loaded(name: str, model: str = TINY, **options: Any) -> Session:
    """A session, or skipped where this TensorRT does not run here."""
    made, asked = backend(name), BackendOptions(device="cuda", **options)
    try:
        return made.load(model_source(model), asked)
    except BackendUnavailableError as error:
        pytest.skip(str(error))


def test_a_captured_copy_is_made_again_at_each_launch() -> None:
    stream, buffer = CudaStream(), PairedBuffer((4, 8), "float32")

    graph = CudaGraph(stream, lambda: buffer.copy_in(stream))
    for value in (1.0, 2.0):
        buffer.host[...] = value
        graph.launch()
        stream.synchronize()
        buffer.host[...] = 0
        buffer.copy_out(stream)
        stream.synchronize()
        assert (buffer.host == value).all()
    timer = StreamTimer(stream)
    timer.start()
    graph.launch()
    timer.stop()
    assert 0 < timer.milliseconds() < 100
    for each in (graph, buffer, stream):
        each.close()


def test_a_capture_that_fails_leaves_the_stream_usable() -> None:
    stream, buffer = CudaStream(), PairedBuffer((4,), "float32")

    def forbidden() -> None:
        buffer.copy_in(stream)
        raise BackendError("as TensorRT would")

    with pytest.raises(BackendError, match="as TensorRT would"):
        CudaGraph(stream, forbidden)
    buffer.copy_in(stream)
    stream.synchronize()
    buffer.close()
    stream.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["stream", "cudagraph"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_outputs_are_those_of_numpy(name: str, mode: str, precision: Any) -> None:
    with loaded(name, mode=mode, precision=precision) as session:
        for batch in (3, 5, 1):
            arrays = inputs(batch, seed=batch)
            assert_equal(run(session, arrays), arrays, TOLERANCE[precision])
            assert_equal(one_round(session), arrays, TOLERANCE[precision])
        timer = session.device_timer()
        assert timer is not None
        timer.start()
        session.execute()
        timer.stop()
        assert timer.milliseconds() > 0
        layers = session.layer_times(5)
        assert not isinstance(layers, str), layers
        print(name, [(layer.name, layer.milliseconds) for layer in layers])
        assert sum(layer.milliseconds for layer in layers) > 0


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_is_built_once_and_loaded_after(name: str, tmp_path: Path) -> None:
    built = []
    for _ in range(2):
        with loaded(name, cache_dir=tmp_path) as session:
            arrays = inputs(4)
            assert_equal(run(session, arrays), arrays, TOLERANCE["fp32"])
            built.append(session.build_ms)
            print(name, session.settings())
    assert built[0] is not None
    assert built[1] is None
    path = tmp_path / "kept.engine"
    path.write_bytes(next((tmp_path / "tensorrt").glob("*.engine")).read_bytes())
    with loaded(name, str(path)) as session:
        arrays = inputs(4)
        assert_equal(run(session, arrays), arrays, TOLERANCE["fp32"])
        assert session.inputs[0].shape[1:] == (tiny_models.FEATURES,)
    path.write_bytes(np.arange(1000).tobytes())
    with pytest.raises(BackendError) as caught:
        loaded(name, str(path))
    print(name, caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_int8_is_near_fp32_and_not_equal(name: str, tmp_path: Path) -> None:
    """Calibrated on samples, as `perfharness bench --precision int8 --calibration` has it."""
    samples: dict[str, Any] = {"samples.npz": inputs(64), "images.npz": {INPUT: example_images(16, seed=2)}}
    for file, content in samples.items():
        np.savez(tmp_path / file, **content)
    images, arrays = {INPUT: example_images(4)}, inputs(8, seed=3)
    for model, file, given, expected, least in (
        (TINY, "samples.npz", arrays, tiny_models.reference(**arrays), 0.98),
        (MOBILENET, "images.npz", images, {OUTPUT: forward(seeded(), images[INPUT])}, 0.8),
    ):
        with loaded(name, model, precision="int8", calibration=tmp_path / file) as session:
            found = run(session, given)
        for output, values in expected.items():
            cosine = (found[output] * values).sum() / np.linalg.norm(found[output]) / np.linalg.norm(values)
            print(name, model, output, cosine)
            assert least < cosine < 0.999999
