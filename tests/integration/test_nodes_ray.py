"""`perfharness launch --ray`: two nodes of a real Ray cluster on this machine, in a network of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.launches import command, environment, manifest, processes_naming, wait_for
from tests.integration.test_nodes import codes_of, mean_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CLUSTER = """
import fcntl, socket, struct, sys
with socket.socket() as one:
    fcntl.ioctl(one, 0x8914, struct.pack("16sh", b"lo", 1))  # the loopback interface is up
from ray.cluster_utils import Cluster
node = {"num_cpus": 2, "num_gpus": 2, "object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1"}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": True, "dashboard_port": 8265})
others = {**node, "temp_dir": sys.argv[1]}
other = cluster.add_node(**others)
print("address", cluster.address, flush=True)
for line in sys.stdin:
    if line == "kill\\n":
        cluster.remove_node(other, allow_graceful=False)
    else:
        other = cluster.add_node(**others)
    print("done", flush=True)
cluster.shutdown()
"""

PATIENT = {
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_health_check_failure_threshold": "100",
}
"""Where the machine has other work."""

SCRIPT = """
import os, sys, time
from pathlib import Path
from perfharness import PerfRecorder
perf, folder, rank = PerfRecorder("rec"), Path(sys.argv[1]), os.environ["PERFHARNESS_NODE_RANK"]
print("threads", os.environ.get("OMP_NUM_THREADS"), "GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
with perf.range("pipeline"):
    i = 0
    while i < 30 or not (folder / "done").exists():
        with perf.batch(i, total_items=4):
            with perf.range("decode"):
                time.sleep(0.01)
        i += 1
        (folder / f"{rank}.running").touch()
perf.finalize()
"""


@dataclass(frozen=True)
class RayCluster:
    """Two nodes with two GPUs that are not there; `script` runs until `folder` has a file `done`."""

    process: subprocess.Popen[str]
    address: str
    home: str
    folder: Path
    script: Path

    def inside(self, *words: object) -> list[str]:
        return ["nsenter", "-t", str(self.process.pid), "-n", *map(str, words)]

    def launch(self, *words: object) -> subprocess.CompletedProcess[str]:
        line = self.inside(*command("--ray", self.address, "--tracer", "embedded", *words))
        return subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)

    @contextmanager
    def launching(self, out: Path, script: Path) -> Iterator[subprocess.Popen[str]]:
        """A launch, from the moment on in which both nodes run the script; it does so until the block is left."""
        for path in (self.folder / "done", *self.folder.glob("*.running")):
            path.unlink(missing_ok=True)
        line = self.inside(*command("--ray", self.address, "--tracer", "embedded", "-o", out, script, self.folder))
        with subprocess.Popen(line, env=environment(), stderr=subprocess.PIPE, text=True) as launcher:
            try:
                wait_for(lambda: len(list(self.folder.glob("*.running"))) == 2)
                yield launcher
            finally:
                (self.folder / "done").touch()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "done\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    pytest.importorskip("ray", reason="Ray is not installed: tests/requirements-all.txt")
    if shutil.which("nsenter") is None or subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("a network of its own takes root")
    folder = tmp_path_factory.mktemp("ray")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "done").touch()
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as home:  # names of sockets are short
        words = ["unshare", "-n", sys.executable, "-c", CLUSTER, f"{home}/other"]
        environ = {**environment(), **PATIENT, "RAY_TMPDIR": home, "TMPDIR": home}
        with subprocess.Popen(
            words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            address = next((line.split()[1] for line in process.stdout if line.startswith("address")), "")
            assert address, "the cluster did not start"
            yield RayCluster(process, address, home, folder, folder / "script.py")
            process.stdin.close()


@pytest.fixture(scope="module")
def run(cluster: RayCluster) -> tuple[Path, subprocess.CompletedProcess[str]]:
    out = cluster.folder / "out"
    done = cluster.launch("-v", "--telemetry", "--format", "json", "-o", out, cluster.script, cluster.folder)
    assert done.returncode == 0, done.stderr
    return out, done


def test_the_results_of_all_nodes_come_back(
    cluster: RayCluster, run: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    out, done = run
    whole, mean = manifest(out), mean_of(out)
    assert [(one["rank"], one["count"]) for one in whole["nodes"]] == [(0, 2), (1, 2)]
    assert [(one["folder"], one["node"]) for one in whole["processes"]] == [("proc_0_gpu_0", 0), ("proc_1_gpu_0", 1)]
    assert whole["command"][:3] == ["perfharness", "launch", "--no-telemetry"]
    assert sorted(path.name for path in out.iterdir()) == [
        "benchmark_mean.json",
        "manifest.json",
        "proc_0_gpu_0",
        "proc_1_gpu_0",
        "telemetry.parquet",
    ]
    alone = [one["items_per_second"] for one in mean["throughput"]["processes"].values()]
    assert mean["throughput"]["items_per_second"] == pytest.approx(sum(alone), rel=0.2)
    assert json.loads(done.stdout)["throughput"] == mean["throughput"]
    assert "nodes-started" in codes_of(out)
    assert not codes_of(out) & {"node-missing", "nodes-differ", "low-priority"}
    assert not list(Path(cluster.home).glob("perfharness-ray-*"))


def test_the_script_runs_as_without_ray(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, done = run
    expected = f"threads {os.environ.get('OMP_NUM_THREADS')} GPUs 0"
    for process in ("proc_0_gpu_0", "proc_1_gpu_0"):
        assert (out / process / "stdout.log").read_text().strip() == expected
    assert f"\nproc_0_gpu_0 | {expected}" in done.stderr
    assert f"\nnode 1 | proc_0_gpu_0 | {expected}" in done.stderr


def assert_nothing_is_left(cluster: RayCluster) -> None:
    wait_for(lambda: not any("perfharness.cli.node" in line for line in processes_naming(cluster.home)))
    wait_for(lambda: not processes_naming(str(cluster.script)))


def test_a_job_of_ray_launches(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    shutil.copy(cluster.script, tmp_path / "job" / "only_here.py")
    perfharness = str(Path(sys.executable).with_name("perfharness"))  # not the first on PATH
    entry = [perfharness, "launch", "--no-telemetry", "--ray", "auto", "--tracer", "embedded"]
    entry += ["-o", str(tmp_path / "out"), "only_here.py", str(cluster.folder)]
    submit = [Path(sys.executable).with_name("ray"), "job", "submit", "--address", "http://127.0.0.1:8265"]
    variables = json.dumps({"env_vars": {"OMP_NUM_THREADS": "3"}})
    submit += ["--working-dir", str(tmp_path / "job"), "--runtime-env-json", variables, "--", *entry]
    done = subprocess.run(cluster.inside(*submit), env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert [one["node"] for one in manifest(tmp_path / "out")["processes"]] == [0, 1]
    assert "threads 3" in (tmp_path / "out" / "proc_1_gpu_0" / "stdout.log").read_text()
    assert_nothing_is_left(cluster)


REFUSED = {
    "no script": (("missing.py",), 2, "On node 0 (127.0.0.1): script missing.py not found"),
    "too few nodes": (("--num-nodes", "3", "--barrier-timeout", "1", "script.py"), 1, "2 of 3 nodes"),
    "too few GPUs": (("-ng", "3", "script.py"), 1, "3 GPUs"),
    "no GPUs": (("-ng", "2", "script.py"), 2, "-ng 2"),  # Ray counts them, and the machine has none
    "no cluster": (("--ray", "127.0.0.1:9", "script.py"), 1, "127.0.0.1:9"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_lacks_is_named(cluster: RayCluster, tmp_path: Path, case: str) -> None:
    words, code, named = REFUSED[case]
    done = cluster.launch("-o", tmp_path / "out", *(cluster.script if one == "script.py" else one for one in words))
    assert done.returncode == code, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert_nothing_is_left(cluster)


def test_what_was_measured_before_an_interrupt_comes_back(cluster: RayCluster, tmp_path: Path) -> None:
    with cluster.launching(tmp_path / "out", cluster.script) as launcher:
        launcher.send_signal(signal.SIGINT)
        _, errors = launcher.communicate()
    assert launcher.returncode == 1, errors
    assert [one["ended"] for one in manifest(tmp_path / "out")["processes"]] == ["interrupted", "interrupted"]
    assert_nothing_is_left(cluster)


def test_a_node_that_dies_is_not_waited_for(cluster: RayCluster, tmp_path: Path) -> None:
    try:
        with cluster.launching(tmp_path / "out", cluster.script) as launcher:
            cluster.tell("kill")
            (cluster.folder / "done").touch()
            _, errors = launcher.communicate()
    finally:
        cluster.tell("add")
    assert launcher.returncode == 3, errors
    assert "node-missing" in codes_of(tmp_path / "out")
    assert mean_of(tmp_path / "out")["throughput"]["items_per_second"] is None
    assert mean_of(tmp_path / "out")["throughput"]["processes"]["proc_0_gpu_0"]["items_per_second"] > 0
    assert_nothing_is_left(cluster)
