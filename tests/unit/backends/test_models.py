"""Models as users name them, and the files that they are made of, found without running any."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfharness.backends import SAVED_MODEL, backend, call_factory, model_files, model_source
from perfharness.errors import BackendError, UsageError

ZOO = """
from perfharness.errors import BackendError
def good(backend, precision): return (backend, precision)
def none(backend, precision): return None
def broken(backend, precision): raise ValueError("no weights")
def refuses(backend, precision): raise BackendError("only for torch")
value = 1
"""


def write(path: Path, text: str = "raise RuntimeError('this is not to be run')\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_files_are_known_by_their_suffixes_and_saved_models_by_their_folder(tmp_path: Path) -> None:
    for suffix in (".onnx", ".engine", ".plan", ".pt2", ".keras"):
        path = write(tmp_path / f"resnet{suffix.upper()}")
        source = model_source(str(path))
        assert (source.name, source.path, source.factory, source.suffix) == ("resnet", path, None, suffix)
    with pytest.raises(UsageError, match="saved_model"):
        model_source(str(tmp_path))
    write(tmp_path / "saved_model.pb")
    assert model_source(str(tmp_path)).suffix == SAVED_MODEL


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("samples.mobilenet_v3.factory:create", "mobilenet_v3"),
        ("zoo:resnet50", "resnet50"),
        ("models/depth.py:small", "small"),
        ("model:create", "create"),
        ("/a/b/depth_anything/model.py:build", "depth_anything"),
    ],
)
def test_a_function_is_named_and_not_yet_looked_up(text: str, name: str) -> None:
    source = model_source(text)
    assert (source.name, source.path, source.factory, source.suffix) == (name, None, text, "")
    assert model_source(text, name="ours").name == "ours"


def test_names_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "weights.bin")
    write(tmp_path / "zoo.py")
    for text in ("missing.onnx", "some/model.bin", "resnet50", "zoo:", ":create", "zoo:not a name", "weights.bin"):
        with pytest.raises(UsageError, match=text):
            model_source(text)
    with pytest.raises(UsageError, match="function"):
        model_source("zoo.py")
    for name in ("none", "no.such:Backend", "perfharness.errors:Backend"):
        with pytest.raises(UsageError, match=name):
            backend(name)


def test_a_function_is_called_with_backend_and_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "zoo_of_a_test.py", ZOO)
    write(tmp_path / "breaks_of_a_test.py", "1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("zoo_of_a_test", "zoo_of_a_test.py", f"{tmp_path}/zoo_of_a_test.py"):
        assert call_factory(model_source(f"{module}:good"), "torch", "fp16") == ("torch", "fp16")
    for text, says in [
        ("zoo_of_a_test:none", "None"),
        ("zoo_of_a_test:broken", "ValueError: no weights"),
        ("zoo_of_a_test:refuses", "^only for torch$"),
        ("zoo_of_a_test:value", "'value'"),
        ("zoo_of_a_test:absent", "'absent'"),
        ("no_such_module_of_a_test:create", "ModuleNotFoundError"),
        ("breaks_of_a_test:create", "ZeroDivisionError"),
        ("breaks_of_a_test.py:create", "ZeroDivisionError"),
        ("absent_of_a_test.py:create", "absent_of_a_test"),
    ]:
        with pytest.raises(BackendError, match=says):
            call_factory(model_source(text), "torch", "fp32")


def test_the_files_of_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that it is in, or all modules of its package, with or without `__init__.py`."""
    monkeypatch.chdir(tmp_path)
    package = [write(tmp_path / "nets" / "small" / name) for name in ("__init__.py", "factory.py", "layers.py")]
    bare = [write(tmp_path / "examples" / "deep" / name) for name in ("factory.py", "layers.py")]
    write(tmp_path / "nets" / "large.py")
    alone, single = write(tmp_path / "alone.py"), write(tmp_path / "single" / "__init__.py")
    for text, files in {
        f"{alone}:create": [alone],
        "alone:create": [alone],
        "single:create": [single],
        "nets.small:create": package,
        "nets.small.factory:create": package,
        "examples.deep.factory:create": bare,
        "nets.none:create": [],
        "none:create": [],
        "alone.part:create": [],
    }.items():
        assert model_files(model_source(text)) == files, text


def test_weights_beside_a_model_belong_to_it(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from tests.contract import tiny_models

    model = onnx.load_from_string(tiny_models.onnx_model("fp32"))
    whole, split = tmp_path / "whole.onnx", tmp_path / "split.onnx"
    onnx.save_model(model, str(whole))
    onnx.save_model(model, str(split), save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert model_files(model_source(str(whole))) == [whole]
    assert model_files(model_source(str(split))) == [split, tmp_path / "weights.bin"]
    for broken in ("", "no model, and the word location in it"):
        file = write(tmp_path / "broken.onnx", broken)
        assert model_files(model_source(str(file))) == [file]
