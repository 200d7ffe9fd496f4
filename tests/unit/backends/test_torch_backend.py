"""What of the PyTorch backend the contract test does not see: settings put back, files, descriptions, layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.backends import BackendOptions, FactoryModel, ModelSource, Session, backend, model_source
from perfharness.errors import BackendError, OutOfMemoryError
from perfharness.model.bench import TensorSpec
from tests.contract.test_backends import run

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

IMAGE = (TensorSpec(name="image", shape=(None, 3, 8, 8), dtype="float32"),)
SOURCE = ModelSource("made", factory="tests.unit.backends.test_torch_backend:create")
made_here: dict[str, FactoryModel] = {}


def create(backend: str, precision: str) -> Any:
    """The factory of these tests: what the test has put there."""
    del backend, precision
    return made_here["model"]


def loaded(
    module: Any, inputs: tuple[TensorSpec, ...] = IMAGE, outputs: tuple[str, ...] = (), **options: Any
) -> Session:
    made_here["model"] = FactoryModel(module, inputs, outputs)
    return backend("torch").load(SOURCE, BackendOptions(**options))


class Function(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is not looked into
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


@pytest.mark.parametrize(
    ("function", "described"),
    [
        (lambda x: x.mean((2, 3)), [("output_0", (None, 3), "float32")]),
        (
            lambda x: {"low": x.min(), "index": x.flatten(1).argmax(1)},
            [("low", (), "float32"), ("index", (None,), "int64")],
        ),
        (
            lambda x: (x[:, :, ::2].bool(), x + 1),
            [("output_0", (None, 3, 4, 8), "bool"), ("output_1", (None, 3, 8, 8), "float32")],
        ),
    ],
)
def test_outputs_are_described_before_anything_runs(function: Callable[..., Any], described: list[Any]) -> None:
    with loaded(Function(function)) as session:
        assert [(spec.name, spec.shape, spec.dtype) for spec in session.outputs] == described
        image = np.random.default_rng(1).normal(size=(2, 3, 8, 8)).astype(np.float32)
        found = run(session, {"image": image})
    assert list(found) == [name for name, *_ in described]
    for name, shape, dtype in described:
        assert found[name].dtype == dtype
        assert found[name].shape == tuple(2 if size is None else size for size in shape)


def test_a_model_that_needs_numbers_to_be_described() -> None:
    """A branch on a value cannot be followed without data; the model is run once then."""
    with loaded(Function(lambda x: x.sum((1, 2, 3)) if x.sum().item() == 0 else x)) as session:
        assert session.outputs[0].shape == (None,)


@pytest.mark.parametrize(
    "made",
    [
        FactoryModel(Function(lambda x: "text"), IMAGE),
        FactoryModel(Function(lambda x: (x, [x])), IMAGE),
        FactoryModel(Function(lambda x: x), IMAGE, ("a", "b")),
        FactoryModel(Function(lambda x, y: x), IMAGE),
        FactoryModel(lambda x: x, IMAGE),
        torch.nn.Identity(),
    ],
)
def test_models_that_cannot_be_measured(made: Any) -> None:
    made_here["model"] = made
    with pytest.raises(BackendError):
        backend("torch").load(SOURCE, BackendOptions())


def test_integers_are_not_cast_to_fp16() -> None:
    tokens = (TensorSpec(name="tokens", shape=(None, 4), dtype="int64"),)
    with loaded(torch.nn.Embedding(7, 5), tokens, precision="fp16") as session:
        found = run(session, {"tokens": np.array([[1, 2, 3, 6]])})
        assert session.settings()["dtype"] == "float16"
    assert found["output_0"].dtype == np.float32
    assert found["output_0"].shape == (1, 4, 5)


def test_a_batch_norm_is_in_inference_mode() -> None:
    module = torch.nn.BatchNorm2d(3).train()
    image = np.random.default_rng(1).normal(5, 1, size=(2, 3, 8, 8)).astype(np.float32)
    with loaded(module) as session:
        np.testing.assert_allclose(run(session, {"image": image})["output_0"], image, rtol=1e-4)


def test_settings_of_the_process() -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            with loaded(Function(lambda x: x), threads=threads) as session:
                assert (torch.get_num_threads(), session.settings()["num_threads"]) == (threads, str(threads))
                with loaded(Function(lambda x: x), threads=threads):
                    pass
                with pytest.raises(BackendError):
                    loaded(Function(lambda x: x), threads=threads + 1)
    finally:
        torch.set_num_threads(before)


def test_dynamic_int8_says_what_it_quantises() -> None:
    two = torch.nn.Sequential(
        torch.nn.Conv2d(3, 2, 8), torch.nn.Flatten(), torch.nn.Linear(2, 4), torch.nn.Linear(4, 5)
    )
    with loaded(two, precision="int8") as session:
        assert "qint8 in 2 linear layers" in session.settings()["dtype"]
    with pytest.raises(BackendError, match="linear"):
        loaded(torch.nn.Conv2d(3, 2, 8), precision="int8")


def export(path: Path, module: Any, dtype: Any) -> ModelSource:
    given = torch.zeros((2, 3, 8, 8), dtype=dtype)
    program = torch.export.export(module.to(dtype).eval(), (given,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, path)
    return model_source(str(path))


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "fp32"), (torch.bfloat16, "bf16")])
def test_an_exported_program_describes_itself(tmp_path: Path, dtype: Any, precision: Any) -> None:
    """In bfloat16, which NumPy has not, too: inputs and outputs are float32 on the host."""
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.ReLU())
    source = export(tmp_path / "net.pt2", module, dtype)
    image = np.random.default_rng(1).normal(size=(5, 3, 8, 8)).astype(np.float32)
    with backend("torch").load(source, BackendOptions(precision=precision)) as session:
        assert [(spec.shape, spec.dtype) for spec in session.inputs] == [((None, 3, 8, 8), "float32")]
        assert [(spec.shape, spec.dtype) for spec in session.outputs] == [((None, 2, 6, 6), "float32")]
        found = run(session, {session.inputs[0].name: image})[session.outputs[0].name]
        assert isinstance(session.layer_times(2), str)
    with torch.inference_mode():
        expected = module(torch.from_numpy(image).to(dtype)).float().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(BackendError, match=precision):
        backend("torch").load(source, BackendOptions(precision="fp16"))


def test_a_module_has_its_own_work_without_that_of_the_modules_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a known time on a clock of ours: 7 ms, and 5 ms in a block that calls one of 3 ms twice."""
    now = [0]
    monkeypatch.setattr("perfharness.backends.torch_layers.perf_counter_ns", lambda: now[0])

    def working(milliseconds: int, *inside: Any) -> Any:
        def work(x: Any) -> Any:
            now[0] += milliseconds * 1_000_000
            for each in inside:
                x = each(x)
            return x

        made = Function(work)
        for number, each in enumerate(inside):
            made.add_module(f"part{number}", each)
        return made

    leaf = working(3)
    for module, expected in [
        (torch.nn.Sequential(working(7), working(5, leaf, leaf)), [("0", 7.0), ("1.part0", 6.0), ("1", 5.0)]),
        (leaf, [("(model)", 3.0)]),
    ]:
        with loaded(module) as session:
            session.allocate({"image": (1, 3, 8, 8)})
            layers = session.layer_times(4)
        assert not isinstance(layers, str)
        assert [(layer.name, layer.milliseconds) for layer in layers] == expected
    assert not leaf._forward_hooks


def test_host_memory_that_is_not_there() -> None:
    huge = (TensorSpec(name="image", shape=(None, 2**20, 2**10), dtype="float32"),)
    with loaded(Function(lambda x: x[:, 0, 0]), huge) as session, pytest.raises(OutOfMemoryError):
        session.allocate({"image": (2**16, 2**20, 2**10)})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (BackendOptions(mode="cudagraph"), "GPU"),
        (BackendOptions(precision="tf32"), "tf32"),
        (BackendOptions(mode="compile", precision="int8"), "compiled"),
        (BackendOptions(device="cuda", precision="int8"), "int8"),
        (BackendOptions(extra={"compile_mode": "fastest"}), "fastest"),
        (BackendOptions(extra={"cudnn_benchmark": "1"}), "cudnn_benchmark"),
    ],
)
def test_options_that_do_not_go_together(options: BackendOptions, says: str) -> None:
    assert says in str(backend("torch").problem(options))


def test_compiling_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert "compiler" in str(backend("torch").problem(BackendOptions(mode="compile")))
