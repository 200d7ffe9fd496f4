"""`srun -N2 perfharness launch --nodes` under Slurm: two slurmd of this machine are two nodes.

apt-get install -y --no-install-recommends slurm-wlm munge
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.launches import environment, wait_for
from tests.integration.test_nodes import SCRIPT

pytestmark = pytest.mark.slow

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


def program(name: str) -> Path:
    """A daemon of Slurm; Debian's package has it under another name, too."""
    found = shutil.which(name) or shutil.which(f"{name}-wlm") or shutil.which(f"/usr/sbin/{name}")
    if found is None or os.geteuid():
        pytest.skip(f"two nodes of Slurm take {name} and root")
    return Path(found)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which srun finds two nodes."""
    munged, controller, node, step = map(program, ("munged", "slurmctld", "slurmd", "slurmstepd"))
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [one.getsockname()[1] for one in sockets]
    plugins = next(node.parents[1].glob("lib/*/slurm-wlm"))
    (folder / "slurm.conf").write_text(CONF.format(ports=ports, folder=folder, plugins=plugins))
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    environ = environment(SLURM_CONF=str(folder / "slurm.conf"))
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
        wait_for(lambda: subprocess.run(["srun", "-N2", "--immediate=2", "true"], env=environ).returncode == 0)
        yield environ


def srun(slurm: dict[str, str], out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = out.parent / "script.py"
    script.write_text(SCRIPT.replace("PERFHARNESS_NODE_RANK", "SLURM_NODEID"))
    launch: list[str | Path] = [
        sys.executable,
        "-m",
        "perfharness",
        "launch",
        "--nodes",
        "-w",
        "1",
        "--tracer",
        "embedded",
        "-o",
        out,
    ]
    command = ["srun", "-N2", *options, *launch, "--barrier-timeout", "60", script, "0.5"]
    return subprocess.run(command, env=slurm, capture_output=True, text=True, check=False)


def test_a_step_of_two_nodes_is_one_run(slurm: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = srun(slurm, out, "--ntasks-per-node=1")
    assert done.returncode == 0, done.stderr
    assert len(json.loads((out / "manifest.json").read_text())["nodes"]) == 2
    assert json.loads((out / "benchmark_mean.json").read_text())["throughput"]["items_per_second"] > 0


def test_two_launches_on_a_node_are_refused(slurm: dict[str, str], tmp_path: Path) -> None:
    done = srun(slurm, tmp_path / "out", "--ntasks=4", "--overcommit")
    assert done.returncode == 2, done.stderr
    assert "start one launch on each node" in done.stderr
