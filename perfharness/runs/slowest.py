"""Find the slowest requests of a run: `perfharness analyze --slowest`, `open_run(…).slowest()`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfharness.analysis.analysis import Analysis
from perfharness.analysis.slowest import ProcessLoop, Requests, Slowest, pool_loops, slowest_of_process
from perfharness.analysis.stages.charts import BatchTimeline
from perfharness.errors import ResultError
from perfharness.files import read_model
from perfharness.model.columns import Int64
from perfharness.model.load import REQUESTS_NAME, LoadResult
from perfharness.model.manifest import LOAD_NAME, ProcessRecord, RunManifest
from perfharness.runs.explain import explaining_folder
from perfharness.runs.telemetry import RunTelemetry

NEEDED = ("id", "intended_ns", "done_ns")


class SlowestOfRun:
    """Collect the slowest requests per loop path of each process while its trace is loaded, `most` of each."""

    def __init__(self, run_dir: Path, manifest: RunManifest | None, most: int, *, timelines: bool = False) -> None:
        self._run_dir, self._manifest, self._most, self._timelines = run_dir, manifest, most, timelines
        self._telemetry = None if manifest is None else RunTelemetry(run_dir, manifest)
        self._found: list[ProcessLoop] = []
        self._notes: dict[str, None] = {}
        self.has_seen = False

    def visit(self, name: str, folder: Path, record: ProcessRecord | None, analysis: Analysis) -> None:
        """Take the slowest requests of a process."""
        self.has_seen = True
        requests, unknown = _requests(self._run_dir, self._manifest, folder)
        self._notes.update(dict.fromkeys([*self._not_recorded(analysis), *unknown]))
        throttled, utc = None, analysis.trace.meta.session_start_unix_ns
        throttling = self._telemetry.throttling(record) if self._telemetry and record else None
        if throttling is not None and utc is not None:
            throttled = throttling.touched(utc + analysis.stages.start_ns, utc + analysis.stages.end_ns)
        self._found += slowest_of_process(analysis, name, self._most, requests, throttled, timelines=self._timelines)

    def result(self) -> tuple[Slowest, list[list[BatchTimeline]]]:
        """Slowest requests of all processes, and their timelines with a typical one."""
        loops, beside = pool_loops(self._found, self._most)
        return Slowest(asked=self._most, loops=loops, notes=list(self._notes)), beside

    def _not_recorded(self, analysis: Analysis) -> Iterator[str]:
        meta, probe = analysis.trace.meta, analysis.host_probe
        if (probe is None or probe.samples.is_coarse) and analysis.trace.os_calls is None:
            folder = None if self._manifest is None else explaining_folder(self._run_dir, self._manifest)
            step = f"See the profiling pass: perfharness analyze {folder} --slowest {self._most}"
            yield f"waits by kind. {step if folder else 'To see them, launch with --explain.'}"
        if meta.gpu_coverage == "untraced":
            yield f"GPU work, which was not traced: {meta.gpu_coverage_reason}"
        if meta.gpu_coverage == "traced" and not meta.has_all_calls:
            yield "CUDA calls that only wait; they are unknown time while GPU work runs"


def _requests(run_dir: Path, manifest: RunManifest | None, folder: Path) -> tuple[Requests | None, list[str]]:
    """Requests of a process, from its folder or the only file of the run, and notes about them."""
    own = folder / REQUESTS_NAME
    if manifest is not None and not own.exists():
        folders = [run_dir / one.folder for one in manifest.processes]
        there = [one / REQUESTS_NAME for one in (run_dir, *folders) if (one / REQUESTS_NAME).exists()]
        if len(there) != 1:
            return None, []
        own = there[0]
    if not own.exists():
        return None, []
    try:
        return read_requests(own, _warmup_phases(run_dir) | _warmup_phases(folder.parent))
    except (ResultError, OSError, pa.ArrowException) as error:
        return None, [f"Latencies of requests: {own} cannot be read ({error}); durations of batches are used."]


def _warmup_phases(run_dir: Path) -> frozenset[str]:
    try:
        load = read_model(run_dir / LOAD_NAME, LoadResult)
    except ResultError:
        load = None
    return frozenset() if load is None else frozenset(phase.name for phase in load.phases if phase.is_warmup)


def read_requests(path: Path, warmup_phases: Collection[str] = ()) -> tuple[Requests, list[str]]:
    """Requests with a known latency, and sentences about the others. Raises `ResultError`."""
    table = pq.read_table(path)
    missing = [name for name in NEEDED if name not in table.column_names]
    if missing:
        raise ResultError(f"column {', '.join(missing)} is missing")
    for name in NEEDED:
        if not pa.types.is_integer(table.schema.field(name).type):
            raise ResultError(f"column {name} is {table.schema.field(name).type}, not integer")
    done = table.filter(pc.and_(pc.is_valid(table["intended_ns"]), pc.is_valid(table["done_ns"])))
    numbers = partial(_integers, done)
    phase, inputs, errors = (_column(done, name, pa.string()).to_pylist() for name in ("phase", "input", "error"))
    requests = Requests(
        id=numbers("id"),
        intended_ns=numbers("intended_ns"),
        begun_ns=numbers("begun_ns"),
        done_ns=numbers("done_ns"),
        late_ns=_late(numbers("intended_ns"), numbers("ready_ns"), numbers("sent_ns")),
        items=numbers("items"),
        phase=phase,
        input=inputs,
        error=errors,
        is_warmup=np.asarray([one in warmup_phases for one in phase], dtype=np.bool_),
    )
    lost, notes = table["done_ns"].null_count, []
    if lost:
        notes.append(f"{lost} of {table.num_rows} requests were not answered and are not shown.")
    if unknown := table.num_rows - done.num_rows - lost:
        text = "have no due time, so their latency is unknown (use `mlperf --log-queries`)"
        notes.append(f"{unknown} of {table.num_rows} requests {text}.")
    return requests, notes


def _late(intended_ns: Int64, ready_ns: Int64, sent_ns: Int64) -> Int64:
    """Delay of each request in the generator, from when it was due and a worker was free."""
    return np.where(sent_ns >= 0, np.maximum(sent_ns - np.maximum(intended_ns, ready_ns), 0), 0)


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """A column, with nulls if it is missing."""
    found = table[name] if name in table.column_names else pa.chunked_array([pa.nulls(table.num_rows)])
    return found.cast(kind)


def _integers(table: pa.Table, name: str) -> Int64:
    """A column, with -1 for null."""
    return np.asarray(_column(table, name, pa.int64()).fill_null(-1).to_numpy(), dtype=np.int64)
