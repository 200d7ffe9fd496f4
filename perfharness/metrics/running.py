"""Running launches and benchmark cases, read from their folders.

The sampler appends readings to `LIVE_NAME` each second. Batches, items and stages come from the
growing range log of the embedded tracer; nsys has no such log.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfharness.files import is_own_folder
from perfharness.metrics.collect import MAX_STAGES, OTHER_STAGES
from perfharness.model.conventions import LANE_SEPARATOR, MARK_DELETE, MARK_ITEMS, MARK_RECORDER, parse_category
from perfharness.model.manifest import MANIFEST_NAME, STAGING_PREFIX
from perfharness.model.telemetry import LIVE_NAME
from perfharness.tracer.log_reader import NO_NAME, read_names
from perfharness.tracer.range_log import (
    CHUNK,
    END,
    FIRST_CHUNK_BYTES,
    HAS_PAYLOAD,
    ID,
    LOG_PREFIX,
    LOG_SUFFIX,
    MARK,
    OP_BITS,
    OP_MASK,
    POP,
    PUSH,
    RECORD_BYTES,
    REGION_BYTES,
    START,
    VALUE,
    RangeAttributes,
)

RUNNING_CASES = "cases/.*.running"
"""Folders of running cases in a suite (perfharness.bench.results)."""

RUNNING_LAUNCHES = tuple(f"{above}{STAGING_PREFIX}*" for above in ("", "*/", "*/*/"))
"""A launch, a launch of a series or a profiling pass, a launch of a series of several kinds."""

STALE_S = 5.0
"""An older reading is not current; the slowest metrics are read every second."""


def running_folders(folder: Path) -> list[Path]:
    """List the folders of running launches and benchmark cases in `folder`, the latest last."""
    launches = [
        path for pattern in RUNNING_LAUNCHES for path in folder.glob(pattern) if (path / MANIFEST_NAME).exists()
    ]
    found = [path for path in launches if is_own_folder(path) and is_locked(path)]
    cases = [path for path in folder.glob(RUNNING_CASES) if is_own_folder(path)]
    if cases and is_locked(folder):
        found += cases
    return sorted(found, key=_age)


def _age(folder: Path) -> float:
    with suppress(OSError):
        return folder.stat().st_ctime
    return 0.0


def is_locked(folder: Path) -> bool:
    """Whether a living launcher or suite has locked the folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


# ---- readings ----

Key = tuple[str, str]
"""Subject and metric, as in `telemetry.parquet`."""


class RunningReadings:
    """Readings of a run so far, about one per second and metric.

    Args:
        keep: number of latest readings to keep per metric, or None for all.

    Attributes:
        series: times (UTC nanoseconds) and values, None for a failed reading, by subject and metric.
        gpus: numbers of the GPUs by subject.
    """

    def __init__(self, folder: Path, keep: int | None = None) -> None:
        self.series: dict[Key, list[tuple[int, float | None]]] = {}
        self.gpus: dict[str, int] = {}
        self._path, self._position, self._keep = folder / LIVE_NAME, 0, keep

    def read(self) -> None:
        """Read the new lines."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                *lines, rest = file.read().split(b"\n")
                self._position = file.tell() - len(rest)
        except OSError:
            return
        for line in lines:
            try:
                entry = json.loads(line)
                self.gpus |= entry["gpus"]
            except (ValueError, KeyError, TypeError):
                continue  # the disk was full
            for subject, values in entry["values"].items():
                for metric, value in values.items():
                    points = self.series.setdefault((subject, metric), [])
                    points.append((entry["time_unix_ns"], value))
                    if self._keep is not None:
                        del points[: -self._keep]

    def latest(self) -> dict[Key, float]:
        """Return the current values, without metrics whose last reading failed or is old."""
        newest = max((points[-1][0] for points in self.series.values()), default=0)
        found = {}
        for key, points in self.series.items():
            time_ns, value = points[-1]
            if value is not None and time_ns > newest - STALE_S * 1e9:
                found[key] = value
        return found


# ---- ranges ----


@dataclass
class StageSoFar:
    """Ended ranges of a path."""

    count: int = 0
    total_ns: int = 0


@dataclass
class ProcessSoFar:
    """Progress of a launched process and its children.

    Attributes:
        batches: ended outermost batches, without deleted ones.
        items: items of these batches, or None if unknown for all of them.
        stages: by recorder and path (`pipeline/batch/decode`); after `MAX_STAGES` of them, `OTHER_STAGES`.
    """

    batches: int = 0
    items: int | None = None
    stages: dict[tuple[str, str], StageSoFar] = field(default_factory=dict)


class RunningRanges:
    """Batches, items and stages of a run so far, by process folder (`proc_0_gpu_0`); empty without a range log."""

    def __init__(self, folder: Path) -> None:
        self.processes: dict[str, ProcessSoFar] = {}
        self._folder = folder
        self._logs: dict[Path, _GrowingLog] = {}

    def read(self) -> None:
        """Read new events. Counts stay when a log becomes a trace."""
        for path in self._folder.glob(f"proc_*/{LOG_PREFIX}*{LOG_SUFFIX}"):
            if path not in self._logs:
                process = self.processes.setdefault(path.parent.name, ProcessSoFar())
                self._logs[path] = _GrowingLog(path, process)
            with suppress(OSError, ValueError):
                self._logs[path].read()


@dataclass
class _Open:
    attributes: RangeAttributes
    begin_ns: int
    is_batch: bool
    items: int | None = None
    is_deleted: bool = False


class _GrowingLog:
    """Reads a range log as it grows, and adds its ranges to `so_far`."""

    def __init__(self, path: Path, so_far: ProcessSoFar) -> None:
        self._path, self._so_far = path, so_far
        self._attributes: list[RangeAttributes] = []
        self._recorders: frozenset[str] = frozenset()
        self._ends_of_regions: list[int] = []  # end of the known chunks in each
        self._chunks: dict[int, tuple[int, int, int]] = {}  # by first record: thread, next record, end
        self._stacks: dict[tuple[Any, ...], list[_Open]] = {}
        self._of_id: dict[int, list[_Open]] = {}  # the stack of each start/end range
        self._before: dict[int, tuple[int | None, int]] = {}  # by thread: payload and id for the next event

    def read(self) -> None:
        """Add new events. Raises `OSError`, or `ValueError` if the file is not a range log."""
        records = np.memmap(self._path, dtype=np.int64, mode="r").reshape(-1, 2)
        self._find_chunks(records)
        waiting: set[int] = set()  # threads with an incomplete chunk: later ones must wait
        for first, (thread, begin, end) in list(self._chunks.items()):
            new = _written(records[begin:end]) if thread not in waiting else records[:0]
            if begin + len(new) < end:
                self._chunks[first] = thread, begin + len(new), end
                waiting.add(thread)
            else:
                del self._chunks[first]
            for head, value in new.tolist():
                self._add(thread, head, value)

    def _find_chunks(self, records: NDArray[np.int64]) -> None:
        size = REGION_BYTES // RECORD_BYTES
        for region in range(len(records) // size):
            if region == len(self._ends_of_regions):
                self._ends_of_regions.append(region * size or FIRST_CHUNK_BYTES // RECORD_BYTES)
            at = self._ends_of_regions[region]
            while at < (region + 1) * size:
                head, thread = records[at].tolist()
                length = (head >> OP_BITS) // RECORD_BYTES
                if head & OP_MASK != CHUNK or length < 1:
                    break  # unused
                self._chunks[at] = thread, at + 1, min(at + length, (region + 1) * size)
                at += length
            self._ends_of_regions[region] = at

    def _add(self, thread: int, head: int, value: int) -> None:
        op = head & OP_MASK & ~HAS_PAYLOAD
        payload, range_id = self._before.pop(thread, (None, 0))
        if op == VALUE:
            self._before[thread] = value, range_id
        elif op == ID:
            self._before[thread] = payload, value
        elif op == END:
            self._end(self._of_id.pop(range_id, []), value)
        else:
            attributes = self._named(head >> OP_BITS)
            category = attributes.category or ""
            is_of_task = LANE_SEPARATOR in category and op in (START, MARK)
            place = (thread, attributes.domain, category) if is_of_task else (thread, attributes.domain)
            stack = self._stacks.setdefault(place, [])
            if op == POP:
                self._end(stack, value)
            elif op == MARK:
                self._mark(stack, attributes, payload)
            elif op == PUSH or is_of_task:  # else a start/end range from elsewhere
                stack.append(_Open(attributes, value, payload is not None))
                if op == START:
                    self._of_id[range_id] = stack

    def _named(self, key: int) -> RangeAttributes:
        if key >= len(self._attributes):
            self._attributes = read_names(self._path)[2]
        return self._attributes[key] if key < len(self._attributes) else NO_NAME

    def _mark(self, stack: list[_Open], attributes: RangeAttributes, payload: int | None) -> None:
        if attributes.message == MARK_RECORDER and attributes.category is not None:
            self._recorders |= {attributes.category}
        elif stack and attributes.message == MARK_ITEMS:
            stack[-1].items = payload
        elif stack and attributes.message == MARK_DELETE:
            stack[-1].is_deleted = True

    def _end(self, stack: list[_Open], end_ns: int) -> None:
        if not stack:
            return
        path = "/".join(one.attributes.message for one in stack)
        ended = stack.pop()
        owner = parse_category(ended.attributes.category or "", self._recorders)
        if owner is None or ended.is_deleted:
            return
        stages, key = self._so_far.stages, (owner[0], path)
        if key not in stages and len(stages) >= MAX_STAGES:
            key = owner[0], OTHER_STAGES
        stage = stages.setdefault(key, StageSoFar())
        stage.count += 1
        stage.total_ns += end_ns - ended.begin_ns
        if ended.is_batch and not any(one.is_batch for one in stack):
            self._so_far.batches += 1
            if ended.items is not None:
                self._so_far.items = (self._so_far.items or 0) + ended.items


def _written(records: NDArray[np.int64]) -> NDArray[np.int64]:
    """Records up to the first incomplete one.

    A time is never 0. A payload may be 0; it is complete if a record follows or the chunk ends.
    """
    is_payload = (records[:, 0] & OP_MASK) == VALUE
    is_whole = (records[:, 1] != 0) | is_payload
    if is_whole.all():
        return records
    count = int(np.argmin(is_whole))
    return records[: count - 1 if count and is_payload[count - 1] else count]
