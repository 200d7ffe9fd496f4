"""Each sample by itself and in a launch: its answers are right, and its result has its stages, batches and items."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launches import environment, run_to_the_end

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "samples"
OCR = SAMPLES / "ocr_existing_pipeline"
SHAPES = SAMPLES / "assets" / "images"
NUM_SHAPES = 12

ENVIRONMENT = environment()
EMBEDDED = ("--tracer", "embedded")


@dataclass(frozen=True)
class Sample:
    """What a sample is expected to say."""

    script: Path
    arguments: tuple[str, ...]
    recorder: str
    stages: frozenset[str]
    items: tuple[int, ...]


IMAGE_STAGES = frozenset({"decode", "preprocess", "inference", "postprocess"})
OCR_STAGES = frozenset({"load_image", "preprocess", "detection", "orientation", "recognition", "assemble"})
IMAGES = Sample(SAMPLES / "image_classification.py", ("-b", "5"), "image_classification", IMAGE_STAGES, (5, 5, 2))
TEXTS = Sample(OCR / "ocr.py", ("-b", "3"), "ocr", OCR_STAGES, (3, 1))


def run(*arguments: str | Path, cwd: Path) -> str:
    """Output of a Python program that is to end well."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def launch(sample: Sample, output: Path, *, processes: int = 1, warmup: int = 0) -> None:
    """Measure a sample."""
    options = ["-np", processes, "-w", warmup, *EMBEDDED, "-o", output]
    measure(*options, sample.script, *sample.arguments, cwd=output.parent)


def measure(*arguments: object, cwd: Path) -> None:
    done = run_to_the_end(arguments, ENVIRONMENT, cwd)
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"


def read(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def children(tree: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The ranges inside a range."""
    return {name: value for name, value in tree.items() if isinstance(value, dict)}


def predicted(folder: Path) -> dict[str, str]:
    """File -> label, of predictions.csv."""
    with (folder / "predictions.csv").open(newline="", encoding="utf-8") as lines:
        return {row["file"]: row["label"] for row in csv.DictReader(lines)}


def drawn_shapes() -> dict[str, str]:
    """File -> what was drawn, which its name says."""
    return {path.name: path.stem.rpartition("_")[0] for path in SHAPES.glob("*.jpg")}


def written_texts() -> Any:
    """File -> the lines on the image."""
    return read(OCR / "images" / "texts.json")


@pytest.mark.slow
def test_image_sample_tells_every_shape_and_leaves_no_files_of_ours(tmp_path: Path) -> None:
    output = tmp_path / "answers"
    output.mkdir()
    run(IMAGES.script, "-b", "5", "-o", output, cwd=tmp_path)
    assert predicted(output) == drawn_shapes()
    assert len(drawn_shapes()) == NUM_SHAPES
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["predictions.csv"]


@pytest.fixture(scope="module")
def ocr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A launched process of the OCR sample."""
    output = tmp_path_factory.mktemp("ocr") / "out"
    launch(TEXTS, output)
    return output / "proc_0_gpu_0"


@pytest.mark.slow
def test_launched_sample_has_its_stages_batches_and_items(ocr: Path) -> None:
    check_result(TEXTS, ocr)


def check_result(sample: Sample, folder: Path) -> None:
    """The stages, batches and items of a process, and times that fit into one another."""
    pipeline = read(folder / "benchmark.json")["data"][sample.recorder]["pipeline"]
    batches = children(pipeline)
    assert list(batches) == [f"batch_{index}" for index in range(len(sample.items))]
    assert [batch["total_items"] for batch in batches.values()] == list(sample.items)
    assert pipeline["total_items"] == sum(sample.items)
    for batch in batches.values():
        stages = children(batch)
        assert set(stages) == sample.stages
        assert 0 < sum(stage["cpu_time"] for stage in stages.values()) <= batch["cpu_time"]
        assert batch["cpu_time_per_item"] == pytest.approx(batch["cpu_time"] / batch["total_items"], rel=1e-3)


def test_existing_pipeline_reads_every_line_and_counts_its_steps_and_the_networks_inside_them(ocr: Path) -> None:
    assert read(ocr / "texts.json") == written_texts()
    batches = children(read(ocr / "benchmark.json")["data"]["ocr"]["pipeline"])
    for batch in batches.values():
        for stage in OCR_STAGES:
            assert batch[stage].get("count", 1) == batch["total_items"]
        detection = batch["detection"]
        assert detection["session"].get("count", 1) == batch["total_items"]
        assert detection["session"]["cpu_time"] < detection["cpu_time"]
        assert "session" in batch["recognition"]
        assert "session" in batch["orientation"]


@pytest.mark.slow
def test_two_processes_give_the_same_answers_and_a_common_result(tmp_path: Path) -> None:
    launch(IMAGES, tmp_path / "out", processes=2, warmup=1)
    for name in ("proc_0_gpu_0", "proc_1_gpu_0"):
        assert predicted(tmp_path / "out" / name) == drawn_shapes()
        check_result(IMAGES, tmp_path / "out" / name)
        pipeline = read(tmp_path / "out" / name / "benchmark.json")["data"]["image_classification"]["pipeline"]
        assert [batch["warmup"] for batch in children(pipeline).values()] == [True, False, True]
        assert pipeline["total_items_minus_warmup"] == 5
    common = read(tmp_path / "out/benchmark_mean.json")
    pipeline = common["mean_all_batches"]["image_classification"]["pipeline"]
    assert pipeline["total_items"] == NUM_SHAPES
    assert set(children(children(pipeline)["batch_1"])) == IMAGE_STAGES


RANKS = (Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node", "2")
TENSOR_PARALLEL = ("--batches", "4", "--layers", "2", "--width", "64", "--length", "16")


@pytest.mark.slow
@pytest.mark.parametrize(("by", "count"), [((), 1), (RANKS, 2)], ids=["1", "2"])
def test_tensor_parallel_sample_checks_itself_split_and_whole(tmp_path: Path, by: Sequence[Path], count: int) -> None:
    said = run(*by, SAMPLES / "tensor_parallel.py", *TENSOR_PARALLEL, cwd=tmp_path)
    assert f"{count} rank(s)" in said  # it compares the split network with the whole one itself


@pytest.mark.slow
def test_data_loader_sample_adds_up_over_ranks_and_workers(tmp_path: Path) -> None:
    few = ("--batches", "6", "--workers", "2")
    alone = run(SAMPLES / "data_loader.py", *few, cwd=tmp_path).strip()
    assert alone.startswith("36 images on 1 rank(s): mean brightness")
    measure("-w", "0", *EMBEDDED, "-o", tmp_path / "out", *RANKS, SAMPLES / "data_loader.py", *few, cwd=tmp_path)
    said = (tmp_path / "out/proc_0_gpu_0/stdout.log").read_text(encoding="utf-8")
    assert said.strip() == alone.replace("1 rank", "2 rank")
    tree = read(tmp_path / "out/benchmark_mean.json")
    (group,) = tree["ranks"]["groups"]
    assert (group["parallel"], group["parallel_basis"]) == ("data", "different_batches")
    for rank in (0, 1):
        batches = children(
            read(tmp_path / f"out/proc_0_gpu_0/rank_{rank}/benchmark.json")["data"]["data_loader"]["pipeline"]
        )
        assert list(batches) == [f"batch_{index}" for index in range(rank, 6, 2)]
        assert [batch["total_items"] for batch in batches.values()] == [6, 6, 6]
