"""What the sampler writes while it runs: an Arrow IPC stream, of which every whole batch can be read, however it ended.

A Parquet file has its index at its end, so a sampler that is killed would leave nothing. The spool becomes the Parquet
file afterwards: then the update periods are known, and which readings are repeats.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
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
    SampleLog,
    Series,
    TelemetryMeta,
    UpdatePeriodRecord,
)
from perfharness.telemetry.protocol import Done
from perfharness.telemetry.source import Columns
from perfharness.telemetry.store import write_sample_log
from perfharness.telemetry.updates import UpdatePeriod, find_new, find_update_period

_KINDS: dict[str, Any] = {"key": np.int32, "time_monotonic_ns": np.int64, "value": np.float64, "read_ns": np.int64}
_SCHEMA = pa.schema([(name, pa.from_numpy_dtype(kind)) for name, kind in _KINDS.items()])
_STATE = b"state"

ALWAYS_NEW = frozenset(metric.name for metric in (*GPU_METRICS, *PROCESS_METRICS, *HOST_METRICS) if metric.computed)
"""Made at the reading, or delivered only once."""


class SpoolState(BaseModel):
    """What goes with each batch: the names of the keys so far, and the metadata as it stands."""

    keys: list[tuple[str, str]] = Field(default_factory=list)
    meta: TelemetryMeta


class SpoolWriter:
    """Appends batches. Each is handed to the system at once, so that a killed sampler loses none."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb", buffering=0)
        self._stream = pa.ipc.new_stream(self._file, _SCHEMA)

    def append(self, parts: Sequence[Columns], state: SpoolState) -> None:
        """Write what was taken from the tapes, and the state after it."""
        columns = [
            pa.array(np.concatenate([np.empty(0, kind), *(np.asarray(getattr(part, name), kind) for part in parts)]))
            for name, kind in _KINDS.items()
        ]
        batch = pa.record_batch(columns, schema=_SCHEMA)
        self._stream.write_batch(batch, custom_metadata={_STATE: state.model_dump_json().encode()})

    def close(self) -> None:
        """The end of the stream."""
        self._stream.close()
        self._file.close()


@dataclass(frozen=True)
class Spooled:
    """A spool as far as it can be read; `cut_off`: its end is missing."""

    columns: Mapping[str, npt.NDArray[Any]]
    state: SpoolState | None
    cut_off: bool


def read_spool(path: Path) -> Spooled:
    """All whole batches of a spool."""
    batches, state, cut_off = [], None, False
    with path.open("rb") as file:
        try:
            with pa.ipc.open_stream(file) as stream:
                while True:
                    batch, metadata = stream.read_next_batch_with_custom_metadata()
                    if metadata is not None:
                        state = SpoolState.model_validate_json(metadata[_STATE])
                    batches.append(batch)
        except StopIteration:
            cut_off = not _has_end(path)
        except (pa.ArrowException, OSError):
            cut_off = True
    table = pa.Table.from_batches(batches, _SCHEMA)
    return Spooled({name: table.column(name).to_numpy() for name in _SCHEMA.names}, state, cut_off)


def _has_end(path: Path) -> bool:
    """Whether the stream was closed (its end is eight bytes: a continuation mark and a length of 0), not just cut."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 8))
        return file.read() == b"\xff\xff\xff\xff\0\0\0\0"


def finish_spool(spool: Path, target: Path) -> Done:
    """Make `telemetry.parquet` of a spool and take the spool away.

    Raises `ResultError` where there is not even one whole batch in it, `OSError` where the file cannot be written.
    """
    spooled = read_spool(spool)
    if spooled.state is None:
        raise ResultError(f"{spool} holds no reading: the sampler came to its end before it wrote any")
    log = to_sample_log(spooled, spooled.state)
    temporary = target.with_name(f".{target.name}.new")
    try:
        write_sample_log(temporary, log)
        temporary.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    spool.unlink()
    return Done(meta=log.meta, sampled=_sampled(log), unread=_unread(log))


def _sampled(log: SampleLog) -> dict[str, list[str]]:
    kinds = {record.subject: record.kind for record in log.subjects()}
    found: dict[str, list[str]] = {}
    for (subject, metric), series in log.series.items():
        metrics = found.setdefault("cores" if kinds.get(subject) == "core" else subject, [])
        if metric not in metrics and series.is_read.any():
            metrics.append(metric)
    return found


def _unread(log: SampleLog) -> list[FailureRecord]:
    """Why metrics were never read: of each, the reason that came most often."""
    never = {key for key, series in log.series.items() if not series.is_read.any()}
    reasons = sorted(log.meta.failures, key=lambda failure: failure.count)
    return list({key: failure for failure in reasons if (key := (failure.subject, failure.metric)) in never}.values())


def to_sample_log(spooled: Spooled, state: SpoolState) -> SampleLog:
    """Series by subject and metric, repeats told apart by the update periods found."""
    key, times = spooled.columns["key"], spooled.columns["time_monotonic_ns"]
    order = np.lexsort((times, key))
    borders = np.searchsorted(key[order], np.arange(len(state.keys) + 1))
    series, periods = {}, []
    for number, (subject, metric) in enumerate(state.keys):
        which = order[borders[number] : borders[number + 1]]
        if not len(which):
            continue
        time_ns, value = times[which], spooled.columns["value"][which]
        if metric in ALWAYS_NEW:
            is_new = ~np.isnan(value)
        else:
            update = find_update_period(time_ns, value)
            is_new = find_new(time_ns, value, update)
            periods.append(_record(subject, metric, update))
        series[subject, metric] = Series(
            time_ns + state.meta.clock.offset_ns, time_ns, value, is_new, spooled.columns["read_ns"][which]
        )
    meta = state.meta.model_copy(
        update={"update_periods": periods, **({"ended": "cut_off"} if spooled.cut_off else {})}
    )
    return SampleLog(series, meta)


def _record(subject: str, metric: str, update: UpdatePeriod) -> UpdatePeriodRecord:
    return UpdatePeriodRecord(
        subject=subject, metric=metric, period_ns=update.period_ns, changes=update.changes, resolved=update.resolved
    )
