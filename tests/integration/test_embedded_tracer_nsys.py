"""What nsys's own reports, and our reader, make of a trace of the embedded tracer with GPU work in it.

The GPU work is made up, record by record; all that follows CUPTI (tables, names, clocks) is the tracer's own.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from perfharness.analysis.analysis import Analysis
from perfharness.trace import open_trace
from perfharness.tracer import cupti, output
from perfharness.tracer.gpu import GpuTrace
from perfharness.tracer.layouts import LAYOUTS
from perfharness.tracer.range_log import HAS_PAYLOAD, MARK, OP_BITS, POP, PUSH, RangeAttributes, RangeLog
from perfharness.tracer.records import Columns
from perfharness.tracer.session import Session
from tests.integration.launches import NSYS

REPORTS = ("nvtx_pushpop_trace", "nvtx_gpu_proj_trace")
KERNEL_NAME = ctypes.create_string_buffer(b"_ZN2ns4fillIfEEvPT_i")
LAUNCH_CBID, COPY_CBID, GRAPH_CBID = 211, 41, 311
API_NAMES = {
    (cupti.DOMAIN_RUNTIME, LAUNCH_CBID): "cudaLaunchKernel_v7000",
    (cupti.DOMAIN_RUNTIME, COPY_CBID): "cudaMemcpyAsync_v3020",
    (cupti.DOMAIN_RUNTIME, GRAPH_CBID): "cudaGraphLaunch_v10000",
}
THREAD, OTHER_THREAD = 5, 77


def columns(kind: int, origin_ns: int, rows: list[dict[str, int]]) -> Columns:
    """Columns of a kind as `records.decode` gives them; a field that a row does not name is 0."""
    found: Columns = {}
    for name, (type_name, _) in LAYOUTS[kind].fields.items():
        shift = origin_ns if name in ("start", "end") else 0
        found[name] = np.asarray([row.get(name, 0) + shift for row in rows], dtype=type_name)
    return found


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session that has recorded two batches on this thread.

    batch  100 [----------------------------------] 900      1000 [--------] 1400
    pre       110 [------] 300
    infer                    310 [---------] 800
    """
    made = Session(str(tmp_path))
    now_ns = [0]
    made.log = log = RangeLog(str(tmp_path), lambda: made.origin_ns + now_ns[0])
    monkeypatch.setattr(threading, "get_native_id", lambda: THREAD)
    batch, pre, infer, mark = (
        log.key(RangeAttributes("perfharness", name, category)) << OP_BITS
        for name, category in (("batch", "rec"), ("pre", "rec"), ("infer", "rec"), ("perfharness.recorder", "rec"))
    )
    events = [
        (mark | MARK, 90, 0), (batch | PUSH | HAS_PAYLOAD, 100, 0), (pre | PUSH, 110, 0), (POP, 300, 0),
        (infer | PUSH, 310, 0), (POP, 800, 0), (POP, 900, 0), (batch | PUSH | HAS_PAYLOAD, 1000, 1), (POP, 1400, 0),
    ]  # fmt: skip
    for head, at_ns, payload in events:
        now_ns[0] = at_ns
        if head & HAS_PAYLOAD:
            log.writer().event_with_value(head, payload)
        else:
            log.writer().event(batch | POP if head == POP else head)
    made.end_ns = made.origin_ns + 2000
    return made


@pytest.fixture
def trace(session: Session, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The session's trace: a copy started in `pre`, two kernels in `infer`, a graph in the second batch, and a kernel
    that another thread started at the time of `infer`."""
    calls = [(120, 130, COPY_CBID, 1, 5), (320, 330, LAUNCH_CBID, 2, 5), (340, 350, LAUNCH_CBID, 3, 5)]
    calls += [(360, 370, LAUNCH_CBID, 4, OTHER_THREAD), (1010, 1020, GRAPH_CBID, 5, 5)]
    origin = session.origin_ns
    name = ctypes.addressof(KERNEL_NAME)
    kernels = [(400, 500, 2), (550, 700, 3), (600, 900, 4)]
    records = {
        cupti.KIND_RUNTIME: columns(
            cupti.KIND_RUNTIME,
            origin,
            [dict(zip(("start", "end", "cbid", "correlationId", "thread"), call, strict=True)) for call in calls],
        ),
        cupti.KIND_CONCURRENT_KERNEL: columns(
            cupti.KIND_CONCURRENT_KERNEL,
            origin,
            [
                {"start": start, "end": end, "correlationId": c, "name": name, "streamId": 7}
                for start, end, c in kernels
            ],
        ),
        cupti.KIND_MEMCPY: columns(
            cupti.KIND_MEMCPY, origin, [{"start": 200, "end": 250, "correlationId": 1, "bytes": 4096, "copyKind": 1}]
        ),
        cupti.KIND_GRAPH_TRACE: columns(
            cupti.KIND_GRAPH_TRACE, origin, [{"start": 1100, "end": 1300, "correlationId": 5, "graphId": 3}]
        ),
    }
    meta = {"cuda_traced": "yes", "cuda_used": "no", "gpu_present": "yes", "dropped_records": "0"}
    monkeypatch.setattr(output, "gpu_records", lambda _: (records, dict(meta), []))
    session.gpu = cast(GpuTrace, SimpleNamespace(api_names=API_NAMES))
    return output.write_trace(session)


def test_our_reader_attributes_the_work(trace: Path) -> None:
    read = open_trace(trace)
    table = Analysis(read).table
    assert read.meta.tracer == "embedded"
    assert read.meta.gpu_coverage == "traced"
    found = {
        (read.names[table.ranges.name[row]], int(table.ranges.start_ns[row])): (
            int(table.projection.start_ns[row]),
            int(table.projection.end_ns[row]),
            int(table.projection.operation_count[row]),
        )
        for row in range(len(table.ranges))
    }
    assert found == {
        ("batch", 100): (200, 700, 3),
        ("pre", 110): (200, 250, 1),
        ("infer", 310): (400, 700, 2),
        ("batch", 1000): (1100, 1300, 1),
    }


@pytest.fixture(scope="module")
def nsys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An nsys whose reports run: in Debian's packages they miss a module that lies in the other half."""
    program = Path(NSYS).resolve()
    target, host = program.parent, program.parent.parent / "host-linux-x64"
    missing = target / "python" / "lib" / "nsysstats.py"
    if not missing.is_file() or (host / "python" / "lib" / "nsysstats.py").exists():
        yield program
        return
    folder = tmp_path_factory.mktemp("nsys")
    for half in (target, host):
        shutil.copytree(half, folder / half.name, copy_function=_link, symlinks=True)
    for path in (target / "python" / "lib").iterdir():
        if not (folder / host.name / "python" / "lib" / path.name).exists():
            _link(path, folder / host.name / "python" / "lib" / path.name)
    yield folder / target.name / program.name
    shutil.rmtree(folder)


def _link(source: Any, target: Any) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def reports(nsys: Path, trace: Path) -> dict[str, list[dict[str, Any]]]:
    prefix = trace.with_name("answer")
    command: list[str | Path] = [nsys, "stats", "-q", "-r", ",".join(REPORTS), "--format", "json", "-o", prefix, trace]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    found = {report: prefix.with_name(f"answer_{report}.json") for report in REPORTS}
    missing = [report for report, path in found.items() if not path.exists()]
    assert not missing, process.stdout + process.stderr
    return {report: json.loads(path.read_text()) for report, path in found.items()}


@pytest.mark.nsys
def test_nsys_stats_reads_it(nsys: Path, trace: Path) -> None:
    found = reports(nsys, trace)
    ranges = [(row["Name"].lstrip(":"), row["Start (ns)"], row["End (ns)"], row["Lvl"]) for row in found[REPORTS[0]]]
    assert ranges == [
        ("perfharness:batch", 100, 900, 0),
        ("perfharness:pre", 110, 300, 1),
        ("perfharness:infer", 310, 800, 1),
        ("perfharness:batch", 1000, 1400, 0),
    ]
    projected = [
        (row["Name"], row["Projected Start (ns)"], row["Projected Duration (ns)"], row["NumGPUOps"])
        for row in found[REPORTS[1]]
        if row["Name"]
    ]
    # The second batch is not in it: nsys's report leaves graph launches out.
    assert projected == [
        ("perfharness:batch", 200, 500, 3),
        ("perfharness:pre", 200, 50, 1),
        ("perfharness:infer", 400, 300, 2),
    ]
