"""PyTorch's modules as stages on a real GPU: kernels belong to their module, under both tracers."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

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


def launch(folder: Path, tracer: str) -> dict[str, Any]:
    """The benchmark.json of a launch."""
    file = folder / "model.toml"
    file.write_text(ANNOTATIONS)
    done = subprocess.run(
        [sys.executable, "-m", "perfharness", "launch", "--no-telemetry", "--tracer", tracer, "-w", str(WARMUP),
         "--annotate", str(file), "--annotate-torch", "2", "-o", str(folder / "run"), str(SCRIPT)],
        capture_output=True, text=True, check=False, env=environment(), timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (benchmark,) = (folder / "run").glob("proc_*/benchmark.json")
    body: dict[str, Any] = json.loads(benchmark.read_text("utf-8"))
    return body


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Under each tracer once, whichever test asks first."""

    @lru_cache
    def once(tracer: str) -> dict[str, Any]:
        return launch(tmp_path_factory.mktemp(tracer), tracer)

    return once


def stages_of(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By the path below the batch, `batch` itself included."""
    found = {}
    for stage in body["diagnosis"]["stages"]:
        path = stage["path"]
        found["/".join(path[path.index("batch") :])] = stage
    return found


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
        assert (stage["batches"], stage["items"]) == (BATCHES - 2 * WARMUP, (BATCHES - 2 * WARMUP) * BATCH_SIZE)


@pytest.mark.parametrize("tracer", TRACERS)
def test_kernels_belong_to_the_module_that_started_them(tracer: str, launched: Any) -> None:
    stages = stages_of(launched(tracer))
    kernels = {name: stage["gpu"]["kernel_count"] for name, stage in stages.items()}
    print(tracer, kernels, {name: stage["verdict"] for name, stage in stages.items()})
    # Net runs nothing but its children, and these nothing but theirs.
    assert kernels["batch/Net"] == pytest.approx(kernels["batch/Net/backbone"] + kernels["batch/Net/head"])
    for parent in ("batch/Net/backbone", "batch/Net/head"):
        children = [kernels[name] for name in MODULES if name.startswith(f"{parent}/")]
        assert kernels[parent] == pytest.approx(sum(children))
    for leaf in (
        "backbone/backbone.0",
        "backbone/backbone.1",
        "backbone/backbone.2",
        "backbone/backbone.3",
        "head/head.1",
    ):
        assert kernels[f"batch/Net/{leaf}"] >= 1, leaf
        assert stages[f"batch/Net/{leaf}"]["gpu"]["busy_ms"] > 0, leaf
    # Flattening is a view; the copy to the host is the batch's own.
    assert kernels["batch/Net/head/head.0"] == 0
    copies = {copy["direction"]: copy["count"] for copy in stages["batch"]["gpu"]["copies"]}
    assert copies["device-to-host"] == 1
    assert not stages["batch/Net"]["gpu"]["copies"]


def test_both_tracers_count_the_same_kernels(launched: Any) -> None:
    counts = [
        {name: stage["gpu"]["kernel_count"] for name, stage in stages_of(launched(tracer)).items()}
        for tracer in TRACERS
    ]
    assert counts[0] == counts[1]
