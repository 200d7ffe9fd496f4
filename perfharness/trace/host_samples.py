"""Read `host_samples*.log`, the records of the host probe in a process's folder."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfharness.host_probe import sample_file
from perfharness.model.columns import Int64
from perfharness.model.host_samples import Frame, HostEvents, HostProbe, HostSamples, HostState
from perfharness.model.trace import PID_SHIFT

_SAMPLE = np.dtype(
    [
        ("time", "<i8"), ("thread", "<i4"), ("length", "<i8"), ("on_cpu", "<i8"), ("runnable", "<i8"), ("state", "u1"),
        ("stack", "<i4"), ("stage", "<i4"), ("holder", "<i4"), ("unused", "V16"),
    ]
)  # fmt: skip
_EVENT = np.dtype([("start", "<i8"), ("end", "<i8"), ("thread", "<i4"), ("kind", "u1"), ("detail", "<i4")])
_OF_PROCESSES = {"thread": "<i8", "holder": "<i8"}
"""Columns that get the process id when read."""


COMPREHENSION = re.compile(r"(\.<locals>\.<(listcomp|setcomp|dictcomp|genexpr)>)+$")
"""A comprehension counts as part of its function, as in Python 3.12 and newer (PEP 709)."""


@dataclass(frozen=True)
class RecordedProbe:
    """Contents of the files: times of CLOCK_MONOTONIC, threads as `pid << PID_SHIFT | tid`.

    `monotonic_ns` and `unix_ns` were read at the same time.
    """

    probe: HostProbe
    monotonic_ns: int
    unix_ns: int


def read_host_probe(folder: Path, pid: int | None = None) -> RecordedProbe | None:
    """Read the probe's records of a process and its children, or None.

    Truncated or damaged files are read as far as possible, and named in `missing`.

    Args:
        pid: process to read, or None for all.
    """
    tables, missing = _read(folder, pid)
    if tables.meta is None:
        if not missing:
            return None
        tables.meta = {"interval_ns": 0, "monotonic_ns": 0, "unix_ns": 0}
    return tables.recorded(missing)


def has_several_probes(folder: Path) -> bool:
    """Whether the folder has records of several processes."""
    return len(_files(folder)) > 1


def _files(folder: Path) -> list[Path]:
    found = sorted(folder.glob(f"{sample_file.FILE_PREFIX}_*{sample_file.FILE_SUFFIX}"))
    first = folder / sample_file.FILE_NAME
    return [first, *found] if first.exists() else found


def _read(folder: Path, pid: int | None = None) -> tuple[_Tables, list[str]]:
    """Contents of a folder's files, and messages about unreadable parts."""
    tables = _Tables(pid)
    missing: list[str] = []
    for path in _files(folder):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            missing.append(f"{path.name} cannot be read: {error}")
            continue
        try:
            if not tables.add(content):
                missing.append(f"{path.name} was not completed, so the last samples are missing")
        except (ValueError, KeyError, TypeError, IndexError, struct.error) as error:
            missing.append(f"{path.name} is damaged: {error}")
    return tables, missing


class _Tables:
    """Rows of several files with common numbers of definitions."""

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self.meta: dict[str, int] | None = None
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._stages: dict[tuple[str, ...], int] = {}
        self._samples = [_read_rows(b"", _SAMPLE, 0)]
        self._events = [_read_rows(b"", _EVENT, 0)]
        self._missing: dict[str, None] = {}

    def add(self, content: bytes) -> bool:
        """Add the rows of a file; return False if it is truncated.

        Raises `ValueError`, `KeyError`, `TypeError` or `IndexError` if it is damaged.
        """
        if not content.startswith(sample_file.MAGIC):
            raise ValueError("not a file of samples")
        process = 0
        frames: list[int] = []
        functions: list[tuple[str, str]] = []
        inside: list[tuple[str, str] | None] = []
        stacks: list[int] = []
        stages: list[int] = []
        is_whole = False
        for kind, payload in chunks(content):
            if kind == sample_file.META:
                meta = {name: int(value) for name, value in json.loads(bytes(payload)).items()}
                if self._pid not in (None, meta["pid"]):
                    return True
                process = meta["pid"] << PID_SHIFT
                self.meta = self.meta or {name: meta[name] for name in sample_file.META_NAMES}
            elif kind == sample_file.DEFINE:
                defined = json.loads(bytes(payload))
                for function, file, line, *suspends in defined.get("frames", ()):
                    name = COMPREHENSION.sub("", str(function))
                    frame = Frame(name, str(file), int(line), suspends=bool(suspends))
                    number = self._frames.setdefault(frame, len(self._frames))
                    frames.append(number)
                    inside.append((name, file) if name != function else None)
                    functions.append((name, file))
                for stack in defined.get("stacks", ()):
                    own = _since_fork(stack, functions)
                    key = tuple(frames[number] for number in _without_callers(own, inside, functions))
                    stacks.append(self._stacks.setdefault(key, len(self._stacks)))
                paths = [tuple(map(str, path)) for path in defined.get("stages", ())]
                stages.extend(self._stages.setdefault(path, len(self._stages)) for path in paths)
            elif kind == sample_file.SAMPLES:
                rows = _read_rows(payload, _SAMPLE, process)
                rows["stack"] = _renumbered(rows["stack"], stacks)
                rows["stage"] = _renumbered(rows["stage"], stages)
                rows["holder"] = np.where(rows["holder"] > 0, process | rows["holder"], 0)
                self._samples.append(rows)
            elif kind == sample_file.EVENTS:
                self._events.append(_read_rows(payload, _EVENT, process))
            elif kind == sample_file.MISSING:
                self._missing |= dict.fromkeys(map(str, json.loads(bytes(payload))))
            elif kind == sample_file.END:
                is_whole = True
        return is_whole

    def recorded(self, missing: list[str]) -> RecordedProbe:
        """All records, ordered."""
        meta = self.meta or {}
        rows, events = np.concatenate(self._samples), np.concatenate(self._events)
        rows = rows[np.lexsort((rows["time"], rows["thread"]))]
        events = events[np.argsort(events["start"], kind="stable")]
        length, room = _weighed(rows)
        on_cpu, runnable = _reassigned(rows, room)
        samples = HostSamples(
            time_ns=_column(rows, "time"),
            thread=_column(rows, "thread"),
            length_ns=length,
            on_cpu_ns=on_cpu,
            runnable_ns=runnable,
            state=_column(rows, "state"),
            stack=_column(rows, "stack"),
            stage=_column(rows, "stage"),
            gil_holder=_column(rows, "holder"),
            frames=list(self._frames),
            stacks=list(self._stacks),
            stage_paths=list(self._stages),
            interval_ns=meta["interval_ns"],
        )
        intervals = HostEvents(*(_column(events, name) for name in ("start", "end", "thread", "kind", "detail")))
        probe = HostProbe(samples, intervals, (*self._missing, *missing))
        return RecordedProbe(probe, meta["monotonic_ns"], meta["unix_ns"])


def _column(rows: npt.NDArray[Any], name: str) -> Int64:
    return rows[name].astype(np.int64)


def _since_fork(stack: list[int], functions: list[tuple[str, str]]) -> list[int]:
    """Drop a stack's frames (innermost first) from the parent that forked a worker.

    They stay on the stack, so the worker would always seem to be starting processes.
    """
    for place, number in enumerate(stack):
        function, file = functions[number]
        if function.endswith("_bootstrap") and file.endswith("multiprocessing/process.py"):
            return stack[: place + 1]
    return stack


def _without_callers(
    stack: list[int], inside: list[tuple[str, str] | None], functions: list[tuple[str, str]]
) -> list[int]:
    """Drop each of a stack's frames (innermost first) that directly contains a comprehension on the stack.

    Args:
        inside: function of each frame of a comprehension, else None.
        functions: function of each frame.
    """
    callers = zip(stack[1:], stack, strict=False)
    return [*stack[:1], *(number for number, callee in callers if inside[callee] != functions[number])]


def chunks(content: bytes) -> Iterator[tuple[int, memoryview]]:
    """Kind and payload of each complete chunk."""
    view, at = memoryview(content), len(sample_file.MAGIC)
    while at + sample_file.CHUNK.size <= len(view):
        kind, length = sample_file.CHUNK.unpack_from(view, at)
        at += sample_file.CHUNK.size
        if at + length > len(view):
            return
        yield kind, view[at : at + length]
        at += length


def _weighed(rows: npt.NDArray[Any]) -> tuple[Int64, Int64]:
    """Duration that each sample stands for, and the part in which the thread may have run or waited for a CPU.

    This is the time since the thread's previous sample, corrected by the kernel's counters. On a busy machine the
    sampler is late while the program runs, and then sees it blocked. The counters are exact when a thread is blocked.
    So samples between two blocked ones share the counted time, and the second blocked one gets the rest.
    """
    length, thread = rows["length"].astype(np.int64), rows["thread"]
    ready = np.isin(rows["state"], (HostState.RUNNING, HostState.RUNNABLE))
    starts = np.r_[True, (thread[1:] != thread[:-1]) | ~ready[:-1]] if len(rows) else np.zeros(0, np.bool_)
    stretch = np.cumsum(starts) - 1
    count = int(stretch[-1]) + 1 if len(rows) else 0
    total, of_ready, counted = (
        np.bincount(stretch, weights=weights, minlength=count)
        for weights in (length, np.where(ready, length, 0), rows["on_cpu"] + rows["runnable"])
    )
    ends_blocked = np.bincount(stretch, weights=~ready, minlength=count) > 0
    known = ends_blocked & (of_ready > 0) & (np.bincount(stretch, weights=rows["on_cpu"] < 0, minlength=count) == 0)
    new_ready = np.where(known, np.minimum(counted, total), of_ready)
    factor = new_ready / np.maximum(of_ready, 1)
    weighed: Int64 = np.rint(np.where(ready, length * factor[stretch], (total - new_ready)[stretch])).astype(np.int64)
    room = np.where(ready, weighed, np.where(known[stretch], 0, weighed // 2))
    return weighed, room


def _reassigned(rows: npt.NDArray[Any], room: Int64) -> tuple[Int64, Int64]:
    """Time on a CPU and time ready without one, moved to the rows in which they were spent.

    The kernel updates its counters at timer ticks and when a thread stops, so a row may include time of earlier rows.
    """
    on_cpu, runnable = rows["on_cpu"].astype(np.int64), rows["runnable"].astype(np.int64)
    bounds = np.r_[0, np.flatnonzero(np.diff(rows["thread"])) + 1, len(rows)]
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        at = slice(first, last)
        if first < last and (on_cpu[at] >= 0).all():
            on_cpu[at] = _moved_back(on_cpu[at], room[at])
            runnable[at] = _moved_back(runnable[at], np.maximum(room[at] - on_cpu[at], 0))
    return on_cpu, runnable


def _moved_back(amounts: Int64, room: Int64) -> Int64:
    """Move amounts beyond the room to the nearest earlier rows with room; the first row takes the rest."""
    excess = np.cumsum((amounts - room)[::-1])
    carried = (excess - np.minimum(np.minimum.accumulate(excess), 0))[::-1]  # from each row to the previous one
    taken: Int64 = amounts - carried
    taken[:-1] += carried[1:]
    taken[0] += carried[0]
    return taken


def _read_rows(payload: memoryview | bytes, kind: np.dtype[Any], process: int) -> npt.NDArray[Any]:
    """Rows of a file, with the process id in thread columns."""
    assert kind.names is not None
    rows = np.frombuffer(payload, kind).astype([(name, _OF_PROCESSES.get(name, kind[name])) for name in kind.names])
    rows["thread"] |= process
    return rows


def _renumbered(numbers: npt.NDArray[Any], new: list[int]) -> npt.NDArray[np.int32]:
    """Map numbers of one file to those of all files; -1 stays."""
    table = np.asarray([*new, -1], dtype=np.int32)
    found: npt.NDArray[np.int32] = table[numbers]
    return found
