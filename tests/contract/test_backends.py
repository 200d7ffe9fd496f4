"""What every backend promises (perfharness/backends/base.py), on a model small enough to reckon in NumPy.

A backend that is not installed, or cannot run here, is skipped with its own reason.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from perfharness.backends import (
    BACKENDS,
    Backend,
    BackendOptions,
    Session,
    backend,
    backend_and_mode,
    model_source,
)
from perfharness.errors import BackendError, BackendUnavailableError
from tests.contract import tiny_models
from tests.tensorrt.fakes import FAKES, install

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the frameworks' own

TINY = "tests.contract.tiny_models:create"
TOLERANCE = {"fp32": 1e-5, "tf32": 5e-3, "fp16": 1e-2, "bf16": 6e-2, "int8": 0.1}
"""Greatest absolute difference from fp32 in NumPy, where outputs are about 1: a few roundings of the precision."""

LIGHT = {"onnxruntime", "torch"}
"""The other backends' frameworks are installed and tried by `scripts/test --all` only."""


def of_backend(name: str, *more: str) -> Any:
    """The parameters of a test of one backend."""
    light = name in LIGHT and "compile" not in more  # compiling takes half a minute
    return pytest.param(name, *more, id="-".join((name, *more)), marks=() if light else pytest.mark.slow)


NAMES = [of_backend(name) for name in BACKENDS]
CASES = [
    of_backend(name, mode, precision)
    for name in BACKENDS
    for mode in backend(name).modes
    for precision in backend(name).precisions
    if (name, precision) == ("torch", "fp32") or mode != "compile"  # compiling takes half a minute
]
"""Every mode in every precision; what the machine has not is skipped."""


def options_or_skip(name: str, mode: str = "", precision: Any = "fp32") -> tuple[Backend, BackendOptions]:
    """On the CPU, where this mode runs there."""
    made = backend(name)
    options = BackendOptions(device="cpu", precision=precision, mode=mode, threads=1)
    if (problem := made.problem(options)) is not None:
        pytest.skip(f"{name}: {problem}")
    return made, options


def inputs(batch: int, seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return {
        "features": random.uniform(-1, 1, (batch, tiny_models.FEATURES)).astype(np.float32),
        "shift": random.uniform(-1, 1, (batch, 1)).astype(np.float32),
    }


def as_asked(session: Session, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """In the dtypes of the model: an fp16 file may take fp16."""
    return {spec.name: arrays[spec.name].astype(spec.dtype) for spec in session.inputs}


def shapes_of(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def one_round(session: Session) -> dict[str, npt.NDArray[Any]]:
    session.run_round()
    return session.read_outputs()


def run(session: Session, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    session.allocate(shapes_of(arrays))
    session.write_inputs(as_asked(session, arrays))
    return one_round(session)


def assert_equal(found: Mapping[str, npt.NDArray[Any]], arrays: dict[str, Any], tolerance: float) -> None:
    expected = tiny_models.reference(**arrays)
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].shape == array.shape
        np.testing.assert_allclose(found[name].astype(np.float32), array, rtol=0, atol=tolerance)


def loaded_in(made: Backend, options: BackendOptions, model: str = TINY) -> Session:
    """A session, or skipped where the backend computes in the model's own precision and says that this is another."""
    try:
        return made.load(model_source(model), options)
    except BackendError as error:
        if "own precision" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture(params=[*NAMES, *((version, mode) for version in FAKES for mode in ("stream", "cudagraph"))], ids=str)
def session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """In the default mode, fp32, nothing allocated yet; of TensorRT with fakes that compute on the host."""
    if isinstance(request.param, str):
        made, options = options_or_skip(request.param)
    else:
        version, mode = request.param
        made, options = backend(install(monkeypatch, version).name), BackendOptions(device="cuda", mode=mode)
    with made.load(model_source(TINY), options) as loaded:
        yield loaded


BUILT = {"keras", "tensorflow", "tensorrt", "tensorrt-rtx"}
"""Backends that make an engine or a program of a model; of PyTorch `compile` does."""


@pytest.mark.parametrize(("name", "mode", "precision"), CASES)
def test_outputs_are_those_of_numpy(name: str, mode: str, precision: str, tmp_path: Path) -> None:
    made, options = options_or_skip(name, mode, precision)
    if mode == "compile":
        options = replace(options, cache_dir=tmp_path)  # PyTorch has a cache of its own in any case, which is not empty
    arrays = inputs(3)
    with loaded_in(made, options) as session:
        begin = time.perf_counter()
        assert_equal(run(session, arrays), arrays, TOLERANCE[precision])
        taken_ms = 1e3 * (time.perf_counter() - begin)
        builds = name in BUILT or mode == "compile"
        assert (session.build_ms is not None) == builds
        assert 0 <= (session.build_ms or 0) <= taken_ms
        if mode == "compile":
            assert f"modules are not timed in mode {mode}" in str(session.layer_times(3))


def test_what_a_session_reports(session: Session) -> None:
    assert session.inputs == tiny_models.INPUTS
    assert tuple((spec.name, spec.dtype) for spec in session.outputs) == (("hidden", "float32"), ("logits", "float32"))
    run(session, inputs(2))
    assert all(isinstance(name, str) and isinstance(value, str) for name, value in session.settings().items())
    if (timer := session.device_timer()) is None:  # on the CPU
        assert session.device_memory_bytes() is None
    else:
        session.copy_in()
        timer.start()
        session.execute()
        timer.stop()
        session.copy_out()
        assert timer.milliseconds() == 1.5  # what the fake takes; copies are not in it
    layers = session.layer_times(3)
    if isinstance(layers, str):
        assert layers
        assert not layers.endswith(".")
    else:
        assert layers
        assert all(layer.name and layer.milliseconds >= 0 for layer in layers)
        assert len({layer.name for layer in layers}) == len(layers)


def test_rounds(session: Session) -> None:
    """Any batch size, inputs that are not contiguous, the same bits again."""
    for batch in (1, 5, 2):
        arrays = inputs(batch, seed=batch)
        found = run(session, {name: np.repeat(array, 2, axis=0)[::2] for name, array in arrays.items()})
        assert_equal(found, arrays, TOLERANCE["fp32"])
    for name, array in run(session, arrays).items():
        np.testing.assert_array_equal(array, found[name])


def test_what_is_written_and_read_is_copied(session: Session) -> None:
    """Each round takes what was written last; what was read stays valid, also when the session is closed."""
    first, second = inputs(2, seed=1), inputs(2, seed=2)
    session.allocate(shapes_of(first))
    read = []
    for arrays in (first, second, first):
        given = {name: array.copy() for name, array in arrays.items()}
        session.write_inputs(given)
        given["features"][:] = 100
        read += [(one_round(session), arrays) for _ in range(3)]
    run(session, inputs(7, seed=8))
    session.close()
    session.close()
    for found, arrays in read:
        assert_equal(found, arrays, TOLERANCE["fp32"])
    with pytest.raises(BackendError, match="closed"):
        session.allocate(shapes_of(first))


def test_what_is_refused(session: Session) -> None:
    """Each in one line; nothing is broken by it."""
    good = inputs(2)

    def refused(call: Callable[[], object], says: str) -> None:
        with pytest.raises(BackendError, match=says) as caught:
            call()
        assert "\n" not in str(caught.value)

    for call in (session.execute, session.read_outputs, partial(session.write_inputs, good)):
        refused(call, "allocate")
    shapes: list[tuple[dict[str, tuple[int, ...]], str]] = [
        ({"features": (2, 6)}, "shift"),
        ({"features": (2, 6), "shift": (2, 1), "mask": (2,)}, "mask"),
        ({"features": (2, 7), "shift": (2, 1)}, "features"),
        ({"features": (2, 6, 1), "shift": (2, 1)}, "features"),
        ({"features": (0, 6), "shift": (0, 1)}, "features"),
    ]
    for bad_shapes, says in shapes:
        refused(partial(session.allocate, bad_shapes), says)
    session.allocate(shapes_of(good))
    arrays: list[tuple[Mapping[str, npt.NDArray[Any]], str]] = [
        (inputs(3), "features"),
        ({**good, "features": good["features"].astype(np.float64)}, "float64"),
        ({"features": good["features"]}, "shift"),
        ({**good, "mask": good["shift"]}, "mask"),
    ]
    for bad_arrays, says in arrays:
        refused(partial(session.write_inputs, bad_arrays), says)
    assert_equal(run(session, good), good, TOLERANCE["fp32"])


@pytest.mark.parametrize(
    ("name", "mode"),
    [of_backend(name, mode) for name in BACKENDS for mode in backend(name).modes],
)
def test_sessions_in_threads_at_once(name: str, mode: str) -> None:
    """Each on inputs of its own, round after round; what one gives is never another's."""
    made, options = options_or_skip(name, mode)
    count, rounds = 3, 60
    barrier = threading.Barrier(count)

    def at_once(session: Session) -> list[dict[str, Any]]:
        barrier.wait(60)
        return [one_round(session) for _ in range(rounds)]

    with ExitStack() as stack:
        given = [inputs(2 + number, seed=number) for number in range(count)]
        sessions = [stack.enter_context(made.load(model_source(TINY), options)) for _ in given]
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in given]
        for thread, session, arrays in zip(threads, sessions, given, strict=True):
            assert_equal(thread.submit(run, session, arrays).result(), arrays, TOLERANCE["fp32"])
        running = [thread.submit(at_once, session) for thread, session in zip(threads, sessions, strict=True)]
        for future, arrays in zip(running, given, strict=True):
            for found in future.result():
                assert_equal(found, arrays, TOLERANCE["fp32"])
        for thread, session, arrays in zip(threads, sessions, given, strict=True):
            assert_equal(thread.submit(session.read_outputs).result(), arrays, TOLERANCE["fp32"])


@pytest.mark.parametrize("name", NAMES)
def test_what_it_is_and_options_that_it_has_not(name: str) -> None:
    made = backend(name)
    assert made.name == name
    assert all((made.modes, made.precisions, made.install))
    for options, says in (
        (BackendOptions(mode="warp"), "warp"),
        (BackendOptions(extra={"sparkle": "1"}), "sparkle"),
    ):
        assert says in str(made.problem(options))
        with pytest.raises(BackendUnavailableError, match=f"^{name}: "):
            made.load(model_source(TINY), options)
    options_or_skip(name)
    assert all(made.versions().values())


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    script = (
        "import sys\n"
        "from perfharness.backends import BackendOptions, backend\n"
        f"print(backend({name!r}).problem(BackendOptions(device='cuda')))"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert told not in ("", "None")
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("name", NAMES)
def test_files_of_another_kind_and_broken_ones(name: str, tmp_path: Path) -> None:
    made, options = options_or_skip(name)
    other = next(suffix for suffix in (".engine", ".pt2", ".onnx") if suffix not in made.suffixes)
    for suffix in (other, *(suffix for suffix in made.suffixes if suffix.startswith("."))):
        path = tmp_path / f"model{suffix}"
        path.write_bytes(b"this is no model")
        with pytest.raises(BackendError) as caught:
            made.load(model_source(str(path)), options)
        assert "\n" not in str(caught.value).strip()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("keras", ("keras", "")),
        ("kerasxla", ("keras", "kerasxla")),
        ("keras/kerasxla", ("keras", "kerasxla")),
        ("tf", ("tensorflow", "tf")),
        ("tfxla", ("tensorflow", "tfxla")),
        ("tensorflow", ("tensorflow", "")),
        ("our.backends:Fast", ("our.backends:Fast", "")),
        ("our.backends:Fast/turbo", ("our.backends:Fast", "turbo")),
    ],
)
def test_names_on_the_command_line(text: str, meant: tuple[str, str]) -> None:
    assert backend_and_mode(text) == meant
    if meant[0] in BACKENDS and meant[1]:
        assert meant[1] in backend(meant[0]).modes


def test_no_framework_is_imported_with_the_list() -> None:
    script = (
        "import sys\n"
        "from perfharness.backends import BACKENDS, backend\n"
        "for name in BACKENDS: backend(name)\n"
        "heavy = {'torch', 'onnxruntime', 'onnx', 'tensorrt', 'keras', 'tensorflow', 'cuda'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
