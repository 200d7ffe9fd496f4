"""What a launch says of a real GPU: who else is on it, where the processes run, start-up, start barrier, scaling."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launches import environment

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("launch_pipeline.py")
TIMEOUT_S = 240

FOREIGN = """
import torch
a = torch.randn(2048, 2048, device="cuda")
torch.cuda.synchronize()
print("here", flush=True)
input()
"""


def launch(out: Path, *arguments: str, telemetry: bool = False) -> subprocess.CompletedProcess[str]:
    sampled = "--telemetry" if telemetry else "--no-telemetry"
    return subprocess.run(
        [sys.executable, "-m", "perfharness", "launch", "-o", str(out), sampled, *arguments],
        capture_output=True, text=True, check=False, env=environment(), timeout=TIMEOUT_S,
    )  # fmt: skip


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def codes(out: Path) -> set[str]:
    return {finding["code"] for finding in load(out / "manifest.json")["findings"]}


@pytest.fixture
def foreigner() -> Iterator[int]:
    """Somebody else's process on the GPU."""
    command = [sys.executable, "-c", FOREIGN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        yield process.pid
        process.communicate("\n")


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Two processes on one GPU, bound in a given way and without a tracer; each way launched once."""

    @lru_cache
    def once(bind: str) -> Path:
        out = tmp_path_factory.mktemp(bind)
        done = launch(out, "-np", "2", "--cpu-bind", bind, "--tracer", "none", str(SCRIPT), "--tell-cpus")
        assert done.returncode == 0, done.stdout + done.stderr
        return out

    return once


def test_a_gpu_of_our_own_is_not_called_shared(bound: Callable[[str], Path]) -> None:
    out = bound("auto")
    assert "gpu-shared" not in codes(out), load(out / "manifest.json")["findings"]
    watched = load(out / "manifest.json")["companions"]["exclusive"]["gpus"][0]
    assert watched == {"uuid": watched["uuid"], "foreign_before": [], "foreign_after": [], "reason": None}


def test_somebody_else_on_it_is_named_and_can_be_refused(tmp_path: Path, foreigner: int) -> None:
    done = launch(tmp_path / "told", "--tracer", "none", str(SCRIPT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpu-shared" in codes(tmp_path / "told")
    before = load(tmp_path / "told" / "manifest.json")["companions"]["exclusive"]["gpus"][0]["foreign_before"]
    assert len(before) == 1
    refused = launch(tmp_path / "refused", "--require-exclusive", "--tracer", "none", str(SCRIPT))
    assert refused.returncode == 1
    assert "--require-exclusive" in refused.stderr
    assert not (tmp_path / "refused" / "manifest.json").exists()


@pytest.mark.parametrize("bind", ["auto", "numa"])
def test_each_process_runs_where_the_manifest_says(bind: str, bound: Callable[[str], Path]) -> None:
    out = bound(bind)
    for record in load(out / "manifest.json")["processes"]:
        line = next(
            line
            for line in (out / record["folder"] / "stdout.log").read_text().splitlines()
            if line.startswith("cpus ")
        )
        cpus = ast.literal_eval(line.removeprefix("cpus "))
        placed = record["placement"]
        assert len(cpus) == sum(_length(part) for part in placed["cpus"].split(","))


def _length(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1


def test_start_up_in_its_parts(tmp_path: Path) -> None:
    named = launch(tmp_path / "named", "--tracer", "nsys", str(SCRIPT), "--name-context")
    assert named.returncode == 0, named.stdout + named.stderr
    told = load(next((tmp_path / "named").glob("proc_0_gpu_*/benchmark.json")))["startup"]
    assert told["cuda_context_source"] == "startup_range"
    assert told["cuda_context_ms"] > 10
    assert told["model_load_ms"] > 0
    assert told["interpreter_and_imports_ms"] > 100, "PyTorch is imported"
    assert told["first_batch_ms"] > 0
    plain = launch(tmp_path / "plain", "--tracer", "nsys", str(SCRIPT))
    assert plain.returncode == 0, plain.stdout + plain.stderr
    told = load(next((tmp_path / "plain").glob("proc_0_gpu_*/benchmark.json")))["startup"]
    assert told["cuda_context_source"] == "trace"
    assert told["cuda_context_ms"] > 10


LATE = ("-np", "2", "-w", "2")
LATE_SCRIPT = (str(SCRIPT), "--late-s", "3", "--batches", "100")


@pytest.mark.parametrize("tracer", ["nsys", "embedded"])
def test_the_barrier_makes_late_processes_meet(tmp_path: Path, tracer: str) -> None:
    held = launch(tmp_path, *LATE, "--tracer", tracer, *LATE_SCRIPT)
    assert held.returncode == 0, held.stdout + held.stderr
    throughput = load(tmp_path / "benchmark_mean.json")["throughput"]
    assert throughput["concurrency"]["all_processes_share"] > 0.9
    assert throughput["window_ms"] > 0


def test_without_the_barrier_late_processes_do_not_meet(tmp_path: Path) -> None:
    free = launch(tmp_path, *LATE, "--tracer", "embedded", "--no-barrier", *LATE_SCRIPT)
    assert free.returncode == 0, free.stdout + free.stderr
    throughput = load(tmp_path / "benchmark_mean.json")["throughput"]
    assert (throughput["window_ms"] or 0) < 100, "each is over before the other begins"


def test_a_sweep_has_the_gpu_beside_the_throughput(tmp_path: Path) -> None:
    done = launch(tmp_path, "--np-sweep", "1,2", "-w", "2", "--tracer", "nsys", str(SCRIPT), "--batches", "150",
                  telemetry=True)  # fmt: skip
    assert done.returncode in (0, 3), done.stdout + done.stderr
    series = load(tmp_path / "series.json")
    for row in series["rows"]:
        assert row["status"] == "ok", row
        assert 0 < row["figures"][""]["gpu_busy_share"] <= 1
        assert row["figures"][""]["gpu_power_w"] > 50
    assert series["rows"][1]["figures"][""]["slowdown"] > 1.3, "one process alone keeps this GPU busy"
    assert series["knee"] == 1
