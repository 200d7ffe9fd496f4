"""What the sampler writes while it runs: an Arrow IPC stream, of which every whole batch can be read, however it ended.

A Parquet file has its index at its end, so a sampler that is killed would leave nothing. The spool becomes the Parquet
file afterwards: then the update periods are known, and which readings are repeats.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, Field

from perfharness.errors import ResultError
from perfharness.files import replacing
from perfharness.model.telemetry import FailureRecord, SampleLog, Series, TelemetryMeta, UpdatePeriodRecord
from perfharness.telemetry.protocol import Done
from perfharness.telemetry.source import Reading
from perfharness.telemetry.sources import METRICS
from perfharness.telemetry.store import write_sample_log
from perfharness.telemetry.updates import find_new, find_update_period

_SCHEMA = pa.schema(
    [("key", pa.int32()), ("time_monotonic_ns", pa.int64()), ("value", pa.float64()), ("read_ns", pa.int64())]
)
_STATE = b"state"

STATE_EVERY_S = 30.0
"""How often the state is written where no key was added: a day of it every second is as long as the readings."""

ALWAYS_NEW = frozenset(metric.name for metric in METRICS if metric.computed)
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

    def append(self, readings: Sequence[Reading], state: SpoolState, *, last: bool = False) -> None:
        """Write what was taken from the tapes and, now and then and with the last of it, the state after it."""
        now, metadata = time.monotonic(), None
        if last or len(state.keys) != self._keys or now >= self._state_due:
            self._keys, self._state_due = len(state.keys), now + STATE_EVERY_S
            metadata = {_STATE: state.model_dump_json().encode()}
        columns = list(zip(*readings, strict=True)) or [()] * len(_SCHEMA)
        self._stream.write_batch(pa.record_batch([*columns], schema=_SCHEMA), custom_metadata=metadata)

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
    batches, state, cut_off = [], None, True
    with path.open("rb") as file:
        try:
            with pa.ipc.open_stream(file) as stream:
                while True:
                    batch, metadata = stream.read_next_batch_with_custom_metadata()
                    batches.append(batch)
                    if metadata is not None:
                        state = SpoolState.model_validate_json(metadata[_STATE])
        except StopIteration:
            cut_off = not _has_end(path)
        except (pa.ArrowException, OSError):
            pass
    table = pa.Table.from_batches(batches, _SCHEMA)
    return Spooled({name: table.column(name).to_numpy() for name in _SCHEMA.names}, state, cut_off)


def _has_end(path: Path) -> bool:
    """Whether the stream was closed (its end is eight bytes: a continuation mark and a length of 0), not just cut."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - 8))
        return file.read() == b"\xff\xff\xff\xff\0\0\0\0"


def finish_spool(spool: Path, target: Path) -> Done:
    """Make `telemetry.parquet` of a spool and remove the spool.

    Raises `ResultError` where there is not even one whole batch in it, or the file cannot be written.
    """
    spooled = read_spool(spool)
    if spooled.state is None:
        raise ResultError(f"{spool} holds no reading: the sampler ended before it wrote any")
    log = _sample_log(spooled, spooled.state)
    with replacing(target) as temporary:
        write_sample_log(temporary, log)
    spool.unlink()
    read = [key for key, series in log.series.items() if series.is_read.any()]
    return Done(meta=log.meta, sampled=_sampled(read, log.meta), unread=_unread(log.series.keys() - read, log.meta))


def _sample_log(spooled: Spooled, state: SpoolState) -> SampleLog:
    """The readings of each key in order of time; the update periods, and which readings are new."""
    offset_ns, periods, found = state.meta.clock.offset_ns, [], {}
    key, times = spooled.columns["key"], spooled.columns["time_monotonic_ns"]
    order = np.lexsort((times, key))
    order = order[: np.searchsorted(key[order], len(state.keys))]  # a key whose name was not written yet is not known
    for which in np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(order) else ():
        subject, metric = state.keys[key[which[0]]]
        own, values, read_ns = (spooled.columns[name][which] for name in ("time_monotonic_ns", "value", "read_ns"))
        is_new = ~np.isnan(values)
        if metric not in ALWAYS_NEW:
            update = find_update_period(own, values)
            is_new = find_new(own, values, update)
            periods.append(
                UpdatePeriodRecord(
                    subject=subject, metric=metric, period_ns=update.period_ns, changes=update.changes,
                    resolved=update.resolved,
                )
            )  # fmt: skip
        found[subject, metric] = Series(own + offset_ns, own, values, is_new, read_ns)
    ended = "cut_off" if spooled.cut_off else state.meta.ended
    return SampleLog(found, state.meta.model_copy(update={"update_periods": periods, "ended": ended}))


def _sampled(read: Sequence[tuple[str, str]], meta: TelemetryMeta) -> dict[str, list[str]]:
    cores = {record.subject for record in meta.subjects if record.kind == "core"}
    found: dict[str, list[str]] = {}
    for subject, metric in dict.fromkeys(
        ("cores" if subject in cores else subject, metric) for subject, metric in read
    ):
        found.setdefault(subject, []).append(metric)
    return found


def _unread(never: Set[tuple[str, str]], meta: TelemetryMeta) -> list[FailureRecord]:
    """Why metrics were never read: of each, the reason that came most often."""
    reasons = sorted(meta.failures, key=lambda failure: failure.count)
    return list({key: failure for failure in reasons if (key := (failure.subject, failure.metric)) in never}.values())
