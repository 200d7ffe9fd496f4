"""Who else is on the GPU: before the run, during it, and where pids mean something else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pynvml
import pytest

from perfharness.errors import LaunchError
from perfharness.model.findings import Finding
from perfharness.model.manifest import GpuRecord
from perfharness.telemetry.nvml import open_nvml
from perfharness_launcher.companions.exclusive import LISTS, ExclusiveGpus, ProcessView, view_of_run
from perfharness_launcher.conditions import Run
from perfharness_launcher.processes.orphans import RUN_ID_VARIABLE
from tests.integration.launches import environment, manifest, run_to_the_end
from tests.support.nvml_cards import error, gpu_uuid, h100_machine, value
from tests.support.nvml_record import NvmlRecord, device
from tests.support.replayed_nvml import ReplayedNvml, replay_environment

COMPUTE, GRAPHICS, MPS = LISTS
OURS, FOREIGN, GONE, MPS_SERVER = 100, 200, 300, 400


class Machine:
    """An H100 whose processes the test moves, and what /proc tells of them."""

    def __init__(self) -> None:
        self.record = h100_machine()
        self.gpu = device(gpu_uuid(0))
        value(self.record, "nvmlDeviceGetUtilizationRates", self.gpu, result={"struct": {"gpu": 0, "memory": 0}})
        self.put(COMPUTE)
        self.put(GRAPHICS)
        self.put(MPS)
        self.belongs: dict[int, bool | None] = {OURS: True, FOREIGN: False, GONE: None}
        self.sees_all = True
        self.names = {OURS: "python", FOREIGN: "train.py", MPS_SERVER: "nvidia-cuda-mps-server"}

    def put(self, function: str, *pids: int) -> None:
        users = [{"struct": {"pid": pid, "usedGpuMemory": 64 << 20}} for pid in pids]
        value(self.record, function, self.gpu, result=users)

    def companion(self, *, required: bool = False) -> ExclusiveGpus:
        return ExclusiveGpus(required=required, nvml=ReplayedNvml(self.record), view=self.view(), period_s=60)

    def view(self) -> ProcessView:
        return ProcessView(self.belongs.get, self.sees_all, self.names.get)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def context(tmp_path: Path) -> Run:
    return Run(tmp_path, "run-1", (GpuRecord(index=0, uuid=gpu_uuid(0)),))


def seen(machine: Machine, context: Run, *looks: Callable[[], None], **options: Any) -> list[Finding]:
    """Findings after a start and so many looks, the machine changed before each."""
    companion = machine.companion(**options)
    context = replace(context, findings=[])
    companion.start(context)
    assert companion._thread is not None
    for change in looks:
        change()
        with open_nvml(ReplayedNvml(machine.record)) as nvml:
            companion.poll(nvml, companion._watched[0])
    companion.stop(context)
    return context.findings


@pytest.mark.parametrize(
    ("before", "looks", "options", "expected"),
    [
        ({}, [{COMPUTE: [OURS]}], {}, []),
        *(
            (
                {function: [FOREIGN]},
                [{COMPUTE: [OURS, FOREIGN]}],
                {},
                [("warning", "200 (train.py, ")],
            )
            for function in LISTS
        ),
        ({}, [{COMPUTE: [OURS, FOREIGN]}, {COMPUTE: [OURS]}], {}, [("warning", " 200")]),
        ({}, [{COMPUTE: [OURS, FOREIGN]}], {"required": True}, [("error", " 200")]),
        ({COMPUTE: [MPS_SERVER]}, [], {}, []),  # it is nobody, and its clients are
        ({COMPUTE: [MPS_SERVER], MPS: [FOREIGN]}, [], {}, [("warning", " 200")]),
        ({}, [{COMPUTE: [GONE]}, {COMPUTE: []}], {}, []),  # it ended between two polls
        ({}, [{COMPUTE: [GONE]}, {COMPUTE: [GONE]}], {}, [("warning", " 300")]),  # not in /proc
    ],
)
def test_who_else_was_there(
    machine: Machine,
    context: Run,
    before: dict[str, list[int]],
    looks: list[dict[str, list[int]]],
    options: dict[str, Any],
    expected: list[tuple[str, str]],
) -> None:
    def put(users: dict[str, list[int]]) -> None:
        for function, pids in users.items():
            machine.put(function, *pids)

    put(before)
    found = seen(machine, context, *(partial(put, users) for users in looks), **options)
    assert [(finding.code, finding.severity.value) for finding in found] == [
        ("gpu-shared", severity) for severity, _ in expected
    ]
    assert all(words in finding.message for finding, (_, words) in zip(found, expected, strict=True))


def test_required_a_used_gpu_ends_the_launch(machine: Machine, context: Run) -> None:
    machine.put(COMPUTE, FOREIGN)
    companion = machine.companion(required=True)
    with pytest.raises(LaunchError, match=r"--require-exclusive.* 200"):
        companion.start(context)


def test_pids_of_the_host_in_a_container(machine: Machine, context: Run) -> None:
    machine.sees_all = False
    (finding,) = seen(machine, context, lambda: machine.put(COMPUTE, 70001))
    assert (finding.code, finding.severity.value) == ("gpu-sharing-unknown", "note")
    machine.put(COMPUTE, 70003)
    found = seen(machine, context, lambda: machine.put(COMPUTE, 70003, 70001))
    assert [finding.code for finding in found] == ["gpu-shared", "gpu-sharing-unknown"], "70003 was there before us"


def test_life_without_a_process(machine: Machine, context: Run) -> None:
    value(machine.record, "nvmlDeviceGetUtilizationRates", machine.gpu, result={"struct": {"gpu": 37, "memory": 5}})
    used = {"struct": {"used": 3 << 30}}
    value(machine.record, "nvmlDeviceGetMemoryInfo", machine.gpu, int(pynvml.nvmlMemory_v2), result=used)
    (finding,) = seen(machine, context)
    assert finding.code == "gpu-in-use-before"
    assert "37 %" in finding.message
    assert "3072 MiB" in finding.message


def test_what_cannot_be_asked_is_not_taken_for_free(machine: Machine, context: Run) -> None:
    error(machine.record, COMPUTE, machine.gpu, code=pynvml.NVML_ERROR_NO_PERMISSION)
    (finding,) = seen(machine, context)
    assert finding.code == "gpu-sharing-unknown"
    with pytest.raises(LaunchError):
        machine.companion(required=True).start(context)


def test_whose_a_process_is_stands_in_its_environment() -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, RUN_ID_VARIABLE: "run-1"}) as process:
        view = view_of_run("run-1")
        while view.belongs(process.pid) is False:  # until it has become another program
            pass
        assert view.belongs(process.pid) is True
        assert view_of_run("run-2").belongs(process.pid) is False
        process.communicate(b"\n")
    assert view.belongs(process.pid) is None


@pytest.fixture
def busy_machine(tmp_path: Path) -> NvmlRecord:
    machine = Machine()
    machine.put(COMPUTE, os.getpid())  # this very process, which is not of the run
    machine.record.write(tmp_path / "nvml.json")
    return machine.record


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--require-exclusive"], 1)])
def test_a_launch_says_so(busy_machine: NvmlRecord, tmp_path: Path, options: list[str], code: int) -> None:
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
