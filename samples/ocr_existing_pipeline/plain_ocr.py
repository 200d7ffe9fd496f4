"""The same pipeline as `ocr.py`, without perfharness or NVTX: `annotations.toml` names the functions to measure."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rapidocr import RapidOCR

IMAGES = Path(__file__).resolve().parent / "images"
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")

SETTINGS = {"Global.log_level": "warning", "EngineConfig.onnxruntime.intra_op_num_threads": 1}


def find_images(path: Path) -> list[Path]:
    """The image itself, or those of a folder in the order of their names."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
    return [path]


def read_batch(engine: Any, files: Sequence[Path]) -> dict[str, list[str]]:
    """Name of each image -> the lines on it."""
    return {file.name: list(engine(file).txts or ()) for file in files}


def read_all(engine: Any, batches: Iterable[Sequence[Path]]) -> dict[str, list[str]]:
    """The same for all batches."""
    texts: dict[str, list[str]] = {}
    for files in batches:
        texts.update(read_batch(engine, files))
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-i", "--input_path", type=Path, default=IMAGES, help="an image or a folder of them")
    parser.add_argument("-b", "--batch_size", type=int, default=1, help="images per batch")
    parser.add_argument("-o", "--output_dir", type=Path, default=Path(), help="of texts.json")
    args = parser.parse_args()
    files = find_images(args.input_path)
    if not files:
        print(f"no images in {args.input_path}: give -i an image or a folder of them", file=sys.stderr)
        return 2

    engine = RapidOCR(params=SETTINGS)
    engine(files[0])  # loads the three networks, which it does at their first use
    texts = read_all(
        engine, [files[start : start + args.batch_size] for start in range(0, len(files), args.batch_size)]
    )

    answers = json.dumps(texts, indent=2, ensure_ascii=False)
    Path(args.output_dir, "texts.json").write_text(answers + "\n", encoding="utf-8")
    for name, lines in texts.items():
        print(f"{name}: {' | '.join(lines)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
