"""Reading text off images with RapidOCR and ONNX Runtime: a third-party pipeline, annotated from the outside.

Nothing in the package is edited. Its steps are attributes of its engine object; each is replaced, on this one object,
by the same callable inside a range.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rapidocr import RapidOCR

from perfharness import PerfRecorder, get_default_arg_parser, parse_validate_default_args

IMAGES = Path(__file__).resolve().parent / "images"
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")

SETTINGS = {
    "Global.log_level": "warning",
    # Processes of a launch share the cores; threads of several that wait for one another cost more than they gain.
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
}

STEPS = {
    "load_img": "load_image",
    "preprocess_img": "preprocess",
    "detect_and_crop": "detection",
    "cls_and_rotate": "orientation",
    "recognize_txt": "recognition",
    "build_final_output": "assemble",
}
"""Method of the engine -> stage."""

NETWORKS = ("text_det", "text_cls", "text_rec")
"""The parts of the engine that hold an ONNX Runtime session each."""


def annotate(engine: Any, perf: PerfRecorder) -> None:
    """Put a range around each step of the engine, and one around each run of a network inside its step."""
    for method, stage in STEPS.items():
        setattr(engine, method, perf.annotate(stage)(getattr(engine, method)))
    for name in NETWORKS:
        network = getattr(engine, name)
        network.session = perf.annotate("session")(network.session)


def find_images(path: Path) -> list[Path]:
    """The image itself, or those of a folder in the order of their names."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
    return [path]


def batches_of(files: Sequence[Path], batch_size: int) -> Iterator[Sequence[Path]]:
    """Slices of `batch_size` files; the last may be shorter."""
    for start in range(0, len(files), batch_size):
        yield files[start : start + batch_size]


def main() -> int:
    parser = get_default_arg_parser("ocr", output_dir=".", parser_type="minimal")
    parser.add_argument("-i", "--input_path", default=IMAGES, help="an image or a folder of them")
    parser.add_argument("-b", "--batch_size", type=int, default=1, help="images per batch")
    args = parse_validate_default_args(parser)
    perf = PerfRecorder("ocr", args)
    files = find_images(Path(args.input_path))
    if not files:
        print(f"no images in {args.input_path}: give -i an image or a folder of them", file=sys.stderr)
        return 2

    engine = RapidOCR(params=SETTINGS)
    engine(files[0])  # loads the three networks, which it does at their first use, outside of what is measured
    annotate(engine, perf)

    texts: dict[str, list[str]] = {}
    with perf.range("pipeline"):
        for _, batch in perf.batches(batches_of(files, args.batch_size), items=len):
            for file in batch:
                texts[file.name] = list(engine(file).txts or ())
    perf.finalize()

    answers = json.dumps(texts, indent=2, ensure_ascii=False)
    Path(args.output_dir, "texts.json").write_text(answers + "\n", encoding="utf-8")
    for name, lines in texts.items():
        print(f"{name}: {' | '.join(lines)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
