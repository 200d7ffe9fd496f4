"""Which processes of a tree are measured, what their folders are called, and what of a shared trace each has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import perfharness
from perfharness.boot.ranks import ancestors, outer_rank, rank_facts
from perfharness.cli.main import run as run_cli
from perfharness.model.environment import OUTER_RANK
from perfharness.model.manifest import ProcessRecord
from perfharness.runs.files.run_folder import analyze_run, read_manifest
from perfharness.trace.processes import find_processes
from perfharness_launcher.children import unfollowed, with_measured
from tests.support.trace_builder import TraceBuilder
from tests.unit.run_records import manifest_of, process

MS = 1_000_000
UTC = 1_700_000_000_000_000_000
FOLDER = "proc_0_gpu_0"
LAUNCHED = 10


def journal(folder: Path, name: str, pid: int, ranges: int, above: list[int], **more: Any) -> None:
    recorder = {"name": "toy", "domain": "perfharness", "ranges": ranges, "batches": 0, "items": 0, "finalized": True}
    content = {"schema_version": 1, "pid": pid, "parent_pid": above[0], "ancestors": above, "ended": "exit"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({**content, "recorders": [recorder], **more}))


def rank(number: int, of: int = 2) -> dict[str, Any]:
    return {"rank": number, "local_rank": number, "world_size": of, "source": "RANK"}


def shared_trace(folder: Path, ranges: dict[int, list[tuple[int, int | None]]]) -> None:
    """As nsys writes it: the ranges of several pids, ms, with their recorder's declaration."""
    builder = TraceBuilder()
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC)
    for pid, spans in ranges.items():
        builder.mark("perfharness.recorder", 0, pid=pid, tid=pid, domain="perfharness", category="toy")
        for index, (start, end) in enumerate(spans):
            builder.range(
                "batch", start * MS, None if end is None else end * MS, pid=pid, tid=pid, domain="perfharness",
                category="toy", payload=index,
            )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    builder.write(folder / "trace.sqlite")


def listed(record: ProcessRecord) -> list[tuple[str, int, int | None]]:
    return [(one.folder.removeprefix(FOLDER), one.pid, one.rank) for one in record.measured]


def launched(**changes: Any) -> ProcessRecord:
    return process(0, pid=LAUNCHED, **changes)


def arranged(run_dir: Path, **changes: Any) -> ProcessRecord:
    return with_measured(run_dir, launched(**changes), share_trace=True)


# ---- which, and under what name ----


def test_ranks_and_their_workers(tmp_path: Path) -> None:
    """A launcher that measured nothing, two ranks that started in the other order, and a worker of each: one above
    which stands a process that left nothing (a fork server).
    """
    folder = tmp_path / FOLDER
    journal(folder, "recorder.json", 21, 2, [LAUNCHED, 1], rank=rank(1), started_unix_ns=UTC)
    journal(folder, "recorder_20.json", 20, 2, [LAUNCHED, 1], rank=rank(0), started_unix_ns=UTC + 1)
    journal(folder, "recorder_31.json", 31, 1, [30, 20, LAUNCHED, 1], rank=rank(0), started_unix_ns=UTC + 9)
    journal(folder, "recorder_41.json", 41, 1, [21, LAUNCHED, 1], rank=rank(1), started_unix_ns=UTC + 8)
    journal(folder, "recorder_51.json", 51, 0, [21, LAUNCHED, 1], rank=rank(1), started_unix_ns=UTC + 7)
    spans = {20: [(0, 1), (2, 3)], 21: [(0, 1), (2, 3)], 31: [(1, 2)], 41: [(1, 2)]}
    shared_trace(folder, {pid: list(found) for pid, found in spans.items()})
    record = arranged(tmp_path)
    assert listed(record) == [("/rank_0", 20, 0), ("/rank_1", 21, 1), ("/child_0", 41, None), ("/child_1", 31, None)]
    first = record.measured[0]
    assert (first.world_size, first.local_rank, first.rank_source, first.parent_pid) == (2, 0, "RANK", LAUNCHED)
    assert {one.trace for one in record.measured} == {"trace.sqlite"}
    for one in record.measured:
        assert json.loads((tmp_path / one.folder / "recorder.json").read_text())["pid"] == one.pid
    assert arranged(tmp_path) == record  # again, of what is arranged
    assert ProcessRecord.model_validate_json(record.model_dump_json()) == record


def test_itself_comes_first_and_nothing_measured_is_itself(tmp_path: Path) -> None:
    shared_trace(tmp_path / FOLDER, {22: [(0, 1)], LAUNCHED: [(5, 6)], 21: [(1, 2)]})
    record = arranged(tmp_path)
    assert listed(record) == [("", LAUNCHED, None), ("/child_0", 22, None), ("/child_1", 21, None)]
    assert [one.started_ns for one in record.measured] == [UTC + 5 * MS, UTC, UTC + MS]
    shared_trace(tmp_path / "other" / FOLDER, {})
    assert listed(arranged(tmp_path / "other")) == [("", LAUNCHED, None)]


def test_workers_of_a_rank_that_measured_nothing_are_no_ranks(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    for pid in (31, 32):
        journal(folder, f"recorder_{pid}.json", pid, 1, [20, LAUNCHED], rank=rank(0))
    journal(folder, "recorder_33.json", 33, 1, [21, LAUNCHED], rank=rank(1))
    record = arranged(tmp_path, trace=None)
    assert listed(record) == [("/rank_1", 33, 1), ("/child_0", 31, None), ("/child_1", 32, None)]


def test_children_in_the_order_of_their_start(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    for pid, stamp in {21: 9, 22: 3, 23: 1, 24: 3}.items():
        journal(folder, f"recorder_{pid}.json", pid, 1, [LAUNCHED], started_unix_ns=UTC + stamp)
    record = arranged(tmp_path, trace=None)
    assert [pid for _, pid, _ in listed(record)] == [23, 22, 24, 21]
    assert arranged(tmp_path, trace=None) == record


def test_one_process_with_another_pid_in_its_container(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    journal(folder, "recorder.json", 7, 1, [1])
    shared_trace(folder, {4711: [(0, 1)]})
    record = arranged(tmp_path)
    assert listed(record) == [("/child_0", 7, None)]
    manifest = manifest_of(record)
    result = analyze_run(tmp_path, manifest).results[f"{FOLDER}/child_0"]
    assert result.mean_data["toy"]["batch"]["batches"] == 1
    assert not [one for one in result.findings if one.code.startswith("trace-missing")]


def test_ranges_that_were_counted_and_are_nowhere(tmp_path: Path) -> None:
    """The process is listed all the same, and what it lacks is an error of its own."""
    folder = tmp_path / FOLDER
    journal(folder, "recorder_21.json", 21, 5, [LAUNCHED])
    shared_trace(folder, {LAUNCHED: [(0, 1)]})
    manifest = manifest_of(arranged(tmp_path), warmup_batches=0)
    assert [one.folder for one in manifest.measured_processes] == [FOLDER, f"{FOLDER}/child_0"]
    findings = analyze_run(tmp_path, manifest).findings
    assert "trace-missing-ranges" in {one.code for one in findings if one.process == f"{FOLDER}/child_0"}
    assert "trace-missing-ranges" not in {one.code for one in findings if one.process == FOLDER}


@pytest.mark.parametrize("tracer", ["embedded", "nsys"])
def test_interpreters_that_could_not_be_followed(tmp_path: Path, tracer: str) -> None:
    for pid in (20, 21):
        (tmp_path / f".unfollowed_{pid}").write_text("this Python cannot import perfharness (no module)")
    (finding,) = unfollowed(tmp_path, FOLDER, tracer)
    assert (finding.code, finding.process) == ("child-not-followed", FOLDER)
    assert finding.message.startswith("2 ")
    assert list(tmp_path.iterdir()) == []


# ---- a shared trace ----


def test_each_process_has_its_rows_and_its_own_end(tmp_path: Path) -> None:
    """Pid 21 was killed in its second batch, long before the others were done."""
    folder = tmp_path / FOLDER
    shared_trace(folder, {20: [(0, 10), (10, 90)], 21: [(0, 4), (5, None)]})
    manifest = manifest_of(arranged(tmp_path), warmup_batches=0)
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json())
    summary = analyze_run(tmp_path, read_manifest(tmp_path))
    assert list(summary.results) == [f"{FOLDER}/child_0", f"{FOLDER}/child_1"]
    times = {name: one.mean_data["toy"]["batch"]["cpu_time"] for name, one in summary.results.items()}
    assert times == {f"{FOLDER}/child_0": 45.0, f"{FOLDER}/child_1": 4.0}
    assert summary.mean["stats_minus_warmup"]["toy"]["batch"]["cpu_time"]["count"] == 3
    run = perfharness.open_run(tmp_path)
    assert [(one.name, one.measured and one.measured.pid) for one in run.processes] == [
        (f"{FOLDER}/child_0", 20), (f"{FOLDER}/child_1", 21),
    ]  # fmt: skip
    assert run.ranges()["pid"].to_pylist() == [20, 20, 21, 21]
    child = perfharness.open_run(tmp_path / FOLDER / "child_1")
    assert child.ranges()["pid"].to_pylist() == [21, 21]
    assert perfharness.open_run(tmp_path / FOLDER).ranges().num_rows == 4
    written = json.loads((tmp_path / FOLDER / "child_1" / "benchmark.json").read_text())["meta"]
    assert (written["process"]["pid"], written["process"]["rank"]) == (21, None)
    assert written["sources"]["trace"] == "../trace.sqlite"
    assert run_cli(["compare", str(tmp_path / FOLDER / "child_0"), str(tmp_path / FOLDER / "child_1")]) == 0


# ---- the manifest ----


@pytest.mark.parametrize(
    "changes",
    [
        {"folder": "proc_1_gpu_0/child_0"},
        {"folder": f"{FOLDER}/child_0/child_0"},
        {"folder": f"{FOLDER}/../x"},
        {"trace": "../trace.sqlite"},
        {"trace": "elsewhere/trace.sqlite"},
        {"trace": "child_0/.hidden"},
    ],
)
def test_a_manifest_leads_nowhere_else(changes: dict[str, str]) -> None:
    one = {"folder": f"{FOLDER}/child_0", "launched_index": 0, "pid": 1, "trace": "child_0/trace.sqlite"}
    with pytest.raises(ValidationError):
        manifest_of(ProcessRecord.model_validate({**launched().model_dump(), "measured": [{**one, **changes}]}))


# ---- what a process says of itself ----


def test_the_rank_of_a_process() -> None:
    assert rank_facts({}) is None
    torch = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
    assert rank_facts(torch) == {"rank": 3, "local_rank": 1, "world_size": 8, "source": "RANK"}
    mpi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    of_mpi = {"rank": 0, "local_rank": None, "world_size": 2, "source": "OMPI_COMM_WORLD_RANK"}
    assert rank_facts(mpi) == of_mpi
    assert rank_facts({"RANK": "first"}) is None


def test_the_rank_of_the_launch_itself_is_none_of_its_processes() -> None:
    """In a Slurm step everything has a rank; ranks of a further step, or of a torchrun in it, differ."""
    outer = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "7"}
    inside = {**outer, OUTER_RANK: outer_rank(outer)}
    assert rank_facts(inside) is None
    assert rank_facts({**inside, "SLURM_STEP_ID": "8"}) is not None
    found = rank_facts({**inside, "RANK": "0", "WORLD_SIZE": "2"})
    assert found is not None
    assert found["source"] == "RANK"


def test_the_processes_above_begin_with_the_parent() -> None:
    above = ancestors()
    assert above[0] == os.getppid()
    assert above[-1] in (0, 1) or len(above) == 1


def test_what_makes_a_process_a_measured_one(tmp_path: Path) -> None:
    """GPU work without a range does; the start-up's ranges, marks and the interpreter lock do not."""
    builder = TraceBuilder()
    builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=UTC)
    builder.kernel((40, 50), (60, 90), pid=20)
    builder.range("load", 0, 10, pid=21, tid=21, domain="perfharness.startup")
    builder.mark("x", 5, pid=22, tid=22)
    builder.range("Holding GIL", 0, 10, pid=23, tid=23, domain="GIL Trace")
    builder.range("stage", 30, 40, pid=24, tid=24)
    builder.range("stage", 20, 40, pid=24, tid=24, domain="mine")
    builder.range("load", 0, 10, pid=24, tid=24, domain="perfharness.startup")
    builder.write(tmp_path / "trace.sqlite")
    found = find_processes(tmp_path / "trace.sqlite")
    assert [(one.pid, one.first_unix_ns) for one in found] == [(24, UTC + 20), (20, UTC + 60)]
