"""Clocks: the real commands, ended where they change something, against a replayed NVML."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration import forked_command
from tests.integration.launches import wait_for
from tests.support.nvml_cards import gpu_uuid, h100_machine
from tests.support.nvml_settings import NvmlState
from tests.support.replayed_nvml import NVML_STATE, replay_environment
from tests.support.steps import STEP_FAULTS, Fault, faults_to_json


class Machine:
    """A replayed machine for commands that are started as a user starts them."""

    before: NvmlState

    def __init__(self, folder: Path) -> None:
        self.state = folder / "nvml.json"
        self.environment = {
            **os.environ,
            **replay_environment(h100_machine(2).write(folder / "record.json")),
            NVML_STATE: str(self.state),
            "TMPDIR": str(folder),  # other tests hold the clocks of GPUs with the same names
        }

    def run(self, *arguments: str, faults: tuple[Fault, ...] = ()) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, STEP_FAULTS: faults_to_json(*faults)}
        return forked_command.run(arguments, environment)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "perfharness", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    @property
    def default(self) -> NvmlState:
        """The driver's defaults; persistence mode stays as it is."""
        settings = self.before.model_copy(deep=True)
        for uuid, device in self.settings().devices.items():
            settings.devices[uuid].persistence_mode = device.persistence_mode
        return settings

    def settings(self) -> NvmlState:
        return NvmlState.model_validate_json(self.state.read_bytes())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    assert machine.run("clocks", "status").returncode == 0
    machine.before = machine.settings()
    return machine


def test_clocks_that_are_held_until_they_are_restored(machine: Machine) -> None:
    done = machine.run("clocks", "max", "--gpus", gpu_uuid(1))
    assert done.returncode == 0, done.stderr
    locked = {uuid: device.locked_graphics_mhz for uuid, device in machine.settings().devices.items()}
    assert locked == {gpu_uuid(0): None, gpu_uuid(1): (1980, 1980)}
    status = json.loads(machine.run("clocks", "status", "--format", "json").stdout)
    assert [bool(gpu["left"]) for gpu in status["gpus"]] == [False, True]
    assert machine.run("clocks", "restore").returncode == 0
    assert machine.settings() == machine.default


@pytest.mark.parametrize("end", [{"signal": "SIGTERM"}, {"raises": True}])
def test_clocks_max_that_is_asked_to_end_restores(machine: Machine, end: dict[str, Any]) -> None:
    fault = Fault(name="nvmlDeviceSetMemoryLockedClocks", **end)
    assert machine.run("clocks", "max", faults=(fault,)).returncode == 1
    assert machine.settings() == machine.before


def test_refusals_and_exit_codes(machine: Machine) -> None:
    one, all_of_them = Fault(name="nvmlDeviceSetPowerManagementLimit", error=4), Fault(name="nvmlDeviceSet*", error=4)
    assert machine.run("clocks", "max", faults=(all_of_them,)).returncode == 1
    assert machine.settings() == machine.before
    assert machine.run("clocks", "max", faults=(one,)).returncode == 3
    assert machine.run("clocks", "restore", faults=(one,)).returncode == 1


PYTHON = """
import os, signal, sys
import perfharness
with perfharness.maximize_clocks(gpus=[sys.argv[1]]) as steps:
    print([step.answer for step in steps])
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_clocks_in_python_are_restored_at_sigterm(machine: Machine) -> None:
    command = [sys.executable, "-c", PYTHON, gpu_uuid(1)]
    done = subprocess.run(command, env=machine.environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, f"{['set'] * 5}\n")
    assert machine.settings() == machine.before


SCRIPT = """
import json, os, pathlib, sys, time
state = json.load(open(os.environ["PERFHARNESS_NVML_STATE"]))
print(sorted(uuid for uuid, device in state["devices"].items() if device["locked_graphics_mhz"]))
folder = pathlib.Path(__file__).parent
(folder / "running").touch()
while "wait" in sys.argv and not (folder / "go").exists():
    time.sleep(0.05)
sys.exit(3 * ("fail" in sys.argv))
"""


class Launch:
    """A launch on the machine, in a folder of its own."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        folder.mkdir()
        self.machine, self.folder, self.script = machine, folder, folder / "script.py"
        self.script.write_text(SCRIPT)
        self.common = ["launch", "--tracer", "none", "--no-telemetry", "-o", str(folder / "out")]

    def run(self, *options: str, what: str = "", faults: tuple[Fault, ...] = ()) -> subprocess.CompletedProcess[str]:
        return self.machine.run(*self.common, *options, str(self.script), what, faults=faults)

    def start(self) -> Launch:
        """With -m; its script runs until the end is asked for."""
        self.process = self.machine.start(*self.common, "-m", str(self.script), "wait")
        wait_for(lambda: (self.folder / "running").exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()[0]
        return self

    def end(self, number: signal.Signals | None = None) -> int:
        if number is not None:
            self.process.send_signal(number)
        if number in (None, signal.SIGKILL):
            (self.folder / "go").touch()
        self.process.communicate()
        return self.process.returncode

    @property
    def manifest(self) -> Any:
        return json.loads((self.folder / "out" / "manifest.json").read_text())

    def findings(self) -> set[str]:
        """Codes of those about clocks and temperatures."""
        found = {one["code"] for one in self.manifest["findings"]}
        return {code for code in found if code.startswith(("clocks-", "not-cooled"))}


def test_a_launch_holds_the_clocks_of_its_gpus_only(machine: Machine, tmp_path: Path) -> None:
    made = Launch(machine, tmp_path / "a")
    done = made.run("-m", "--gpus", gpu_uuid(1), what="fail")
    assert done.returncode == 1, done.stdout + done.stderr
    assert (made.folder / "out/proc_0_gpu_1/stdout.log").read_text() == f"{[gpu_uuid(1)]}\n"
    assert machine.settings() == machine.before
    steps = made.manifest["companions"]["clocks"]["steps"]
    assert {(step["gpu_uuid"], step["answer"], step["restored"]) for step in steps} == {
        (gpu_uuid(1), "set", "restored")
    }


def test_a_launch_goes_on_without_permission_and_says_when_a_gpu_stays_warm(machine: Machine, tmp_path: Path) -> None:
    made = Launch(machine, tmp_path / "a")  # it warms up two seconds after it was first asked
    (made.folder / "perfharness.toml").write_text("[launch]\ncool-down-limit = 0.2\n")
    done = made.run("-m", "--cool-down", "20", faults=(Fault(name="nvmlDeviceSet*", error=4),))
    assert done.returncode == 0, done.stdout + done.stderr
    assert made.manifest["companions"]["cool-down"]["gpus"][0]["reached"] is False
    assert made.findings() == {"clocks-refused", "not-cooled-down"}
    assert machine.settings() == machine.before


def test_a_launch_that_is_asked_to_end_restores_and_another_does_not_get_its_gpu(
    machine: Machine, tmp_path: Path
) -> None:
    running, other = Launch(machine, tmp_path / "a").start(), Launch(machine, tmp_path / "b")
    held = machine.settings()
    assert held != machine.before
    assert other.run("-m").returncode == 1
    assert not (other.folder / "running").exists()
    assert machine.settings() == held
    assert running.end(signal.SIGTERM) != 0
    assert machine.settings() == machine.before


def test_a_killed_launch_is_reported_by_the_next(machine: Machine, tmp_path: Path) -> None:
    Launch(machine, tmp_path / "a").start().end(signal.SIGKILL)
    left = machine.settings()
    assert left != machine.before
    made = Launch(machine, tmp_path / "b")
    assert made.run("-m").returncode == 0
    assert "clocks-locked" in made.findings()
    assert machine.run("clocks", "restore").returncode == 0
    assert machine.settings() == machine.default
