"""`perfharness launch --nodes` under Slurm, as the guide types it: two slurmd of this machine are two nodes.

scripts/install_slurm gets Slurm; PERFHARNESS_TEST_SLURM names the folder that it prints.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.launches import CHECKOUT, environment, manifest, wait_for
from tests.integration.test_nodes import TORCH_RANKS, codes_of, in_other_clocks, mean_of

pytestmark = pytest.mark.slow

ROOT = Path(os.environ.get("PERFHARNESS_TEST_SLURM", "/"))
GUIDE = (CHECKOUT / "docs" / "guides" / "many-machines.md").read_text("utf-8")

CONF = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.sock
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
MpiDefault=none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
NodeName=n0 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=100
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=100
PartitionName=all Nodes=n0,n1 Default=YES State=UP
"""

APP = """
import os, sys, time
from perfharness import PerfRecorder
perf = PerfRecorder("rec")
with perf.range("pipeline"):
    for i in range(int(sys.argv[1]) if sys.argv[1:] else 30):
        with perf.batch(i, total_items=4):
            with perf.range("decode"):
                time.sleep(0.01)
        if i == 10:
            open("measuring." + os.environ["SLURM_NODEID"], "w").close()
perf.finalize()
"""

NODE = """#!/bin/bash
cd {folder}
[ "$SLURM_NODEID" = 0 ] || {on_node_1}
$before {python} -m perfharness "$@" &
echo $! > pid.$SLURM_NODEID
trap : TERM
wait $! || wait $!
echo $? > code.$SLURM_NODEID
"""
"""What `perfharness` is on a node: it notes the process and the exit code of the launch."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which srun finds two nodes."""
    programs = [ROOT / "usr" / "sbin" / name for name in ("munged", "slurmctld", "slurmd", "slurmstepd")]
    plugins = next(ROOT.glob("usr/lib/*/slurm-wlm"), None)
    if plugins is None or not all(program.exists() for program in programs) or os.geteuid():
        pytest.skip("two nodes of Slurm take root, and Slurm (scripts/install_slurm, PERFHARNESS_TEST_SLURM)")
    munged, controller, node, step = programs
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [one.getsockname()[1] for one in sockets]
    (folder / "slurm.conf").write_text(CONF.format(ports=ports, folder=folder, plugins=plugins))
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    environ = environment(
        SLURM_CONF=str(folder / "slurm.conf"),
        PATH=os.pathsep.join([f"{ROOT}/usr/bin", os.environ["PATH"]]),
        **({} if Path("/") == ROOT else {"LD_LIBRARY_PATH": f"{plugins.parent}:{plugins}"}),
    )
    files = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder}/munge.{ending}" for option, ending in files.items()]
    commands: list[list[str | Path]] = [
        [munged, "-F", "--force", *options],
        [controller, "-D"],
        *([node, "-D", "-N", name, "-d", step] for name in ("n0", "n1")),
    ]
    with (folder / "log").open("wb") as log, ExitStack() as stack:
        for command in commands:
            daemon = stack.enter_context(subprocess.Popen(command, env=environ, stdout=log, stderr=log))
            stack.callback(daemon.terminate)
            if command[0] == munged:
                wait_for((folder / "munge.sock").exists)
        wait_for(lambda: srun("--immediate=2 true", environ, folder).wait() == 0)
        yield environ


@pytest.fixture
def job(slurm: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment of a job in `tmp_path`, where `app.py` is and `out` will be."""
    (tmp_path / "app.py").write_text(APP)
    return on_nodes(slurm, tmp_path)


def on_nodes(slurm: dict[str, str], folder: Path, on_node_1: str = ":") -> dict[str, str]:
    """The environment in which `perfharness` runs in the folder, on node 1 after a line of bash."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "perfharness").write_text(NODE.format(folder=folder, on_node_1=on_node_1, python=sys.executable))
    (folder / "bin" / "perfharness").chmod(0o755)
    return {**slurm, "PATH": os.pathsep.join([str(folder / "bin"), slurm["PATH"]])}


def srun(words: str, environ: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["srun", "-N2", *words.split()], env=environ, cwd=folder, stdout=subprocess.DEVNULL)


def typed(*words: str) -> str:
    """The command of the guide that has these words."""
    commands: list[str] = re.findall(r"`(srun [^`]+)`", GUIDE)
    return next(command for command in commands if all(word in command for word in words))


def by_srun(environ: dict[str, str], folder: Path) -> None:
    subprocess.run(typed("app.py"), shell=True, env=environ, cwd=folder, check=True)


def by_sbatch(environ: dict[str, str], folder: Path) -> None:
    (folder / "job.sh").write_text(f"#!/bin/bash\n#SBATCH -N2\n{typed('app.py')}\n")
    subprocess.run(["sbatch", "--wait", "job.sh"], env=environ, cwd=folder, check=True)


def by_submitit(environ: dict[str, str], folder: Path) -> None:
    submitit = pytest.importorskip("submitit")
    launch = [folder / "bin" / "perfharness", "launch", "--nodes", "-o", "out", "app.py"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        executor = submitit.AutoExecutor(folder / "submitit", cluster="slurm")
        executor.update_parameters(nodes=2, tasks_per_node=1, timeout_min=5)
        executor.submit(submitit.helpers.CommandFunction(list(map(str, launch)))).results()


@pytest.mark.parametrize("start", [by_srun, by_sbatch, by_submitit])
def test_a_job_of_two_nodes_is_one_run(
    job: dict[str, str], tmp_path: Path, start: Callable[[dict[str, str], Path], None]
) -> None:
    start(job, tmp_path)
    assert codes_at_the_end(tmp_path) == ["0", "0"]
    assert [one["rank"] for one in manifest(tmp_path / "out")["nodes"]] == [0, 1]
    throughput = mean_of(tmp_path / "out")["throughput"]
    alone = [one["items_per_second"] for one in throughput["processes"].values()]
    assert throughput["items_per_second"] == pytest.approx(sum(alone), rel=0.2)


def codes_at_the_end(folder: Path) -> list[str]:
    """The exit codes of the launches on both nodes."""
    return [(folder / f"code.{rank}").read_text().strip() for rank in range(2)]


def test_two_launches_on_a_node_are_refused(slurm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    words = f"--ntasks=4 --overcommit {sys.executable} -m perfharness launch --nodes -o out app.py"
    with srun(words, slurm, tmp_path) as step:
        assert step.wait() == 2


def kill(environ: dict[str, str], folder: Path) -> None:
    wait_for((folder / "measuring.1").exists)
    os.kill(int((folder / "pid.1").read_text()), signal.SIGKILL)


def cancel(environ: dict[str, str], folder: Path) -> None:
    wait_for((folder / "measuring.1").exists)
    subprocess.run(["scancel", "--user=root"], env=environ, check=True)


class Lost(NamedTuple):
    """What node 1 does before it launches, what is done to it then, and how node 0's launch ends."""

    on_node_1: str
    act: Callable[[dict[str, str], Path], None] | None
    code: str
    found: set[str]
    """One of these codes."""


LOST = {
    "killed before it joins": Lost("kill -9 $$", None, "3", {"node-missing"}),
    "killed after it joined": Lost(":", kill, "3", {"node-missing"}),
    "cancelled": Lost(":", cancel, "1", {"process-interrupted", "process-failed"}),  # its processes get the signal, too
}


@pytest.mark.parametrize("case", LOST)
def test_a_launch_that_is_lost(slurm: dict[str, str], tmp_path: Path, case: str) -> None:
    lost, out = LOST[case], tmp_path / "out"
    environ = on_nodes(slurm, tmp_path, lost.on_node_1)
    (tmp_path / "app.py").write_text(APP)
    words = "--ntasks-per-node=1 perfharness launch --nodes --barrier-timeout 10 -o out app.py 400"
    with srun(words, environ, tmp_path) as step:
        if lost.act is not None:
            lost.act(environ, tmp_path)
        step.wait()
    assert (tmp_path / "code.0").read_text().strip() == lost.code
    assert lost.found & set(codes_of(out))
    assert mean_of(out)["throughput"]["processes"]["proc_0_gpu_0"]["items_per_second"] > 0


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("late_ms", [10, 0])
def test_ranks_over_nodes_of_which_one_has_another_clock(slurm: dict[str, str], tmp_path: Path, late_ms: int) -> None:
    pytest.importorskip("torch")
    (tmp_path / "app.py").write_text(TORCH_RANKS)
    environ = on_nodes(slurm, tmp_path, f'before="{" ".join(in_other_clocks(tmp_path))}"')
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = typed("torchrun").replace("HOST:29500", free_address()).replace("-per-node 8", "-per-node 2")
    command = f"{command} {late_ms}".replace(
        "torchrun", f"--annotate-collectives {Path(sys.executable).with_name('torchrun')}", 1
    )
    subprocess.run(command, shell=True, env={**environ, **own}, cwd=tmp_path, check=True)
    record = manifest(tmp_path / "out")["nodes"][1]
    assert abs(record["clock_offset_ns"] + 3_000_000_000) <= record["clock_error_ns"] < 100_000_000
    (group,) = mean_of(tmp_path / "out")["ranks"]["groups"]
    assert [one["rank"] for one in group["ranks"]] == [0, 1, 2, 3]
    named = [(one["process"], one["stage"][-1]) for one in group["delays"]]
    assert named == ([("proc_1_gpu_0/rank_3", "forward")] if late_ms else [])
    if late_ms:
        assert group["delays"][0]["lag_ms"] == pytest.approx(late_ms, rel=0.5)
        (found,) = (one for one in mean_of(tmp_path / "out")["meta"]["findings"] if one["code"] == "waiting-on-rank")
        assert "on node 1" in found["message"]
