"""Processes under the embedded tracer are killed at random times: every range that they closed is in their traces.

PERFHARNESS_TEST_KILLS: number of kills (40).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from perfharness.model.trace import pid_of
from perfharness.trace import open_trace
from perfharness.tracer.output import complete_traces
from tests.integration.launches import in_a_launch

KILLS = int(os.environ.get("PERFHARNESS_TEST_KILLS", "40"))
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LIMIT_S = 120.0

PROGRAM = """
import os, random
from perfharness import PerfRecorder
perf = PerfRecorder("app")
for _ in range(2):
    if os.fork() == 0:
        break
counted = os.open(f"counted_{os.getpid()}", os.O_CREAT | os.O_WRONLY)  # a byte for each range that was closed
while True:
    with perf.range(f"stage {random.randrange(500)}"):
        pass
    os.write(counted, b"x")
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 60 * KILLS)]


@pytest.mark.parametrize("number", range(KILLS))
def test_no_range_is_lost(tmp_path: Path, number: int) -> None:
    chance = random.Random(number)
    (tmp_path / "program.py").write_text(PROGRAM)
    variables = in_a_launch(tmp_path / "out")
    program = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, env=variables, start_new_session=True)
    try:
        limit = time.monotonic() + LIMIT_S
        while len(counts := sorted(tmp_path.glob("counted_*"))) < 3:
            assert time.monotonic() < limit
            time.sleep(0.01)
        pids = [int(path.name.split("_")[1]) for path in counts]
        for pid in chance.sample(pids, k=3):
            time.sleep(chance.uniform(0, 0.3))
            os.kill(pid, chance.choice(SIGNALS))
        program.wait(LIMIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    found: Counter[int] = Counter()
    for path in complete_traces(tmp_path / "out"):
        ranges = open_trace(path).ranges
        found.update(pid_of(ranges.thread[~ranges.is_open]).tolist())
    closed = {pid: path.stat().st_size for pid, path in zip(pids, counts, strict=True)}
    assert all(closed[pid] <= found[pid] <= closed[pid] + 1 for pid in closed)
