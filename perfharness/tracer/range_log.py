"""Range log of a process, written by recorders and the nvtx hook, read by the embedded tracer.

Records go into a memory-mapped file, so a killed process loses none. An event costs one clock reading
and one `struct.pack_into`. After a header of one page, a file has chunks of records, each of one thread:

    record  = int64 head, int64 value                head = key << OP_BITS | op
    chunk   = (CHUNK | length << OP_BITS, native thread ID), records, zeros

`key` is the number from `RangeLog.key()` for the static attributes: domain, message, category, color.
`value` is the time (`perf_counter_ns`). In a VALUE it is the payload of the next event, whose op has
`HAS_PAYLOAD`. In an ID it is the number that pairs a START with its END. A POP has any key of its
domain (as in NVTX, each thread and domain has a stack), an END has key 0.

A second file has a line of JSON per key, with its attributes. Its first line (`LogFacts`) describes the
process; later objects are notes at its end. Files are opened for each write, because a program may
close all descriptors. A forked child writes its own files, from its first event on.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from json import dumps
from typing import Any

from perfharness.boot import ranks
from perfharness.model import environment

PUSH, POP, START, END, MARK, VALUE, ID, CHUNK = range(8)
HAS_PAYLOAD = 8
OP_BITS = 4
OP_MASK = (1 << OP_BITS) - 1
RECORD_BYTES = 16

MAGIC = b"PHRANGES"
HEADER = struct.Struct("=8sq")
"""Magic, and the number of events lost to a full disk."""

LOG_PREFIX = ".ranges_"
LOG_SUFFIX = ".log"
NAMES_SUFFIX = ".names"

REGION_BYTES = 1 << 20
FIRST_CHUNK_BYTES = mmap.ALLOCATIONGRANULARITY
LARGEST_CHUNK_BYTES = 1 << 18

_RECORD = struct.Struct("=2q")
_NO_CHUNK = memoryview(bytearray(0))
_NOT_SUPPORTED = frozenset((22, 38, 95))  # EINVAL, ENOSYS, EOPNOTSUPP

Clock = Callable[[], int]


@dataclass(frozen=True)
class RangeAttributes:
    """Static attributes of an event, as in NVTX."""

    domain: str | None
    message: str
    category: str | None = None
    color: int | None = None


@dataclass(frozen=True)
class LogFacts:
    """The process of a log. Times are `perf_counter_ns`, common to all processes, and UTC nanoseconds.

    Args:
        gpu_present: whether the machine has an NVIDIA GPU, or None if not checked.
        only_ranges: whether to record only ranges (`--tracer ranges`).
        ancestors: process IDs of the ancestors, nearest first.
        rank: from `ranks.rank_facts`.
        start_ticks: from `ranks.start_ticks`.
    """

    pid: int
    parent_pid: int
    executable: str
    started_ns: int
    started_unix_ns: int
    gpu_present: bool | None = None
    only_ranges: bool = False
    ancestors: tuple[int, ...] = ()
    rank: dict[str, Any] | None = None
    start_ticks: int | None = None

    @classmethod
    def of_this_process(cls, gpu_present: bool | None) -> LogFacts:
        """Describe the calling process, without its rank."""
        above = tuple(ranks.ancestors())
        return cls(
            pid=os.getpid(),
            parent_pid=above[0],
            executable=sys.executable or "python",
            started_ns=time.perf_counter_ns(),
            started_unix_ns=time.time_ns(),
            gpu_present=gpu_present,
            only_ranges=os.environ.get(environment.TRACER) == environment.ONLY_RANGES,
            ancestors=above,
            start_ticks=ranks.start_ticks(),
        )


class Writer:
    """Writes the events of one thread at a time.

    The functions share the position in the chunk by closure, which is faster than attributes.

    Attributes:
        event: `(head)`: write a record with the current time.
        event_with_value: `(head, payload)`: write a VALUE, then the event.
        start: `(head) -> id`, `start_with_value`: `(head, payload) -> id`; `end`: `(id)`.
        popper: `(head) -> function` that writes this event.
        leave_chunk: begin a new chunk with the next event.
    """

    __slots__ = ("end", "event", "event_with_value", "leave_chunk", "popper", "start", "start_with_value")

    def __init__(self, log: RangeLog, clock: Clock) -> None:
        pack, full = _RECORD.pack_into, struct.error
        chunk = _NO_CHUNK
        next_offset = itertools.count(0, RECORD_BYTES).__next__
        next_chunk_bytes = FIRST_CHUNK_BYTES

        def write(head: int, value: int) -> None:
            """Write a record after a full chunk, or with a payload of more than 63 bits (64 are kept)."""
            nonlocal chunk, next_offset, next_chunk_bytes
            value = (value + (1 << 63)) % (1 << 64) - (1 << 63)
            try:
                pack(chunk, next_offset(), head, value)
            except full:
                found = log.new_chunk(next_chunk_bytes)
                if found is None:
                    chunk = _NO_CHUNK
                    log.count_lost(head)
                    return
                chunk, next_offset = found, itertools.count(RECORD_BYTES, RECORD_BYTES).__next__
                next_chunk_bytes = min(2 * next_chunk_bytes, LARGEST_CHUNK_BYTES)
                pack(chunk, next_offset(), head, value)

        def event(head: int) -> None:
            try:
                pack(chunk, next_offset(), head, clock())
            except full:
                write(head, clock())

        def event_with_value(head: int, value: int) -> None:
            try:
                pack(chunk, next_offset(), VALUE, value)
            except full:
                write(VALUE, value)
            event(head)

        def start(head: int) -> int:
            range_id = log.next_id()
            try:
                pack(chunk, next_offset(), ID, range_id)
            except full:
                write(ID, range_id)
            event(head)
            return range_id

        def start_with_value(head: int, value: int) -> int:
            write(VALUE, value)
            return start(head)

        def end(range_id: int) -> None:
            try:
                pack(chunk, next_offset(), ID, range_id)
            except full:
                write(ID, range_id)
            event(END)

        def popper(head: int) -> Callable[[], None]:
            def pop() -> None:
                try:
                    pack(chunk, next_offset(), head, clock())
                except full:
                    write(head, clock())

            return pop

        def leave_chunk() -> None:
            nonlocal chunk, next_chunk_bytes
            chunk, next_chunk_bytes = _NO_CHUNK, FIRST_CHUNK_BYTES

        self.event, self.event_with_value = event, event_with_value
        self.start, self.start_with_value, self.end = start, start_with_value, end
        self.popper, self.leave_chunk = popper, leave_chunk


class RangeLog:
    """The log of a process and its forked children.

    Args:
        folder: folder of the files, which are created with the first event.
        clock: returns the time in ns.
        gpu_present: whether the machine has an NVIDIA GPU, or None if not checked.
    """

    def __init__(self, folder: str, clock: Clock = time.perf_counter_ns, gpu_present: bool | None = None) -> None:
        self.folder = folder
        self.next_id = itertools.count(1).__next__
        """Return the number of the next START, unique in the process."""

        self._clock = clock
        self._keys: dict[RangeAttributes, int] = {}
        self._new_keys = itertools.count(1)
        self._begin(gpu_present)

    def _begin(self, gpu_present: bool | None) -> None:
        self.facts = LogFacts.of_this_process(gpu_present)
        self.lost_events = 0
        self._lock = threading.RLock()  # re-entrant: a signal handler may record while the log grows
        self._local = threading.local()
        self._is_open = self.has_failed = False
        """Failed: the files cannot be created, or the disk is full."""
        self._file_bytes = 0
        self._header: memoryview | None = None
        self._region = _NO_CHUNK
        self._region_used = 0

    @property
    def file_name(self) -> str:
        """Name of the file of records."""
        return f"{LOG_PREFIX}{self.facts.pid}_{self.facts.started_ns}{LOG_SUFFIX}"

    def _path(self, suffix: str) -> str:
        return f"{self.folder}/{self.file_name.removesuffix(LOG_SUFFIX)}{suffix}"

    def writer(self) -> Writer:
        """Return the writer of the calling thread."""
        writer: Writer | None = getattr(self._local, "writer", None)
        if writer is None:
            writer = self._local.writer = Writer(self, self._clock)
        return writer

    def key(self, attributes: RangeAttributes) -> int:
        """Return the number of these attributes."""
        with self._lock:
            key = self._keys.get(attributes)
            if key is None:
                self.open()
                key = self._keys[attributes] = next(self._new_keys)
                self._append(_line(key, attributes))
            return key

    def open(self) -> None:
        """Create both files, names first, unless they exist."""
        with self._lock:
            if self._is_open or self.has_failed:
                return
            self._is_open = True
            facts = dumps({**asdict(self.facts), "rank": ranks.rank_facts()}).encode() + b"\n"
            names = [_line(key, attributes) for attributes, key in list(self._keys.items())]
            try:
                os.makedirs(self.folder, exist_ok=True)  # noqa: PTH103 - pathlib costs start-up time
                self._append(facts + b"".join(names), os.O_CREAT | os.O_EXCL)
                os.close(os.open(self._path(LOG_SUFFIX), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            except OSError:
                self.has_failed = True

    def _append(self, line: bytes, flags: int = 0) -> None:
        """Write to the file of names."""
        try:
            if not self.has_failed:
                names = os.open(self._path(NAMES_SUFFIX), os.O_WRONLY | os.O_APPEND | flags, 0o666)
                with os.fdopen(names, "wb", buffering=0) as file:
                    self.has_failed = file.write(line) < len(line)
        except OSError:
            self.has_failed = True

    def note_window(self, until_ns: int) -> None:
        """Note the end of a window; later events do not count."""
        self._append(dumps({"until_ns": until_ns}).encode() + b"\n")

    def note_end(self, *, cuda_used: bool, gpu_reason: str) -> None:
        """Add facts for the trace at the end of the process, if there is a log."""
        if self._is_open:
            end = {"cuda_used": cuda_used, "gpu_reason": gpu_reason, "rank": ranks.rank_facts()}
            self._append(dumps(end).encode() + b"\n")

    def count_lost(self, head: int) -> None:
        """Count an event lost to a full disk, in the file too."""
        self.lost_events += head not in (VALUE, ID)
        if self._header is not None:
            HEADER.pack_into(self._header, 0, MAGIC, self.lost_events)

    def new_chunk(self, length: int) -> memoryview | None:
        """Return a chunk for the calling thread, or None if the disk is full."""
        with self._lock:
            while self._region_used + length > len(self._region):
                self.open()
                if self.has_failed or not self._new_region():
                    return None
            region, start = self._region, self._region_used
            self._region_used = start + length
        chunk = region[start : start + length]
        _RECORD.pack_into(chunk, 0, length << OP_BITS | CHUNK, threading.get_native_id())
        return chunk

    def _new_region(self) -> bool:
        """Map the next part of the file. A signal handler that does the same wastes the rest of this part."""
        start = self._file_bytes
        self._file_bytes = start + REGION_BYTES
        try:
            records = os.open(self._path(LOG_SUFFIX), os.O_RDWR)
            try:
                _allocate(records, start, REGION_BYTES)
                region = memoryview(mmap.mmap(records, REGION_BYTES, offset=start))
            finally:
                os.close(records)
        except OSError:
            self.has_failed = True
            return False
        if start == 0:
            self._header = region[: HEADER.size]
            HEADER.pack_into(self._header, 0, MAGIC, self.lost_events)
        self._region, self._region_used = region, FIRST_CHUNK_BYTES if start == 0 else 0
        return True

    def begin_in_child(self) -> None:
        """Have the next event of a forked child create its own files. Keys stay valid, because recorders hold them."""
        writer: Writer | None = getattr(self._local, "writer", None)
        self._begin(self.facts.gpu_present)
        if writer is not None:
            writer.leave_chunk()
            self._local.writer = writer


def _line(key: int, attributes: RangeAttributes) -> bytes:
    return dumps([key, *vars(attributes).values()]).encode() + b"\n"


def _allocate(descriptor: int, start: int, length: int) -> None:
    """Reserve disk space, because writing to a mapped page without any would kill the process."""
    try:
        os.posix_fallocate(descriptor, start, length)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        if os.pwrite(descriptor, bytes(length), start) < length:
            raise OSError("the disk is full") from None


_active: RangeLog | None = None


def install(log: RangeLog | None) -> None:
    """Have new recorders write to `log`, or to NVTX if it is None."""
    global _active
    _active = log


def active() -> RangeLog | None:
    """Return the installed log, or None without the embedded tracer.

    Installs one if the tracer was not started in this process (`python -I`).
    """
    folder = os.environ.get(environment.OUTPUT_DIR)
    if _active is None and folder and os.environ.get(environment.TRACER) in environment.LOGGING_TRACERS:
        install(RangeLog(os.path.abspath(folder)))  # noqa: PTH100 - pathlib costs start-up time
    return _active


def _begin_in_child() -> None:
    if _active is not None:
        _active.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
