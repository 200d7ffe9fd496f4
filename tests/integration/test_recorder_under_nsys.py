"""The recorder under the real nsys: what it knows stands in the trace.

PERFHARNESS_TEST_NSYS is the nsys to use. PERFHARNESS_TEST_NVTX_SITE is a folder with an nvtx that this nsys records
(nsys 2023.4: nvtx up to 0.2.11); it goes first on the child's PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perfharness.model.conventions import MARK_CLOCK, MARK_READY_TIME
from perfharness.model.trace import Trace
from perfharness.trace import open_trace
from tests.integration.launches import NSYS, NVTX_SITE
from tests.integration.nsys_profile import nsys_profile
from tests.recorder_marks import READING_MARKS
from tests.support.recorder_programs import PROGRAMS

ROOT = Path(__file__).parents[2]
COUNTS = ("ranges", "batches", "items", "deleted_ranges", "failed_batches")

pytestmark = pytest.mark.nsys

SCRIPT = """
import asyncio, os, threading
from perfharness import PerfRecorder
from tests.support.recorder_programs import PROGRAMS

for name, program in PROGRAMS.items():
    perf = PerfRecorder(name, domain=name)
    program.run(perf)
    perf.finalize()

perf = PerfRecorder("rec")
other = PerfRecorder("other", domain="second")
with perf.batch(-5, total_items=1 << 40, category="io"):
    other.push_range("their own")
    other.pop_range()

async def work(i):
    for j in range(2):
        with perf.batch(10 * i + j, total_items=i):
            await asyncio.sleep(0.01)
            with perf.range("stage", category=7):
                await asyncio.sleep(0.01)

async def hold(recorder, name, seconds):
    with recorder.range(name):
        await asyncio.sleep(seconds)

async def main():
    await asyncio.gather(*(work(i) for i in range(3)))
    await asyncio.gather(hold(perf, "short", 0.01), hold(other, "long", 0.1), hold(perf, "middle", 0.05))

def in_thread():
    with perf.batch(0, total_items=2):
        pass

with perf.range(os.fsdecode(b"caf\\xe9.jpg")):
    asyncio.run(main())
thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
perf.finalize()
other.finalize()
"""


class Row(NamedTuple):
    """A range, or a mark, whose end is its start."""

    start_ns: int
    end_ns: int
    text: str
    domain: str
    category: str
    payload: int | None
    thread: int


def rows(trace: Trace) -> Iterator[Row]:
    ranges, marks = trace.ranges, trace.marks
    timed = ((ranges, ranges.start_ns, ranges.end_ns), (marks, marks.time_ns, marks.time_ns))
    for events, starts_ns, ends_ns in timed:
        names = [[trace.names[code] for code in codes] for codes in (events.name, events.domain, events.category)]
        payloads = [int(one) if has else None for one, has in zip(events.payload, events.has_payload, strict=True)]
        yield from map(Row, starts_ns.tolist(), ends_ns.tolist(), *names, payloads, events.thread.tolist())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], dict[str, Any]]:
    """All rows by time, and what each recorder counted."""
    folder = tmp_path_factory.mktemp("nsys")
    (folder / "script.py").write_text(SCRIPT)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERFHARNESS_", "NVTX_"))}
    paths = os.pathsep.join([NVTX_SITE, str(ROOT), str(ROOT / "launcher")])
    environ = {**kept, "PYTHONPATH": paths, "PERFHARNESS_OUTPUT_DIR": str(folder)}
    nsys_profile(NSYS, folder / "t.nsys-rep", [sys.executable, str(folder / "script.py")], environ, "--export=sqlite")
    journal = json.loads((folder / "recorder.json").read_text(encoding="utf-8"))
    return sorted(rows(open_trace(folder / "t.sqlite"))), {one["name"]: one for one in journal["recorders"]}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(recorded: tuple[list[Row], dict[str, Any]], name: str) -> None:
    """All ranges, items and deletions are in the trace, and counted."""
    events, counted = recorded
    of_recorder = [row for row in events if row.domain == name]
    items = sum(row.payload or 0 for row in of_recorder if row.text == "perfharness.items")
    deleted = sum(row.text == "perfharness.delete" for row in of_recorder)
    expected = PROGRAMS[name].counts
    assert (sum(row.end_ns > row.start_ns for row in of_recorder), items, deleted) == expected[:1] + expected[2:4]
    assert tuple(counted[name][one] for one in COUNTS) == expected


def test_what_an_event_carries(recorded: tuple[list[Row], dict[str, Any]]) -> None:
    events, counted = recorded
    by_text: dict[str, list[Row]] = {}
    for row in events:
        if row.domain in ("perfharness", "second"):
            by_text.setdefault(row.text, []).append(row)
    (theirs,), (loop,) = by_text["their own"], by_text["caf\\udce9.jpg"]
    assert (theirs.category, theirs.domain) == ("other", "second")
    named = [(row.category, row.domain) for row in by_text["perfharness.recorder"]]
    assert named == [("rec", "perfharness"), ("other", "second")]
    assert [row.category for row in by_text[MARK_CLOCK]].count("other") == 2 * 8
    ready = [row.payload or 0 for row in by_text[MARK_READY_TIME] if row.thread == loop.thread]
    assert len(ready) >= 2  # the tasks' batches take longer than the marks are apart
    assert sorted(ready) == ready

    outside = [row for row in by_text["batch"] if not loop.start_ns < row.start_ns < loop.end_ns]
    assert [(row.category, row.payload) for row in outside] == [("rec/io", -5), ("rec", 0)]
    assert outside[0].thread == loop.thread != outside[1].thread
    in_tasks = [row for row in by_text["batch"] if row not in outside]
    assert sorted(row.payload or 0 for row in in_tasks) == [0, 1, 10, 11, 20, 21]
    assert {row.category for row in in_tasks} == {"rec#1", "rec#2", "rec#3"}
    for batch in in_tasks:
        inside = [
            row
            for row in events
            if row.category.endswith(batch.category[-2:]) and batch.start_ns < row.start_ns < batch.end_ns
            if row.text not in READING_MARKS
        ]
        assert [(row.text, row.category[:5]) for row in inside] == [
            ("stage", "rec/7"),
            ("perfharness.items", "rec#" + batch.category[-1]),
        ]
        assert inside[1].payload == (batch.payload or 0) // 10
    held = [by_text[name][0] for name in ("short", "middle", "long")]
    assert [row.end_ns for row in held] == sorted(row.end_ns for row in held)
    assert held[2].end_ns - held[2].start_ns > 0.09e9
    assert (counted["rec"]["ranges"], counted["rec"]["batches"], counted["rec"]["threads"]) == (17, 8, 2)
    assert (counted["rec"]["items"], counted["other"]["ranges"]) == ((1 << 40) + 2 + 2 * (0 + 1 + 2), 2)
