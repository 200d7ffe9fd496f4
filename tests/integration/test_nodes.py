"""Launches on several nodes, which are launchers on this machine: they meet, start together, and make one run."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launches import (
    command,
    environment,
    launching,
    manifest,
    perfharness,
    run_to_the_end,
    wait_for,
)

SCRIPT = """
import os, sys, time
from perfharness import PerfRecorder
perf = PerfRecorder("rec")
if os.environ.get("PERFHARNESS_NODE_RANK") == "1":
    time.sleep(float(sys.argv[1]))
with perf.range("pipeline"):
    for i in range(30):
        with perf.batch(i, total_items=4):
            with perf.range("decode"):
                time.sleep(0.01)
perf.finalize()
"""

RANKS = """
import os, sys, time
node = int(os.environ["PERFHARNESS_NODE_RANK"])
if "RANK" not in os.environ:  # as torchrun does
    import subprocess
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, "RANK": str(2 * node + local), "LOCAL_RANK": str(local), "WORLD_SIZE": "4"},
        )
        for local in range(2)
    ]
    sys.exit(max(rank.wait() for rank in ranks))
from perfharness import PerfRecorder
perf, rank = PerfRecorder("rec"), int(os.environ["RANK"])
folder, late_s = sys.argv[1], float(sys.argv[2]) if rank == 3 else 0
with perf.range("pipeline"):
    for i in range(24):
        with perf.batch(i, total_items=4, shared=True):
            with perf.range("prepare"):
                time.sleep(0.004 + late_s)
            with perf.range("all_reduce", category="communication"):
                open(f"{folder}/{i}.{rank}", "w").close()
                while not all(os.path.exists(f"{folder}/{i}.{other}") for other in range(4)):
                    time.sleep(0.0002)
perf.finalize()
"""

TORCH_RANKS = """
import sys, time, torch, torch.distributed as dist
from perfharness import PerfRecorder
dist.init_process_group("gloo")
late_s = float(sys.argv[1]) / 1000 if dist.get_rank() == dist.get_world_size() - 1 else 0
gradients = torch.ones(1000)
perf = PerfRecorder("ranks")
with perf.range("pipeline"):
    for i in range(30):
        with perf.batch(i, total_items=4, shared=True):
            with perf.range("forward"):
                time.sleep(0.01 + late_s)
            with perf.range("reduce"):
                dist.all_reduce(gradients)
perf.finalize()
dist.destroy_process_group()
"""


def options_of(out: Path, *more: object) -> tuple[object, ...]:
    return ("--nodes", "--tracer", "embedded", "-w", "1", "--cpu-bind", "none", "-o", out, *more)


def node(rank: int, **more: str) -> dict[str, str]:
    return environment(PERFHARNESS_NODES="2", PERFHARNESS_NODE_RANK=str(rank), **more)


def launch_all(*nodes: tuple[tuple[object, ...], dict[str, str]]) -> list[subprocess.CompletedProcess[str]]:
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(lambda one: run_to_the_end(*one), nodes))


def mean_of(out: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((out / "benchmark_mean.json").read_text())
    return loaded


def codes_of(out: Path) -> set[str]:
    return {finding["code"] for finding in mean_of(out)["meta"]["findings"]}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nodes") / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def shared(script: Path) -> Path:
    """A run of two nodes that share the output folder."""
    out = script.parent / "shared"
    options = options_of(out, "--telemetry", script, 0.5)
    for done in launch_all((options, node(0)), (options, node(1))):
        assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def apart(script: Path) -> tuple[Path, Path]:
    """A run of two nodes that know each other's address and a secret, and share nothing; the folders of both."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    known = {"PERFHARNESS_COORDINATOR": address, "PERFHARNESS_NODES_TOKEN": "a secret of this launch"}
    outs = script.parent / "apart_0", script.parent / "apart_1"
    for done in launch_all(*((options_of(out, script, 0), node(rank, **known)) for rank, out in enumerate(outs))):
        assert done.returncode == 0, done.stderr
    return outs


def test_nodes_make_one_run(shared: Path) -> None:
    run, mean = manifest(shared), mean_of(shared)
    assert [(one["rank"], one["count"]) for one in run["nodes"]] == [(0, 2), (1, 2)]
    assert [(one["folder"], one["index"], one["node"]) for one in run["processes"]] == [
        ("proc_0_gpu_0", 0, 0),
        ("proc_1_gpu_0", 1, 1),
    ]
    throughput = mean["throughput"]
    alone = [one["items_per_second"] for one in throughput["processes"].values()]
    assert throughput["items_per_second"] == pytest.approx(sum(alone), rel=0.2)
    assert "nodes-started" in codes_of(shared)
    assert not codes_of(shared) & {"node-missing", "nodes-differ", "ranks-missing"}
    assert sorted(path.name for path in shared.iterdir()) == [
        "benchmark_mean.json",
        "manifest.json",
        "proc_0_gpu_0",
        "proc_1_gpu_0",
        "telemetry.parquet",
    ]


def test_every_node_has_its_machine_and_clock(shared: Path) -> None:
    first, second = manifest(shared)["nodes"]
    assert first["clock_offset_ns"] == first["clock_error_ns"] == 0
    assert abs(second["clock_offset_ns"]) <= second["clock_error_ns"] != 0
    assert first["environment"]["hostname"] == second["environment"]["hostname"] == socket.gethostname()
    for folder in ("proc_0_gpu_0", "proc_1_gpu_0"):
        metrics = json.loads((shared / folder / "benchmark.json").read_text())["process_metrics"]
        assert metrics["figures"]["resident_memory_bytes"]["mean"] > 0
    assert mean_of(shared)["gpu_metrics"]["hosts"].keys() == {"node_1:host"}


@pytest.mark.parametrize("verb", ["analyze", "compare", "report", "export"])
def test_verbs_read_the_run_of_several_nodes(shared: Path, tmp_path: Path, verb: str) -> None:
    more: tuple[object, ...] = {
        "analyze": (shared,),
        "compare": (shared, shared),
        "report": (shared, "-o", tmp_path / "report.md"),
        "export": (shared, "-o", tmp_path / "trace.json"),
    }[verb]
    before = mean_of(shared)["throughput"]
    done = perfharness(verb, *more)
    assert done.returncode == 0, done.stderr
    assert mean_of(shared)["throughput"] == before


def test_results_travel_where_no_folder_is_shared(apart: tuple[Path, Path]) -> None:
    first, second = apart
    assert [one["folder"] for one in manifest(first)["processes"]] == ["proc_0_gpu_0", "proc_1_gpu_0"]
    assert mean_of(first)["throughput"]["items_per_second"] > 0
    assert manifest(second / "node_1")["node"]["rank"] == 1
    assert not any(b"a secret of this launch" in path.read_bytes() for path in first.rglob("*") if path.is_file())


def test_runs_copied_by_hand_are_joined(apart: tuple[Path, Path], tmp_path: Path) -> None:
    lacking, part = tmp_path / "lacking", tmp_path / "part"
    shutil.copytree(apart[0], lacking)
    shutil.copytree(apart[1] / "node_1", part)
    run = manifest(lacking)
    lost = {"nodes": run["nodes"][:1], "processes": run["processes"][:1]}
    (lacking / "manifest.json").write_text(json.dumps({**run, **lost}))
    other = manifest(part)
    (part / "manifest.json").write_text(json.dumps({**other, "environment": {**other["environment"], "driver": "1"}}))
    assert perfharness("analyze", lacking).returncode == 0
    assert mean_of(lacking)["throughput"]["items_per_second"] is None
    assert "node 1" in mean_of(lacking)["throughput"]["reason"]
    done = perfharness("analyze", part, lacking, "-o", tmp_path / "joined")
    assert done.returncode == 0, done.stderr
    assert mean_of(tmp_path / "joined")["throughput"] == mean_of(apart[0])["throughput"]
    assert "nodes-differ" in codes_of(tmp_path / "joined")
    assert perfharness("analyze", apart[0], part, "-o", tmp_path / "twice").returncode == 2


def test_a_node_that_never_comes_is_named(script: Path, tmp_path: Path) -> None:
    done = run_to_the_end(options_of(tmp_path, "--barrier-timeout", "1", script, 0), node(0))
    assert done.returncode == 3, done.stderr
    assert "node-missing" in codes_of(tmp_path)
    assert "waiting for node 1" in done.stderr
    assert mean_of(tmp_path)["throughput"]["items_per_second"] is None
    assert mean_of(tmp_path)["throughput"]["processes"]["proc_0_gpu_0"]["items_per_second"] > 0


def joined_by_hand(out: Path, *runs: Path) -> dict[str, Any]:
    """The result of runs of which one launcher was killed."""
    assert perfharness("analyze", *runs, "-o", out).returncode == 3
    assert "run-cut-off" in codes_of(out)
    assert not codes_of(out) & {"node-missing", "ranks-missing"}
    assert [one["node"] for one in manifest(out)["processes"]] == [0, 1]
    return mean_of(out)


def left_by_a_killed_launcher(out: Path) -> Path:
    (folder,) = out.glob(".perfharness-run-*")
    return folder


def test_a_node_that_dies_is_not_waited_for(script: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run_to_the_end, options_of(tmp_path, script, 600), node(0))
        with launching(options_of(tmp_path, script, 600), node(1)) as other:
            wait_for(lambda: any((tmp_path / "node_1").glob(".perfharness-run-*/manifest.json")))
            other.kill()
        done = waiting.result()
    assert done.returncode == 3, done.stderr
    assert "node-missing" in codes_of(tmp_path)
    joined_by_hand(tmp_path / "joined", tmp_path, left_by_a_killed_launcher(tmp_path / "node_1"))


def test_a_node_keeps_its_results_when_node_0_dies(script: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, launching(options_of(tmp_path, script, 0), node(0)) as first:
        other = pool.submit(run_to_the_end, options_of(tmp_path, script, 3), node(1))
        wait_for(lambda: any((tmp_path / "node_1").glob(".perfharness-run-*/manifest.json")))
        first.kill()
        done = other.result()
    assert done.returncode == 3, done.stderr
    assert "node-0-lost" in done.stderr + str(codes_of(tmp_path / "node_1"))
    alone = mean_of(tmp_path / "node_1")["throughput"]["items_per_second"]
    mean = joined_by_hand(tmp_path / "joined", left_by_a_killed_launcher(tmp_path), tmp_path / "node_1")
    assert mean["throughput"]["processes"]["proc_1_gpu_0"]["items_per_second"] == alone > 0


def test_a_node_without_node_0_ends(script: Path, tmp_path: Path) -> None:
    done = run_to_the_end(options_of(tmp_path, "--barrier-timeout", "0.5", script, 0), node(1))
    assert done.returncode == 1
    assert "node 0" in done.stderr


REFUSED = {
    "repeat": (("--repeat", "2", "app.py"), "--repeat"),
    "sweep": (("--np-sweep", "1,2", "app.py"), "--np-sweep"),
    "elastic": (("torchrun", "--nnodes", "1:2", "app.py"), "1:2"),
    "restarts": (("torchrun", "--nnodes=2", "--max-restarts=3", "app.py"), "--max-restarts"),
    "nodes without Ray": (("--num-nodes", "2", "app.py"), "--ray"),
    "Ray, which starts --nodes itself": (("--ray", "auto", "app.py"), "drop --nodes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_measured_on_nodes_is_refused(tmp_path: Path, case: str) -> None:
    words, named = REFUSED[case]
    if words[0] == "torchrun":
        (tmp_path / "torchrun").symlink_to("/bin/true")
        words = (str(tmp_path / "torchrun"), *words[1:])
    else:
        (tmp_path / "app.py").touch()
    done = run_to_the_end(options_of(tmp_path / "out", *words), node(0), tmp_path)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert not (tmp_path / "out").exists()


ON_RAY = {
    "repeat": (("--repeat", "2", "app.py"), 2, "--repeat"),
    "no nodes": (("--num-nodes", "0", "app.py"), 2, "--num-nodes"),
    "elastic": (("torchrun", "--nnodes", "1:2", "app.py"), 2, "1:2"),
    "no Ray": (("app.py",), 1, "pip install 'perfharness-nvtx[ray]'"),
}


@pytest.mark.parametrize("case", ON_RAY)
def test_what_cannot_be_measured_on_ray_is_refused(tmp_path: Path, case: str) -> None:
    words, code, named = ON_RAY[case]
    program = "import sys; sys.modules['ray'] = None; from perfharness.cli.main import main; main()"
    line = [sys.executable, "-c", program, "launch", "--ray", "auto", "-o", "out", *words]
    done = subprocess.run(line, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def address_in(out: Path) -> tuple[str, int]:
    with contextlib.suppress(OSError, ValueError):
        host, port, _ = json.loads((out / ".perfharness-nodes").read_text())
        return host, port
    return "", 0


def test_a_second_launch_of_a_node_is_refused(script: Path, tmp_path: Path) -> None:
    options = options_of(tmp_path, script, 0)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(run_to_the_end, options, node(0))
        wait_for(lambda: address_in(tmp_path) != ("", 0))
        assert (tmp_path / ".perfharness-nodes").stat().st_mode & 0o777 == 0o600
        with socket.create_connection(address_in(tmp_path)) as stranger:
            stranger.sendall(b"\x80\x05garbage\r\n\r\n")
            others = [pool.submit(run_to_the_end, options, node(1)) for _ in range(2)]
            done = [first.result(), *(one.result() for one in others)]
    assert done[0].returncode == 0, done[0].stderr
    assert sorted(one.returncode for one in done[1:]) == [0, 2]
    assert done[0].stderr.count("refused a connection") == 1
    assert [one["node"] for one in manifest(tmp_path)["processes"]] == [0, 1]


def in_other_clocks(folder: Path) -> list[str]:
    """What runs a command as on another machine: its clock is three seconds ahead, and it has run a day longer."""
    monotonic, shim = ["unshare", "-T", "--monotonic", "86400"], folder / "ahead.so"
    if shutil.which("cc") is None or subprocess.run([*monotonic, "true"], capture_output=True).returncode:
        pytest.skip("another clock takes a C compiler, and root for a time namespace")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, Path(__file__).with_name("ahead_clock.c")], check=True)
    return [*monotonic, "env", f"LD_PRELOAD={shim}"]


@pytest.mark.slow
def test_nodes_with_other_clocks_are_put_on_one(tmp_path: Path) -> None:
    script, meeting, out = (tmp_path / name for name in ("ranks.py", "meeting", "out"))
    ahead = in_other_clocks(tmp_path)
    script.write_text(RANKS)
    meeting.mkdir()
    options = options_of(out, "--telemetry", script, meeting, 0.3)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run_to_the_end, options, node(0))
        other = subprocess.run([*ahead, *command(*options)], env=node(1), check=False)
    assert (first.result().returncode, other.returncode) == (0, 0), first.result().stderr
    record = manifest(out)["nodes"][1]
    assert abs(record["clock_offset_ns"] + 3_000_000_000) <= record["clock_error_ns"] < 100_000_000
    mean = mean_of(out)
    assert [(one["rank"], one["stage"][-1]) for one in mean["ranks"]["groups"][0]["delays"]] == [(3, "prepare")]
    assert mean["ranks"]["groups"][0]["skew"]["clock_error_ms"] >= record["clock_error_ns"] / 1e6
    assert mean["throughput"]["items_per_second"] > 0
    for rank in ("proc_0_gpu_0/rank_0", "proc_1_gpu_0/rank_3"):
        metrics = json.loads((out / rank / "benchmark.json").read_text())["process_metrics"]
        assert metrics["figures"]["resident_memory_bytes"]["mean"] > 0


RANK_OF_ENGINE = """
import os, sys, time
import torch, torch.distributed as dist
from perfharness import PerfRecorder
rank, port = int(os.environ["SLURM_PROCID"]), int(sys.argv[1])
if port:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
perf = PerfRecorder("model")
for index in range(24):
    with perf.batch(index, total_items=2):
        with perf.range("prepare"):
            time.sleep(0.004 + 0.1 * rank)
        with perf.range("reduce"):
            if port:
                dist.all_reduce(torch.ones(4))
perf.finalize()
if port:
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("is_one_program", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_rank_that_only_the_library_has(tmp_path: Path, is_one_program: bool) -> None:
    """The rank is that of the Slurm step, which independent programs have, too."""
    pytest.importorskip("torch")
    script, out = tmp_path / "app.py", tmp_path / "out"
    script.write_text(RANK_OF_ENGINE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1] if is_one_program else 0
    options = options_of(out, "--annotate-collectives", script, port)
    step = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    step |= {"SLURM_LOCALID": "0", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    nodes = [environment(**step, SLURM_PROCID=rank, SLURM_NODEID=rank) for rank in ("0", "1")]
    for done in launch_all(*((options, node) for node in nodes)):
        assert done.returncode in (0, 3), done.stderr
    ranks = [one["rank"] for process in manifest(out)["processes"] for one in process["measured"]]
    assert ranks == ([0, 1] if is_one_program else [None, None])
    if is_one_program:
        (group,) = mean_of(out)["ranks"]["groups"]
        assert [(one["rank"], one["stage"][-1]) for one in group["delays"]] == [(1, "prepare")]
    assert ("ranks" in mean_of(out)) is is_one_program


@pytest.mark.slow
@pytest.mark.parametrize("late_ms", [200, 0])
def test_torchrun_over_nodes(tmp_path: Path, late_ms: int) -> None:
    pytest.importorskip("torch")
    script, out = tmp_path / "ranks.py", tmp_path / "out"
    script.write_text(TORCH_RANKS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    words = [Path(sys.executable).with_name("torchrun"), "--nnodes", "2", "--nproc-per-node", "1"]
    words += ["--master-addr", "127.0.0.1", "--master-port", port]
    options = options_of(out, "--annotate-collectives", *words)
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    launches = [((*options, "--node-rank", rank, script, late_ms), node(rank, **own)) for rank in range(2)]
    for done in launch_all(*launches):
        assert done.returncode == 0, done.stderr
    (group,) = mean_of(out)["ranks"]["groups"]
    assert group["world_size"] == len(group["processes"]) == 2
    assert [one["rank"] for one in group["delays"]] == ([1] if late_ms else [])
    assert "ranks-missing" not in codes_of(out)


@pytest.mark.parametrize("late_s", [0.1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_late_rank_is_named_with_its_node(tmp_path: Path, late_s: float) -> None:
    script, meeting, out = tmp_path / "ranks.py", tmp_path / "meeting", tmp_path / "out"
    script.write_text(RANKS)
    meeting.mkdir()
    options = options_of(out, "--telemetry", script, meeting, late_s)
    for done in launch_all((options, node(0)), (options, node(1))):
        assert done.returncode == 0, done.stderr
    (group,) = mean_of(out)["ranks"]["groups"]
    assert [one["rank"] for one in group["ranks"]] == [0, 1, 2, 3]
    named = [(one["rank"], one["stage"][-1]) for one in group["delays"]]
    assert named == ([(3, "prepare")] if late_s else [])
    if late_s:
        (found,) = [one for one in mean_of(out)["meta"]["findings"] if one["code"] == "waiting-on-rank"]
        assert "on node 1" in found["message"]
    assert "ranks-missing" not in codes_of(out)
