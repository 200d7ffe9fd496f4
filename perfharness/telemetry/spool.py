"""What the sampler writes while it runs: an Arrow IPC stream, of which every whole batch can be read, however it ended.

A Parquet file has its index at its end, so a sampler that is killed would leave nothing. The spool becomes the Parquet
file afterwards: then the update periods are known, and which readings are repeats.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, Field

from perfharness.errors import ResultError
from perfharness.model.telemetry import (
    GPU_METRICS,
    HOST_METRICS,
    PROCESS_METRICS,
    FailureRecord,
    Float64,
    Series,
    TelemetryMeta,
    UpdatePeriodRecord,
)
from perfharness.model.trace import Int64
from perfharness.telemetry.protocol import Done
from perfharness.telemetry.source import Columns
from perfharness.telemetry.store import write_series
from perfharness.telemetry.updates import UpdatePeriod, find_new, find_update_period

_KINDS: dict[str, Any] = {"key": np.int32, "time_monotonic_ns": np.int64, "value": np.float64, "read_ns": np.int64}
_SCHEMA = pa.schema([(name, pa.from_numpy_dtype(kind)) for name, kind in _KINDS.items()])
_STATE = b"state"

STATE_EVERY_S = 30.0
"""How often the state is written where no key was added: a day of it every second is as long as the readings."""

GATHER_SIZE = 1 << 20
"""Readings."""

ALWAYS_NEW = frozenset(metric.name for metric in (*GPU_METRICS, *PROCESS_METRICS, *HOST_METRICS) if metric.computed)
"""Made at the reading, or delivered only once."""


class SpoolState(BaseModel):
    """What goes with a batch: the names of the keys so far, and the metadata as it stands."""

    keys: list[tuple[str, str]] = Field(default_factory=list)
    meta: TelemetryMeta


class SpoolWriter:
    """Appends batches. Each is written immediately, so that a killed sampler loses none."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb", buffering=0)
        self._stream = pa.ipc.new_stream(self._file, _SCHEMA)
        self._keys = -1
        self._state_due = 0.0

    def append(self, parts: Sequence[Columns], state: SpoolState, *, last: bool = False) -> None:
        """Write what was taken from the tapes and, now and then and with the last of it, the state after it."""
        now = time.monotonic()
        keeps_state = not last and len(state.keys) == self._keys and now < self._state_due
        if not keeps_state:
            self._keys, self._state_due = len(state.keys), now + STATE_EVERY_S
        columns = [
            pa.array(np.concatenate([np.empty(0, kind), *(np.asarray(getattr(part, name), kind) for part in parts)]))
            for name, kind in _KINDS.items()
        ]
        batch = pa.record_batch(columns, schema=_SCHEMA)
        metadata = None if keeps_state else {_STATE: state.model_dump_json().encode()}
        self._stream.write_batch(batch, custom_metadata=metadata)

    def close(self) -> None:
        """The end of the stream."""
        self._stream.close()
        self._file.close()


class SpoolReader:
    """Reads a spool as far as it can be read.

    `state` and `cut_off` (its end is missing) are known after the last batch.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.state: SpoolState | None = None
        self.cut_off = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All whole batches."""
        with self._path.open("rb") as file:
            try:
                with pa.ipc.open_stream(file) as stream:
                    while True:
                        batch, metadata = stream.read_next_batch_with_custom_metadata()
                        if metadata is not None:
                            self.state = SpoolState.model_validate_json(metadata[_STATE])
                        yield batch
            except StopIteration:
                self.cut_off = not _has_end(self._path)
            except (pa.ArrowException, OSError):
                self.cut_off = True


@dataclass(frozen=True)
class Spooled:
    """A spool as far as it can be read; `cut_off`: its end is missing."""

    columns: Mapping[str, npt.NDArray[Any]]
    state: SpoolState | None
    cut_off: bool


def read_spool(path: Path) -> Spooled:
    """All whole batches of a spool, in memory."""
    reader = SpoolReader(path)
    table = pa.Table.from_batches(list(reader.batches()), _SCHEMA)
    return Spooled({name: table.column(name).to_numpy() for name in _SCHEMA.names}, reader.state, reader.cut_off)


def _has_end(path: Path) -> bool:
    """Whether the stream was closed (its end is eight bytes: a continuation mark and a length of 0), not just cut."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 8))
        return file.read() == b"\xff\xff\xff\xff\0\0\0\0"


def finish_spool(spool: Path, target: Path) -> Done:
    """Make `telemetry.parquet` of a spool and remove the spool. Never holds more than one series in memory.

    Raises `ResultError` where there is not even one whole batch in it, `OSError` where the file cannot be written.
    """
    reader = SpoolReader(spool)
    counts = np.zeros(0, dtype=np.int64)
    for batch in reader.batches():
        found = np.bincount(batch.column("key").to_numpy(), minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    state = reader.state
    if state is None:
        raise ResultError(f"{spool} holds no reading: the sampler ended before it wrote any")
    counts = counts[: len(state.keys)]  # a key whose name was not written yet is not known
    temporary, gathered = (target.with_name(f".{target.name}.{end}") for end in ("new", "gathered"))
    try:
        with _GatheredSeries(gathered, spool, counts) as series:
            done = _write(temporary, series, state, cut_off=reader.cut_off)
        temporary.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    spool.unlink()
    return done


class _GatheredSeries:
    """The readings of a spool, those of each key together, in a temporary file."""

    def __init__(self, path: Path, spool: Path, counts: Int64) -> None:
        self._path = path
        self._spool = spool
        self.counts = counts
        self._begin = np.cumsum(counts) - counts
        self._columns: dict[str, Any] = {}

    def __enter__(self) -> _GatheredSeries:
        total = max(1, int(self.counts.sum()))
        kinds = {name: kind for name, kind in _KINDS.items() if name != "key"}
        self._path.unlink(missing_ok=True)
        for place, (name, kind) in enumerate(kinds.items()):
            mode: Any = "r+" if self._columns else "w+"
            self._columns[name] = np.memmap(self._path, kind, mode, offset=8 * total * place, shape=(total,))
        self._path.unlink()  # the memory lives on as long as it is used
        cursor = self._begin.copy()
        waiting: list[pa.RecordBatch] = []
        for batch in SpoolReader(self._spool).batches():
            waiting.append(batch)
            if sum(map(len, waiting)) >= GATHER_SIZE:
                self._gather(waiting, cursor)
                waiting = []
        self._gather(waiting, cursor)
        return self

    def __exit__(self, *_: object) -> None:
        self._columns.clear()

    def _gather(self, batches: Sequence[pa.RecordBatch], cursor: Int64) -> None:
        table = pa.Table.from_batches(batches, _SCHEMA)
        key = table.column("key").to_numpy()
        order = np.argsort(key, kind="stable")
        order = order[: np.searchsorted(key[order], len(self.counts))]
        numbers, first, lengths = np.unique(key[order], return_index=True, return_counts=True)
        places = np.arange(len(order)) + np.repeat(cursor[numbers] - first, lengths)
        for name, column in self._columns.items():
            column[places] = table.column(name).to_numpy()[order]
        cursor[numbers] += lengths

    def get(self, number: int) -> tuple[Int64, Float64, Int64]:
        """Times, values and durations of the readings of a key, in order of time."""
        which = slice(self._begin[number], self._begin[number] + self.counts[number])
        times, values, read_ns = (
            np.array(self._columns[name][which]) for name in ("time_monotonic_ns", "value", "read_ns")
        )
        order = np.argsort(times, kind="stable")
        return times[order], values[order], read_ns[order]


def _write(path: Path, series: _GatheredSeries, state: SpoolState, *, cut_off: bool) -> Done:
    """Write the Parquet file. The update periods go first, for they stand in its metadata."""
    numbers = [number for number in range(len(state.keys)) if series.counts[number]]
    updates: dict[int, UpdatePeriod] = {}
    read = []
    for number in numbers:
        times, values, _ = series.get(number)
        if state.keys[number][1] not in ALWAYS_NEW:
            updates[number] = find_update_period(times, values)
        if not np.isnan(values).all():
            read.append(number)
    periods = [_record(*state.keys[number], update) for number, update in updates.items()]
    changes = {"update_periods": periods, **({"ended": "cut_off"} if cut_off else {})}
    meta = state.meta.model_copy(update=changes)

    def made(number: int) -> Series:
        times, values, read_ns = series.get(number)
        update = updates.get(number)
        is_new = ~np.isnan(values) if update is None else find_new(times, values, update)
        return Series(times + meta.clock.offset_ns, times, values, is_new, read_ns)

    by_name = sorted(numbers, key=lambda number: state.keys[number])
    write_series(path, meta, [state.keys[number] for number in by_name], map(made, by_name))
    return Done(
        meta=meta,
        sampled=_sampled([state.keys[number] for number in read], meta),
        unread=_unread({state.keys[number] for number in numbers} - {state.keys[number] for number in read}, meta),
    )


def _sampled(read: Sequence[tuple[str, str]], meta: TelemetryMeta) -> dict[str, list[str]]:
    kinds = {record.subject: record.kind for record in meta.subjects}
    found: dict[str, list[str]] = {}
    for subject, metric in read:
        metrics = found.setdefault("cores" if kinds.get(subject) == "core" else subject, [])
        if metric not in metrics:
            metrics.append(metric)
    return found


def _unread(never: Set[tuple[str, str]], meta: TelemetryMeta) -> list[FailureRecord]:
    """Why metrics were never read: of each, the reason that came most often."""
    reasons = sorted(meta.failures, key=lambda failure: failure.count)
    return list({key: failure for failure in reasons if (key := (failure.subject, failure.metric)) in never}.values())


def _record(subject: str, metric: str, update: UpdatePeriod) -> UpdatePeriodRecord:
    return UpdatePeriodRecord(
        subject=subject, metric=metric, period_ns=update.period_ns, changes=update.changes, resolved=update.resolved
    )
