"""The recorder under the real nsys: what it knows stands in the trace.

PERFHARNESS_TEST_NSYS is the nsys to use. PERFHARNESS_TEST_NVTX_SITE is a folder with an nvtx that this nsys records
(nsys 2023.4: nvtx up to 0.2.11); it goes first on the child's PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from perfharness.model.conventions import MARK_CLOCK, MARK_READY_TIME
from perfharness.model.host_samples import HostEventKind
from perfharness.model.nsys_schema import (
    NVTX_CATEGORY_EVENT,
    NVTX_MARK_EVENT,
    NVTX_PUSH_POP_RANGE,
    NVTX_START_END_RANGE,
)
from perfharness.trace import open_trace
from tests.integration.launches import NSYS, NVTX_SITE
from tests.integration.nsys_profile import nsys_profile
from tests.recorder_marks import READING_MARKS
from tests.support.recorder_programs import PROGRAMS

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.nsys


class Row(NamedTuple):
    start_ns: int
    end_ns: int | None
    kind: int
    text: str
    category: str | None
    payload: int | None
    domain: str
    thread: int


def trace(tmp_path: Path, script: Path, *arguments: str) -> tuple[list[Row], Any]:
    """The NVTX events of a run of the script by time, and its recorder.json."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERFHARNESS_", "NVTX_"))}
    paths = [NVTX_SITE, str(ROOT), str(ROOT / "launcher")]
    environ = {**kept, "PYTHONPATH": os.pathsep.join(paths), "PERFHARNESS_OUTPUT_DIR": str(tmp_path)}
    program = [sys.executable, str(script), *arguments]
    done = nsys_profile(NSYS, tmp_path / "trace.nsys-rep", program, environ, "--export=sqlite")
    output = done.stdout + done.stderr
    assert (tmp_path / "recorder.json").exists(), output
    journal = json.loads((tmp_path / "recorder.json").read_text(encoding="utf-8"))
    return sorted(rows(tmp_path / "trace.sqlite")), journal


def rows(path: Path) -> Iterator[Row]:
    with closing(sqlite3.connect(path)) as connection:
        strings = dict(connection.execute("SELECT id, value FROM StringIds"))
        found = connection.execute(
            "SELECT start, end, eventType, coalesce(text, ''), textId, category, int64Value, domainId, globalTid"
            " FROM NVTX_EVENTS"
        ).fetchall()
    texts = {text_id: strings[text_id] for *_, text_id, _, _, _, _ in found if text_id is not None}
    named = [(row[2], row[5], row[7], row[3] or texts.get(row[4], "")) for row in found]
    categories = {(domain, number): text for kind, number, domain, text in named if kind == NVTX_CATEGORY_EVENT}
    domains = {domain: text for kind, _, domain, text in named if kind == 75}
    wanted = (NVTX_MARK_EVENT, NVTX_PUSH_POP_RANGE, NVTX_START_END_RANGE)
    for start, end, kind, text, text_id, category, payload, domain, thread in found:
        if kind in wanted:
            message = text or texts[text_id]
            category_name = categories.get((domain, category))
            yield Row(start, end, kind, message, category_name, payload, domains.get(domain, ""), thread)


EVERYTHING = """
import asyncio, os, threading
from perfharness import PerfRecorder

perf = PerfRecorder("rec")
other = PerfRecorder("other", domain="second")

with perf.batch(-5, total_items=1 << 40, category="io"):
    other.push_range("their own")
    other.pop_range()
perf.push_range("gone")
perf.pop_range(delete_range=True)

async def work(i):
    for j in range(2):
        with perf.batch(10 * i + j, total_items=i):
            await asyncio.sleep(0.01)
            with perf.range("stage", category=7):
                await asyncio.sleep(0.01)

async def main():
    await asyncio.gather(*(work(i) for i in range(3)))

with perf.range("loop"):
    asyncio.run(main())

async def hold(recorder, name, seconds):
    with recorder.range(name):
        await asyncio.sleep(seconds)

async def at_once():
    await asyncio.gather(hold(perf, "short", 0.01), hold(other, "long", 0.1), hold(again, "middle", 0.05))

again = PerfRecorder("rec")
asyncio.run(at_once())
again.finalize()
with perf.range(os.fsdecode(b"caf\\xe9.jpg")):
    pass

def in_thread():
    with perf.batch(0, total_items=2):
        pass

thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
perf.finalize()
other.finalize()
"""


def test_everything(tmp_path: Path) -> None:
    script = tmp_path / "everything.py"
    script.write_text(EVERYTHING, encoding="utf-8")
    events, journal = trace(tmp_path, script)
    by_text: dict[str, list[Row]] = {}
    for row in events:
        by_text.setdefault(row.text, []).append(row)

    assert [(row.category, row.domain) for row in by_text["perfharness.recorder"]] == [
        ("rec", "perfharness"),
        ("other", "second"),
    ]
    assert [row.category for row in by_text[MARK_CLOCK]].count("other") == 2 * 8
    assert [(row.category, row.domain) for row in by_text["their own"]] == [("other", "second")]
    (gone,), (delete,) = by_text["gone"], by_text["perfharness.delete"]
    assert gone.end_ns is not None
    assert gone.start_ns <= delete.start_ns <= gone.end_ns

    own = [row for row in by_text["batch"] if row.kind == NVTX_PUSH_POP_RANGE]
    assert [(row.category, row.payload) for row in own] == [("rec/io", -5), ("rec", 0)]
    assert len({row.thread for row in own}) == 2
    items = {(row.category, row.payload) for row in by_text["perfharness.items"]}
    assert {("rec/io", 1 << 40), ("rec", 2)} <= items

    ready = [row.payload or 0 for row in by_text[MARK_READY_TIME] if row.thread == by_text["loop"][0].thread]
    assert len(ready) >= 2  # the tasks' batches take longer than the marks are apart
    assert sorted(ready) == ready
    in_tasks = [row for row in by_text["batch"] if row.kind == NVTX_START_END_RANGE]
    assert sorted(row.payload or 0 for row in in_tasks) == [0, 1, 10, 11, 20, 21]
    assert {row.category for row in in_tasks} == {"rec#1", "rec#2", "rec#3"}
    assert {row.category for row in by_text["stage"]} == {"rec/7#1", "rec/7#2", "rec/7#3"}
    for row in in_tasks:
        lane = str(row.category)[-2:]
        assert row.end_ns is not None
        inside = [
            other
            for other in events
            if str(other.category).endswith(lane) and row.start_ns < other.start_ns < row.end_ns
            if other.text not in READING_MARKS
        ]
        assert [other.text for other in inside] == ["stage", "perfharness.items"]
        assert inside[1].payload == (row.payload or 0) // 10

    ends = {}
    for name, seconds in (("short", 0.01), ("middle", 0.05), ("long", 0.1)):
        (held,) = by_text[name]
        assert held.end_ns is not None
        assert held.end_ns - held.start_ns > 0.9e9 * seconds
        ends[name] = held.end_ns
    assert ends["short"] < ends["middle"] < ends["long"]
    assert len(by_text["caf\\udce9.jpg"]) == 1

    ranges = [row for row in events if row.kind != NVTX_MARK_EVENT]
    counted = {recorder["name"]: recorder for recorder in journal["recorders"]}
    assert counted["rec"]["ranges"] == len([row for row in ranges if row.domain == "perfharness"])
    assert counted["other"]["ranges"] == 2
    assert (counted["rec"]["batches"], counted["rec"]["items"]) == (8, (1 << 40) + 2 + 2 * (0 + 1 + 2))
    assert (counted["rec"]["deleted_ranges"], counted["rec"]["threads"]) == (1, 2)


TABLE = """
from perfharness import PerfRecorder
from tests.support.recorder_programs import PROGRAMS

for name, program in PROGRAMS.items():
    perf = PerfRecorder(name, domain=name)
    program.run(perf)
    perf.finalize()
"""


def test_every_program_of_the_table(tmp_path: Path) -> None:
    """All ranges, items, deletions and names of the open ranges, recorder by recorder."""
    script = tmp_path / "table.py"
    script.write_text(TABLE, encoding="utf-8")
    events, journal = trace(tmp_path, script)
    counted = {one["name"]: one for one in journal["recorders"]}
    found = {
        name: (
            sum(row.kind != NVTX_MARK_EVENT for row in events if row.domain == name),
            sum(row.payload or 0 for row in events if row.domain == name and row.text == "perfharness.items"),
            sum(row.text == "perfharness.delete" for row in events if row.domain == name),
        )
        for name in PROGRAMS
    }
    assert found == {name: (one.counts[0], one.counts[2], one.counts[3]) for name, one in PROGRAMS.items()}
    names = ("ranges", "batches", "items", "deleted_ranges", "failed_batches")
    for name, program in PROGRAMS.items():
        assert tuple(counted[name][one] for one in names) == program.counts


@pytest.mark.slow
def test_plain_nvtx(tmp_path: Path) -> None:
    sample = (ROOT / "samples" / "plain_nvtx.py").read_text(encoding="utf-8")
    assert "import perfharness" not in sample
    # The sample as it is, with a recorder after it: outside a recorder nothing of ours is in the trace.
    script = tmp_path / "plain_and_recorder.py"
    script.write_text(sample + "\nfrom perfharness import PerfRecorder\nPerfRecorder('rec').finalize()\n", "utf-8")
    events, _ = trace(tmp_path, script, "--batches", "2", "--stage-ms", "1")
    ranges = [row for row in events if row.kind == NVTX_PUSH_POP_RANGE]
    batches = [name for i in range(2) for name in (f"batch_{i}", "preprocess", "inference")]
    assert [row.text for row in ranges] == ["pipeline", *batches]
    assert {(row.domain, row.category, row.payload) for row in ranges} == {("", None, None)}


LOCKED = """
import threading
import nvtx
from perfharness import PerfRecorder

perf = PerfRecorder("locked")

def count():
    with perf.range("Holding GIL"):
        for _ in range(3):
            with nvtx.annotate("outside"):
                sum(i * i for i in range(300_000))

threads = [threading.Thread(target=count) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
perf.finalize()
"""


@pytest.mark.slow
def test_the_interpreter_lock_is_evidence_and_the_recorder_s_ranges_stay(tmp_path: Path) -> None:
    script = tmp_path / "locked.py"
    script.write_text(LOCKED)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERFHARNESS_", "NVTX_"))}
    environ = {**kept, "PYTHONPATH": os.pathsep.join([NVTX_SITE, str(ROOT), str(ROOT / "launcher")])}
    program = [sys.executable, str(script)]
    nsys_profile(NSYS, tmp_path / "t.nsys-rep", program, environ, "--export=sqlite", apis="nvtx,python-gil")
    trace = open_trace(tmp_path / "t.sqlite")
    counts = Counter(trace.names[code] for code in trace.ranges.name.tolist())
    assert counts == {"Holding GIL": 3, "outside": 9}
    events = trace.lock_events
    assert events is not None
    held, waited = (events.kind == kind for kind in (HostEventKind.GIL_HELD, HostEventKind.GIL_WAITED))
    workers = set(trace.ranges.thread.tolist())
    assert workers <= set(events.thread[held].tolist())
    assert workers & set(events.thread[waited].tolist())  # three threads that compute must wait for each other
    order = np.argsort(events.start_ns[held])
    assert (events.start_ns[held][order][1:] >= events.end_ns[held][order][:-1] - 1_000_000).mean() > 0.9
