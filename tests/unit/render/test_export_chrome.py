"""The Chrome trace: its schema, the rules that a schema cannot tell, and that it says what the trace says."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.cli.main import run as run_cli
from perfharness.errors import ResultError
from perfharness.render.timeline.chrome import write_chrome_trace
from perfharness.runs.run import open_run
from perfharness.trace import open_trace
from tests.schemas import valid
from tests.support.trace_builder import TraceBuilder
from tests.unit.export_runs import MS, RUN_START, process_record, recorded_trace, run_folder, two_processes

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "traces"
SMALL = ["pipeline", "threads", "graphs", "graphs_node", "cpu", "old_partial", "recorder_nsys_2023_4"]

Event = dict[str, Any]


def export(source: Path, target: Path, **options: Any) -> dict[str, Any]:
    write_chrome_trace(open_run(source, **options), target)
    content: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return content


def ns(microseconds: float) -> int:
    """Nanoseconds; a time in the file is a whole number of them."""
    value = round(microseconds * 1000)
    assert abs(value - microseconds * 1000) < 0.01
    return value


def of_phase(events: list[Event], *phases: str) -> list[Event]:
    return [event for event in events if event["ph"] in phases]


def check_rules(events: list[Event]) -> None:
    """What a viewer relies on beyond the schema."""
    named = {(event["name"], event["pid"], event.get("tid")) for event in of_phase(events, "M")}
    assert len(named) == len(of_phase(events, "M")), "nothing is named twice"
    open_ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    begins: dict[tuple[int, int], set[int]] = defaultdict(set)
    arrows: dict[int, Event] = {}
    ended: set[int] = set()
    for event in events:
        if event["ph"] == "M":
            continue
        assert ("process_name", event["pid"], None) in named
        at, row = ns(event["ts"]), (event["pid"], event.get("tid", 0))
        assert ("thread_name", *row) in named
        if event["ph"] == "X":
            end, stack = at + ns(event["dur"]), open_ends[row]
            assert end >= at
            while stack and stack[-1] <= at:
                stack.pop()
            assert not stack or stack[-1] >= end, f"{event} overlaps what is open on its row"
            stack.append(end)
            begins[row].add(at)
        elif event["ph"] == "s":
            assert event["id"] not in arrows
            assert at in begins[row], "an arrow begins where its call does"
            arrows[event["id"]] = event
        elif event["ph"] == "f":
            start = arrows[event["id"]]
            assert event["id"] not in ended
            ended.add(event["id"])
            assert (start["name"], start["cat"]) == (event["name"], event["cat"])
            assert ns(start["ts"]) <= at
            assert at in begins[row], "an arrow ends where its operation begins"
    assert ended == set(arrows)


# ---- real traces ----


@pytest.mark.parametrize("name", SMALL)
def test_everything_in_the_trace_is_in_the_timeline_to_the_nanosecond(name: str, tmp_path: Path) -> None:
    trace = open_trace(GOLDEN / f"{name}.sqlite")
    content = export(GOLDEN / f"{name}.sqlite", tmp_path / "t.json")
    events = content["traceEvents"]
    valid("chrome_trace", content)
    check_rules(events)
    kinds = np.asarray(["kernel", "memcpy", "memset", "graph"], dtype=object)[trace.operations.kind].tolist()
    expected: Counter[tuple[str, int, int]] = Counter()
    for columns, names in (
        (trace.ranges, ["host"] * len(trace.ranges)), (trace.api, ["cuda_api"] * len(trace.api)),
        (trace.operations, kinds),
    ):  # fmt: skip
        spans = zip(names, columns.start_ns.tolist(), columns.end_ns.tolist(), strict=True)
        expected.update((kind, start, end - start) for kind, start, end in spans)
    host = dict.fromkeys(("range", "stage", "batch"), "host")
    found = Counter(
        (host.get(event["cat"], event["cat"]), ns(event["ts"]), ns(event["dur"])) for event in of_phase(events, "X")
    )
    assert found == expected
    if name not in ("old_partial", "cpu", "recorder_nsys_2023_4"):
        assert len(of_phase(events, "s")) == len(trace.operations), "every operation has its arrow"


# ---- built traces ----


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three batches of a recorder with copies and kernels; one batch of warm-up at each end."""
    folder = tmp_path_factory.mktemp("recorded")
    return export(recorded_trace(folder / "t.sqlite"), folder / "t.json", warmup_batches=1)


def test_what_slices_and_arrows_say(recorded: dict[str, Any]) -> None:
    valid("chrome_trace", recorded)
    assert recorded["otherData"]["time_origin_unix_ns"] == str(RUN_START)
    events = recorded["traceEvents"]
    slices = of_phase(events, "X")
    batches = [event for event in slices if event["name"] == "batch"]
    assert [(event["cat"], event["args"]["batch_index"]) for event in batches] == [("batch", at) for at in range(3)]
    pipeline, kernel, copied = (
        next(event for event in slices if key in (event["name"], event["cat"]))
        for key in ("pipeline", "kernel", "memcpy")
    )
    assert "batch_index" not in pipeline["args"]
    assert isinstance(batches[2]["args"]["range_id"], int)
    assert {**batches[2], "args": {**batches[2]["args"], "range_id": 0}} == {
        "ph": "X", "name": "batch", "cat": "batch", "pid": 100, "tid": 100, "ts": 21000.0, "dur": 9000.0,
        "args": {
            "range_id": 0, "recorder": "toy", "batch_index": 2, "items": 3, "warmup": True, "gpu_us": 3004.0,
            "gpu_busy_us": 8.0,
        },
    }  # fmt: skip
    end = next(event for event in of_phase(events, "f") if event["tid"] == kernel["tid"])
    start = next(event for event in of_phase(events, "s") if event["id"] == end["id"])
    call = next(event for event in events if event.get("cat") == "cuda_api" and event["ts"] == start["ts"])
    assert call["name"] == "cudaLaunchKernel_v7000"
    assert (end["ts"], end["pid"]) == (kernel["ts"], kernel["pid"])
    assert (kernel["name"], kernel["ts"], kernel["dur"]) == ("gemm", 3002.5, 2.5)
    assert kernel["args"] == {
        "correlation_id": call["args"]["correlation_id"], "grid": [12, 2, 1], "block": [128, 1, 1],
        "registers_per_thread": 32, "shared_memory_bytes": 1024,
    }  # fmt: skip
    assert copied["name"] == "copy host to device"
    assert copied["args"] == {
        "correlation_id": copied["args"]["correlation_id"], "bytes": 8000, "gb_per_s": 4.0, "source": "pageable",
        "target": "device",
    }  # fmt: skip


def test_names_that_json_must_escape_and_odd_times(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.range('a "quoted"\n\\ ünïcode \u2028 %s {}', 5, 5, domain="lib")
    builder.range("never closed", 7, None)
    builder.call("cudaFree", 50, 50, result=2)
    builder.kernel((60, 61), (55, 70))  # the GPU's clock says that it began before it was launched
    content = export(builder.write(tmp_path / "t.sqlite"), tmp_path / "t.json")
    valid("chrome_trace", content)
    events = content["traceEvents"]
    check_rules(events)
    slices = {event["name"]: event for event in of_phase(events, "X")}
    assert slices['a "quoted"\n\\ ünïcode \u2028 %s {}']["args"]["recorder"] == "lib"
    assert slices["never closed"]["dur"] == 0.063
    assert slices["cudaFree"]["dur"] == 0
    assert slices["cudaFree"]["args"]["return_value"] == 2
    assert not of_phase(events, "s", "f")
    assert "range-never-closed" in {finding["code"] for finding in content["otherData"]["findings"]}


def test_what_overlaps_gets_rows_of_its_own(tmp_path: Path) -> None:
    """Two asyncio tasks, domains that do not nest, kernels that overlap on a stream."""
    builder = TraceBuilder()
    builder.mark("perfharness.recorder", 0, domain="perfharness", category="toy")
    for lane, (start, end) in enumerate([(0, 100), (50, 150)], start=1):
        builder.range("task", start, end, domain="perfharness", category=f"toy#{lane}", payload=lane, start_end=True)
        builder.range("step", start + 10, end - 10, domain="perfharness", category=f"toy#{lane}", start_end=True)
    builder.range("one", 200, 300, domain="a")
    builder.range("two", 250, 350, domain="b")
    builder.kernel((210, 211), (400, 500))
    builder.kernel((220, 221), (450, 550))
    events = export(builder.write(tmp_path / "t.sqlite"), tmp_path / "t.json")["traceEvents"]
    check_rules(events)
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    placed = [(event["name"], rows[event["tid"]]) for event in of_phase(events, "X") if event["cat"] != "cuda_api"]
    assert placed == [
        ("task", "thread 100, tasks"), ("step", "thread 100, tasks"), ("task", "thread 100, tasks"),
        ("step", "thread 100, tasks"), ("one", "thread 100"), ("two", "thread 100, row 2"), ("kernel", "stream 7"),
        ("kernel", "stream 7, row 2"),
    ]  # fmt: skip
    tasks = [event["tid"] for event in of_phase(events, "X") if event["name"] == "task"]
    assert len(set(tasks)) == 2


def test_rows_nest_whatever_overlaps(tmp_path: Path) -> None:
    chance, builder = random.Random(0), TraceBuilder()
    for number in range(200):
        start = chance.randrange(1000)
        builder.range(f"r{number}", start, start + chance.randrange(60), domain=f"d{number % 3}")
    events = export(builder.write(tmp_path / "t.sqlite"), tmp_path / "t.json")["traceEvents"]
    check_rules(events)
    assert len(of_phase(events, "X")) == 200


def test_gzip_changes_nothing(tmp_path: Path) -> None:
    source = GOLDEN / "graphs.sqlite"
    whole = export(source, tmp_path / "whole.json")
    write_chrome_trace(open_run(source), tmp_path / "t.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes())) == whole


# ---- several processes ----


def first_batches(content: dict[str, Any]) -> dict[int, int]:
    """Start of batch 0, by process."""
    return {
        event["pid"]: ns(event["ts"])
        for event in of_phase(content["traceEvents"], "X")
        if event["cat"] == "batch" and event["args"]["batch_index"] == 0
    }


@pytest.mark.parametrize(("launched", "starts", "origin"), [(True, [3, 6], 0), (False, [1, 4], 2)])
def test_processes_stand_on_one_axis_from_the_launch_or_else_the_first_trace(
    tmp_path: Path, launched: bool, starts: list[int], origin: int
) -> None:
    folder = two_processes(tmp_path / "run")
    if not launched:  # the launcher's times are not known
        run_folder(folder, process_record(0, start_unix_ns=None), process_record(1, start_unix_ns=None))
    content = export(folder, tmp_path / "t.json")
    valid("chrome_trace", content)
    check_rules(content["traceEvents"])
    assert sorted(first_batches(content).values()) == [start * MS for start in starts], "equal ids are told apart"
    assert content["otherData"]["time_origin_unix_ns"] == str(RUN_START + origin * MS)
    names = [event["args"]["name"] for event in content["traceEvents"] if event["name"] == "process_name"]
    assert names == [
        "proc_0_gpu_0 (process 100)", "proc_0_gpu_0, GPU 0 Test GPU (process 100)", "proc_1_gpu_0 (process 100)",
        "proc_1_gpu_0, GPU 0 Test GPU (process 100)",
    ]  # fmt: skip
    ids = [event["id"] for event in of_phase(content["traceEvents"], "s")]
    assert len(set(ids)) == len(ids) == 16


def test_a_process_whose_clock_is_not_known_is_said_to_be_apart(tmp_path: Path, capsys: Any) -> None:
    folder = two_processes(tmp_path / "run", second_start=None)
    assert run_cli(["export", str(folder), "-o", str(tmp_path / "t.json")]) == 0
    content = json.loads((tmp_path / "t.json").read_text())
    valid("chrome_trace", content)
    assert sorted(first_batches(content).values()) == [1 * MS, 3 * MS]
    assert content["otherData"]["processes"]["proc_1_gpu_0"]["clock"] == "own"
    assert "proc_1_gpu_0" in capsys.readouterr().err


def test_a_run_without_traces_is_an_error(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", process_record(0, trace=None))
    with pytest.raises(ResultError):
        write_chrome_trace(open_run(folder), tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()


def test_an_empty_trace_is_an_empty_timeline(tmp_path: Path) -> None:
    content = export(TraceBuilder().write(tmp_path / "t.sqlite"), tmp_path / "t.json")
    valid("chrome_trace", content)
    assert content["traceEvents"] == []
