"""Runs by hand for the tests of exports: two processes with one recorder each, kernels, copies, a warm-up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfharness.model import conventions
from perfharness.model import nsys_schema as schema
from perfharness.model.manifest import EnvironmentRecord, ProcessRecord, TracerRecord
from perfharness.runs.series.model import Kind, SeriesRow
from perfharness.runs.series.summary import new_series
from tests.support.trace_builder import TraceBuilder
from tests.unit.run_records import manifest_of, process

MS = 1_000_000
RUN_START = 1_700_000_000_000_000_000
ITEMS = (4, 4, 3)


def recorded_trace(path: Path, session_start: int | None = RUN_START, pid: int = 100) -> Path:
    """Three batches of two stages; each `infer` copies and launches, twice in the last batch."""
    builder = TraceBuilder()
    if session_start is not None:
        builder.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=session_start)
    own: dict[str, Any] = {"domain": "perfharness", "category": "toy", "pid": pid}
    builder.mark(conventions.MARK_RECORDER, 0, **own)
    builder.range("pipeline", 0, 40 * MS, **own)
    for index, items in enumerate(ITEMS):
        start = MS + 10 * index * MS
        builder.range("batch", start, start + 9 * MS, payload=index, **own)
        builder.range("load", start, start + MS, **own)
        for part in range(2 if index == 2 else 1):
            at = start + (2 + 3 * part) * MS
            builder.range("infer", at, at + 2 * MS, **own)
            builder.copy((at + 10, at + 20), (at + 1000, at + 3000), size=8000, pid=pid)
            kernel(builder, (at + 30, at + 40), (at + 2500, at + 5000), pid=pid)
        builder.mark(conventions.MARK_ITEMS, start + 9 * MS - 1, payload=items, **own)
    path.parent.mkdir(parents=True, exist_ok=True)
    return builder.write(path)


def kernel(
    builder: TraceBuilder, call: tuple[int, int], run: tuple[int, int], *, pid: int, stream: int = 8, name: str = "gemm"
) -> None:
    """A kernel with a name and a shape."""
    correlation = builder.call("cudaLaunchKernel_v7000", *call, pid=pid)
    builder.row(
        schema.TABLE_KERNEL, start=run[0], end=run[1], globalPid=schema.global_tid(pid, 0), correlationId=correlation,
        deviceId=0, streamId=stream,
        shortName=builder.string(name), demangledName=builder.string(f"void {name}<float>()"),
        gridX=12, gridY=2, gridZ=1, blockX=128, blockY=1, blockZ=1, registersPerThread=32, staticSharedMemory=0,
        dynamicSharedMemory=1024, graphNodeId=None,
    )  # fmt: skip


def run_folder(folder: Path, *processes: ProcessRecord, **changes: Any) -> Path:
    """A manifest with these processes."""
    own = {"tracer": TracerRecord(kind="nsys"), "environment": EnvironmentRecord()}
    manifest = manifest_of(*processes, **{**own, **changes})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return folder


def process_record(index: int, **changes: Any) -> ProcessRecord:
    """A process that ended well."""
    own = {"gpu_uuid": None, "pid": 100, "start_unix_ns": RUN_START + index * MS}
    return process(index, **(own | changes))


def two_processes(folder: Path, second_start: int | None = RUN_START + 5 * MS) -> Path:
    """A run of two processes that had the same process id, as in separate containers."""
    recorded_trace(folder / "proc_0_gpu_0" / "trace.sqlite", RUN_START + 2 * MS)
    recorded_trace(folder / "proc_1_gpu_0" / "trace.sqlite", second_start)
    return run_folder(folder, process_record(0), process_record(1))


def series_of_runs(folder: Path, kind: Kind, *launches: tuple[str, str], **change: Any) -> Path:
    """A series of such runs, by label and folder.

    Args:
        change: of what the file holds.
    """
    rows = []
    for place, (label, name) in enumerate(launches):
        two_processes(folder / name)
        number = int(name.rpartition("_")[2]) if kind == "processes" else 1
        rows.append(SeriesRow(label=label, folder=name, place=place, num_processes=number, run_id="r1"))
    content = json.loads(new_series(kind, rows, ["perfharness"], "toy.py").model_dump_json())
    (folder / "series.json").write_text(json.dumps(content | change))
    return folder
