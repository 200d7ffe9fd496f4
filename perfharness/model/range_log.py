"""The log of ranges of one process: what the recorder fills and the embedded tracer reads.

The embedded tracer installs a log before the script starts; a recorder that finds one writes there instead of calling
NVTX. Records go straight into a file that is mapped into memory: the process holds a few pages of it, however long it
runs, and what was recorded is in the file even where the process is killed or leaves by `os._exit`. Recording costs one
clock reading and one `struct.pack_into`; nothing is decoded while the pipeline runs.

A file is a header of one page and then chunks; each chunk belongs to one thread, in the order of its records:

    record  = int64 head, int64 value                head = key << OP_BITS | op
    chunk   = (CHUNK | length << OP_BITS, native thread id), records; zeros where none was written

`key` is what `RangeLog.key()` returned for the static part (domain, message, category, color); `value` is the time
(`perf_counter_ns`), but of a VALUE the payload of the event behind it (whose op carries `HAS_PAYLOAD`), and of an ID
the number that pairs a START with its END. A POP carries any key of its domain, for there is a stack for each thread
and domain, as in NVTX; an END carries 0.

The attributes stand in a companion file, a line of JSON each, which begins with their key. The first
line (`LogFacts`) names the process of the log; an object in a later line, which counts for no key, is what the process
noted. A forked child writes files of its own, made with its first event.
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
from json import dumps  # a name of our own: a script may have its json.dumps annotated
from typing import Any

from perfharness.model import environment, ranks
from perfharness.own_files import OwnFile

PUSH, POP, START, END, MARK, VALUE, ID, CHUNK = range(8)
HAS_PAYLOAD = 8
OP_BITS = 4
RECORD_BYTES = 16

MAGIC = b"PHRANGES"
HEADER = struct.Struct("=8sq")
"""Magic and the number of events that were lost because the disk was full."""

LOG_PREFIX = ".ranges_"
LOG_SUFFIX = ".log"
NAMES_SUFFIX = ".names"
NOTE_START = b"{"
"""How a line of the file of names begins that is no name, but what a process noted."""

REGION_BYTES = 1 << 20
FIRST_CHUNK_BYTES = mmap.ALLOCATIONGRANULARITY
LARGEST_CHUNK_BYTES = 1 << 18
KEYS_REMEMBERED = 8192
"""So many attributes are remembered, to give equal ones the same key; then the log forgets them and begins anew."""

_RECORD = struct.Struct("=2q")
_INT64_MASK = (1 << 64) - 1
_LOST_OFFSET = 8

Clock = Callable[[], int]


@dataclass(frozen=True)
class RangeAttributes:
    """The static part of an event; None where NVTX has none."""

    domain: str | None
    message: str
    category: str | None = None
    color: int | None = None
    category_id: int | None = None
    """A category given by its number, without a name."""

    double_payload: bool = False
    """The payload is the bits of a double."""

    def to_json(self, key: int) -> bytes:
        """Its line in the file of names."""
        return dumps([key, *vars(self).values()]).encode() + b"\n"


@dataclass(frozen=True)
class LogFacts:
    """Whose log it is. Times are `perf_counter_ns`, which all processes of a machine share, and UTC nanoseconds."""

    pid: int
    parent_pid: int
    executable: str
    started_ns: int
    started_unix_ns: int
    gpu_present: bool | None = None
    """Whether the machine has an NVIDIA GPU, where that was checked."""

    only_ranges: bool = False
    """Whether nothing else was to be recorded (`--tracer ranges`)."""

    ancestors: tuple[int, ...] = ()
    """Pids of the processes above it, the nearest first."""

    rank: dict[str, Any] | None = None
    """As `ranks.rank_facts` gives it, with the first event."""

    start_ticks: int | None = None
    """As `ranks.start_ticks` gives it."""


class Writer:
    """Writes the events of one thread, or of one thread after another, never of two concurrently.

    The functions share the position in the chunk by closure, so that an event looks up no attribute.

    Attributes:
        event: `(head)`: a record with the time of the call.
        event_with_value: `(head, payload)`: the same, after a VALUE.
        start: `(head) -> id`, `start_with_value`: `(head, payload) -> id`; `end`: `(id)`.
        popper: `(head) -> function` that writes this one event.
        leave_chunk: have the next event begin a new chunk.
    """

    __slots__ = ("end", "event", "event_with_value", "leave_chunk", "popper", "start", "start_with_value")

    def __init__(self, log: RangeLog, clock: Clock) -> None:
        pack, full = _RECORD.pack_into, struct.error
        no_chunk = memoryview(bytearray(0))
        chunk = no_chunk
        next_offset = itertools.count(0, RECORD_BYTES).__next__
        next_chunk_bytes = FIRST_CHUNK_BYTES

        def write(head: int, value: int) -> None:
            """The way round: at the end of a chunk, and for a payload beyond 63 bits, which keeps its lowest 64."""
            nonlocal chunk, next_offset, next_chunk_bytes
            if not -(1 << 63) <= value < 1 << 63:
                value &= _INT64_MASK
                value -= (value >> 63) << 64
            try:
                pack(chunk, next_offset(), head, value)
            except full:
                found = log.new_chunk(next_chunk_bytes, head)
                if found is None:
                    chunk = no_chunk
                    return
                offsets = itertools.count(RECORD_BYTES, RECORD_BYTES).__next__
                chunk, next_offset = found, offsets  # with no call in between, in which a handler may write
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
            chunk, next_chunk_bytes = no_chunk, FIRST_CHUNK_BYTES

        self.event, self.event_with_value = event, event_with_value
        self.start, self.start_with_value, self.end = start, start_with_value, end
        self.popper, self.leave_chunk = popper, leave_chunk


class RangeLog:
    """The log of one process and of the children that it forks.

    Args:
        folder: where the files are made, with the first event.
        clock: gives the time of an event, ns.
        gpu_present: whether the machine has an NVIDIA GPU; None: not checked.
    """

    def __init__(self, folder: str, clock: Clock = time.perf_counter_ns, gpu_present: bool | None = None) -> None:
        self.folder = folder
        self.facts = _facts(gpu_present)
        self.next_id = itertools.count(1).__next__
        """Number of a START; unique in the process, and in each of its children."""

        self.failure: str | None = None
        """Why nothing can be written any more."""

        self.lost_events = 0
        self.diagnostics: list[str] = []
        """What its trace shall say."""

        self._clock = clock
        self._lock = threading.RLock()
        self._local = threading.local()
        self._keys: dict[RangeAttributes, int] = {}
        self._new_keys = itertools.count(1)
        self._names_bytes = 0
        self._inherited: OwnFile | None = None  # the parent's file of names, in a forked child that has none yet
        self._reset()

    def _reset(self) -> None:
        self._names: OwnFile | None = None
        self._records: OwnFile | None = None
        self._file_bytes = 0
        self._header: memoryview | None = None
        self._region = memoryview(bytearray(0))
        self._region_used = 0

    @property
    def file_name(self) -> str:
        """Name of the file of records."""
        return f"{LOG_PREFIX}{self.facts.pid}_{self.facts.started_ns}{LOG_SUFFIX}"

    def writer(self) -> Writer:
        """The calling thread's writer; made at its first call."""
        writer: Writer | None = getattr(self._local, "writer", None)
        if writer is None:
            writer = self._local.writer = Writer(self, self._clock)
        return writer

    def key(self, attributes: RangeAttributes) -> int:
        """Number of these attributes; equal ones have the same while they are remembered."""
        with self._lock:
            key = self._keys.get(attributes)
            if key is None:
                if len(self._keys) >= KEYS_REMEMBERED:
                    self._keys.clear()
                key = next(self._new_keys)
                self._append_name(attributes.to_json(key))  # a handler may append others before
                self._keys[attributes] = key
            return key

    def _append_name(self, line: bytes) -> None:
        if self.failure is not None:
            return
        try:
            if self._names is None:
                self._open()
            assert self._names is not None
            if os.write(self._names.descriptor(), line) < len(line):
                raise OSError("the disk is full")
            self._names_bytes += len(line)
        except OSError as error:
            self.failure = error.strerror or str(error)

    def _open(self) -> None:
        """Make both files; the one of names first, for records mean nothing without it."""
        os.makedirs(self.folder, exist_ok=True)  # noqa: PTH103 - pathlib costs start-up time
        stem = f"{self.folder}/{self.file_name.removesuffix(LOG_SUFFIX)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        self._names = OwnFile(stem + NAMES_SUFFIX, flags | os.O_APPEND)
        self._records = OwnFile(stem + LOG_SUFFIX, flags)
        facts = dumps({**asdict(self.facts), "rank": ranks.rank_facts()}).encode() + b"\n"
        inherited = b""
        if self._inherited is not None:
            lines = os.pread(self._inherited.descriptor(), self._names_bytes, 0).splitlines(keepends=True)
            inherited = b"".join(line for line in lines if not line.startswith(NOTE_START))
            self._inherited.close()
            self._inherited = None
        self._names_bytes = 0
        self._append_name(facts + inherited)
        if self.diagnostics:
            self._note()

    def restore(self) -> None:
        """At the end of the process, have the files again that the script has removed. Raises `OSError`."""
        with self._lock:
            for file in (self._names, self._records):
                if file is not None:
                    file.restore()

    def diagnose(self, text: str) -> None:
        """Have the trace say this, once. It is noted at once, for the process may be killed."""
        with self._lock:
            if text not in self.diagnostics:
                self.diagnostics.append(text)
                self._note()

    def note_end(self, *, cuda_used: bool, gpu_reason: str) -> None:
        """Note at the end of the process what its trace shall say: whether it used CUDA, why the GPU's work is not in
        it, and which rank it is.
        """
        with self._lock:
            self._note(cuda_used=cuda_used, gpu_reason=gpu_reason, rank=ranks.rank_facts())

    def _note(self, **said: Any) -> None:
        """Write a note, where there is a log; the last one counts."""
        if self._names is not None:
            self._append_name(dumps({**said, "diagnostics": self.diagnostics}).encode() + b"\n")

    def new_chunk(self, length: int, head: int) -> memoryview | None:
        """A chunk for the calling thread; None where there is no room: the record of that head is lost and counted."""
        with self._lock:
            while True:
                region, start = self._region, self._region_used
                fits = start + length <= len(region)
                if fits and self._region is region and self._region_used == start:  # no handler has taken it meanwhile
                    self._region_used = start + length
                    break
                if not fits and not self._new_region():
                    self.lost_events += head not in (VALUE, ID)
                    if self._header is not None:
                        struct.pack_into("=q", self._header, _LOST_OFFSET, self.lost_events)
                    return None
            chunk = region[start : start + length]
            _RECORD.pack_into(chunk, 0, length << OP_BITS | CHUNK, threading.get_native_id())
            return chunk

    def _new_region(self) -> bool:
        """Take the next part of the file; where a handler has taken one meanwhile, the rest of that stays empty."""
        if self.failure is not None:
            return False
        try:
            if self._records is None:
                self._open()
            assert self._records is not None
            start, used = self._file_bytes, 0
            self._file_bytes = start + REGION_BYTES
            records = self._records.descriptor()
            _allocate(records, start, REGION_BYTES)
            region = memoryview(mmap.mmap(records, REGION_BYTES, offset=start))
        except OSError as error:
            self.failure = error.strerror or str(error)
            return False
        if not start:
            self._header = region[: HEADER.size]
            HEADER.pack_into(self._header, 0, MAGIC, self.lost_events)
            used = FIRST_CHUNK_BYTES
        self._region, self._region_used = region, used
        return True

    def begin_in_child(self) -> None:
        """In a forked child: what comes now goes to files of its own, and no lock of the parent's is held.

        Keys stay what they are, for recorders hold them: the new file of names begins with what the parent's held.
        """
        writer: Writer | None = getattr(self._local, "writer", None)
        if self._records is not None:
            self._records.close()
        if self._names is not None:
            self._inherited = self._names
        self._lock = threading.RLock()
        self._local = threading.local()
        if writer is not None:
            writer.leave_chunk()
            self._local.writer = writer
        self.facts = _facts(self.facts.gpu_present)
        self.failure, self.lost_events = None, 0
        self.diagnostics.clear()
        self._reset()


def _facts(gpu_present: bool | None) -> LogFacts:
    executable = sys.executable or "python"
    only_ranges = os.environ.get(environment.TRACER) == environment.ONLY_RANGES
    above = tuple(ranks.ancestors())
    return LogFacts(
        os.getpid(), above[0], executable, time.perf_counter_ns(), time.time_ns(), gpu_present, only_ranges, above,
        start_ticks=ranks.start_ticks(),
    )  # fmt: skip


def _allocate(descriptor: int, start: int, length: int) -> None:
    """Have the disk give the room now: to write to a mapped page for which there is none would end the process."""
    try:
        os.posix_fallocate(descriptor, start, length)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        written = os.pwrite(descriptor, bytes(length), start)
        if written < length:
            raise OSError("the disk is full") from None


_NOT_SUPPORTED = frozenset((22, 38, 95))  # EINVAL, ENOSYS, EOPNOTSUPP: a file system that cannot do it


_active: RangeLog | None = None
_follows_forks = False


def install(log: RangeLog | None) -> None:
    """Make `log` the one that recorders made from now on write to; None: back to NVTX."""
    global _active, _follows_forks
    _active = log
    if not _follows_forks:
        _follows_forks = True
        os.register_at_fork(after_in_child=_begin_in_child)


def _begin_in_child() -> None:
    if _active is not None:
        _active.begin_in_child()


def active() -> RangeLog | None:
    """The installed log, or None outside the embedded tracer.

    A process that a traced one started (spawned workers, another script) finds none, and makes its own.
    """
    folder = os.environ.get(environment.OUTPUT_DIR)
    if _active is None and folder and os.environ.get(environment.TRACER) in environment.LOGGING_TRACERS:
        install(RangeLog(os.path.abspath(folder)))  # noqa: PTH100 - pathlib costs start-up time
    return _active
