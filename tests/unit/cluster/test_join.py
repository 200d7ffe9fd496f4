"""Made-up runs of two nodes, joined by hand: GPUs and findings name their node; a killed launcher's run joins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfharness.cli.main import run
from perfharness.model.findings import Finding, Severity
from perfharness.model.manifest import EnvironmentRecord, GpuRecord, NodeRecord
from tests.schemas import valid
from tests.unit.charts import report_charts
from tests.unit.made_up_run import MadeUpRun

HOSTS = {0: "gpu-host-a", 1: "gpu-host-b"}


def write_node(folder: Path, rank: int, **changes: Any) -> Path:
    """One process on GPU 0 of a node, whose clocks are throttled for 3 s."""
    folder.mkdir()
    uuid = f"GPU-{rank}"
    made = MadeUpRun(folder, (("proc_0_gpu_0", uuid),))
    made.sample(uuid, throttled_s=(9.0, 12.0))
    made.write(
        environment=EnvironmentRecord(hostname=HOSTS[rank], gpus=[GpuRecord(index=0, uuid=uuid)]),
        node=NodeRecord(rank=rank, count=2, launch="one", clock_offset_ns=7_000 * rank, clock_error_ns=900 * rank),
        findings=[Finding("clocks-refused", Severity.WARNING, "GPU 0: clocks not changed.")],
        **changes,
    )
    return folder


def joined(*parts: Path) -> Any:
    out = parts[0].with_name("joined")
    assert run(["analyze", *map(str, parts), "-o", str(out), "-q"]) in (0, 3)
    for process in out.glob("proc_*"):
        valid("benchmark", process / "benchmark.json")
    return valid("benchmark_mean", out / "benchmark_mean.json")


def messages(mean: Any, code: str) -> list[str]:
    return [one["message"] for one in mean["meta"]["findings"] if one["code"] == code]


def test_gpus_of_several_nodes_name_their_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mean = joined(*(write_node(tmp_path / f"node_{rank}", rank) for rank in HOSTS))
    gpus = [(one["uuid"], one["gpu_index"], one["node"], one["host"]) for one in mean["gpu_metrics"]["gpus"]]
    assert gpus == [("GPU-0", 0, 0, HOSTS[0]), ("GPU-1", 0, 1, HOSTS[1])]
    assert [(one["uuid"], one["node"]) for one in mean["energy"]["gpus"]] == [("GPU-0", 0), ("GPU-1", 1)]
    names = [f"GPU 0 of node {rank} ({host})" for rank, host in HOSTS.items()]
    assert [one.partition(":")[0] for one in messages(mean, "clocks-throttled")] == names
    assert [one.partition(":")[0] for one in messages(mean, "clocks-refused")] == [
        f"On node {rank} ({host})" for rank, host in HOSTS.items()
    ]
    capsys.readouterr()
    assert run(["analyze", str(tmp_path / "joined")]) == 0
    printed = capsys.readouterr().out
    assert all(f"{name}: " in printed for name in names)
    for options, is_shown in (((), True), (("--anonymous",), False)):
        report = tmp_path / "report.md"
        assert run(["report", str(tmp_path / "joined"), *options, "-o", str(report)]) == 0
        assert (HOSTS[1] in report.read_text()) is is_shown
    assert {"telemetry_gpu_0_0", "telemetry_gpu_0_node_1_0"} <= set(report_charts(tmp_path / "joined"))


def test_the_gpus_of_one_machine_name_no_node(tmp_path: Path) -> None:
    made = MadeUpRun(tmp_path, (("proc_0_gpu_0", "GPU-1"),))
    made.sample("GPU-1", throttled_s=(9.0, 12.0))
    made.write()
    assert run(["analyze", str(tmp_path), "-q"]) == 0
    mean = json.loads((tmp_path / "benchmark_mean.json").read_text())
    (gpu,) = mean["gpu_metrics"]["gpus"]
    assert (gpu["node"], gpu["host"], mean["energy"]["gpus"][0]["node"]) == (None, None, None)
    assert messages(mean, "clocks-throttled")[0].startswith("GPU 0: ")


@pytest.mark.parametrize("killed", HOSTS)
def test_the_run_of_a_killed_launcher_is_joined(tmp_path: Path, killed: int) -> None:
    parts = [write_node(tmp_path / f"node_{rank}", rank, complete=rank != killed) for rank in HOSTS]
    mean = joined(*parts)
    (message,) = messages(mean, "run-cut-off")
    assert message.startswith(f"On node {killed} ({HOSTS[killed]}): ")
    assert mean["meta"]["processes"] == ["proc_0_gpu_0", "proc_1_gpu_0"]
    assert not messages(mean, "node-missing")
    assert run(["analyze", str(tmp_path / "joined"), "-q"]) == 3
    assert len(messages(json.loads((tmp_path / "joined" / "benchmark_mean.json").read_text()), "run-cut-off")) == 1
