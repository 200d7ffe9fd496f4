"""Scripts whose batches begin when requests are due."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from perfharness.load.profile import checked_profile
from perfharness.load.result import load_result
from perfharness.load.targets.script import count_batches, pace_text
from perfharness.load.windows import read_lines
from perfharness.model import environment
from perfharness.model.load import REQUESTS_NAME, WINDOWS_NAME, LoadResult, TargetRecord
from perfharness.recorder.pacing import PACED_NAME

HEAD = """
import threading, time
from perfharness import PerfRecorder
perf = PerfRecorder("toy")
"""


def paced(folder: Path, script: str, *, is_well: bool = True, **settings: Any) -> LoadResult:
    """A script in a process of its own, with the environment of a launch, and what its batches come to."""
    profile = checked_profile(settings)
    (folder / "pace.json").write_text(pace_text(profile, 0, 1))
    variables = {environment.PACE: str(folder / "pace.json"), environment.OUTPUT_DIR: str(folder),
                 environment.TRACER: "none"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script], env={"PYTHONPATH": ":".join(sys.path), **variables}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert not is_well or done.returncode == 0, done.stderr
    assert count_batches(folder, profile, 0, 1, "ok" if is_well else "killed")
    target = TargetRecord(kind="script", name="toy")
    return load_result(target, profile, [read_lines(folder / WINDOWS_NAME)])


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / REQUESTS_NAME).to_pylist()
    return found


def test_outermost_batches_begin_when_they_are_due(tmp_path: Path) -> None:
    script = """
for index, element in perf.batches(range(100), items=3):
    with perf.batch(0, total_items=1, message="inner"):
        pass
    if index == 20:
        time.sleep(0.2)
other = threading.Thread(target=lambda: [perf.push_range("other", batch_idx=0), perf.pop_range()])
other.start(); other.join()
perf.finalize()
"""
    found = paced(
        tmp_path,
        script,
        phases=[{"duration": "500ms", "rate": 100}, {"name": "later", "duration": "250ms", "rate": 40}],
    )
    first, later = found.phases
    assert (first.arrivals, first.ok, first.items, later.arrivals, later.ok) == (50, 50, 150, 10, 10)
    table = rows(tmp_path)
    assert [row["id"] for row in table] == list(range(60))  # the rest came after the plan, and was not paced
    assert all(row["sent_ns"] >= row["intended_ns"] for row in table)
    assert [table[place]["intended_ns"] - table[0]["intended_ns"] for place in (1, 49)] == [10_000_000, 490_000_000]
    assert table[21]["begun_ns"] >= table[20]["done_ns"] >= table[20]["begun_ns"] + 200_000_000
    assert table[21]["done_ns"] - table[21]["intended_ns"] >= 190_000_000  # waited for the slow one
    assert found.status == "ok"


def test_a_closed_loop_thinks_after_each_batch(tmp_path: Path) -> None:
    script = """
for index in range(1000):
    perf.push_range("work", batch_idx=index)
    perf.pop_range(total_items=1)
"""
    found = paced(tmp_path, script, phases=[{"duration": "300ms", "think": "20ms"}])
    table = rows(tmp_path)
    gaps = [after["intended_ns"] - before["done_ns"] for before, after in itertools.pairwise(table)]
    assert set(gaps) == {20_000_000}
    assert found.phases[0].ok == len(table) <= 15


def test_a_script_that_ends_early_or_is_killed(tmp_path: Path) -> None:
    (tmp_path / "ends").mkdir()
    (tmp_path / "dies").mkdir()
    phases = [{"duration": "5s", "rate": 50}]
    found = paced(tmp_path / "ends", "for index, _ in perf.batches(range(10)): pass", phases=phases)
    assert (found.phases[0].arrivals, found.phases[0].ok, found.status) == (10, 10, "ok")
    assert "load-ended-early" in {finding.code for finding in found.findings}
    assert found.phases[0].duration_s >= 0.2  # the next one would have been due then
    assert found.phases[0].asked_rate == pytest.approx(10 / found.phases[0].duration_s)
    dying = "import os\nfor index, _ in perf.batches(range(100)):\n    if index == 7: os._exit(9)"
    found = paced(tmp_path / "dies", dying, phases=phases, is_well=False)
    assert (found.phases[0].ok, found.status) == (7, "killed")
    whole = (tmp_path / "dies" / PACED_NAME).read_text()
    assert whole.count("batch ") == 7


def test_a_script_that_is_too_slow_leaves_requests_unanswered(tmp_path: Path) -> None:
    script = "for index, _ in perf.batches(range(100)): time.sleep(0.05)"
    found = paced(tmp_path, script, phases=[{"duration": "300ms", "rate": 100}], grace="100ms")
    (phase,) = found.phases
    assert phase.arrivals == 30
    assert phase.errors["unanswered"] == 30 - phase.ok
    assert phase.latency.max.value is None


def test_deleted_batches_are_errors(tmp_path: Path) -> None:
    script = """
for index in range(10):
    perf.push_range("work", batch_idx=index)
    perf.pop_range(delete_range=index == 4)
"""
    found = paced(tmp_path, script, phases=[{"duration": "200ms", "rate": 50}])
    assert found.phases[0].errors == {"deleted": 1}
    assert [row["id"] for row in rows(tmp_path) if row["error"]] == [4]
