"""From the start of a process to its first batch: by hand, from a real trace's CUDA calls, and with real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfharness.analysis.stages.startup import first_cuda, startup
from perfharness.model.journal import RecorderJournal
from perfharness.model.result import BatchLoop, FirstCuda
from perfharness.trace import open_trace
from tests.integration.launches import environment, run_to_the_end
from tests.schemas import valid

ROOT = Path(__file__).parents[3]
MS = 1_000_000
START = 1_000_000 * MS


def journal(**told: Any) -> RecorderJournal:
    """Times in ms after the start of the process."""
    ranges = [
        {"name": name, "begin_unix_ns": START + begin * MS, "duration_ns": length * MS, "failed": failed}
        for name, begin, length, failed in told.get("ranges", ())
    ]
    waits = [
        {"loop": "r/batch", "begin_unix_ns": START + begin * MS, "waited_ns": length * MS}
        for begin, length in told.get("waits", ())
    ]
    moments = {
        f"first_{name}_unix_ns": None if told.get(name) is None else START + told[name] * MS
        for name in ("recorder", "batch")
    }
    return RecorderJournal.model_validate(
        {
            "schema_version": 1, "pid": 1, "ended": "finalized",
            "startup": {**moments, "ranges": ranges}, "start_barrier": waits,
        }
    )  # fmt: skip


def loop(begin: int, end: int) -> BatchLoop:
    start = np.array([START + begin * MS, START + end * MS])
    return BatchLoop(("r", "batch"), start, start + (end - begin) * MS, np.ones(2), np.zeros(2, dtype=np.bool_))


def cuda(first: int, work_end: int | None) -> FirstCuda:
    return FirstCuda(START + first * MS, None if work_end is None else START + work_end * MS)


def test_the_parts_by_hand() -> None:
    """
    process    |0                                                        1000 first batch, 1000..1030
    imports    |-----------400|
    context                    |400..450|
    model load                           |500 ---------- 800|
    recorder                                                  |850
    barrier                                                      |900..950|
    other                      450..500, 800..900, 950..1000: 200
    """
    found = startup(
        START,
        journal(
            ranges=[("cuda_context", 400, 50, False), ("model_load", 500, 300, False)],
            recorder=850, batch=1000, waits=[(900, 50)],
        ),
        [loop(1000, 1030)],
    )  # fmt: skip
    assert found.process_to_first_batch_ms == 1000
    assert found.interpreter_and_imports_ms == 400
    assert (found.cuda_context_ms, found.cuda_context_source) == (50, "startup_range")
    assert found.model_load_ms == 300
    assert found.start_barrier_wait_ms == 50
    assert found.first_batch_ms == 30
    assert found.other_ms == 200
    assert [(part.name, part.begin_ms) for part in found.parts] == [("cuda_context", 400), ("model_load", 500)]
    assert found.reasons == {}


def test_without_ranges_the_context_is_told_by_the_trace_at_most() -> None:
    found = startup(START, journal(recorder=500, batch=600), [loop(600, 610)], cuda(300, 420))
    assert (found.cuda_context_ms, found.cuda_context_source) == (120, "trace")
    assert found.interpreter_and_imports_ms == 300, "the first CUDA call is the script's own"
    assert found.other_ms == 180
    assert found.model_load_ms is None
    assert "model_load" in found.reasons["model_load_ms"]


def test_what_is_not_known_is_null_with_the_reason() -> None:
    found = startup(START, None)
    figures = {name: value for name, value in found.to_json().items() if name.endswith("_ms")}
    assert figures.pop("start_barrier_wait_ms") == 0.0
    assert set(figures.values()) == {None}
    assert set(found.reasons) == set(figures) - {"other_ms"}


def test_a_wait_of_which_no_batch_came_is_not_zero() -> None:
    found = startup(START, journal(recorder=50, waits=[(100, 50)]))
    assert found.start_barrier_wait_ms is None
    assert "start_barrier_wait_ms" in found.reasons


def test_a_script_without_a_recorder_has_its_trace() -> None:
    found = startup(START, None, [loop(600, 610)], cuda(300, None))
    assert (found.process_to_first_batch_ms, found.first_batch_ms) == (600, 10)
    assert startup(START, None, [loop(600, 610)], clock_is_utc=False).process_to_first_batch_ms is None


def test_parts_that_overlap_are_covered_once_and_a_failed_load_is_no_load() -> None:
    told = journal(
        ranges=[("model_load", 100, 400, True), ("model_load", 200, 100, False), ("tokenizer", 450, 100, False)],
        recorder=50, batch=1000, waits=[(1100, 50)],
    )  # fmt: skip
    found = startup(START, told)
    assert found.model_load_ms == 100
    assert found.other_ms == 1000 - 50 - 450
    assert found.start_barrier_wait_ms == 0, "it waited after the first batch, which was warm-up"


def test_the_first_calls_of_a_real_trace() -> None:
    trace = open_trace(ROOT / "tests" / "golden" / "traces" / "pipeline.sqlite")
    found = first_cuda(trace)
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


def launch(tmp_path: Path, *options: str, mode: str = "batches") -> Path:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_to_the_end(("-w", 0, "-o", tmp_path / "out", *options, script, mode), environment())
    assert done.returncode in (0, 3), done.stdout + done.stderr
    return tmp_path / "out" / "proc_0_gpu_0"


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_a_real_process(tmp_path: Path) -> None:
    folder = launch(tmp_path, "--tracer", "embedded", "-np", "2")
    body = valid("benchmark", folder / "benchmark.json")
    told = body["startup"]
    assert 200 <= told["model_load_ms"] < 20_000
    assert told["interpreter_and_imports_ms"] > 10
    assert told["first_batch_ms"] == pytest.approx(body["data"]["rec"]["batch_0"]["cpu_time"], abs=0.01)
    total = told["process_to_first_batch_ms"]
    parts = told["interpreter_and_imports_ms"] + told["model_load_ms"] + told["start_barrier_wait_ms"]
    assert total == pytest.approx(parts + told["other_ms"] + told["parts"][1]["duration_ms"], abs=1)
    assert [(part["name"], part["failed"]) for part in told["parts"]] == [("model_load", False), ("broken", True)]
    assert set(body["data"]) == {"rec"}, "start-up ranges are no stages"


def test_without_a_recorder_and_without_a_tracer_the_ranges_are_kept(tmp_path: Path) -> None:
    folder = launch(tmp_path, "--tracer", "none", mode="none")
    told = load(folder / "recorder.json")
    assert [part["name"] for part in told["startup"]["ranges"]] == ["model_load", "broken"]
    assert told["startup"]["first_recorder_unix_ns"] is None
