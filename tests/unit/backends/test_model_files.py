"""What a model is made of: the files whose contents decide, found without running any of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfharness.backends import ModelSource, model_source
from perfharness.backends.model_files import model_files

RUINS = "raise RuntimeError('this is not to be run')\n"


def write(path: Path, text: str = RUINS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_function_in_a_file_is_that_file(tmp_path: Path) -> None:
    file = write(tmp_path / "net.py")
    write(tmp_path / "other.py")
    assert model_files(model_source(f"{file}:create")) == [file]


def test_a_function_in_a_package_is_the_packages_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = [write(tmp_path / "nets" / "small" / name) for name in ("__init__.py", "factory.py", "layers.py")]
    write(tmp_path / "nets" / "large.py")
    write(tmp_path / "alone.py")
    write(tmp_path / "beside.py")
    write(tmp_path / "single" / "__init__.py")
    assert model_files(ModelSource("m", factory="nets.small.factory:create")) == files
    assert model_files(ModelSource("m", factory="alone:create")) == [tmp_path / "alone.py"]
    assert model_files(ModelSource("m", factory="nets.small:create")) == files
    assert model_files(ModelSource("m", factory="single:create")) == [write(tmp_path / "single" / "__init__.py")]
    for missing in ("nets.none:create", "none:create", "alone.part:create"):
        assert model_files(ModelSource("m", factory=missing)) == []


def test_packages_need_no_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = [write(tmp_path / "examples" / "deep" / name) for name in ("factory.py", "layers.py")]
    assert model_files(ModelSource("m", factory="examples.deep.factory:create")) == files


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
