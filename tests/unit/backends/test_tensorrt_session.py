"""TensorRT sessions on fakes that compute on the host; the contract test asks them, too."""

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
from tests.tensorrt.fakes import FAKES, NEW, OLD, RTX, Fake, install

ONE_PROFILE = "features:1x6,2x6,4x6;shift:1x1,2x1,4x1"
TWO_PROFILES = f"{ONE_PROFILE} | features:1x6,16x6,32x6;shift:1x1,16x1,32x1"
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


def engine_file(fake: Fake, folder: Path) -> Path:
    """An engine built by the fake, as a file."""
    with fake.load(cache_dir=folder / "cache", extra={"profile": ONE_PROFILE}):
        pass
    path = folder / "model.engine"
    path.write_bytes(next((folder / "cache" / "tensorrt").iterdir()).read_bytes())
    return path


def refused(call: Callable[[], object], says: str, kind: type[BackendError] = BackendError) -> None:
    with pytest.raises(kind, match=says) as caught:
        call()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


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
        refused(lambda: session.allocate(shapes(3)), "not permitted")
        fake.world.fails.clear()
        computes(session)
    assert fake.cuda.graphs == 0


def test_nothing_is_left_on_the_device(fake: Fake) -> None:
    for mode in ("stream", "cudagraph"):
        session = fake.load(mode=mode)
        for batch in (3, 5):
            run(session, inputs(batch))
        timer = session.device_timer()
        session.execute()  # not waited for
        session.close()
        del timer
    assert fake.cuda.used_bytes("device") == fake.cuda.used_bytes("host") == 0
    assert fake.cuda.graphs == fake.cuda.events == 0
    assert not any(stream.is_open for stream in fake.cuda.streams.values())


@pytest.mark.parametrize(
    ("precision", "model", "flags"),
    [
        ("fp32", "fp32", set()),
        ("tf32", "fp32", {"TF32"}),
        ("fp16", "fp16", set()),
        *((precision, "fp32", None) for precision in ("fp16", "bf16", "int8")),
        ("fp32", "fp16", None),
    ],
)
def test_a_model_computes_in_its_own_precision(
    fake: Fake, tmp_path: Path, precision: Any, model: str, flags: set[str] | None
) -> None:
    """None: refused."""
    path = onnx_file(tmp_path, precision=model)
    if flags is None:
        return refused(lambda: fake.load(path, precision=precision), f"is a model in {model}")
    with fake.load(path, precision=precision) as session:
        arrays = inputs(2)
        session.allocate(shapes(2))
        session.write_inputs({spec.name: arrays[spec.name].astype(spec.dtype) for spec in session.inputs})
        assert_equal(one_round(session), arrays, TOLERANCE[precision])
        assert fake.world.flags == flags
    return None


def test_engines_for_exact_shapes_and_for_profiles(fake: Fake, tmp_path: Path) -> None:
    with fake.load() as session:
        built_ms = [session.build_ms]
        for batch in (4, 4, 8):
            session.allocate(shapes(batch))
            built_ms.append(session.build_ms)
        assert session.settings()["profile"] == "features:8x6; shift:8x1"
        assert (fake.world.builds, built_ms[0]) == (2, None)
        assert 0 < built_ms[1] == built_ms[2] < built_ms[3]
    with fake.load(extra={"profile": TWO_PROFILES}) as session:
        assert session.build_ms is not None
        for batch, usual in ((1, 2), (3, 2), (4, 2), (5, 16), (32, 16)):
            computes(session, batch)
            assert f",{usual}x6," in session.settings()["profile"], batch
        assert fake.world.builds == 3
        refused(lambda: session.allocate(shapes(33)), "profile")

    def fix(model: Any) -> None:
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 3

    with fake.load(onnx_file(tmp_path, fix), extra={"profile": ONE_PROFILE}) as session:  # no open dimensions
        assert session.build_ms is not None
        computes(session, 3)
        assert session.settings()["profiles"] == "none, because all shapes are fixed"


def test_an_engine_file_is_run_as_it_is(fake: Fake, tmp_path: Path) -> None:
    path = engine_file(fake, tmp_path)
    with fake.load(str(path)) as session:
        assert session.build_ms is None
        assert session.inputs == tiny_models.INPUTS
        computes(session, 3)
        assert session.settings()["precision"].startswith("that of the engine file")
        assert session.settings()["engine_bytes"] == str(path.stat().st_size)
        refused(lambda: session.allocate(shapes(5)), "profile")
    for suffix in (".engine", ".plan", ".onnx"):
        broken = tmp_path / f"broken{suffix}"
        broken.write_bytes(b"this is no model")
        refused(partial(fake.load, str(broken)), "broken|ONNX")


def test_an_engine_of_another_version(install: Install, tmp_path: Path) -> None:
    path = engine_file(install(OLD), tmp_path)
    refused(lambda: install(NEW).load(str(path)), f"expecting library version {NEW} got {OLD}")
    refused(lambda: install(RTX).load(str(path)), OLD)


def test_engines_are_kept_for_each_kind_of_gpu_those_of_rtx_for_all(install: Install, tmp_path: Path) -> None:
    for version, builds in ((NEW, [1, 1, 0]), (RTX, [1, 0, 0])):
        seen = []
        for capability in ((8, 9), (8, 6), (8, 9)):
            fake = install(version, capability=capability)
            with fake.load(cache_dir=tmp_path / version) as session:
                computes(session, 4)
                assert (session.build_ms is None) == ("built" in session.settings()) == (not fake.world.builds)
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
        assert "not enough memory" in str(session.layer_times(2))


@pytest.mark.parametrize(
    ("call", "message", "kind"),
    [
        ("build_serialized_network", "Error Code 10: no implementation", BackendError),
        ("build_serialized_network", "Cuda Runtime (out of memory)", OutOfMemoryError),
        ("deserialize_cuda_engine", "Cuda Runtime (out of memory)", OutOfMemoryError),
        ("create_execution_context", "Error Code 1: Myelin", BackendError),
        ("Builder", "error: 35", BackendError),
        ("parse", "No importer", BackendError),
        ("execute_async_v3", "illegal access", BackendError),
    ],
)
def test_what_fails(fake: Fake, call: str, message: str, kind: type[BackendError]) -> None:
    """While loading, allocating or running; what comes after it works."""
    session = fake.load() if call not in ("Builder", "parse") else None
    fake.world.fails[call] = message
    refused(lambda: run(session or fake.load(), inputs(2)), ".", kind)
    fake.world.fails.clear()
    with session or fake.load() as good:
        computes(good)


def test_a_device_without_room(install: Install) -> None:
    fake = install(NEW, room_bytes=4000)
    with fake.load() as session:
        refused(lambda: session.allocate(shapes(1000)), "memory", OutOfMemoryError)
        computes(session)  # smaller ones are served
    assert fake.cuda.used_bytes("device") == fake.cuda.used_bytes("host") == 0
    with install(NEW, room_bytes=999).load() as session:  # of 1000 for the context
        refused(lambda: session.allocate(shapes(1)), "memory", OutOfMemoryError)


@pytest.mark.parametrize(
    ("version", "capability", "says"),
    [
        (RTX, (8, 9), None),
        (RTX, (9, 0), "compute capability 9.0"),
        (RTX, (12, 0), None),
        *((version, None, "no GPU") for version in FAKES),
    ],
)
def test_gpus_that_it_runs_on(
    install: Install, version: str, capability: tuple[int, int] | None, says: str | None
) -> None:
    fake = install(version, capability=capability)
    problem = backend(fake.name).problem(BackendOptions(device="cuda"))
    assert (says or "") in (problem or "")
    assert (problem is None) == (says is None)
    if says is not None:
        refused(fake.load, says, BackendUnavailableError)


@pytest.mark.parametrize(("old", "new"), [("shift", "host_shift"), ("logits", "deciding"), ("features", "BF16")])
def test_tensors_that_it_cannot_take(fake: Fake, tmp_path: Path, old: str, new: str) -> None:
    """An input whose values decide shapes, an output whose shape depends on values, a type that NumPy lacks."""

    def change(model: Any) -> None:
        if new == "BF16":
            model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
            return
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]
        for value in (*model.graph.input, *model.graph.output):
            value.name = new if value.name == old else value.name

    def allocated() -> None:
        with fake.load(onnx_file(tmp_path, change)) as session:
            session.allocate({spec.name: (2, spec.shape[1] or 0) for spec in session.inputs})

    refused(allocated, new)
