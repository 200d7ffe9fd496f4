"""The slowest requests of a run beside the typical one: `perfharness analyze --slowest`, `open_run(…).slowest()`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
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
from perfharness.model.load import REQUESTS_NAME, LoadResult
from perfharness.model.manifest import LOAD_NAME, ProcessRecord, RunManifest
from perfharness.model.trace import Bool, Int64
from perfharness.runs.explain import explaining_folder
from perfharness.runs.telemetry import RunTelemetry

NEEDED = ("id", "intended_ns", "done_ns")


class SlowestOfRun:
    """Takes from each process its `most` slowest requests of each loop path, before its trace is released.

    `timelines`: make those of the requests and of typical batches.
    """

    def __init__(self, run_dir: Path, manifest: RunManifest | None, most: int, *, timelines: bool = False) -> None:
        self._run_dir, self._manifest, self._most, self._timelines = run_dir, manifest, most, timelines
        self._telemetry = None if manifest is None else RunTelemetry(run_dir, manifest)
        self._found: list[ProcessLoop] = []
        self._notes: dict[str, None] = {}
        self.has_seen = False

    def visit(self, name: str, folder: Path, record: ProcessRecord | None, analysis: Analysis) -> None:
        """See one process, whose trace is on UTC where the run's clock is known."""
        self.has_seen = True
        requests, unknown = _requests(self._run_dir, self._manifest, folder)
        self._notes.update(dict.fromkeys([*self._not_recorded(analysis), *unknown]))
        throttled = _throttled(self._telemetry, record, analysis)
        self._found += slowest_of_process(analysis, name, self._most, requests, throttled, timelines=self._timelines)

    def result(self) -> tuple[Slowest, list[list[BatchTimeline]]]:
        """Of all processes together; and the timelines, in its order, of each request its own and a typical one."""
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
            yield "CUDA calls that only wait; such a wait is unknown time in which its GPU work runs"


def _throttled(
    telemetry: RunTelemetry | None, record: ProcessRecord | None, analysis: Analysis
) -> Mapping[str, Bool] | None:
    utc = analysis.trace.meta.session_start_unix_ns
    if telemetry is None or record is None or utc is None:
        return None
    throttling = telemetry.throttling(record)
    stages = analysis.stages
    return None if throttling is None else throttling.touched(utc + stages.start_ns, utc + stages.end_ns)


def _requests(run_dir: Path, manifest: RunManifest | None, folder: Path) -> tuple[Requests | None, list[str]]:
    """The requests of a process: in its own folder, or the only ones of the run (a generator beside the server); and
    what is not known of them.
    """
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
        return None, [f"Latencies of requests: {own} cannot be read ({error}), so slow is by the durations of batches."]


def _warmup_phases(run_dir: Path) -> frozenset[str]:
    """Names of the phases that do not count; none where `load.json` does not tell."""
    try:
        load = read_model(run_dir / LOAD_NAME, LoadResult)
    except ResultError:
        load = None
    return frozenset() if load is None else frozenset(phase.name for phase in load.phases if phase.is_warmup)


def read_requests(path: Path, warmup_phases: Collection[str] = ()) -> tuple[Requests, list[str]]:
    """Recorded requests whose latency is known, and sentences about the others.

    Raises `ResultError` where needed columns are missing, or what is no integer is in them.
    """
    table = pq.read_table(path)
    missing = [name for name in NEEDED if name not in table.column_names]
    if missing:
        raise ResultError(f"it lacks {', '.join(missing)}")
    for name in NEEDED:
        if not pa.types.is_integer(table.schema.field(name).type):
            raise ResultError(f"{name} is {table.schema.field(name).type} and no integer")
    done = table.filter(pc.and_(pc.is_valid(table["intended_ns"]), pc.is_valid(table["done_ns"])))
    numbers, texts = partial(_integers, done), partial(_texts, done)
    phase = texts("phase")
    requests = Requests(
        id=numbers("id"),
        intended_ns=numbers("intended_ns"),
        begun_ns=numbers("begun_ns"),
        done_ns=numbers("done_ns"),
        late_ns=_late(numbers("intended_ns"), numbers("ready_ns"), numbers("sent_ns")),
        items=numbers("items"),
        phase=phase,
        input=texts("input"),
        error=texts("error"),
        is_warmup=np.asarray([one in warmup_phases for one in phase], dtype=np.bool_),
    )
    lost, notes = table["done_ns"].null_count, []
    if lost:
        text = "were never answered; they have no latency and are not shown"
        notes.append(f"{lost} of {table.num_rows} requests {text}.")
    if unknown := table.num_rows - done.num_rows - lost:
        text = "have no moment at which they were due, so their latency is not known (`mlperf --log-queries` keeps it)"
        notes.append(f"{unknown} of {table.num_rows} requests {text}.")
    return requests, notes


def _late(intended_ns: Int64, ready_ns: Int64, sent_ns: Int64) -> Int64:
    """How much later than it could, the generator sent each request: it was due, and a worker was free."""
    return np.where(sent_ns >= 0, np.maximum(sent_ns - np.maximum(intended_ns, ready_ns), 0), 0)


def _integers(table: pa.Table, name: str) -> Int64:
    """A column, -1 where it is null or not there."""
    if name not in table.column_names:
        return np.full(table.num_rows, -1, dtype=np.int64)
    column = table[name].cast(pa.int64()).fill_null(-1)
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _texts(table: pa.Table, name: str) -> list[str | None]:
    if name not in table.column_names:
        return [None] * table.num_rows
    return [None if one is None else str(one) for one in table[name].to_pylist()]
