"""Backends on a real GPU: equal outputs in every mode and precision, honest times, replayed graphs, a limit that holds.

`python3 -m pytest tests/gpu/test_backends_gpu.py -m gpu -s -q` or `scripts/gpu_check --slow`; needs PyTorch with CUDA.
About seven minutes, most of them torch.compile.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.backends import BACKENDS, BackendOptions, FactoryModel, ModelSource, Session, backend, model_source
from perfharness.backends.cuda_memory import CudaStream, PairedBuffer, StreamTimer, gpu_problem
from perfharness.bench.latency import measure_device_time, measure_latency, warm_up
from perfharness.bench.spec import LatencySettings
from perfharness.errors import BackendUnavailableError, OutOfMemoryError
from perfharness.model.bench import TensorSpec
from samples.mobilenet_v3 import reference, weights
from samples.mobilenet_v3.factory import BUILDERS
from samples.mobilenet_v3.structure import INPUT, OUTPUT
from tests.contract.test_backends import assert_equal, inputs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
torch = pytest.importorskip("torch")

MOBILENET = "samples.mobilenet_v3.factory:create"
TINY = "tests.contract.tiny_models:create"
BATCH = 8

TOLERANCE = {"fp32": 2e-3, "tf32": 1.0, "fp16": 1.0, "bf16": 8.0}
"""Greatest difference of a logit (standard deviation 2) from NumPy, as in tests/contract/test_backends_mobilenet.py."""

COSINE = {"fp32": 0.99999, "tf32": 0.998, "fp16": 0.998, "bf16": 0.95}
COMPILED = {("compile", "fp32"), ("compile", "bf16")}
"""Of all that could be compiled, half a minute each."""

NOT_MADE = {("onnxruntime", "cuda", "bf16"), ("onnxruntime", "tensorrt", "tf32")}
"""The sample has no ONNX file in bf16, and ONNX Runtime's TensorRT provider no switch for tf32."""

AGREE = 0.05
"""How near our latency must be to that of others on the same case, relative."""

made_here: dict[str, FactoryModel] = {}


def create(backend: str, precision: str) -> Any:
    """The factory of these tests: what the test has put there."""
    del backend, precision
    return made_here["model"]


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")


@pytest.fixture(scope="module")
def images() -> Any:
    return weights.example_images(BATCH)


@pytest.fixture(scope="module")
def expected(images: Any) -> Any:
    return reference.forward(weights.seeded(), images)


def open_session(name: str, text: str = MOBILENET, source: ModelSource | None = None, **options: Any) -> Session:
    made, asked = backend(name), BackendOptions(device="cuda", **options)
    if (problem := made.problem(asked)) is not None:
        pytest.skip(f"{name}: {problem}")
    try:
        return made.load(source or model_source(text), asked)
    except BackendUnavailableError as error:
        pytest.skip(str(error))


def run(session: Session, **arrays: Any) -> dict[str, Any]:
    session.allocate({name: array.shape for name, array in arrays.items()})
    session.write_inputs(arrays)
    session.run_round()
    return session.read_outputs()


CASES = [
    pytest.param(name, mode, precision, id=f"{name}-{mode}-{precision}")
    for name in BACKENDS
    if name in BUILDERS
    for mode in backend(name).modes
    for precision in backend(name).precisions
    if precision in TOLERANCE
    and mode in backend(name).modes_on("cuda")
    and (mode != "compile" or (mode, precision) in COMPILED)
    and (name, mode, precision) not in NOT_MADE
]


@pytest.mark.parametrize(("name", "mode", "precision"), CASES)
def test_mobilenet_is_the_same_network(name: str, mode: str, precision: str, images: Any, expected: Any) -> None:
    with open_session(name, mode=mode, precision=precision) as session:
        logits = run(session, **{INPUT: images})[OUTPUT]
        session.run_round()
        again = session.read_outputs()[OUTPUT]
        print(f"\n{name} {mode} {precision}: {session.settings()}")
    difference = float(np.abs(logits - expected).max())
    cosine = float((logits * expected).sum() / np.linalg.norm(logits) / np.linalg.norm(expected))
    print(f"max difference {difference:.2e}, cosine {cosine:.6f}")
    assert logits.dtype == np.float32
    assert difference < TOLERANCE[precision]
    assert cosine > COSINE[precision]
    if precision != "fp32":
        assert difference > 1e-3  # it was computed in what its name says, not in fp32
    np.testing.assert_array_equal(logits.argmax(1)[:4], again.argmax(1)[:4])


@pytest.mark.parametrize("mode", [mode for mode in backend("torch").modes if mode != "compile"])
def test_any_batch_and_several_sessions(mode: str) -> None:
    """The contract on a GPU: allocated again, inputs exchanged, two at once, each on its stream."""
    with open_session("torch", TINY, mode=mode) as one, open_session("torch", TINY, mode=mode) as other:
        for batch in (1, 7, 3):
            arrays = inputs(batch)
            assert_equal(run(one, **arrays), arrays, 1e-5)
        few, many = inputs(2, seed=1), inputs(64)
        run(one, **few)
        run(other, **many)
        few = inputs(2, seed=2)
        one.write_inputs(few)
        for session in (one, other):
            session.copy_in()
            session.execute()
            session.copy_out()
        for session in (other, one):
            session.synchronize()
        assert_equal(one.read_outputs(), few, 1e-5)
        assert_equal(other.read_outputs(), many, 1e-5)
        assert one._stream != other._stream  # type: ignore[attr-defined]


def launches(session: Session) -> Counter[str]:
    """Calls of CUDA that start work, in one `execute`."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        session.execute()
        session.synchronize()
    names = [event.name for event in profile.events()]
    return Counter(name for name in names if name.startswith(("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")))


def test_a_graph_is_replayed_and_its_kernels_are_not_launched(images: Any) -> None:
    counts = {}
    for mode in ("eager", "cudagraph"):
        with open_session("torch", mode=mode) as session:
            run(session, **{INPUT: images})
            counts[mode] = launches(session)
    print(f"\n{counts}")
    assert sum(counts["eager"].values()) > 100
    assert counts["eager"]["cudaGraphLaunch"] == 0
    assert counts["cudagraph"]["cudaGraphLaunch"] == 1
    assert sum(counts["cudagraph"].values()) == 1


def test_closed_sessions_leave_nothing_behind() -> None:
    """Each stream that cuBLAS ever ran on keeps a workspace of tens of megabytes."""
    image = weights.example_images(1)
    held = []
    for _ in range(6):
        with open_session("torch") as session:
            run(session, **{INPUT: image})
        del session
        gc.collect()
        torch.cuda.empty_cache()
        held.append(torch.cuda.memory_allocated())
    print(f"\nallocated after each: {[round(each / 1e6, 1) for each in held]} MB")
    assert held[-1] == held[1]


class Sleeping(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is not looked into
    """Keeps the GPU busy for so many cycles, and the host for next to nothing."""

    def __init__(self, cycles: int) -> None:
        super().__init__()
        self.cycles = cycles

    def forward(self, x: Any) -> Any:
        if x.is_cuda:
            torch.cuda._sleep(self.cycles)
        return x


def test_the_device_timer_sees_the_devices_time() -> None:
    """A kernel of some 20 ms: events around it and the wall clock around the round agree."""
    made_here["model"] = FactoryModel(
        Sleeping(40_000_000), (TensorSpec(name="x", shape=(None, 1), dtype="float32"),), ("y",)
    )
    with open_session("torch", source=ModelSource("sleep", factory="tests.gpu.test_backends_gpu:create")) as session:
        run(session, x=np.zeros((1, 1), np.float32))
        settings = LatencySettings(warmup=3, iterations=10)
        wall = statistics.median(measure_latency(session, settings).milliseconds)
        device = statistics.median(measure_device_time(session, settings))
        began = time.perf_counter()
        session.execute()
        returned = (time.perf_counter() - began) * 1e3
        session.synchronize()
    print(f"\nwall {wall:.3f} ms, device {device:.3f} ms, execute returned after {returned:.3f} ms")
    assert wall > 5
    assert device == pytest.approx(wall, rel=0.05)
    assert returned < wall / 5  # it starts work, and does not wait for it


@pytest.fixture
def plain_settings() -> Iterator[None]:
    """As the session sets them, for code of other hands beside it."""
    before = (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def hand_written(mode: str, precision: str, image: Any) -> Callable[[], None]:
    """One iteration as one would write it for this case alone, on the default stream."""
    dtype = {"fp32": torch.float32, "fp16": torch.float16}[precision]
    model = weights_in_torch().cuda().to(dtype)
    if mode == "compile":
        model = torch.compile(model, dynamic=False)
    host = torch.from_numpy(image.copy()).pin_memory()
    device = torch.empty_like(host, device="cuda")
    result = torch.empty((len(image), 1000), pin_memory=True)

    def inferred() -> Any:
        return model(device.to(dtype)).float()

    graph, static = None, None
    with torch.inference_mode():
        if mode == "cudagraph":
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    inferred()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                static = inferred()

    def iteration() -> None:
        device.copy_(host, non_blocking=True)
        if graph is None:
            with torch.inference_mode():
                result.copy_(inferred(), non_blocking=True)
        else:
            graph.replay()
            result.copy_(static, non_blocking=True)
        torch.cuda.synchronize()

    return iteration


def weights_in_torch() -> Any:
    from samples.mobilenet_v3.torch_model import build

    return build(weights.seeded(), "fp32").model


def timed_by_hand(iteration: Callable[[], None], count: int) -> list[float]:
    times = []
    for _ in range(count):
        began = time.perf_counter_ns()
        iteration()
        times.append((time.perf_counter_ns() - began) / 1e6)
    return times


@pytest.mark.parametrize(
    ("mode", "precision", "batch"),
    [
        ("eager", "fp32", 1), ("eager", "fp32", 64),
        ("cudagraph", "fp16", 1), ("cudagraph", "fp32", 64),
        ("compile", "fp32", 1), ("compile", "fp16", 64),
    ],
)  # fmt: skip
def test_latency_is_that_of_others(mode: str, precision: str, batch: int, plain_settings: None) -> None:
    """Ours, a hand-written loop and torch.utils.benchmark in turn; the least of five medians each, so noise is out."""
    from torch.utils.benchmark import Timer

    del plain_settings
    count, turns = (300, 5) if batch == 1 else (60, 5)
    image = weights.example_images(1).repeat(batch, axis=0)
    iteration = hand_written(mode, precision, image)
    theirs = Timer("iteration()", globals={"iteration": iteration})
    settings = LatencySettings(warmup=50, iterations=count)
    found: dict[str, list[float]] = {"ours": [], "by hand": [], "torch.utils.benchmark": []}
    with open_session("torch", mode=mode, precision=precision) as session:
        run(session, **{INPUT: image})
        warm_up(session, settings)
        timed_by_hand(iteration, 50)
        for _ in range(turns):
            found["ours"].append(statistics.median(measure_latency(session, settings).milliseconds))
            with torch.cuda.stream(torch.cuda.default_stream()):
                found["by hand"].append(statistics.median(timed_by_hand(iteration, count)))
                found["torch.utils.benchmark"].append(theirs.blocked_autorange(min_run_time=0.5).median * 1e3)
    least = {name: min(values) for name, values in found.items()}
    print(f"\n{mode} {precision} batch {batch}: " + ", ".join(f"{name} {each:.4f} ms" for name, each in least.items()))
    for name in ("by hand", "torch.utils.benchmark"):
        assert least["ours"] == pytest.approx(least[name], rel=AGREE), name


def test_an_exported_program_runs_where_it_was_not_exported(tmp_path: Path, images: Any, expected: Any) -> None:
    model = weights_in_torch()
    given = torch.from_numpy(images[:2].copy())
    program = torch.export.export(model, (given,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, tmp_path / "mobilenet.pt2")
    for mode in ("eager", "cudagraph"):
        with open_session("torch", source=model_source(str(tmp_path / "mobilenet.pt2")), mode=mode) as session:
            (logits,) = run(session, **{session.inputs[0].name: images}).values()
        np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE["fp32"])


def test_pinned_and_device_buffers_through_cuda_python() -> None:
    pytest.importorskip("cuda.bindings.runtime")
    if (problem := gpu_problem()) is not None:
        pytest.skip(problem)
    stream = CudaStream()
    buffer = PairedBuffer((1024, 1024), "float32")
    data = np.random.default_rng(1).normal(size=buffer.host.shape).astype(np.float32)
    buffer.host[...] = data
    timer = StreamTimer(stream)
    timer.start()
    buffer.copy_in(stream)
    timer.stop()
    stream.synchronize()
    took = timer.milliseconds()
    buffer.host[...] = 0
    buffer.copy_out(stream)
    stream.synchronize()
    np.testing.assert_array_equal(buffer.host, data)
    print(f"\n4 MiB to the GPU in {took:.3f} ms, {buffer.nbytes / took / 1e6:.1f} GB/s")
    assert 0.01 < took < 10
    with pytest.raises(OutOfMemoryError, match="no memory for"):
        PairedBuffer((2**46,), "uint8")
    for each in (buffer, stream):
        each.close()
        each.close()
