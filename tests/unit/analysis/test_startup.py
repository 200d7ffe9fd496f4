"""From the start of a process to its first batch: by hand, from a real trace's CUDA calls, and with real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from perfharness.analysis.stages.startup import first_cuda, startup
from perfharness.errors import UsageError
from perfharness.model.journal import RecorderJournal
from perfharness.model.result import BatchLoop, FirstCuda
from perfharness.trace import open_trace
from perfharness_launcher.machine import container_start_unix_ns
from tests.integration.launches import environment, run_to_the_end
from tests.schemas import valid

ROOT = Path(__file__).parents[3]
MS = 1_000_000
START = 1_000_000 * MS


def journal(
    recorder: int | None = None,
    batch: int | None = None,
    ranges: list[tuple[str, int, int, bool]] | None = None,
    waits: list[tuple[int, int]] | None = None,
) -> RecorderJournal:
    """Times in ms after the start of the process."""
    moments = {"first_recorder_unix_ns": recorder, "first_batch_unix_ns": batch}
    told = {name: None if at is None else START + at * MS for name, at in moments.items()}
    of_ranges = [
        {"name": name, "begin_unix_ns": START + begin * MS, "duration_ns": length * MS, "failed": failed}
        for name, begin, length, failed in ranges or []
    ]
    of_waits = [
        {"loop": "r/batch", "begin_unix_ns": START + begin * MS, "waited_ns": length * MS}
        for begin, length in waits or []
    ]
    startup_record = {**told, "ranges": of_ranges}
    facts = {"schema_version": 1, "pid": 1, "ended": "finalized", "startup": startup_record, "start_barrier": of_waits}
    return RecorderJournal.model_validate(facts)


def loop(begin: int, end: int) -> list[BatchLoop]:
    start = np.array([START + begin * MS, START + end * MS])
    return [BatchLoop(("r", "batch"), start, start + (end - begin) * MS, np.ones(2), np.zeros(2, dtype=np.bool_))]


def cuda(first: int, work_end: int | None) -> FirstCuda:
    return FirstCuda(START + first * MS, None if work_end is None else START + work_end * MS)


CONTAINER = "container_to_first_batch_ms"
TOTAL, IMPORTS = "process_to_first_batch_ms", "interpreter_and_imports_ms"
CONTEXT, LOAD, BARRIER = "cuda_context_ms", "model_load_ms", "start_barrier_wait_ms"
SOURCE, FIRST, OTHER = "cuda_context_source", "first_batch_ms", "other_ms"
ROWS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    # process    |0                                                        1000 first batch, 1000..1030
    # imports    |-----------400|
    # context                    |400..450|
    # model load                           |500 ---------- 800|
    # recorder                                                  |850
    # barrier                                                      |900..950|
    # other                      450..500, 800..900, 950..1000: 200
    "all parts": (
        (
            journal(850, 1000, [("cuda_context", 400, 50, False), ("model_load", 500, 300, False)], [(900, 50)]),
            loop(1000, 1030),
        ),
        {
            TOTAL: 1000,
            IMPORTS: 400,
            CONTEXT: 50,
            SOURCE: "startup_range",
            LOAD: 300,
            BARRIER: 50,
            FIRST: 30,
            OTHER: 200,
        },
    ),
    # the first CUDA call is the script's own
    "the context by the trace, at most": (
        (journal(500, 600), loop(600, 610), cuda(300, 420)),
        {CONTEXT: 120, SOURCE: "trace", IMPORTS: 300, OTHER: 180, LOAD: None},
    ),
    "a wait of which no batch came is not zero": ((journal(50, waits=[(100, 50)]),), {BARRIER: None}),
    "a script without a recorder has its trace": ((None, loop(600, 610), cuda(300, None)), {TOTAL: 600, FIRST: 10}),
    # it waited after the first batch, which was warm-up
    "parts that overlap are covered once and a failed load is no load": (
        (
            journal(
                50,
                1000,
                [("model_load", 100, 400, True), ("model_load", 200, 100, False), ("tokenizer", 450, 100, False)],
                [(1100, 50)],
            ),
        ),
        {LOAD: 100, OTHER: 1000 - 50 - 450, BARRIER: 0},
    ),
    "nothing": ((None,), {TOTAL: None, IMPORTS: None, CONTEXT: None, LOAD: None, FIRST: None, OTHER: None, BARRIER: 0}),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_parts_by_hand(name: str) -> None:
    facts, expected = ROWS[name]
    found = startup(START, *facts)
    assert {one: getattr(found, one) for one in expected} == expected
    assert {one for one in expected if expected[one] is None} - {OTHER} <= set(found.reasons)
    if name == "all parts":
        assert [(part.name, part.begin_ms) for part in found.parts] == [("cuda_context", 400), ("model_load", 500)]
        assert set(found.reasons) == {CONTAINER}


def test_a_trace_that_is_not_on_utc_has_no_time_to_the_first_batch() -> None:
    assert startup(START, None, loop(600, 610), clock_is_utc=False).process_to_first_batch_ms is None


def test_a_container_counts_from_its_own_start() -> None:
    found = startup(START, journal(850, 1000), container_start_unix_ns=START - 4000 * MS).to_json()
    assert (found[CONTAINER], found[TOTAL]) == (5000, 1000)
    assert startup(START, None, container_start_unix_ns=START).to_json()[CONTAINER] is None


@pytest.mark.parametrize(("sign", "is_inside"), [({}, False), ({"container": "podman"}, True)])
def test_where_a_container_is_seen(sign: dict[str, str], is_inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfharness_launcher.machine.CONTAINER_FILES", ())
    for name in ("container", "KUBERNETES_SERVICE_HOST", "PERFHARNESS_STARTED_AT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in sign.items():
        monkeypatch.setenv(name, value)
    found = container_start_unix_ns()
    assert (found is not None) == is_inside
    assert found is None or abs(found / 1e9 - psutil.Process(1).create_time()) < 1
    monkeypatch.setenv("PERFHARNESS_STARTED_AT", "1700000000.5")
    assert container_start_unix_ns() == 1_700_000_000_500_000_000
    monkeypatch.setenv("PERFHARNESS_STARTED_AT", "yesterday")
    with pytest.raises(UsageError):
        container_start_unix_ns()


def test_the_first_calls_of_a_real_trace() -> None:
    found = first_cuda(open_trace(ROOT / "tests" / "golden" / "traces" / "pipeline.sqlite"))
    assert found is not None
    assert found.first_work_end_unix_ns is not None
    # cuModuleGetLoadingMode began it, cudaMalloc was the first that took a context: read from the file by hand.
    assert found.first_work_end_unix_ns - found.first_call_unix_ns == 5_599_396_976 + 128_362 - 5_440_894_550


SCRIPT = """
import sys, time
from perfharness import PerfRecorder, startup_range

@startup_range("model_load")
def load():
    time.sleep(0.2)

load()
try:
    with startup_range("broken"):
        raise ValueError
except ValueError:
    pass
if sys.argv[1] == "batches":
    perf = PerfRecorder("rec")
    for i in range(4):
        with perf.batch(i, total_items=1):
            time.sleep(0.02)
    perf.finalize()
"""


def launch(folder: Path, mode: str, *options: str) -> Path:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    done = run_to_the_end(("-w", 0, "-o", folder / "out", *options, script, mode), environment())
    assert done.returncode in (0, 3), done.stdout + done.stderr
    return folder / "out" / "proc_0_gpu_0"


def test_a_real_process(tmp_path: Path) -> None:
    folder = launch(tmp_path, "batches", "--tracer", "embedded", "-np", "2")
    body = valid("benchmark", folder / "benchmark.json")
    told = body["startup"]
    assert 200 <= told[LOAD] < 20_000
    assert told[IMPORTS] > 10
    assert told[FIRST] == pytest.approx(body["data"]["rec"]["batch_0"]["cpu_time"], abs=0.01)
    parts = [*(told[name] for name in (IMPORTS, LOAD, BARRIER, OTHER)), told["parts"][1]["duration_ms"]]
    assert told[TOTAL] == pytest.approx(sum(parts), abs=1)
    assert [(part["name"], part["failed"]) for part in told["parts"]] == [("model_load", False), ("broken", True)]
    assert set(body["data"]) == {"rec"}, "start-up ranges are no stages"


def test_without_a_recorder_and_without_a_tracer_the_ranges_are_kept(tmp_path: Path) -> None:
    told = json.loads((launch(tmp_path, "none", "--tracer", "none") / "recorder.json").read_text())["startup"]
    assert [part["name"] for part in told["ranges"]] == ["model_load", "broken"]
    assert told["first_recorder_unix_ns"] is None
