"""The shared command line: CV-CUDA's names, the launch's defaults, one sentence for each bad value."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from perfharness import get_default_arg_parser, parse_validate_default_args
from perfharness.errors import UsageError


@pytest.fixture(autouse=True)
def outside_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PERFHARNESS_OUTPUT_DIR", "PERFHARNESS_LOG_LEVEL", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def image(tmp_path: Path) -> str:
    path = tmp_path / "image.jpg"
    path.touch()
    return str(path)


def parse(*words: str, **options: Any) -> argparse.Namespace:
    return parse_validate_default_args(get_default_arg_parser("sample", **options), words)


def test_defaults(image: str) -> None:
    minimal = {"output_dir": "/tmp", "device_id": 0, "log_level": "info"}
    sizes = {"target_img_height": 224, "target_img_width": 224, "batch_size": 4}
    assert vars(parse(input_path=image)) == {"input_path": image, "backend": "tensorrt", **minimal, **sizes}
    assert vars(parse(parser_type="minimal")) == minimal


LONG = "--input_path --output_dir --target_img_height --target_img_width --batch_size --device_id --backend --log_level"


@pytest.mark.parametrize("names", ["-i -o -th -tw -b -d -bk -ll", LONG, LONG.replace("_", "-")])
def test_names(image: str, tmp_path: Path, names: str) -> None:
    values = (image, str(tmp_path), "100", "200", "8", "1", "pytorch", "debug")
    words = [word for pair in zip(names.split(), values, strict=True) for word in pair]
    assert tuple(map(str, vars(parse(*words)).values())) == values


def test_inside_a_launch_its_values_are_the_defaults(
    monkeypatch: pytest.MonkeyPatch, image: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERFHARNESS_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("PERFHARNESS_LOG_LEVEL", "WARNING")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1234")
    args = parse(input_path=image, device_id=3)
    assert (args.output_dir, args.device_id, args.log_level) == (str(tmp_path), 0, "warning")
    assert parse("-ll", "error", input_path=image).log_level == "error"


BAD = """--input_path nowhere.jpg|--output_dir nowhere|--batch_size 0|--batch_size many|--target_img_height 9
--target_img_width -5|--device_id -1|--device_id 2|--backend abacus|--log_level loud|"""


@pytest.mark.parametrize("words", BAD.replace("\n", "|").split("|"))
def test_a_bad_value_is_named_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, image: str, words: str
) -> None:
    """Also a GPU that the process cannot see, and no input."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    with pytest.raises(SystemExit) as ended:
        parse(*words.split(), input_path=image if words else None)
    assert ended.value.code == 2
    assert (words.split() or ["--input_path"])[0] in capsys.readouterr().err.strip().splitlines()[-1]


def test_more_arguments_and_an_unknown_parser_type(image: str) -> None:
    parser = get_default_arg_parser("sample", input_path=image)
    parser.add_argument("--fp16", action="store_true")
    assert parse_validate_default_args(parser, ["--fp16"]).fp16 is True
    with pytest.raises(UsageError, match="audio"):
        get_default_arg_parser("sample", parser_type="audio")
