"""The Chrome trace: its schema, the rules that a schema cannot tell, and that it says what the trace says."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.cli.main import run
from perfharness.trace import open_trace
from tests.schemas import valid
from tests.support.trace_builder import TraceBuilder
from tests.unit.export_runs import MS, RUN_START, process_record, recorded_trace, run_folder, two_processes

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "traces"
SMALL = ["pipeline", "threads", "graphs", "old_partial"]

Event = dict[str, Any]


def export(source: Path, target: Path, *options: str, code: int = 0) -> dict[str, Any]:
    assert run(["export", str(source), *options, "-o", str(target)]) == code
    read = gzip.decompress if target.suffix == ".gz" else bytes
    content: dict[str, Any] = valid("chrome_trace", json.loads(read(target.read_bytes())))
    check_rules(content["traceEvents"])
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
    code = 3 if name == "old_partial" else 0
    events = export(GOLDEN / f"{name}.sqlite", tmp_path / "t.json.gz", code=code)["traceEvents"]
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
    if name != "old_partial":
        assert len(of_phase(events, "s")) == len(trace.operations), "every operation has its arrow"


# ---- built traces ----


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three batches of a recorder with copies and kernels; one batch of warm-up at each end."""
    folder = tmp_path_factory.mktemp("recorded")
    return export(recorded_trace(folder / "t.sqlite"), folder / "t.json", "-w", "1")


def test_what_slices_and_arrows_say(recorded: dict[str, Any]) -> None:
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
    content = export(builder.write(tmp_path / "t.sqlite"), tmp_path / "t.json", code=3)
    events = content["traceEvents"]
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
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    placed = [(event["name"], rows[event["tid"]]) for event in of_phase(events, "X") if event["cat"] != "cuda_api"]
    assert placed == [
        ("task", "thread 100, tasks"), ("step", "thread 100, tasks"), ("task", "thread 100, tasks"),
        ("step", "thread 100, tasks"), ("one", "thread 100"), ("two", "thread 100, row 2"), ("kernel", "stream 7"),
        ("kernel", "stream 7, row 2"),
    ]  # fmt: skip
    tasks = [event["tid"] for event in of_phase(events, "X") if event["name"] == "task"]
    assert len(set(tasks)) == 2


# ---- several processes ----


@pytest.mark.parametrize(
    ("launched", "second_start", "starts", "origin"),
    [
        (True, RUN_START + 5 * MS, [3, 6], 0),  # from the launch on
        (False, RUN_START + 5 * MS, [1, 4], 2),  # or else from the first trace
        (True, None, [1, 3], 0),  # a process whose clock is not known stands apart
    ],
)
def test_processes_stand_on_one_axis(
    tmp_path: Path, launched: bool, second_start: int | None, starts: list[int], origin: int
) -> None:
    folder = two_processes(tmp_path / "run", second_start)
    if not launched:  # the launcher's times are not known
        run_folder(folder, process_record(0, start_unix_ns=None), process_record(1, start_unix_ns=None))
    content = export(folder, tmp_path / "t.json")
    events, about = content["traceEvents"], content["otherData"]
    slices = of_phase(events, "X")
    firsts = [ns(one["ts"]) for one in slices if one["cat"] == "batch" and one["args"]["batch_index"] == 0]
    assert sorted(firsts) == [start * MS for start in starts]
    assert len({one["pid"] for one in slices if one["cat"] == "batch"}) == 2, "equal ids are told apart"
    assert about["time_origin_unix_ns"] == str(RUN_START + origin * MS)
    assert (about["processes"]["proc_1_gpu_0"]["clock"] == "own") == (second_start is None)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    own = "" if second_start else ", own clock"
    assert names == [
        f"{name} (process 100)"
        for of in ("proc_0_gpu_0", f"proc_1_gpu_0{own}")
        for name in (of, f"{of}, GPU 0 Test GPU")
    ]
    assert len({event["id"] for event in of_phase(events, "s")}) == 16
