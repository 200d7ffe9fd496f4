"""Command line of the samples: CV-CUDA's arguments, with defaults from the surrounding launch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfharness.errors import UsageError
from perfharness.model import environment

LOG_LEVELS = ("info", "error", "debug", "warning")
_MINIMAL = ("output_dir", "device_id", "log_level")
_SMALLEST = {"batch_size": 1, "target_img_height": 10, "target_img_width": 10, "device_id": 0}


def get_default_arg_parser(
    message: str,
    supports_video: bool = True,
    input_path: str | os.PathLike[str] | None = None,
    output_dir: str | os.PathLike[str] = "/tmp",
    target_img_height: int = 224,
    target_img_width: int = 224,
    batch_size: int = 4,
    device_id: int = 0,
    supported_backends: Sequence[str] = ("tensorrt", "pytorch"),
    backend: str | None = None,
    log_level: str = "info",
    parser_type: str = "vision",
) -> argparse.ArgumentParser:
    """Return a parser with the arguments of CV-CUDA's samples, to which others can be added.

    In a launch, output folder, GPU and log level default to those of the launch.

    Args:
        message: program name.
        supports_video: whether `--input_path` accepts a video.
        input_path: default; without it, `--input_path` is required.
        output_dir, target_img_height, target_img_width, batch_size, device_id, log_level: defaults.
        supported_backends: choices of `--backend`.
        backend: default; without it, the first choice.
        parser_type: `vision`: all arguments; `minimal`: output folder, GPU and log level only.
    """
    if parser_type not in ("vision", "minimal"):
        raise UsageError(f"parser_type must be 'vision' or 'minimal', got {parser_type!r}")
    launch = os.environ.get(environment.OUTPUT_DIR)
    level = os.environ.get(environment.LOG_LEVEL, "").lower()
    images = "a JPEG image, an MP4 video" if supports_video else "a JPEG image"
    parser = argparse.ArgumentParser(
        message, formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )

    def add(short: str, name: str, text: str, default: object, **options: Any) -> None:
        if parser_type == "vision" or name in _MINIMAL:
            names = dict.fromkeys([short, f"--{name}", f"--{name.replace('_', '-')}"])
            parser.add_argument(*names, dest=name, default=default, help=text, **options)

    given = input_path and os.fspath(input_path)
    add("-i", "input_path", f"{images} or a folder of JPEG images (*.jpg)", given, required=input_path is None)
    add("-o", "output_dir", "folder for the results", launch or os.fspath(output_dir))
    add("-th", "target_img_height", "image height after resizing", target_img_height, type=int)
    add("-tw", "target_img_width", "image width after resizing", target_img_width, type=int)
    add("-b", "batch_size", "images per batch", batch_size, type=int)
    # In a launch, the process sees only its own GPU, as number 0.
    add("-d", "device_id", "GPU index", 0 if launch else device_id, type=int)
    first = backend or supported_backends[0]
    add("-bk", "backend", "inference backend", first, choices=tuple(supported_backends))
    log_level = level if level in LOG_LEVELS else log_level
    add("-ll", "log_level", "log level", log_level, choices=LOG_LEVELS)
    return parser


def parse_validate_default_args(
    parser: argparse.ArgumentParser, args: Sequence[str] | None = None
) -> argparse.Namespace:
    """Parse and check the command line (or `args`); on a bad value, exit as argparse does."""
    values = parser.parse_args(args)
    problem = _first_problem(vars(values))
    if problem is not None:
        parser.error(problem)
    return values


def _first_problem(given: dict[str, Any]) -> str | None:
    if "input_path" in given and not Path(given["input_path"]).exists():
        return f"--input_path: {given['input_path']!r} does not exist; give a file or a folder"
    if "output_dir" in given and not Path(given["output_dir"]).is_dir():
        return f"--output_dir: {given['output_dir']!r} is not a folder; create it first"
    for name, least in _SMALLEST.items():
        if given.get(name, least) < least:
            return f"--{name}: must be {least} or more, got {given[name]}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len([gpu for gpu in visible.split(",") if gpu.strip()]) if visible else 0
    if count and given.get("device_id", 0) >= count:
        return f"--device_id: must be below {count}, the number of CUDA_VISIBLE_DEVICES, got {given['device_id']}"
    return None
