"""A trace's clock against the script's own stamps: real tracers, real sampler, two processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from perfharness.model.telemetry import ClockTieRecord
from perfharness.runs.files.process_traces import traces_of
from perfharness.runs.files.run_folder import read_manifest
from tests.integration.launches import TRACERS_SLOW_UNDER_NSYS, environment, run_to_the_end, tracing

SCRIPT = """
import json, os, time
from perfharness import PerfRecorder
perf = PerfRecorder("toy")
stamps = []
with perf.range("pipeline"):
    for i in range(6):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        perf.push_range("batch", batch_idx=i)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        time.sleep(0.02)
        perf.pop_range(total_items=1)
        stamps.append((before, after))
perf.finalize()
with open(os.path.join(os.environ["PERFHARNESS_OUTPUT_DIR"], "stamps.json"), "w") as file:
    json.dump(stamps, file)
"""


@TRACERS_SLOW_UNDER_NSYS
def test_batches_lie_where_the_script_itself_saw_them(tmp_path: Path, tracer: str) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(SCRIPT)
    options, sites = tracing(tracer)
    own = ("--telemetry", "-np", 2, "-o", out)  # by which the clocks are compared
    done = run_to_the_end((*own, *options, script), environment(*sites))
    assert done.returncode == 0, done.stdout + done.stderr
    manifest = read_manifest(out)
    machine = ClockTieRecord.model_validate(manifest.companions["telemetry"]["clock"])
    for process in manifest.processes:
        trace = traces_of(out, manifest)[process.folder].open()
        clock = trace.meta.clock
        assert clock is not None
        assert clock.source == "marks"
        assert clock.error_ns < 100_000_000
        batches = np.flatnonzero(np.asarray(trace.names, dtype=object)[trace.ranges.name] == "batch")
        starts = np.sort(clock.to_unix(trace.ranges.start_ns[batches])) - machine.offset_ns
        stamps = np.asarray(json.loads((out / process.folder / "stamps.json").read_text()), dtype=np.int64)
        assert (stamps[:, 0] - clock.error_ns <= starts).all()
        assert (starts <= stamps[:, 1] + clock.error_ns).all()
        meta: dict[str, Any] = json.loads((out / process.folder / "benchmark.json").read_text())["meta"]
        assert meta["clock"] == clock.to_json()
