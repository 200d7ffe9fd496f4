"""Suite files: every mistake is found before anything starts; the cases that come of a right one."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.backends.models import shapes_of
from perfharness.bench import load_suite
from perfharness.bench.plan import in_order, plan_cases
from perfharness.bench.suite import EqualityTable, Suite
from perfharness.cli.main import run
from perfharness.errors import UsageError
from perfharness.model.manifest import GpuRecord
from tests.support.fake_backend import FAKE_BACKEND, FakeScript, write_model

GPU = GpuRecord(index=0, uuid="GPU-1", name="NVIDIA H200")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "net.py", FakeScript())
    return tmp_path


def suite_of(folder: Path, text: str) -> Suite:
    path = folder / "suite.toml"
    path.write_text(text)
    return load_suite(path)


WHOLE = f"""
models = ["net.py:create"]
batch_sizes = [1, 8]
precisions = ["fp32", "fp16"]
[[backend]]
name = "{FAKE_BACKEND}"
modes = "all"
"""


def test_cases_of_a_suite(folder: Path) -> None:
    suite = suite_of(folder, WHOLE)
    cases = plan_cases(suite, ())
    assert [(one.case.mode, one.case.precision, one.case.batch_size) for one in cases] == [
        (mode, precision, size) for mode in ("plain", "fast") for precision in ("fp32", "fp16") for size in (1, 8)
    ]
    first, second, *_ = cases
    assert (first.case_id, first.refusal) == ("net-FakeBackend-plain-fp32-cpu-b1", None)
    assert first.spec.model == f"{folder / 'net.py'}:create"
    assert (first.at_batch(8), second.at_batch(1)) == (second, first)
    assert first.at_batch(3).case_id == "net-FakeBackend-plain-fp32-cpu-b3"
    on_gpu = plan_cases(suite, (GPU,))[0]
    assert (on_gpu.case.device, on_gpu.spec.telemetry.gpu_uuids) == ("cuda", ("GPU-1",))
    assert plan_cases(suite.model_copy(update={"device": "cpu"}), (GPU,))[0].spec.telemetry.gpu_uuids == ()
    seeded = (suite.model_copy(update={"run": suite.run.model_copy(update={"seed": seed})}) for seed in (3, 3, 0, 1, 2))
    orders = [in_order(one, cases) for one in seeded]
    assert orders[0] == orders[1]
    assert sorted(one.case_id for one in orders[0]) == sorted(one.case_id for one in cases)
    assert any(order != cases for order in orders)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["NVIDIA H200"], ["H200"]),
        (["NVIDIA H200", "NVIDIA L4"], ["H200", "L4"]),
        (["NVIDIA H200", "NVIDIA L4", "NVIDIA H200"], ["H200 (GPU 0)", "L4", "H200 (GPU 2)"]),
        ([None, "NVIDIA L4"], ["GPU-0", "L4"]),
    ],
)
def test_every_case_runs_on_each_gpu(folder: Path, names: list[str | None], expected: list[str]) -> None:
    gpus = [GpuRecord(index=place, uuid=f"GPU-{place}", name=name) for place, name in enumerate(names)]
    cases = plan_cases(suite_of(folder, WHOLE), gpus)
    assert len({one.case_id for one in cases}) == len(cases) == 8 * len(gpus)
    assert list(dict.fromkeys(one.case.gpu for one in cases)) == expected
    assert all(one.spec.telemetry.gpu_uuids == (f"GPU-{one.case.gpu_index}",) for one in cases)
    on_cpu = plan_cases(suite_of(folder, f'device = "cpu"\n{WHOLE}'), gpus)
    assert [(one.case.gpu, one.case.gpu_index) for one in on_cpu] == [(None, None)] * 8


def test_onnx_runtimes_provider_follows_the_device(folder: Path) -> None:
    text = 'models = ["net.py:create"]\nbackends = ["onnxruntime"]\n'
    both = text.replace('["onnxruntime"]', '["onnxruntime/all"]')
    for gpus, default, every in (((), "cpu", {"cpu"}), ((GPU,), "cuda", {"cuda", "tensorrt"})):
        suite = suite_of(folder, text)
        assert {one.case.mode for one in plan_cases(suite, gpus)} == {default}
        assert {one.case.mode for one in plan_cases(suite_of(folder, both), gpus)} == every
    assert suite_of(folder, f'baseline = "onnxruntime/cuda"\n{text}').baseline == "onnxruntime/cuda"


def test_digest_follows_what_is_measured_and_nothing_else(folder: Path) -> None:
    def digest(text: str) -> str:
        return plan_cases(suite_of(folder, text), ())[0].sha256

    before = digest(WHOLE)
    assert digest(f"baseline = 'x'\n{WHOLE}".replace("baseline = 'x'\n", "")) == before
    assert digest(WHOLE + "[run]\nseed = 7\ntimeout_s = 3\n[constraints]\nmax_latency_ms = 2\n") == before
    assert digest(WHOLE + "[latency]\niterations = 7\n") != before
    inputs = WHOLE.replace('models = ["net.py:create"]', "") + (
        '[[model]]\nname = "net"\nsource = "net.py:create"\ninput_file = "x.npz"\n'
    )
    (folder / "x.npz").write_bytes(b"a")
    with_inputs = digest(inputs)
    (folder / "x.npz").write_bytes(b"b")
    assert digest(inputs) not in (with_inputs, before), "other values in the same file"
    write_model(folder / "net.py", FakeScript(execute_ms=9))
    assert digest(WHOLE) != before


def test_names_that_differ_in_case_have_ids_of_their_own_at_every_batch_size(folder: Path) -> None:
    text = WHOLE.replace('models = ["net.py:create"]', "").replace("modes", "extra = {}\nmodes")
    text += '[[model]]\nname = "Net"\nsource = "net.py:create"\n[[model]]\nname = "net"\nsource = "net.py:create"\n'
    cells = plan_cases(suite_of(folder, text), ())
    assert len({one.case_id.lower() for one in cells}) == len(cells)
    assert len({cell.at_batch(16).case_id.lower() for cell in cells}) == len(cells) // 2  # each cell was there twice


def test_precision_that_a_backend_lacks_is_a_row(folder: Path) -> None:
    suite = suite_of(folder, WHOLE.replace('"fp16"', '"int8"'))
    refused = [one for one in plan_cases(suite, ()) if one.refusal]
    assert {one.case.precision for one in refused} == {"int8"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("models = [", "suite.toml"),
        ("", "model"),
        ('models = ["net.py:create"]', "backend"),
        (WHOLE.replace("net.py", "gone.py"), "gone.py"),
        (WHOLE.replace('"all"', '["plain", "turbo"]'), "turbo"),
        (WHOLE + 'precisions = ["bf16"]', "bf16"),
        (WHOLE.replace("fp16", "fp17"), "precisions.1"),
        (WHOLE.replace("[1, 8]", "[1, 8, 1]"), "batch_sizes"),
        (WHOLE.replace("[1, 8]", "[0]"), "batch_sizes.0"),
        (WHOLE.replace("[1, 8]", "[]"), "batch_sizes"),
        (WHOLE + 'modus = "x"', "backend.0.modus"),
        (WHOLE + "[latency]\niterations = 'many'", "latency.iterations"),
        (WHOLE + "[measure]\npasses = ['telemetry']", "latency"),
        (WHOLE + "[run]\ntimeout_s = 0", "run.timeout_s"),
        ("baseline = 'torch'\n" + WHOLE, "torch"),
        (WHOLE + "[equality]\nreference = 'keras'", "equality.reference"),
        (WHOLE + "[constraints]\naccuracy_metric = 'wer'", "accuracy_direction"),
        (WHOLE.replace(FAKE_BACKEND, "torchh"), "torchh"),
        ('models = "net.py:create"\n' + WHOLE.replace("models", "# "), "models"),
        (WHOLE + f'[[backend]]\nname = "{FAKE_BACKEND}"\n', "/plain/fp32"),
        (WHOLE.replace('"net.py:create"', '"net.py:create", "net.py:create"'), "net"),
        (WHOLE + '[[model]]\nname = "m"\n', "sources"),
        (WHOLE.replace("net.py:create", "net.onnx"), "net.onnx"),
    ],
)
def test_a_mistake_is_named(folder: Path, text: str, named: str) -> None:
    (folder / "net.onnx").write_bytes(b"")
    with pytest.raises(UsageError, match=re.escape(named)):
        suite_of(folder, text)


def test_tolerance_of_a_precision_is_never_tighter_than_the_suites() -> None:
    table = EqualityTable.model_validate({"absolute": 0.5, "precision": {"int8": {"absolute": 9.0, "relative": 0.0}}})
    tolerances = [table.tolerance(precision) for precision in ("fp32", "fp16", "int8")]
    assert [(one.absolute, one.relative) for one in tolerances] == [(0.5, 1e-3), (0.5, 2e-2), (9.0, 0.0)]


def open_shapes(path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    described = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Relu", ["image"], ["y"])
    dims = ["n", 3, "height", "width"]
    graph = onnx.helper.make_graph([node], "open", [described("image", 1, dims)], [described("y", 1, dims)])
    onnx.save(onnx.helper.make_model(graph), path)


def test_dimensions_that_an_onnx_model_leaves_open_are_found_in_the_plan(folder: Path) -> None:
    open_shapes(folder / "open.onnx")
    text = "backends = ['onnxruntime']\nbatch_sizes = [2]\n[[model]]\nsource = 'open.onnx'\n"
    with pytest.raises(UsageError, match="--shape image"):
        suite_of(folder, text)
    for shape in ('["batch", 3, 32, 32]', "[2, 3, 32, 32]"):
        assert suite_of(folder, text + f"inputs = {{ image = {shape} }}").model[0].inputs
    for wrong in ('["batch", 3, 32]', '["batch", 4, 32, 32]', '["batch", 3, "h", 32]', "[1, 3, 32, 32]"):
        with pytest.raises(UsageError, match="image"):
            suite_of(folder, text + f"inputs = {{ image = {wrong} }}")


def test_open_dimensions_are_a_wrong_command_line_and_a_shape_mends_it(folder: Path) -> None:
    open_shapes(folder / "open.onnx")
    given = ["bench", "--backend", "onnxruntime", "--model", str(folder / "open.onnx"), "--dry-run"]
    assert run(given) == 2
    assert run([*given, "--shape", "image=batchx3x8x8"]) == 0


def test_shapes_on_the_command_line() -> None:
    assert shapes_of(["image=batchx3x224x224", "m=batch,max,4"]) == {
        "image": ("batch", 3, 224, 224),
        "m": ("batch", "max", 4),
    }
    for wrong in ("image", "=3", "image=", "image=3x-1", "image=3x?"):
        with pytest.raises(UsageError, match="--shape"):
            shapes_of([wrong])


def test_what_is_no_utf8_is_refused_before_anything_starts(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    for arguments in (["bench", "-o", str(tmp_path / name)], ["compare-engines", "--engines", name]):
        assert run(arguments) == 2
    assert not list(tmp_path.iterdir())


def test_all_mistakes_at_once(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        suite_of(folder, "baseline = 'x'\n" + WHOLE.replace("[1, 8]", "[1, 1]").replace('"all"', '"turbo"'))
    assert len(str(caught.value).splitlines()) == 1 + 3


def test_no_suite_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gone"):
        load_suite(tmp_path / "gone.toml")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("'12GB'", 12 * 10**9),
        ("'512 MiB'", 512 * 2**20),
        ("'1.5gb'", 1_500_000_000),
        ("7000000", 7_000_000),
        ("' 2000kB '", 2_000_000),
        *((f"'{text}'", None) for text in ("", "GB", "12 apples", "-1GB", "0GB", "1,5GB", "1e9", "12", "12kB")),
    ],
)
def test_sizes(folder: Path, text: str, size: int | None) -> None:
    text = f"{WHOLE}[measure]\nmemory_limit = {text}\n"
    if size is not None:
        assert suite_of(folder, text).measure.memory_limit == size
        return
    with pytest.raises(UsageError, match=r"measure\.memory_limit"):
        suite_of(folder, text)


@given(st.text(max_size=60))
def test_any_text_is_a_suite_or_a_usage_error(text: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "s.toml"
        path.write_text(text)
        with pytest.raises(UsageError, match=r"s\.toml"):  # no random text is a whole suite
            load_suite(path)


def test_the_suite_in_the_documentation_is_one(folder: Path) -> None:
    """Every key of it is known; its models, files and the cell of another backend are not there."""
    text = (Path(__file__).parents[3] / "docs" / "examples" / "suite.toml").read_text()
    with pytest.raises(UsageError) as caught:
        suite_of(folder, text)
    assert "key" not in str(caught.value)
    assert "`" not in str(caught.value).replace("`input_file`", "")
    (folder / "val" / "images").mkdir(parents=True)
    np.save(folder / "val" / "images" / "a.npy", np.zeros(3))
    contents = {"val/labels.csv": "a,cat", "classes.txt": "cat", "own.py": "bias = len"}
    for name in ("net.onnx", "models.py", "net.plan", *contents):
        (folder / name).write_text(contents.get(name, ""))
    text = (
        text.replace('input_file = "inputs.npz"', "")
        .replace('calibration = "samples.npz"', "")
        .replace('sources = { tensorrt = "net.plan" }', "")
    )
    assert len(plan_cases(suite_of(folder, text), ())) > 1


def test_options_that_the_help_leaves_out_are_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--model", f"{folder}/net.py:create", "--backend", FAKE_BACKEND, "--device", "cpu"]
    rare = "--duration 60 --seed 3 --in-order --timeout 9 --cool-down 50 --warmup 1 --resume --retry-failed --dry-run"
    assert run(["bench", *chosen, *rare.split(), "--max-energy-per-item-j", "2"]) == 0
    assert capsys.readouterr().out.strip() == "net-FakeBackend-plain-fp32-cpu-b1"


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, ("latency", "telemetry")),
        ({"layers": True}, ("latency", "telemetry", "layers")),
        ({"layers": True, "measure.passes": ["latency"]}, ("latency", "layers")),
        ({"layers": True, "measure.passes": ["layers", "latency"]}, ("layers", "latency")),
    ],
)
def test_layers_are_a_pass_more(folder: Path, options: dict[str, object], passes: tuple[str, ...]) -> None:
    (folder / "suite.toml").write_text(WHOLE)
    assert load_suite(folder / "suite.toml", options).measure.passes == passes
