"""What the adapter asks of TensorRT and CUDA, call by call, on fakes that take only what the real ones take."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("cuda.bindings.runtime")

from perfharness.backends import BackendOptions, backend, model_source
from perfharness.backends.tensorrt.session import TensorRTSession
from perfharness.bench.spec import LatencySettings
from perfharness.bench.worker.latency import measure_device_time, measure_latency, warm_up
from perfharness.errors import BackendError, BackendUnavailableError, OutOfMemoryError
from tests.contract import tiny_models
from tests.contract.test_backends import TINY, assert_equal, inputs, run, shapes_of
from tests.tensorrt.fake_cuda import FakeCuda
from tests.tensorrt.fake_tensorrt import ACTIVATION_BYTES, World, fake_tensorrt
from tests.tensorrt.signatures import LEAN, RTX, TENSORRT

VERSIONS = [*TENSORRT, RTX]
NAMES = {RTX: ("tensorrt-rtx", "tensorrt_rtx"), LEAN: ("tensorrt-lean", "tensorrt_lean_bindings")}
"""Of the backend and of its module, where they are not `tensorrt`."""

OLD, NEW = TENSORRT[0], TENSORRT[-1]


@dataclass
class Fake:
    """A backend whose library and CUDA are stood in for."""

    name: str
    cuda: FakeCuda
    world: World

    def load(self, model: str = TINY, **options: Any) -> Any:
        """A `TensorRTSession`, whose inside is looked at too."""
        made = backend(self.name).load(model_source(model), BackendOptions(device="cuda", **options))
        assert isinstance(made, TensorRTSession)
        return made


Install = Callable[..., Fake]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    def installed(version: str, **cuda_options: Any) -> Fake:
        cuda = FakeCuda(**cuda_options)
        module, world = fake_tensorrt(version, cuda)
        monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)
        name, imported = NAMES.get(version, ("tensorrt", "tensorrt"))
        monkeypatch.setitem(sys.modules, imported, module)
        return Fake(name, cuda, world)

    return installed


@pytest.fixture(params=VERSIONS)
def fake(request: pytest.FixtureRequest, install: Install) -> Fake:
    return install(request.param)


def shapes(batch: int) -> dict[str, tuple[int, ...]]:
    return {"features": (batch, 6), "shift": (batch, 1)}


def engine_file(fake: Fake, folder: Path, profile: str) -> Path:
    """An engine built by the fake, as a file."""
    with fake.load(cache_dir=folder / "cache", extra={"profile": profile}):
        pass
    path = folder / "model.engine"
    path.write_bytes(next((folder / "cache" / "tensorrt").glob("*.engine")).read_bytes())
    return path


def test_a_round_is_copies_and_one_execution_and_one_wait(fake: Fake) -> None:
    with fake.load() as session:
        session.allocate(shapes(4))
        session.write_inputs(inputs(4))
        fake.cuda.calls.clear()
        session.copy_in()
        session.execute()
        session.copy_out()
        session.synchronize()
        copies = ["cudaMemcpyAsync"] * 2
        assert fake.cuda.calls == [*copies, *copies, "cudaStreamSynchronize"]
        assert fake.world.plain_runs == 1


def test_a_captured_graph_is_launched_instead(install: Install) -> None:
    fake = install(NEW)
    with fake.load(mode="cudagraph") as session:
        session.allocate(shapes(4))
        session.write_inputs(inputs(4))
        fake.cuda.calls.clear()
        session.execute()
        assert fake.cuda.calls == ["cudaGraphLaunch"]
        session.allocate(shapes(2))  # captured anew
        arrays = inputs(2)
        assert_equal(run(session, arrays), arrays, 1e-5)
    assert fake.cuda.graphs == 0


def test_rtx_runs_graphs_of_its_own(install: Install) -> None:
    fake = install(RTX)
    with fake.load(mode="cudagraph") as session:
        session.allocate(shapes(4))
        assert "cudaStreamBeginCapture" not in fake.cuda.calls
        assert session._context._config.cuda_graph_strategy.name == "WHOLE_GRAPH_CAPTURE"


def test_nothing_is_left_on_the_device(fake: Fake) -> None:
    for mode in ("stream", "cudagraph"):
        session = fake.load(mode=mode)
        for batch in (3, 5):
            arrays = inputs(batch)
            run(session, arrays)
        timer = session.device_timer()
        session.execute()  # and not waited for
        session.close()
        del timer
    assert fake.cuda.used_bytes("device") == fake.cuda.used_bytes("host") == 0
    assert fake.cuda.graphs == fake.cuda.events == 0
    assert not any(stream.is_open for stream in fake.cuda.streams.values())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("precision", "model", "flags"), [("fp32", "fp32", []), ("tf32", "fp32", ["TF32"]), ("fp16", "fp16", [])]
)
def test_how_a_precision_is_set(
    install: Install, tmp_path: Path, version: str, precision: Any, model: str, flags: list[str]
) -> None:
    fake = install(version)
    path = tmp_path / "model.onnx"
    path.write_bytes(tiny_models.onnx_model(model))
    with fake.load(str(path), precision=precision) as session:
        session.allocate(shapes(2))
        built = session._loaded.engine._description
        assert (built["flags"], built["strong"]) == (flags, True)


@pytest.mark.parametrize(
    ("precision", "model"), [("fp16", "fp32"), ("bf16", "fp32"), ("fp32", "fp16"), ("int8", "fp32")]
)
def test_a_model_of_another_precision_is_refused(fake: Fake, tmp_path: Path, precision: Any, model: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(tiny_models.onnx_model(model))
    with pytest.raises(BackendError, match=f"model is a model in {model}"):
        fake.load(str(path), precision=precision)


@pytest.fixture
def lean(install: Install, tmp_path: Path) -> tuple[Fake, Path]:
    """The lean runtime, and an engine of the full library of that version."""
    path = engine_file(install(NEW), tmp_path, "features:1x6,2x6,4x6;shift:1x1,2x1,4x1")
    return install(LEAN), path


def test_the_lean_runtime_runs_an_engine_file(lean: tuple[Fake, Path]) -> None:
    fake, path = lean
    for mode in ("stream", "cudagraph"):
        with fake.load(str(path), mode=mode) as session:
            assert session.inputs == tiny_models.INPUTS
            arrays = inputs(3)
            assert_equal(run(session, arrays), arrays, 1e-5)
            assert session.settings()["library"] == "TensorRT lean 11.4.0.106"
            assert not isinstance(session.layer_times(2), str)
    assert fake.cuda.used_bytes("device") == 0


def test_the_lean_runtime_is_asked_nothing_without_a_driver(lean: tuple[Fake, Path]) -> None:
    """For it crashes there."""
    fake, path = lean
    fake.cuda.capability = None
    with pytest.raises(BackendUnavailableError):
        fake.load(str(path))
    assert "Runtime" not in fake.world.started


def test_the_lean_runtime_takes_no_onnx(lean: tuple[Fake, Path], tmp_path: Path) -> None:
    fake, _ = lean
    path = tmp_path / "model.onnx"
    path.write_bytes(tiny_models.onnx_model("fp32"))
    for model in (TINY, str(path)):
        with pytest.raises(BackendError):
            fake.load(model)


def test_one_engine_for_exactly_the_shapes_asked_for(fake: Fake) -> None:
    with fake.load() as session:
        built_ms = [session.build_ms]
        for batch in (4, 4, 8):
            session.allocate(shapes(batch))
            built_ms.append(session.build_ms)
        assert session.settings()["profile"] == "features:8x6; shift:8x1"
        assert fake.world.builds == 2
        assert built_ms[0] is None
        assert 0 < built_ms[1] == built_ms[2] < built_ms[3]


def test_with_a_profile_the_engine_is_built_once_when_it_is_loaded(fake: Fake) -> None:
    profile = "features:1x6,2x6,4x6;shift:1x1,2x1,4x1 | features:1x6,16x6,32x6;shift:1x1,16x1,32x1"
    with fake.load(extra={"profile": profile}) as session:
        assert session.build_ms is not None
        for batch, usual in ((1, 2), (3, 2), (4, 2), (5, 16), (32, 16)):
            session.allocate(shapes(batch))
            assert f",{usual}x6," in session.settings()["profile"], batch
            arrays = inputs(batch)
            assert_equal(run(session, arrays), arrays, 1e-5)
        assert fake.world.builds == 1
        with pytest.raises(
            BackendError, match=r"no profile of the engine of tiny_models takes .*it has: features:1x6,2"
        ):
            session.allocate(shapes(33))


def test_an_engine_file_is_run_as_it_is(fake: Fake, tmp_path: Path) -> None:
    path = engine_file(fake, tmp_path, "features:1x6,2x6,4x6;shift:1x1,2x1,4x1")
    with fake.load(str(path)) as session:
        assert session.build_ms is None
        assert session.inputs == tiny_models.INPUTS
        arrays = inputs(3)
        assert_equal(run(session, arrays), arrays, 1e-5)
        assert session.settings()["precision"].startswith("the engine file's own")
        assert session.settings()["engine_bytes"] == str(path.stat().st_size)
        with pytest.raises(BackendError, match="no profile of the engine model takes"):
            session.allocate(shapes(5))


def test_an_engine_of_another_version(install: Install, tmp_path: Path) -> None:
    path = engine_file(install(OLD), tmp_path, "features:1x6;shift:1x1")
    with pytest.raises(BackendError) as caught:
        install(NEW).load(str(path))
    assert f"expecting library version {NEW} got {OLD}" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(BackendError, match=OLD):
        install(RTX).load(str(path))


def test_an_engine_is_taken_from_the_cache(fake: Fake, tmp_path: Path) -> None:
    for turn in range(2):
        with fake.load(cache_dir=tmp_path) as session:
            arrays = inputs(4)
            assert_equal(run(session, arrays), arrays, 1e-5)
            assert (session.build_ms is None) == bool(turn)
            assert session.settings().get("built", "").startswith("earlier") == bool(turn)
    assert fake.world.builds == 1
    told = [
        json.loads(path.read_text()) for path in (tmp_path / "tensorrt").glob("*.json") if "layers" not in path.name
    ]
    assert [(each["gpu"], each["model"]) for each in told] == [("Fake GPU 8.9", "tiny_models")]
    layers = json.loads(next((tmp_path / "tensorrt").glob("*.layers.json")).read_text())
    assert [layer["Name"] for layer in layers["Layers"]] == ["first_product", "shifted", "rectified", "second_product"]


def test_engines_are_built_for_each_kind_of_gpu_but_those_of_rtx(install: Install, tmp_path: Path) -> None:
    for version, builds in ((NEW, [1, 1, 0]), (RTX, [1, 0, 0])):
        seen = []
        for capability in ((8, 9), (8, 6), (8, 9)):
            fake = install(version, capability=capability)
            with fake.load(cache_dir=tmp_path / version) as session:
                session.allocate(shapes(2))
            seen.append(fake.world.builds)
        assert seen == builds


def test_the_loop_of_the_benchmark_times_it(fake: Fake) -> None:
    settings = LatencySettings(warmup=2, iterations=5)
    with fake.load() as session:
        session.allocate(shapes(2))
        session.write_inputs(inputs(2))
        warm_up(session, settings)
        assert len(measure_latency(session, settings).milliseconds) == 5
        assert set(measure_device_time(session, settings)) == {1.5}


def test_the_timing_cache_grows_from_build_to_build(install: Install, tmp_path: Path) -> None:
    fake = install(NEW)
    for batch in (1, 2, 3):
        with fake.load(cache_dir=tmp_path) as session:
            session.allocate(shapes(batch))
    assert [path.read_bytes() for path in (tmp_path / "tensorrt").glob("timing-*.cache")] == [b"+++"]


def test_what_rtx_compiled_is_kept(install: Install, tmp_path: Path) -> None:
    fake = install(RTX)
    for _ in range(2):
        with fake.load(cache_dir=tmp_path) as session:
            run(session, inputs(2))
    caches = list((tmp_path / "tensorrt").glob("*.runtime-cache"))
    assert [path.read_bytes() for path in caches] == [b"compiled;compiled;"]


def test_layers_are_timed_in_a_context_of_their_own(fake: Fake) -> None:
    with fake.load() as session:
        run(session, inputs(2))
        plain = fake.world.plain_runs
        told = session.layer_times(4)
        assert not isinstance(told, str)
        assert [(layer.name, layer.milliseconds) for layer in told] == [
            ("first_product", 0.5),
            ("shifted", 1.0),
            ("rectified", 1.5),
            ("second_product", 2.0),
        ]
        assert fake.world.profiled_runs == 5
        assert fake.world.plain_runs == plain
        assert fake.world.contexts == 2
        assert session._context.profiler is None


def test_no_room_for_a_context_with_a_profiler_is_a_reason(fake: Fake) -> None:
    with fake.load() as session:
        run(session, inputs(2))
        fake.world.fails["create_execution_context"] = "Requested amount of GPU memory (9 bytes) could not be allocated"
        assert "no room for a second context" in str(session.layer_times(2))


def test_the_device_has_no_room_for_the_buffers(install: Install) -> None:
    fake = install(NEW, room_bytes=4000)
    with fake.load() as session:
        with pytest.raises(OutOfMemoryError, match="no room for device memory"):
            session.allocate(shapes(1000))
        arrays = inputs(2)
        assert_equal(run(session, arrays), arrays, 1e-5)  # smaller ones are served
    assert fake.cuda.used_bytes("device") == fake.cuda.used_bytes("host") == 0


def test_the_device_has_no_room_for_the_activations(install: Install) -> None:
    fake = install(NEW, room_bytes=ACTIVATION_BYTES - 1)
    with fake.load() as session, pytest.raises(OutOfMemoryError, match="found no room on the device"):
        session.allocate(shapes(1))


@pytest.mark.parametrize(
    ("call", "message", "kind", "says"),
    [
        (
            "build_serialized_network",
            "Error Code 10: no implementation",
            BackendError,
            "built no engine of tiny_models",
        ),
        ("build_serialized_network", "Cuda Runtime (out of memory)", OutOfMemoryError, "found no room"),
        ("deserialize_cuda_engine", "Cuda Runtime (out of memory)", OutOfMemoryError, "found no room"),
        ("create_execution_context", "Error Code 1: Myelin", BackendError, "no execution context could be made: Error"),
    ],
)
def test_what_fails_while_allocating(fake: Fake, call: str, message: str, kind: type[BackendError], says: str) -> None:
    fake.world.fails[call] = message
    with fake.load() as session:
        with pytest.raises(BackendError, match=says) as caught:
            session.allocate(shapes(2))
        assert type(caught.value) is kind
        assert "\n" not in str(caught.value)
        fake.world.fails.clear()
        arrays = inputs(2)
        assert_equal(run(session, arrays), arrays, 1e-5)


def test_what_fails_while_running(fake: Fake) -> None:
    with fake.load() as session:
        run(session, inputs(2))
        fake.world.fails["execute_async_v3"] = "Error Code 1: Cuda Driver (an illegal memory access was encountered)"
        with pytest.raises(BackendError, match="the model could not be run: Error Code 1: Cuda Driver"):
            session.execute()


def test_a_failed_capture_ends_it(install: Install) -> None:
    fake = install(NEW)
    with fake.load(mode="cudagraph") as session:
        session.allocate(shapes(2))
        fake.world.fails["capture"] = "operation not permitted when stream is capturing"
        with pytest.raises(BackendError, match="not permitted"):
            session.allocate(shapes(3))
        fake.world.fails.clear()
        arrays = inputs(2)
        assert_equal(run(session, arrays), arrays, 1e-5)
    assert fake.cuda.graphs == 0


def test_the_builder_does_not_start(fake: Fake) -> None:
    fake.world.fails["Builder"] = "CUDA initialization failure with error: 35"
    with pytest.raises(BackendError, match="could not start its builder: CUDA initialization failure with error: 35"):
        fake.load()


def test_a_model_that_the_parser_does_not_read(fake: Fake) -> None:
    fake.world.fails["parse"] = "No importer registered for op"
    with pytest.raises(BackendError, match=r"tiny_models cannot be read by .*: No importer .*operator 'Frobnicate'"):
        fake.load()


def test_a_model_without_open_dimensions_needs_no_profile(fake: Fake, tmp_path: Path) -> None:
    model = onnx.load_from_string(tiny_models.onnx_model("fp32"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    path = tmp_path / "fixed.onnx"
    onnx.save_model(model, str(path))
    with fake.load(str(path)) as session:
        assert session.build_ms is not None
        arrays = inputs(3)
        assert_equal(run(session, arrays), arrays, 1e-5)
        assert session.settings()["profiles"] == "none, all shapes are fixed"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("shift", "host_shift", "input 'host_shift' is a shape tensor"),
        ("logits", "deciding", "the shape of output 'deciding' depends on the values"),
    ],
)
def test_models_whose_shapes_come_from_values(fake: Fake, tmp_path: Path, old: str, new: str, says: str) -> None:
    model = onnx.load_from_string(tiny_models.onnx_model("fp32"))
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    for value in (*model.graph.input, *model.graph.output):
        value.name = new if value.name == old else value.name
    path = tmp_path / "model.onnx"
    onnx.save_model(model, str(path))
    with fake.load(str(path)) as session, pytest.raises(BackendError, match=says):
        session.allocate({spec.name: (2, spec.shape[1] or 0) for spec in session.inputs})


def test_types_that_numpy_has_not(fake: Fake, tmp_path: Path) -> None:
    model = onnx.load_from_string(tiny_models.onnx_model("fp32"))
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    path = tmp_path / "model.onnx"
    onnx.save_model(model, str(path))
    with pytest.raises(BackendError, match="'features' is of type BF16, which NumPy has not"):
        fake.load(str(path))


@pytest.mark.parametrize(("capability", "runs"), [((8, 9), True), ((9, 0), False), ((12, 0), True)])
def test_the_gpus_that_rtx_runs_on(install: Install, capability: tuple[int, int], runs: bool) -> None:
    fake = install(RTX, capability=capability)
    told = backend(fake.name).problem(BackendOptions(device="cuda"))
    assert (told is None) == runs
    assert runs or f"does not run on compute capability {capability[0]}.{capability[1]}" in str(told)


def test_without_a_gpu(fake: Fake) -> None:
    fake.cuda.capability = None
    assert "there is no GPU" in str(backend(fake.name).problem(BackendOptions(device="cuda")))
    with pytest.raises(BackendUnavailableError, match="there is no GPU"):
        fake.load()


def test_a_tensorrt_that_cannot_be_imported(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(NEW)
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    wanted = "TensorRT is not installed: pip install 'perfharness-nvtx[tensorrt]'"
    assert backend("tensorrt").problem(BackendOptions(device="cuda")) == wanted


def test_a_tensorrt_without_its_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tensorrt.py").write_text("import tensorrt_libs_that_are_missing")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    told = str(backend("tensorrt").problem(BackendOptions(device="cuda")))
    assert told.startswith(
        "TensorRT cannot be imported (No module named 'tensorrt_libs_that_are_missing'): pip install"
    )


def test_the_guard_refuses_what_a_version_has_not(install: Install) -> None:
    """That the fakes can fail: names of one version in another, wrong numbers and types of arguments."""
    cuda = FakeCuda()
    module, _ = fake_tensorrt(NEW, cuda)
    assert not hasattr(module, "IRuntimeCache")
    assert not hasattr(module.BuilderFlag, "FP16")

    logger = type("Logger", (module.ILogger,), {})

    builder = module.Builder(logger())
    config = builder.create_builder_config()
    with pytest.raises(AttributeError, match="has no num_compute_capabilities"):
        config.num_compute_capabilities = 1
    with pytest.raises(AttributeError, match="has no build_engine"):
        builder.build_engine()
    with pytest.raises(TypeError, match="incompatible arguments"):
        builder.create_network("strong")
    with pytest.raises(TypeError, match="incompatible arguments"):
        config.set_timing_cache(None)
    with pytest.raises(TypeError):
        cuda.cudaMalloc(1, 2)
    with pytest.raises(AttributeError):
        cuda.cudaMallocEverything(1)


def test_a_function_may_return_a_path_or_a_model(install: Install, tmp_path: Path) -> None:
    fake = install(NEW)
    (tmp_path / "model.onnx").write_bytes(tiny_models.onnx_model("fp32"))
    script = tmp_path / "made.py"
    script.write_text(
        "import onnx\n"
        f"def path(backend, precision): return {str(tmp_path / 'model.onnx')!r}\n"
        "def model(backend, precision): return onnx.load_model(path(backend, precision))\n"
        "def number(backend, precision): return 3\n"
    )
    for name in ("path", "model"):
        with fake.load(f"{script}:{name}") as session:
            arrays = inputs(2)
            assert_equal(run(session, arrays), arrays, 1e-5)
    with pytest.raises(BackendError, match="returned a int for tensorrt; it must return the path"):
        fake.load(f"{script}:number")


def test_outputs_are_copied_from_what_the_device_holds(fake: Fake) -> None:
    with fake.load() as session:
        arrays = inputs(2)
        assert set(shapes_of(arrays)) == {"features", "shift"}
        run(session, arrays)
        session.write_inputs(inputs(2, seed=7))
        session.execute()  # without copy_in: the device still has the first inputs
        session.copy_out()
        session.synchronize()
        np.testing.assert_allclose(
            session.read_outputs()["logits"], tiny_models.reference(**arrays)["logits"], rtol=0, atol=1e-5
        )
