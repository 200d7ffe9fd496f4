"""Clocks: the real commands, ended where they change something, against a replayed NVML."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perfharness.telemetry.clocks import STATE_DIR
from perfharness.testing.nvml_cards import gpu_uuid, h100_machine
from perfharness.testing.nvml_settings import NvmlState
from perfharness.testing.replayed_nvml import NVML_STATE, replay_environment
from perfharness.testing.steps import STEP_FAULTS, Fault, faults_to_json


class Machine:
    """A replayed machine for commands that are started as a user starts them."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "nvml.json"
        self.environment = {
            **os.environ,
            **replay_environment(h100_machine(2).write(folder / "record.json")),
            NVML_STATE: str(self.state),
            STATE_DIR: str(folder / "state"),
        }

    def run(self, *arguments: str, faults: tuple[Fault, ...] = ()) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, STEP_FAULTS: faults_to_json(*faults)}
        command = [sys.executable, "-m", "perfharness", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "perfharness", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def settings(self) -> NvmlState:
        return NvmlState.model_validate_json(self.state.read_bytes())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_a_user_sees(machine: Machine) -> None:
    assert "perfharness has changed nothing" in machine.run("clocks", "status").stdout
    before = machine.settings()
    killed = machine.run("clocks", "max", faults=(Fault(name="nvmlDeviceSetMemoryLockedClocks", signal="SIGKILL"),))
    assert killed.returncode == -signal.SIGKILL
    next_command = machine.run("analyze", "no-such-folder")
    assert next_command.stderr.splitlines()[0] == (
        f"perfharness: a run that was killed may have left GPU {gpu_uuid(0)} changed (persistence mode, power limit,"
        " application clocks, memory clock lock); `perfharness clocks restore` brings back what was before"
    )
    assert "for: a run that was killed" in machine.run("clocks", "status").stdout
    restored = machine.run("clocks", "restore")
    assert restored.returncode == 0
    assert f"GPU {gpu_uuid(0)}: power limit restored: 650 W" in restored.stdout
    assert machine.settings() == before
    assert machine.run("clocks", "restore").stdout == "nothing to restore\n"
    assert "clocks restore" not in machine.run("analyze", "no-such-folder").stderr


def test_clocks_that_are_held_on_purpose_are_no_news(machine: Machine) -> None:
    done = machine.run("clocks", "max", "--gpus", gpu_uuid(1))
    assert done.returncode == 0, done.stderr
    assert machine.settings().devices[gpu_uuid(1)].locked_graphics_mhz == (1980, 1980)
    assert machine.settings().devices[gpu_uuid(0)].locked_graphics_mhz is None
    assert "clocks restore" not in machine.run("analyze", "no-such-folder").stderr
    status = json.loads(machine.run("clocks", "status", "--json").stdout)
    assert [(state["owner"], state["gpu_uuid"]) for state in status["states"]] == [("hold", gpu_uuid(1))]


ENDS = {
    "SIGTERM": Fault(name="nvmlDeviceSetMemoryLockedClocks", signal="SIGTERM"),
    "SIGINT": Fault(name="nvmlDeviceSetMemoryLockedClocks", signal="SIGINT"),
    "exception": Fault(name="nvmlDeviceSetMemoryLockedClocks", raises=True),
}


@pytest.mark.parametrize("end", ENDS)
def test_clocks_max_that_is_asked_to_end_restores(machine: Machine, end: str) -> None:
    machine.run("clocks", "status")
    before = machine.settings()
    assert machine.run("clocks", "max", faults=(ENDS[end],)).returncode == 1
    assert machine.settings() == before
    assert machine.run("clocks", "restore").stdout == "nothing to restore\n"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_restore_that_is_killed_is_finished_by_the_next(machine: Machine, when: Any) -> None:
    machine.run("clocks", "status")
    before = machine.settings()
    machine.run("clocks", "max")
    fault = Fault(name="nvmlDeviceSetPowerManagementLimit", signal="SIGKILL", when=when)
    assert machine.run("clocks", "restore", faults=(fault,)).returncode == -signal.SIGKILL
    assert "clocks restore" in machine.run("analyze", "no-such-folder").stderr
    assert machine.run("clocks", "restore").returncode == 0
    assert machine.settings() == before


def test_refusals_and_exit_codes(machine: Machine) -> None:
    one = Fault(name="nvmlDeviceSetPowerManagementLimit", error=4)
    some = machine.run("clocks", "max", faults=(one,))
    assert some.returncode == 3
    assert f"GPU {gpu_uuid(0)}: power limit not changed: no permission; it takes root" in some.stdout
    machine.run("clocks", "restore")
    before = machine.settings()
    stopped = machine.run("clocks", "max", "--clock-refusal", "stop", faults=(one,))
    assert stopped.returncode == 1
    assert "stopped at the refusal" in stopped.stderr
    assert machine.settings() == before
    none = machine.run("clocks", "max", faults=(Fault(name="nvmlDeviceSet*", error=4),))
    assert none.returncode == 1
    assert none.stdout == f"GPU {gpu_uuid(0)}: clocks not changed: no permission; it takes root\n"


SCRIPT = """
import json, os
state = json.load(open(os.environ["PERFHARNESS_NVML_STATE"]))
print(sorted(uuid for uuid, device in state["devices"].items() if device["locked_graphics_mhz"]))
"""


def launch(machine: Machine, folder: Path, *options: str, faults: tuple[Fault, ...] = ()) -> Any:
    (folder / "script.py").write_text(SCRIPT)
    common = ["--tracer", "none", "--no-telemetry", "-o", str(folder / "out"), *options, str(folder / "script.py")]
    return machine.run("launch", *common, faults=faults)


def test_a_launch_holds_the_clocks_of_its_gpus_only(machine: Machine, tmp_path: Path) -> None:
    machine.run("clocks", "status")
    before = machine.settings()
    done = launch(machine, tmp_path, "-m", "--gpus", gpu_uuid(1))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out/proc_0_gpu_1/stdout.log").read_text() == f"{[gpu_uuid(1)]}\n"
    assert machine.settings() == before
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    steps = manifest["companions"]["clocks"]["steps"]
    assert {(step["gpu_uuid"], step["answer"], step["restored"]) for step in steps} == {
        (gpu_uuid(1), "set", "restored")
    }


def test_a_launch_goes_on_without_permission_or_stops_as_chosen(machine: Machine, tmp_path: Path) -> None:
    machine.run("clocks", "status")
    before = machine.settings()
    refused = (Fault(name="nvmlDeviceSet*", error=4),)
    done = launch(machine, tmp_path, "-m", faults=refused)
    assert done.returncode == 0, done.stdout + done.stderr
    findings = json.loads((tmp_path / "out/manifest.json").read_text())["findings"]
    assert [finding["message"] for finding in findings if finding["code"] == "clocks-refused"] == [
        f"GPU {gpu_uuid(0)}: clocks not changed: no permission; it takes root"
    ]
    stopped = launch(machine, tmp_path, "-m", "--clock-refusal", "stop", faults=refused)
    assert stopped.returncode == 1
    assert "the clocks cannot be set as asked" in stopped.stderr
    assert machine.settings() == before


def test_a_launch_waits_for_a_cool_gpu_and_says_when_it_gave_up(machine: Machine, tmp_path: Path) -> None:
    done = launch(machine, tmp_path, "--cool-down", "20", "--cool-down-limit", "0.2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "waiting for 20 °C (now 36 °C), at most 0.2 s" in done.stderr
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["companions"]["cool-down"]["gpus"][0]["reached"] is False
    assert [finding["code"] for finding in manifest["findings"]] == ["not-cooled-down"]


WAITING_SCRIPT = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "running").touch()
while not (folder / "go").exists():
    time.sleep(0.05)
"""


class WaitingLaunch:
    """A launch with -m, whose script waits for a stop signal."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        (folder / "script.py").write_text(WAITING_SCRIPT)
        options = ["-m", "--tracer", "none", "--no-telemetry", "-o", str(folder / "out")]
        self.process = machine.start("launch", *options, str(folder / "script.py"), str(folder))
        while not (folder / "running").exists():
            assert self.process.poll() is None, self.process.communicate()[0]
            time.sleep(0.05)

    def end(self) -> int:
        (self.folder / "go").touch()
        self.process.communicate()
        return self.process.returncode

    def send(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.process.communicate()
        return self.process.returncode


def clock_findings(folder: Path) -> set[str]:
    findings = json.loads((folder / "out/manifest.json").read_text())["findings"]
    return {finding["code"] for finding in findings if finding["code"].startswith("clocks")}


def test_two_launches_at_once_have_one_owner(machine: Machine, tmp_path: Path) -> None:
    machine.run("clocks", "status")
    before = machine.settings()
    owner, other = (WaitingLaunch(machine, tmp_path / name) for name in ("a", "b"))
    held = machine.settings()
    assert held != before
    assert "left as it is" in machine.run("clocks", "restore").stdout
    assert other.end() == 0
    assert machine.settings() == held
    assert owner.end() == 0
    assert machine.settings() == before
    assert [clock_findings(each.folder) for each in (owner, other)] == [set(), {"clocks-refused"}]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_launch_that_is_asked_to_end_restores(machine: Machine, tmp_path: Path, number: signal.Signals) -> None:
    machine.run("clocks", "status")
    before = machine.settings()
    running = WaitingLaunch(machine, tmp_path / "a")
    assert machine.settings() != before
    assert running.send(number) != 0
    assert machine.settings() == before


def test_a_killed_launch_is_told_of_and_the_next_restores(machine: Machine, tmp_path: Path) -> None:
    machine.run("clocks", "status")
    before = machine.settings()
    killed = WaitingLaunch(machine, tmp_path / "a")
    killed.send(signal.SIGKILL)
    (killed.folder / "go").touch()
    assert machine.settings() != before
    assert "may have left GPU" in machine.run("analyze", "no-such-folder").stderr
    done = launch(machine, tmp_path, "-m")
    assert done.returncode == 0
    assert "may have left GPU" in done.stderr
    assert machine.settings() == before


def test_a_script_that_fails_and_a_restore_by_force(machine: Machine, tmp_path: Path) -> None:
    machine.run("clocks", "status")
    before = machine.settings()
    running = WaitingLaunch(machine, tmp_path / "a")
    machine.run("clocks", "restore", "--force")
    assert machine.settings() == before
    assert running.end() == 0
    assert clock_findings(running.folder) == {"clocks-changed-meanwhile"}
    (tmp_path / "fails.py").write_text("raise SystemExit(3)")
    failing = ["-m", "--tracer", "none", "--no-telemetry", "-o", str(tmp_path / "out"), str(tmp_path / "fails.py")]
    assert machine.run("launch", *failing).returncode == 1
    assert machine.settings() == before
