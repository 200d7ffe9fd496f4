"""Ranks on several GPUs over NCCL: who waits for whom, under both tracers. `scripts/gpu_check --ranks` runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import perfharness
from tests.integration.launches import environment

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "samples" / "tensor_parallel.py"
TORCHRUN = Path(sys.executable).with_name("torchrun")
TIMEOUT_S = 300
BATCHES, LAYERS, WARMUP = 24, 6, 3
SIZE = ("--batches", str(BATCHES), "--layers", str(LAYERS), "--width", "2048", "--heads", "16", "--length", "1024")
"""The GPU decides how long a layer takes: hosts of ranks without a plant differ by a millisecond a batch."""
SLOW_HOST = ("--slow-rank", "1", "--slow-host-ms", "20")
SLOW_GPU = ("--slow-rank", "1", "--slow-products", "40")
PROFILES = {"even": (), "host": SLOW_HOST, "gpu": SLOW_GPU}
TRACERS = ("nsys", "embedded")

Launch = Callable[[int, str, str], Path]


@pytest.fixture(scope="session")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """The tensor-parallel sample on so many GPUs, under a tracer, with one slow rank or none; each launched once."""

    @lru_cache
    def once(ranks: int, tracer: str, profile: str) -> Path:
        import torch

        if torch.cuda.device_count() < ranks:
            pytest.skip(f"{ranks} GPUs are needed")
        out = tmp_path_factory.mktemp(f"{tracer}_{ranks}_{profile}") / "run"
        config = out.parent / "perfharness.toml"
        config.write_text(f"[launch]\ngpus-per-process = {ranks}\n")
        command = [
            sys.executable, "-m", "perfharness", "launch", "-o", str(out), "-w", str(WARMUP), "--tracer", tracer,
            "--no-telemetry", "--config", str(config), str(TORCHRUN), "--standalone", "--nproc-per-node",
            str(ranks), str(SAMPLE), *SIZE, *PROFILES[profile],
        ]  # fmt: skip
        # NVLink multicast (NVLS) needs rights that a container may not have; then NCCL hangs or fails.
        environ = {"NCCL_NVLS_ENABLE": "0", **environment(PERFHARNESS_HISTORY="off")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return out

    return once


def group_of(run: Path) -> dict[str, Any]:
    (group,) = json.loads((run / "benchmark_mean.json").read_text())["ranks"]["groups"]
    assert isinstance(group, dict)
    return group


def verdicts(run: Path, process: str) -> dict[str, dict[str, Any]]:
    diagnosis = json.loads((run / process / "benchmark.json").read_text())["diagnosis"]
    return {stage["path"][-1]: stage["causes"][0] for stage in diagnosis["stages"]}


several = pytest.mark.parametrize("ranks", [2, 4])
traced = pytest.mark.parametrize("tracer", TRACERS)


@several
@traced
def test_collectives_are_the_kernels_of_nccl(launched: Launch, ranks: int, tracer: str) -> None:
    """Two all-reduces a layer, in every batch and rank; nobody is late."""
    group = group_of(launched(ranks, tracer, "even"))
    assert (group["source"], group["world_size"], group["reason"]) == ("gpu", ranks, None)
    assert (group["parallel"], group["parallel_basis"]) == ("model", "annotation")
    assert [one["rank"] for one in group["ranks"]] == list(range(ranks))
    assert [one["collectives"] for one in group["ranks"]] == [2 * LAYERS] * ranks
    assert (group["unmatched"], group["batches"]) == (0, BATCHES - 2 * WARMUP)
    assert group["not_awaited"] <= 0.05 * 2 * LAYERS * ranks * group["batches"]  # clocks of GPUs
    assert group["delays"] == []


@several
def test_both_tracers_see_the_same_kernels(launched: Launch, ranks: int) -> None:
    """As many kernels of each name in each rank; and NCCL's take as long, but for what ranks wait."""
    counts, transfers = [], []
    for tracer in TRACERS:
        run = launched(ranks, tracer, "even")
        kernels = perfharness.open_run(run).kernels().select(["process", "name"]).to_pylist()
        counted: dict[tuple[str, str], int] = {}
        for row in kernels:
            key = row["process"], re.sub(r"\W.*", "", row["name"])
            counted[key] = counted.get(key, 0) + 1
        assert any("nccl" in name for _, name in counted)
        counts.append(counted)
        transfers.append([one["transfer_ms"] for one in group_of(run)["ranks"]])
    assert counts[0] == counts[1]
    assert transfers[0] == pytest.approx(transfers[1], rel=0.5, abs=0.1)


@several
@traced
@pytest.mark.parametrize("profile", ["host", "gpu"])
def test_the_slow_rank_and_its_stage_are_named(launched: Launch, ranks: int, tracer: str, profile: str) -> None:
    run = launched(ranks, tracer, profile)
    group = group_of(run)
    delay = group["delays"][0]
    assert {one["rank"] for one in group["delays"]} == {1}
    assert (delay["stage"][-1], delay["basis"]) == ("prepare", profile)
    assert (delay["at_stage"][-1], delay["operation"]) == ("attention", "AllReduce")
    if profile == "host":
        assert delay["lag_ms"] == pytest.approx(20, rel=0.25)
    assert delay["saves_ms"] > 0.7 * delay["lag_ms"]
    for process in group["processes"]:
        assert (verdicts(run, process)["attention"]["detail"] == "rank") == (not process.endswith("rank_1"))
    rates = json.loads((run / "benchmark_mean.json").read_text())["throughput"]
    alone = [rate["items_per_second"] for rate in rates["processes"].values() if rate["items_per_second"]]
    assert rates["items_per_second"] == pytest.approx(alone[0], rel=0.1)
