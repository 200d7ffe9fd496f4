"""Who else is on the GPUs of a launch, on a replayed NVML: before the run and after it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
import pytest

from perfharness.errors import LaunchError
from perfharness.model.environment import RUN_ID
from perfharness.model.manifest import GpuRecord
from perfharness_launcher.conditions import LISTS, Run, other_users
from tests.integration.launches import environment, manifest, run_to_the_end
from tests.support.nvml_cards import error, gpu_uuid, h100_machine, value
from tests.support.nvml_record import NvmlRecord, device
from tests.support.replayed_nvml import replay_environment

COMPUTE, GRAPHICS, MPS = LISTS
PARENT, INIT, GONE, SERVER = os.getppid(), 1, 1 << 22, 400
"""Two processes that live, one that does not, and MPS's server."""

GPU = device(gpu_uuid(0))
USED = "used"
Users = Mapping[str, Any]


def machine(users: Users) -> NvmlRecord:
    """An H100 with so many processes in each of NVML's lists, and so many bytes in use (`USED`)."""
    record, memory = h100_machine(), {"used": users.get(USED, 0)}
    value(record, "nvmlDeviceGetMemoryInfo", GPU, pynvml.nvmlMemory_v2, result={"struct": memory})
    value(record, "nvmlSystemGetProcessName", SERVER, result="/usr/bin/nvidia-cuda-mps-server")
    for name in LISTS:
        listed = [{"struct": {"pid": pid, "usedGpuMemory": 64 << 20}} for pid in users.get(name, ())]
        value(record, name, GPU, result=listed)
    return record


class Machine:
    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run = Run(tmp_path, "run-1", (GpuRecord(index=0, uuid=gpu_uuid(0)),))
        self._patch = monkeypatch
        self._count = 0

    def replay(self, record: NvmlRecord) -> None:
        self._count += 1
        path = self.run.folder / f"{self._count}.json"
        record.write(path)
        for name, text in replay_environment(path).items():
            self._patch.setenv(name, text)

    @contextmanager
    def launched(self, record: NvmlRecord, *, required: bool = False) -> Iterator[None]:
        self.replay(record)
        self.run.enter([partial(other_users, required=required)])
        yield
        self.run.leave()

    def found(self) -> list[tuple[str, str]]:
        return [(finding.code, finding.severity.value) for finding in self.run.findings]

    def recorded(self) -> Any:
        return self.run.records["exclusive"]["gpus"][0]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


SHARED = [("gpu-shared", "warning")]


@pytest.mark.parametrize(
    ("before", "after", "found", "recorded"),
    [
        ({}, {}, [], ([], [])),
        *(({name: [INIT]}, {COMPUTE: [INIT]}, SHARED, ([INIT], [])) for name in LISTS),
        ({}, {COMPUTE: [PARENT]}, SHARED, ([], [PARENT])),
        ({}, {COMPUTE: [GONE]}, [], ([], [])),  # one of the run, that ended just now
        ({COMPUTE: [SERVER]}, {COMPUTE: [SERVER]}, [], ([], [])),  # it does nothing itself
        ({COMPUTE: [SERVER], MPS: [INIT]}, {}, SHARED, ([INIT], [])),
        ({USED: 1 << 20}, {USED: 1 << 20}, [], ([], [])),
        ({USED: 1 << 30}, {USED: 1 << 30}, SHARED, ([1 << 30], [])),
        ({}, {USED: 1 << 30}, SHARED, ([], [1 << 30])),
        ({COMPUTE: [SERVER], USED: 1 << 30}, {}, [], ([], [])),  # the memory is that of the listed ones
    ],
)
def test_other_users_before_and_after(
    here: Machine, before: Users, after: Users, found: list[Any], recorded: tuple[list[int], list[int]]
) -> None:
    """`recorded`: pids, or the bytes of processes of another container, which have none."""
    with here.launched(machine(before)):
        here.replay(machine(after))
    assert here.found() == found
    lists = [here.recorded()[name] for name in ("foreign_before", "foreign_after")]
    assert [[user["pid"] or user["memory_bytes"] for user in users] for users in lists] == list(recorded)


def test_a_process_of_the_run_is_no_other(here: Machine) -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, RUN_ID: "run-1"}) as process:
        with here.launched(machine({})):
            here.replay(machine({COMPUTE: [process.pid]}))
        process.communicate(b"\n")
    assert here.found() == []


def test_users_that_are_not_known(here: Machine) -> None:
    record = machine({})
    error(record, COMPUTE, GPU, code=pynvml.NVML_ERROR_NO_PERMISSION)
    with here.launched(record):
        pass
    assert here.found() == [("gpu-sharing-unknown", "note")]
    assert here.recorded()["reason"] is not None
    with pytest.raises(LaunchError), here.launched(record, required=True):
        pass


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--require-exclusive"], 1)])
def test_a_launch_reports_or_refuses(tmp_path: Path, options: list[str], code: int) -> None:
    machine({COMPUTE: [os.getpid()]}).write(tmp_path / "nvml.json")
    replayed = environment(**replay_environment(tmp_path / "nvml.json"))
    done = run_to_the_end(("--tracer", "none", "-o", tmp_path / "out", *options, "true"), replayed)
    assert done.returncode == code, done.stdout + done.stderr
    if code == 0:
        run = manifest(tmp_path / "out")
        assert "gpu-shared" in {finding["code"] for finding in run["findings"]}
        assert run["companions"]["exclusive"]["gpus"][0]["foreign_before"][0]["pid"] == os.getpid()
    else:
        assert "--require-exclusive" in done.stderr
        assert not (tmp_path / "out" / "manifest.json").exists()
