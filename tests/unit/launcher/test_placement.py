"""Which CPUs a process gets: from machines drawn by hand, and with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfharness.errors import UsageError
from perfharness.model.manifest import GpuRecord
from perfharness_launcher.plan.options import CpuBind
from perfharness_launcher.plan.placement import (
    CpuTopology,
    GpuLocality,
    Placed,
    gpu_localities,
    parse_cpu_list,
    place,
    read_topology,
)
from perfharness_launcher.process import Placement, cpu_list
from tests.integration.launches import environment, manifest, run_to_the_end
from tests.support.nvml_cards import error, gpu_uuid, h100_machine, mig_uuid
from tests.support.nvml_record import device
from tests.support.replayed_nvml import ReplayedNvml

GPU_0, GPU_1 = GpuRecord(index=0, uuid="GPU-a"), GpuRecord(index=1, uuid="GPU-b")


def cpus(text: str) -> frozenset[int]:
    return parse_cpu_list(text)


def two_sockets(allowed: str = "0-31") -> CpuTopology:
    """Two nodes of eight cores with two threads each: core n is CPUs n and n + 16; node 1 begins at core 8."""
    usable = cpus(allowed)
    pairs = [tuple(sorted({n, n + 16} & usable)) for n in range(16)]
    return CpuTopology(
        allowed=usable,
        online=cpus("0-31"),
        cores=tuple(pair for pair in pairs if pair),
        nodes={0: cpus("0-7,16-23"), 1: cpus("8-15,24-31")},
    )


NEAR = {
    "GPU-a": GpuLocality(cpus("0-7,16-23"), "NVML"),
    "GPU-b": GpuLocality(cpus("8-15,24-31"), "NVML"),
}


A, B = (GPU_0,), (GPU_1,)
GPU_2 = GpuRecord(index=2, uuid="GPU-c")
ALL_NEAR = {**NEAR, "GPU-c": NEAR["GPU-a"]}


def shown(placed: Placed) -> list[str]:
    return [cpu_list(one.cpus) for one in placed.placements]


@given(st.sets(st.integers(0, 200)))
def test_a_list_of_cpus_is_written_and_read(numbers: set[int]) -> None:
    assert parse_cpu_list(cpu_list(numbers)) == numbers


@pytest.mark.parametrize("text", ["", "none", "3-", "-1", "a-b"])
def test_what_is_no_list_of_cpus_is_empty(text: str) -> None:
    assert parse_cpu_list(text) == (frozenset() if text != "3-" else frozenset({3}))


@pytest.mark.parametrize(
    ("bind", "groups", "allowed", "near", "expected"),
    [
        ("numa", [A, B, B], "0-31", NEAR, ["0-7,16-23", "8-15,24-31", "8-15,24-31"]),
        ("auto", [A, B], "0-31", NEAR, ["0-7,16-23", "8-15,24-31"]),
        ("numa", [B], "0-3,8-9,16-17", NEAR, ["8-9"]),  # a cgroup: cores 0 and 1 whole, halves of 2, 3, 8 and 9
        # processes of two GPUs, on one socket and on both
        ("numa", [(GPU_0, GPU_2), (GPU_0, GPU_1)], "0-31", ALL_NEAR, ["0-7,16-23", "0-31"]),
    ],
)
def test_which_cpus_each_process_gets(
    bind: CpuBind, groups: list[tuple[GpuRecord, ...]], allowed: str, near: dict[str, GpuLocality], expected: list[str]
) -> None:
    assert shown(place(groups, bind, two_sockets(allowed), near)) == expected


@pytest.mark.parametrize(
    ("groups", "topology", "near", "reason"),
    [
        ([()], two_sockets(), {}, "no GPU"),
        (
            [A],
            CpuTopology(cpus("0-3"), cpus("0-3"), ((0,), (1,), (2,), (3,)), {0: cpus("0-3")}),
            NEAR,
            "one memory",
        ),
        ([A], two_sockets(), {"GPU-a": GpuLocality(problem="no driver")}, "no driver"),
        ([B], two_sockets("0-15"), {**NEAR, "GPU-b": GpuLocality(cpus("24-31"), "NVML")}, "may be used"),
        ([B], two_sockets("0-8"), NEAR, "1 cores"),
        ([A], None, NEAR, "not known"),
    ],
)
def test_by_default_nothing_is_bound_where_it_may_do_harm(
    groups: list[tuple[GpuRecord, ...]], topology: CpuTopology | None, near: dict[str, GpuLocality], reason: str
) -> None:
    placed = place(groups, "auto", topology, near)
    assert placed.placements == (Placement(),)
    assert reason in placed.reason


def test_numa_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(UsageError, match="no GPU"):
        place([()], "numa", two_sockets(), {})


# ---- what a machine tells ----


def machine(tmp_path: Path) -> Path:
    """The files of `two_sockets`."""
    files = {"sys/devices/system/cpu/online": "0-31", "proc/self/status": "Name:\tx\nMems_allowed_list:\t0-1\n"}
    for cpu in range(32):
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"] = f"{cpu % 16},{cpu % 16 + 16}"
    files["sys/devices/system/node/node0/cpulist"] = "0-7,16-23"
    files["sys/devices/system/node/node1/cpulist"] = "8-15,24-31"
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return tmp_path


def test_the_topology_is_read(tmp_path: Path) -> None:
    assert read_topology(machine(tmp_path), range(32)) == two_sockets()
    assert read_topology(machine(tmp_path), parse_cpu_list("0-3,16-17")) == two_sockets("0-3,16-17")


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    topology = read_topology(tmp_path, {0, 1})
    assert topology.cores == ((0,), (1,))
    assert topology.nodes == {}


def near_of(record: Any, uuid: str) -> GpuLocality:
    return gpu_localities([uuid], two_sockets(), nvml=ReplayedNvml(record))[uuid]


def test_nvml_tells_what_is_near() -> None:
    record = h100_machine(2, mig_instances={1: 1})
    assert near_of(record, gpu_uuid(0)) == GpuLocality(cpus("0-15"), "NVML")
    assert near_of(record, mig_uuid(1, 0)).cpus, "a MIG instance is where its GPU is"
    assert near_of(record, "GPU-none").problem


def test_a_gpu_whose_cpus_nvml_does_not_tell() -> None:
    record = h100_machine()
    error(record, "nvmlDeviceGetCpuAffinity", device(gpu_uuid(0)), code=pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert near_of(record, gpu_uuid(0)).problem


# ---- real processes ----

TELL = """
import json, os, psutil
print(json.dumps({"cpus": psutil.Process().cpu_affinity()}))
"""


def launched(tmp_path: Path, *options: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    script, out = tmp_path / "tell.py", tmp_path / "out"
    script.write_text(TELL)
    done = run_to_the_end(("-np", 2, "-o", out, *options, script), environment())
    assert (out / "manifest.json").exists(), done.stdout + done.stderr
    return [json.loads((out / f"proc_{n}_gpu_0" / "stdout.log").read_text()) for n in range(2)], manifest(out)


PLACED = """
import dataclasses, sys
from perfharness.runs.launch import plan_launches, run_plan
from perfharness_launcher.plan.options import launch_options
from perfharness_launcher.process import Placement
from perfharness_launcher.supervise import Observer

cpu, out, script = sys.argv[1:]
options = launch_options(script, (), {"tracer": "none", "output_dir": out, "telemetry": False})
(plan,) = plan_launches([options])
placed = [dataclasses.replace(spec, placement=Placement((int(cpu),), "test")) for spec in plan.processes]
run_plan(dataclasses.replace(plan, processes=tuple(placed)), ["perfharness"], Observer())
"""
"""A launch whose process is bound to one CPU, as on a machine where only that one is near the GPU."""


@pytest.mark.skipif(len(read_topology().allowed) < 2, reason="needs two CPUs")
def test_the_measured_process_itself_is_bound(tmp_path: Path) -> None:
    script, out, cpu = tmp_path / "tell.py", tmp_path / "out", max(read_topology().allowed)
    script.write_text(TELL)
    subprocess.run([sys.executable, "-c", PLACED, str(cpu), str(out), str(script)], env=environment(), check=True)
    assert json.loads((out / "proc_0_gpu_0" / "stdout.log").read_text())["cpus"] == [cpu]
    record = manifest(out)["processes"][0]["placement"]
    assert (record["cpus"], record["bound"], record["problems"]) == (str(cpu), True, [])


def test_left_alone_it_runs_where_the_launcher_runs(tmp_path: Path) -> None:
    told, run = launched(tmp_path, "--tracer", "none")
    assert told[0]["cpus"] == psutil.Process().cpu_affinity()
    assert run["processes"][0]["placement"]["bound"] is False
    assert run["placement_reason"]
