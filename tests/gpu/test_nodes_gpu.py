"""Two launches with --nodes, one GPU each, as two nodes: NCCL between their ranks, one run, the late rank named."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.test_ranks_gpu import BATCHES, SAMPLE, SIZE, SLOW_HOST, TIMEOUT_S, TORCHRUN, TRACERS, WARMUP
from tests.integration.launches import environment

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("plant", [SLOW_HOST, ()])
def test_nodes_of_one_gpu_each_are_one_run(tmp_path: Path, tracer: str, plant: tuple[str, ...]) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("2 GPUs are needed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    # NVLink multicast (NVLS) needs rights that a container may not have; then NCCL hangs or fails.
    own = {"NCCL_NVLS_ENABLE": "0", "PERFHARNESS_HISTORY": "off", "PERFHARNESS_NODES": "2"}
    launches = []
    for node in ("1", "0"):
        command = [
            sys.executable,
            "-m",
            "perfharness",
            "launch",
            "--nodes",
            "-o",
            str(tmp_path / "out"),
            "-w",
            str(WARMUP),
            "--tracer",
            tracer,
            "--gpus",
            node,
            str(TORCHRUN),
            "--nnodes",
            "2",
            "--nproc-per-node",
            "1",
            "--node-rank",
            node,
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            port,
            str(SAMPLE),
            *SIZE,
            *plant,
        ]
        environ = environment(PERFHARNESS_NODE_RANK=node, **own)
        launches.append(subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True))
    for launch in launches:
        _, errors = launch.communicate(timeout=TIMEOUT_S)
        assert launch.returncode == 0, errors
    run, mean = (json.loads((tmp_path / "out" / name).read_text()) for name in ("manifest.json", "benchmark_mean.json"))
    uuids = [[gpu["uuid"] for gpu in node["environment"]["gpus"]] for node in run["nodes"]]
    assert [one["folder"] for one in run["processes"]] == ["proc_0_gpu_0", "proc_1_gpu_1"]
    assert all(uuids)
    (group,) = mean["ranks"]["groups"]
    assert (group["source"], group["world_size"], len(group["ranks"])) == ("gpu", 2, 2)
    assert group["batches"] == BATCHES - 2 * WARMUP
    assert [one["rank"] for one in group["delays"]] == ([1] if plant else [])
    assert mean["throughput"]["items_per_second"] > 0
    assert {one["gpu_index"] for one in mean["gpu_metrics"]["gpus"]} == {0, 1}
