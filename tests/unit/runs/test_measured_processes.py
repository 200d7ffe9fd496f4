"""Which processes of a tree are measured, what their folders are called, and what of a shared trace each has."""

from __future__ import annotations

import json
import math
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

import perfharness
from perfharness.boot.ranks import LIBRARIES, SOURCES, outer_rank, rank_facts, ranks_here
from perfharness.cli.main import run as run_cli
from perfharness.model.environment import OUTER_RANK
from perfharness.model.manifest import MeasuredProcess, RunManifest, TracerRecord
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


def arranged(run_dir: Path) -> list[MeasuredProcess]:
    """The measured processes of a run whose launcher was killed before it looked for them."""
    record = process(0, pid=LAUNCHED, ended="cut_off", trace=None)
    manifest = manifest_of(record, complete=False, warmup_batches=0, tracer=TracerRecord(kind="nsys"))
    (run_dir / "manifest.json").write_text(manifest.model_dump_json())
    perfharness.analyze(run_dir)
    return RunManifest.model_validate_json((run_dir / "manifest.json").read_text()).processes[0].measured


def listed(run_dir: Path) -> list[tuple[str, int, int | None]]:
    return [(one.folder.removeprefix(FOLDER), one.pid, one.rank) for one in arranged(run_dir)]


def result(run_dir: Path, name: str) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((run_dir / FOLDER / name / "benchmark.json").read_text())
    return tree


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
    shared_trace(folder, {20: [(0, 1), (2, 3)], 21: [(0, 1), (2, 3)], 31: [(1, 2)], 41: [(1, 2)]})
    expected = [("/rank_0", 20, 0), ("/rank_1", 21, 1), ("/child_0", 41, None), ("/child_1", 31, None)]
    assert listed(tmp_path) == expected
    measured = arranged(tmp_path)  # again, of what is arranged
    assert [one.pid for one in measured] == [pid for _, pid, _ in expected]
    first = measured[0]
    assert (first.world_size, first.local_rank, first.rank_source, first.parent_pid) == (2, 0, "RANK", LAUNCHED)
    assert {one.trace for one in measured} == {"trace.sqlite"}
    for one in measured:
        assert json.loads((tmp_path / one.folder / "recorder.json").read_text())["pid"] == one.pid


def test_itself_comes_first_and_nothing_measured_is_itself(tmp_path: Path) -> None:
    shared_trace(tmp_path / FOLDER, {22: [(0, 1)], LAUNCHED: [(5, 6)], 21: [(1, 2)]})
    assert listed(tmp_path) == [("", LAUNCHED, None), ("/child_0", 22, None), ("/child_1", 21, None)]
    assert [one.started_ns for one in arranged(tmp_path)] == [UTC + 5 * MS, UTC, UTC + MS]
    shared_trace(tmp_path / "other" / FOLDER, {})
    assert listed(tmp_path / "other") == [("", LAUNCHED, None)]


def test_workers_of_a_rank_that_measured_nothing_are_no_ranks(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    for pid in (31, 32):
        journal(folder, f"recorder_{pid}.json", pid, 1, [20, LAUNCHED], rank=rank(0))
    journal(folder, "recorder_33.json", 33, 1, [21, LAUNCHED], rank=rank(1))
    assert listed(tmp_path) == [("/rank_1", 33, 1), ("/child_0", 31, None), ("/child_1", 32, None)]


def test_children_in_the_order_of_their_start(tmp_path: Path) -> None:
    for pid, stamp in {21: 9, 22: 3, 23: 1, 24: 3}.items():
        journal(tmp_path / FOLDER, f"recorder_{pid}.json", pid, 1, [LAUNCHED], started_unix_ns=UTC + stamp)
    for _ in range(2):
        assert [pid for _, pid, _ in listed(tmp_path)] == [23, 22, 24, 21]


def test_one_process_with_another_pid_in_its_container(tmp_path: Path) -> None:
    journal(tmp_path / FOLDER, "recorder.json", 7, 1, [1])
    shared_trace(tmp_path / FOLDER, {4711: [(0, 1)]})
    assert listed(tmp_path) == [("/child_0", 7, None)]
    found = result(tmp_path, "child_0")
    assert found["mean_data"]["toy"]["batch"]["batches"] == 1
    assert not [one for one in found["meta"]["findings"] if one["code"].startswith("trace-missing")]


def test_ranges_that_were_counted_and_are_nowhere(tmp_path: Path) -> None:
    """The process is listed all the same, and what it lacks is an error of its own."""
    journal(tmp_path / FOLDER, "recorder_21.json", 21, 5, [LAUNCHED])
    shared_trace(tmp_path / FOLDER, {LAUNCHED: [(0, 1)]})
    assert listed(tmp_path) == [("", LAUNCHED, None), ("/child_0", 21, None)]
    codes = {name: {one["code"] for one in result(tmp_path, name)["meta"]["findings"]} for name in ("", "child_0")}
    assert "trace-missing-ranges" in codes["child_0"]
    assert "trace-missing-ranges" not in codes[""]


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
    (tmp_path / FOLDER).mkdir()
    builder.write(tmp_path / FOLDER / "trace.sqlite")
    assert [(one.pid, one.started_ns) for one in arranged(tmp_path)] == [(24, UTC + 20), (20, UTC + 60)]


# ---- a shared trace ----


def test_each_process_has_its_rows_and_its_own_end(tmp_path: Path) -> None:
    """Pid 21 was killed in its second batch, long before the others were done."""
    shared_trace(tmp_path / FOLDER, {20: [(0, 10), (10, 90)], 21: [(0, 4), (5, None)]})
    assert listed(tmp_path) == [("/child_0", 20, None), ("/child_1", 21, None)]
    times = [result(tmp_path, name)["mean_data"]["toy"]["batch"]["cpu_time"] for name in ("child_0", "child_1")]
    assert times == [45.0, 4.0]
    mean = json.loads((tmp_path / "benchmark_mean.json").read_text())
    assert mean["stats_minus_warmup"]["toy"]["batch"]["cpu_time"]["count"] == 3
    run = perfharness.open_run(tmp_path)
    assert [(one.name, one.measured and one.measured.pid) for one in run.processes] == [
        (f"{FOLDER}/child_0", 20), (f"{FOLDER}/child_1", 21),
    ]  # fmt: skip
    assert run.ranges()["pid"].to_pylist() == [20, 20, 21, 21]
    assert perfharness.open_run(tmp_path / FOLDER / "child_1").ranges()["pid"].to_pylist() == [21, 21]
    assert perfharness.open_run(tmp_path / FOLDER).ranges().num_rows == 4
    written = result(tmp_path, "child_1")["meta"]
    assert (written["process"]["pid"], written["process"]["rank"]) == (21, None)
    assert written["sources"]["trace"] == "../trace.sqlite"


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
def test_a_manifest_leads_nowhere_else(tmp_path: Path, changes: dict[str, str]) -> None:
    one = {"folder": f"{FOLDER}/child_0", "launched_index": 0, "pid": 1, "trace": "child_0/trace.sqlite"}
    tree = json.loads(manifest_of(process(0)).model_dump_json())
    tree["processes"][0]["measured"] = [{**one, **changes}]
    (tmp_path / "manifest.json").write_text(json.dumps(tree))
    assert run_cli(["analyze", str(tmp_path)]) == 1


# ---- what a process says of itself ----


@pytest.mark.parametrize(
    ("environment", "facts"),
    [
        ({}, None),
        ({"RANK": "first"}, None),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, (3, 1, 8, "RANK")),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, (0, None, 2, "OMPI_COMM_WORLD_RANK")),
    ],
)
def test_the_rank_of_a_process(environment: dict[str, str], facts: tuple[Any, ...] | None) -> None:
    keys = ("rank", "local_rank", "world_size", "source")
    assert rank_facts(environment) == (None if facts is None else dict(zip(keys, facts, strict=True)))


@pytest.mark.parametrize(
    ("value", "is_good"),
    [
        ([1 << 63], False),
        ([-(1 << 63) - 1], False),
        ({"a": [math.inf]}, False),
        ([{"a": math.nan}], False),
        ([(1 << 63) - 1, -(1 << 63), 0.5, True, None, "x", {"a": [{}]}], True),
    ],
)
def test_numbers_of_a_manifest_are_finite(value: Any, is_good: bool) -> None:
    with nullcontext() if is_good else pytest.raises(ValidationError, match="must"):
        manifest_of(companions={"one": {"two": value}})


@pytest.mark.parametrize(
    ("source", "variable"),
    [
        ("RANK", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "MPI_LOCALNRANKS"),
    ],
)
def test_how_many_ranks_are_on_this_host(source: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"source": source, "world_size": 8}
    assert ranks_here(facts) == 8
    monkeypatch.setenv(variable, "3")
    assert (ranks_here(facts), ranks_here({**facts, "source": "SLURM_PROCID"})) == (3, 8)


def in_group(rank: int, world_size: int) -> SimpleNamespace:
    """A library whose functions answer as in a group of so many."""
    world = SimpleNamespace(Get_rank=lambda: rank, Get_size=lambda: world_size)
    return SimpleNamespace(
        is_initialized=lambda: True,
        get_rank=lambda: rank,
        get_world_size=lambda: world_size,
        Is_initialized=lambda: True,
        Is_finalized=lambda: False,
        COMM_WORLD=world,
    )


OUTSIDE = SimpleNamespace(is_initialized=lambda: False, Is_initialized=lambda: True, Is_finalized=lambda: True)
"""The same, outside of a group."""


@pytest.mark.parametrize("library", ["torch.distributed", "mpi4py.MPI"])
@pytest.mark.parametrize(
    ("module", "facts"),
    [(in_group(1, 2), (1, None, 2)), (in_group(0, 1), None), (OUTSIDE, None), (SimpleNamespace(), None)],
    ids=["of two", "alone", "outside of a group", "being imported"],
)
def test_the_rank_that_a_library_has(
    monkeypatch: pytest.MonkeyPatch, library: str, module: Any, facts: tuple[Any, ...] | None
) -> None:
    for source in SOURCES:
        monkeypatch.delenv(source[0], raising=False)
    for name in LIBRARIES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, library, module)
    keys = ("rank", "local_rank", "world_size", "source")
    assert rank_facts() == (None if facts is None else dict(zip(keys, (*facts, library), strict=True)))
    assert rank_facts({}) is None


def test_the_rank_of_the_launch_itself_is_none_of_its_processes() -> None:
    """In a Slurm step everything has a rank; ranks of a further step, or of a torchrun in it, differ."""
    outer = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "7"}
    inside = {**outer, OUTER_RANK: outer_rank(outer)}
    assert rank_facts(inside) is None
    assert rank_facts({**inside, "SLURM_STEP_ID": "8"}) is not None
    found = rank_facts({**inside, "RANK": "0", "WORLD_SIZE": "2"})
    assert found is not None
    assert found["source"] == "RANK"
