"""CPU quotas of the running system: a real control group, and what its process says of itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from perfharness.analysis.diagnosis.host.cpu_supply import cpu_supply
from perfharness.analysis.timeline.busy import BusyLine
from perfharness.model.telemetry import process_subject
from perfharness.telemetry.store import read_sample_log
from tests.fault_corpus import CONTROL_GROUPS
from tests.integration.launches import CHECKOUT, perfharness

PROGRAM = CHECKOUT / "tests" / "faults_cpu" / "cpu_quota.py"
MS = 1_000_000
needs_groups = pytest.mark.skipif(
    not any(os.access(file, os.W_OK) for file in CONTROL_GROUPS), reason="control groups cannot be made here"
)

SPINS = """
import sys, time
from tests.faults_cpu.cpu_quota import cpu_limit
gaps = []
with cpu_limit(10_000):
    last, end = time.monotonic_ns(), time.monotonic_ns() + 2_500_000_000
    while last < end:
        now = time.monotonic_ns()
        if now - last > 5_000_000:
            gaps.append((last, now))
        last = now
print(gaps)
"""


@needs_groups
@pytest.mark.slow
def test_a_thread_stands_still_when_the_quota_says_so(tmp_path: Path) -> None:
    """It spins and notes when it did not run: that it lost the CPU to the quota, and sometimes to other programs."""
    script = tmp_path / "spins.py"
    script.write_text(SPINS)
    done = perfharness("launch", "--tracer", "embedded", "-o", tmp_path / "out", script, PYTHONPATH=str(CHECKOUT))
    gaps = np.asarray(
        json.loads((tmp_path / "out/proc_0_gpu_0/stdout.log").read_text().replace("(", "[").replace(")", "]"))
    )
    log = read_sample_log(tmp_path / "out/telemetry.parquet")
    quota = cpu_supply(log, process_subject("proc_0_gpu_0")).quota
    assert quota is not None, done.stderr
    assert quota.cpus == 0.1
    offset = log.meta.clock.offset_ns
    start, end = quota.start_ns - offset, quota.end_ns - offset
    stood_ns = int((end - start).sum())
    # It may run for 10 of each 100 ms; on a busy machine it gets them later, and stands still for less of the rest.
    assert stood_ns > 200 * MS
    by_itself = BusyLine(gaps[:, 0], gaps[:, 1])
    inside = int(by_itself.within(start, end).sum())
    assert inside >= stood_ns - len(start) * 25 * MS  # a reading late at most, each time
    assert stood_ns <= by_itself.length + len(start) * 5 * MS
