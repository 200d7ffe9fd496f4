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


def test_defaults_of_vision(image: str) -> None:
    assert vars(parse(input_path=image)) == {
        "input_path": image,
        "output_dir": "/tmp",
        "target_img_height": 224,
        "target_img_width": 224,
        "batch_size": 4,
        "device_id": 0,
        "backend": "tensorrt",
        "log_level": "info",
    }


def test_minimal_has_three() -> None:
    assert vars(parse(parser_type="minimal")) == {"output_dir": "/tmp", "device_id": 0, "log_level": "info"}


@pytest.mark.parametrize("dash", ["_", "-"])
def test_long_names_with_underscores_and_dashes(image: str, tmp_path: Path, dash: str) -> None:
    words = {
        "input_path": image,
        "output_dir": str(tmp_path),
        "target_img_height": "100",
        "target_img_width": "200",
        "batch_size": "8",
        "device_id": "1",
        "backend": "pytorch",
        "log_level": "debug",
    }
    line = [word for name, value in words.items() for word in ("--" + name.replace("_", dash), value)]
    assert {name: str(value) for name, value in vars(parse(*line)).items()} == words


def test_short_names(image: str, tmp_path: Path) -> None:
    line = f"-i {image} -o {tmp_path} -th 10 -tw 11 -b 1 -d 2 -bk pytorch -ll error".split()
    args = parse(*line)
    assert (args.target_img_height, args.target_img_width, args.batch_size, args.device_id) == (10, 11, 1, 2)
    assert (args.backend, args.log_level) == ("pytorch", "error")


def test_inside_a_launch_its_values_are_the_defaults(
    monkeypatch: pytest.MonkeyPatch, image: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERFHARNESS_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("PERFHARNESS_LOG_LEVEL", "WARNING")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1234")
    args = parse(input_path=image, device_id=3)
    assert (args.output_dir, args.device_id, args.log_level) == (str(tmp_path), 0, "warning")
    assert parse("-ll", "error", input_path=image).log_level == "error"


def test_more_arguments_may_be_added(image: str) -> None:
    parser = get_default_arg_parser("sample", input_path=image)
    parser.add_argument("--fp16", action="store_true")
    assert parse_validate_default_args(parser, ["--fp16"]).fp16 is True


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("-i nowhere.jpg", "--input_path"),
        ("-o nowhere", "--output_dir"),
        ("-b 0", "--batch_size"),
        ("-b many", "--batch_size"),
        ("-th 9", "--target_img_height"),
        ("-tw -5", "--target_img_width"),
        ("-d -1", "--device_id"),
        ("-bk abacus", "--backend"),
        ("-ll loud", "--log_level"),
    ],
)
def test_a_bad_value_is_named_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], image: str, words: str, named: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(*words.split(), input_path=image)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(("visible", "device"), [("GPU-1234", "1"), ("0,3", "2")])
def test_gpu_that_the_process_cannot_see(monkeypatch: pytest.MonkeyPatch, visible: str, device: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(SystemExit):
        parse("-d", device, parser_type="minimal")


def test_input_path_is_asked_for_where_it_has_no_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse()
    assert "--input_path" in capsys.readouterr().err


def test_unknown_parser_type() -> None:
    with pytest.raises(UsageError, match="audio"):
        get_default_arg_parser("sample", parser_type="audio")
