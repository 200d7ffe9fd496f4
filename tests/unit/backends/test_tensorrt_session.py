"""TensorRT sessions on fakes that compute on the host, and take only what the real TensorRT and CUDA take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest

pytest.importorskip("cuda.bindings.runtime")

from perfharness.backends import BackendOptions, backend
from perfharness.errors import BackendError, BackendUnavailableError, OutOfMemoryError
from tests.contract import tiny_models
from tests.contract.test_backends import TOLERANCE, assert_equal, inputs, one_round, run, shapes_of
from tests.tensorrt.fake_tensorrt import ACTIVATION_BYTES
from tests.tensorrt.fakes import FAKES, Fake, install
from tests.tensorrt.signatures import RTX, TENSORRT

OLD, NEW = TENSORRT[0], TENSORRT[-1]
TWO_PROFILES = "features:1x6,2x6,4x6;shift:1x1,2x1,4x1 | features:1x6,16x6,32x6;shift:1x1,16x1,32x1"
Install = Callable[..., Fake]


@pytest.fixture(name="install")
def _install(monkeypatch: pytest.MonkeyPatch) -> Install:
    return partial(install, monkeypatch)


@pytest.fixture(params=FAKES)
def fake(request: pytest.FixtureRequest, install: Install) -> Fake:
    return install(request.param)


def shapes(batch: int) -> dict[str, tuple[int, ...]]:
    return {"features": (batch, 6), "shift": (batch, 1)}


def computes(session: Any, batch: int = 2, precision: str = "fp32") -> None:
    arrays = inputs(batch)
    assert_equal(run(session, arrays), arrays, TOLERANCE[precision])


def onnx_file(folder: Path, change: Callable[[Any], object] = bool, precision: str = "fp32") -> str:
    """The tiny model, changed, as a file."""
    model = onnx.load_from_string(tiny_models.onnx_model(precision))
    change(model)
    onnx.save_model(model, str(folder / "model.onnx"))
    return str(folder / "model.onnx")


def engine_file(fake: Fake, folder: Path, profile: str = "features:1x6,2x6,4x6;shift:1x1,2x1,4x1") -> Path:
    """An engine built by the fake, as a file."""
    with fake.load(cache_dir=folder / "cache", extra={"profile": profile}):
        pass
    path = folder / "model.engine"
    path.write_bytes(next((folder / "cache" / "tensorrt").iterdir()).read_bytes())
    return path


def test_two_sessions_at_once(fake: Fake) -> None:
    with fake.load() as one, fake.load() as other:
        few, many = inputs(1, seed=1), inputs(6, seed=2)
        for session, arrays in ((one, few), (other, many)):
            session.allocate(shapes_of(arrays))
            session.write_inputs(arrays)
        for _ in range(2):
            assert_equal(one_round(one), few, TOLERANCE["fp32"])
            assert_equal(one_round(other), many, TOLERANCE["fp32"])


def test_a_capture_that_fails_leaves_the_stream_usable(install: Install) -> None:
    fake = install(NEW)
    with fake.load(mode="cudagraph") as session:
        computes(session, 4)
        fake.world.fails["capture"] = "operation not permitted when stream is capturing"
        with pytest.raises(BackendError, match="not permitted"):
            session.allocate(shapes(3))
        fake.world.fails.clear()
        computes(session)
    assert fake.cuda.graphs == 0


def test_nothing_is_left_on_the_device(fake: Fake) -> None:
    for mode in ("stream", "cudagraph"):
        session = fake.load(mode=mode)
        for batch in (3, 5):
            run(session, inputs(batch))
        timer = session.device_timer()
        session.execute()  # and not waited for
        session.close()
        del timer
    assert fake.cuda.used_bytes("device") == fake.cuda.used_bytes("host") == 0
    assert fake.cuda.graphs == fake.cuda.events == 0
    assert not any(stream.is_open for stream in fake.cuda.streams.values())


@pytest.mark.parametrize(
    ("precision", "model", "flags"), [("fp32", "fp32", []), ("tf32", "fp32", ["TF32"]), ("fp16", "fp16", [])]
)
def test_how_a_precision_is_set(fake: Fake, tmp_path: Path, precision: Any, model: str, flags: list[str]) -> None:
    with fake.load(onnx_file(tmp_path, precision=model), precision=precision) as session:
        arrays = inputs(2)
        session.allocate(shapes(2))
        session.write_inputs({spec.name: arrays[spec.name].astype(spec.dtype) for spec in session.inputs})
        assert_equal(one_round(session), arrays, TOLERANCE[precision])
        built = session._loaded.engine._description
        assert (built["flags"], built["strong"]) == (flags, True)


def test_a_model_of_another_precision_is_refused(fake: Fake, tmp_path: Path) -> None:
    for precision, model in (("fp16", "fp32"), ("bf16", "fp32"), ("fp32", "fp16"), ("int8", "fp32")):
        with pytest.raises(BackendError, match=f"model is a model in {model}"):
            fake.load(onnx_file(tmp_path, precision=model), precision=precision)


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
    with fake.load(extra={"profile": TWO_PROFILES}) as session:
        assert session.build_ms is not None
        for batch, usual in ((1, 2), (3, 2), (4, 2), (5, 16), (32, 16)):
            computes(session, batch)
            assert f",{usual}x6," in session.settings()["profile"], batch
        assert fake.world.builds == 1
        with pytest.raises(BackendError, match="profile"):
            session.allocate(shapes(33))


def test_an_engine_file_is_run_as_it_is(fake: Fake, tmp_path: Path) -> None:
    path = engine_file(fake, tmp_path)
    with fake.load(str(path)) as session:
        assert session.build_ms is None
        assert session.inputs == tiny_models.INPUTS
        computes(session, 3)
        assert session.settings()["precision"].startswith("the engine file's own")
        assert session.settings()["engine_bytes"] == str(path.stat().st_size)
        with pytest.raises(BackendError, match="profile"):
            session.allocate(shapes(5))
    for suffix in (".engine", ".plan", ".onnx"):
        broken = tmp_path / f"broken{suffix}"
        broken.write_bytes(b"this is no model")
        with pytest.raises(BackendError) as caught:
            fake.load(str(broken))
        assert "\n" not in str(caught.value)


def test_an_engine_of_another_version(install: Install, tmp_path: Path) -> None:
    path = engine_file(install(OLD), tmp_path)
    with pytest.raises(BackendError, match=f"expecting library version {NEW} got {OLD}") as caught:
        install(NEW).load(str(path))
    assert "\n" not in str(caught.value)
    with pytest.raises(BackendError, match=OLD):
        install(RTX).load(str(path))


def test_an_engine_is_taken_from_the_cache(fake: Fake, tmp_path: Path) -> None:
    for turn in range(2):
        with fake.load(cache_dir=tmp_path) as session:
            computes(session, 4)
            assert (session.build_ms is None) == bool(turn)
            assert ("built" in session.settings()) == bool(turn)
    assert fake.world.builds == 1


def test_engines_are_built_for_each_kind_of_gpu_but_those_of_rtx(install: Install, tmp_path: Path) -> None:
    for version, builds in ((NEW, [1, 1, 0]), (RTX, [1, 0, 0])):
        seen = []
        for capability in ((8, 9), (8, 6), (8, 9)):
            fake = install(version, capability=capability)
            with fake.load(cache_dir=tmp_path / version) as session:
                session.allocate(shapes(2))
            seen.append(fake.world.builds)
        assert seen == builds


def test_layers_are_timed_in_a_context_of_their_own(fake: Fake) -> None:
    with fake.load() as session:
        run(session, inputs(2))
        plain = fake.world.plain_runs
        layers = [(layer.name, layer.milliseconds) for layer in session.layer_times(4)]
        assert layers == [("first_product", 0.5), ("shifted", 1.0), ("rectified", 1.5), ("second_product", 2.0)]
        assert (fake.world.profiled_runs, fake.world.plain_runs, fake.world.contexts) == (5, plain, 2)
        fake.world.fails["create_execution_context"] = "Requested amount of GPU memory (9 bytes) could not be allocated"
        assert "no room for a second context" in str(session.layer_times(2))


def test_the_device_has_no_room(install: Install) -> None:
    fake = install(NEW, room_bytes=4000)
    with fake.load() as session:
        with pytest.raises(OutOfMemoryError):
            session.allocate(shapes(1000))
        computes(session)  # smaller ones are served
    assert fake.cuda.used_bytes("device") == fake.cuda.used_bytes("host") == 0
    fake = install(NEW, room_bytes=ACTIVATION_BYTES - 1)
    with fake.load() as session, pytest.raises(OutOfMemoryError):
        session.allocate(shapes(1))


BUILD, LOAD, CONTEXT = "build_serialized_network", "deserialize_cuda_engine", "create_execution_context"
FAILURES: list[tuple[str, str, type[BackendError]]] = [
    (BUILD, "Error Code 10: no implementation", BackendError),
    (BUILD, "Cuda Runtime (out of memory)", OutOfMemoryError),
    (LOAD, "Cuda Runtime (out of memory)", OutOfMemoryError),
    (CONTEXT, "Error Code 1: Myelin", BackendError),
    ("Builder", "error: 35", BackendError),
    ("parse", "No importer", BackendError),
    ("execute_async_v3", "illegal access", BackendError),
]


@pytest.mark.parametrize(("call", "message", "kind"), FAILURES)
def test_what_fails(fake: Fake, call: str, message: str, kind: type[BackendError]) -> None:
    """While loading, allocating or running; what comes after it works."""
    session = fake.load() if call not in ("Builder", "parse") else None
    fake.world.fails[call] = message
    with pytest.raises(BackendError) as caught:
        run(session or fake.load(), inputs(2))
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    fake.world.fails.clear()
    with session or fake.load() as good:
        computes(good)


def test_a_model_without_open_dimensions_needs_no_profile(fake: Fake, tmp_path: Path) -> None:
    def fix(model: Any) -> None:
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 3

    with fake.load(onnx_file(tmp_path, fix)) as session:
        assert session.build_ms is not None
        computes(session, 3)
        assert session.settings()["profiles"] == "none, all shapes are fixed"


@pytest.mark.parametrize(("capability", "runs"), [((8, 9), True), ((9, 0), False), ((12, 0), True)])
def test_the_gpus_that_rtx_runs_on(install: Install, capability: tuple[int, int], runs: bool) -> None:
    problem = backend(install(RTX, capability=capability).name).problem(BackendOptions(device="cuda"))
    assert (problem is None) == runs
    assert runs or f"does not run on compute capability {capability[0]}.{capability[1]}" in str(problem)


def test_without_a_gpu(fake: Fake) -> None:
    fake.cuda.capability = None
    assert "there is no GPU" in str(backend(fake.name).problem(BackendOptions(device="cuda")))
    with pytest.raises(BackendUnavailableError):
        fake.load()


@pytest.mark.parametrize(("old", "new"), [("shift", "host_shift"), ("logits", "deciding")])
def test_models_whose_shapes_come_from_values(fake: Fake, tmp_path: Path, old: str, new: str) -> None:
    def rename(model: Any) -> None:
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]
        for value in (*model.graph.input, *model.graph.output):
            value.name = new if value.name == old else value.name

    with fake.load(onnx_file(tmp_path, rename)) as session, pytest.raises(BackendError, match=new):
        session.allocate({spec.name: (2, spec.shape[1] or 0) for spec in session.inputs})


def test_types_that_numpy_has_not(fake: Fake, tmp_path: Path) -> None:
    def change(model: Any) -> None:
        model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16

    with pytest.raises(BackendError, match="BF16"):
        fake.load(onnx_file(tmp_path, change))
