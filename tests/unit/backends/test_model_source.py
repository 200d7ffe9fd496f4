"""Models as users name them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfharness.backends import SAVED_MODEL, call_factory, model_source
from perfharness.backends.models import FILE_KINDS
from perfharness.errors import BackendError, UsageError


@pytest.mark.parametrize("suffix", sorted(set(FILE_KINDS) - {SAVED_MODEL}))
def test_a_file_is_known_by_its_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"resnet{suffix.upper()}"
    path.write_bytes(b"x")
    source = model_source(str(path))
    assert (source.name, source.path, source.factory, source.suffix) == ("resnet", path, None, suffix)


def test_a_saved_model_is_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "classifier"
    folder.mkdir()
    with pytest.raises(UsageError, match="saved_model"):
        model_source(str(folder))
    (folder / "saved_model.pb").write_bytes(b"x")
    assert model_source(str(folder)).suffix == SAVED_MODEL


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


def test_a_name_can_be_given() -> None:
    assert model_source("zoo:resnet50", name="ours").name == "ours"


@pytest.mark.parametrize(
    "text", ["missing.onnx", "some/where/model.bin", "resnet50", "zoo:", ":create", "zoo:not a name"]
)
def test_what_names_no_model(text: str) -> None:
    with pytest.raises(UsageError, match=text):
        model_source(text)


def test_a_file_of_no_known_kind(tmp_path: Path) -> None:
    for name in ("weights.bin", "zoo.py"):
        (tmp_path / name).write_text("")
        with pytest.raises(UsageError, match=name[:-4]):
            model_source(str(tmp_path / name))


ZOO = """
from perfharness.errors import BackendError
def good(backend, precision): return (backend, precision)
def none(backend, precision): return None
def broken(backend, precision): raise ValueError("no weights")
def refuses(backend, precision): raise BackendError("only for torch")
value = 1
"""


def test_a_function_is_called_with_backend_and_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zoo_of_a_test.py").write_text(ZOO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("zoo_of_a_test", "zoo_of_a_test.py", f"{tmp_path}/zoo_of_a_test.py"):
        assert call_factory(model_source(f"{module}:good"), "torch", "fp16") == ("torch", "fp16")
    for function, says in [
        ("none", "None"),
        ("broken", "ValueError: no weights"),
        ("refuses", "^only for torch$"),
        ("value", "'value'"),
        ("absent", "'absent'"),
    ]:
        with pytest.raises(BackendError, match=says):
            call_factory(model_source(f"zoo_of_a_test:{function}"), "torch", "fp32")


def test_a_function_whose_module_is_not_there_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "breaks_of_a_test.py").write_text("1 / 0")
    for text, says in [
        ("no_such_module_of_a_test:create", "ModuleNotFoundError"),
        ("breaks_of_a_test:create", "ZeroDivisionError"),
        ("breaks_of_a_test.py:create", "ZeroDivisionError"),
        ("absent_of_a_test.py:create", "absent_of_a_test"),
    ]:
        with pytest.raises(BackendError, match=says):
            call_factory(model_source(text), "torch", "fp32")
