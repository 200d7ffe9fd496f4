"""PyTorch's modules as stages on a real GPU: kernels belong to their module, under both tracers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import perfharness
from tests.integration.launches import environment

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("torch_modules_pipeline.py")
TIMEOUT_S = 240
BATCHES, WARMUP, BATCH_SIZE = 16, 2, 8

ANNOTATIONS = """
[recorder]
name = "model"

[[batch]]
function = "__main__:infer"
name = "batch"
items = "len(items)"
"""

TRACERS = ("nsys", "embedded")


def launch(folder: Path, tracer: str) -> Path:
    """The run folder of a launch."""
    file = folder / "model.toml"
    file.write_text(ANNOTATIONS)
    done = subprocess.run(
        [sys.executable, "-m", "perfharness", "launch", "--no-telemetry", "--tracer", tracer, "-w", str(WARMUP),
         "--annotate", str(file), "--annotate-torch", "2", "-o", str(folder / "run"), str(SCRIPT)],
        capture_output=True, text=True, check=False, env=environment(), timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Under each tracer once, whichever test asks first."""

    @lru_cache
    def once(tracer: str) -> Path:
        return launch(tmp_path_factory.mktemp(tracer), tracer)

    return once


def stages_of(run: Path) -> dict[str, dict[str, Any]]:
    """Diagnoses by the path below the batch, `batch` itself included."""
    (benchmark,) = run.glob("proc_*/benchmark.json")
    stages = json.loads(benchmark.read_text("utf-8"))["diagnosis"]["stages"]
    return {below_batch(stage["path"]): stage for stage in stages}


def below_batch(path: list[str]) -> str:
    return "/".join(path[path.index("batch") :])


def kernel_counts(run: Path) -> Counter[str]:
    """Kernels of each stage that were started in none of the stages inside it."""
    rows = perfharness.open_run(run).kernels().select(["path", "batch_index"]).to_pylist()
    return Counter(below_batch(row["path"].split("/")) for row in rows if row["batch_index"] is not None)


MODULES = [
    "batch", "batch/Net", "batch/Net/backbone", "batch/Net/backbone/backbone.0", "batch/Net/backbone/backbone.1",
    "batch/Net/backbone/backbone.2", "batch/Net/backbone/backbone.3", "batch/Net/head", "batch/Net/head/head.0",
    "batch/Net/head/head.1",
]  # fmt: skip


@pytest.mark.parametrize("tracer", TRACERS)
def test_modules_are_stages_inside_of_batches(tracer: str, launched: Any) -> None:
    body = launched(tracer)
    stages = stages_of(body)
    assert list(stages) == MODULES
    for stage in stages.values():
        assert stage["batches"] == BATCHES - 2 * WARMUP


@pytest.mark.parametrize("tracer", TRACERS)
def test_kernels_belong_to_the_module_that_started_them(tracer: str, launched: Any) -> None:
    run = launched(tracer)
    stages, kernels = stages_of(run), kernel_counts(run)
    print(tracer, kernels, {name: stage["causes"][0] for name, stage in stages.items()})
    # Net and these two run nothing but their children; flattening is a view.
    assert not {"batch/Net", "batch/Net/backbone", "batch/Net/head", "batch/Net/head/head.0"} & set(kernels)
    for leaf in (
        "backbone/backbone.0",
        "backbone/backbone.1",
        "backbone/backbone.2",
        "backbone/backbone.3",
        "head/head.1",
    ):
        assert kernels[f"batch/Net/{leaf}"] >= BATCHES, leaf
        assert stages[f"batch/Net/{leaf}"]["gpu_busy_ms"] > 0, leaf
    copies = {copy["direction"]: copy["count"] for copy in stages["batch"]["copies"]}
    assert copies["device-to-host"] == 1  # the batch's own
    assert not stages["batch/Net"]["copies"]


def test_both_tracers_count_the_same_kernels(launched: Any) -> None:
    counts = [kernel_counts(launched(tracer)) for tracer in TRACERS]
    assert counts[0] == counts[1]
