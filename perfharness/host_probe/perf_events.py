"""Where the threads of a process are in native code, as the kernel's own timer sees it (`perf_event_open`).

About every millisecond of a thread's CPU time the kernel writes the address that it is at in user space, of each
thread, whatever it runs. The process is not stopped (docs/internals/host-probe.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import platform
import resource
import struct
from collections.abc import Iterator

PERIODS_NS = (1_733_000, 2_351_000)
"""Of a thread's CPU time. With one alone, a loop of the program that takes a whole part of it would keep step."""

LENGTH_NS = round(1 / sum(1 / period for period in PERIODS_NS))
"""CPU time that a sample stands for."""

RING_BYTES = 16384
"""Of each thread: half a second of samples. The system lets a user lock 516 kB a CPU, and RLIMIT_MEMLOCK more."""

ROW = struct.Struct("<QIIQ")
"""Address, process, thread, and time of CLOCK_MONOTONIC."""

_CALL = {"x86_64": 298, "aarch64": 241}.get(platform.machine())
_HEADER = struct.Struct("<IHH")
_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQQIi16x")
_SOFTWARE, _CPU_CLOCK, _CLOCK_MONOTONIC, _ANY_CPU = 1, 0, 1, -1
_IP, _TID, _TIME = 1, 2, 4
_EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR, _USE_CLOCK = (1 << bit for bit in (5, 6, 25))
_CLOSE_ON_EXEC, _SET_OUTPUT = 8, 0x2405
_HEAD, _TAIL = 1024, 1032
_LOST, _SAMPLE = 2, 9
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"


class UnavailableError(Exception):
    """The system does not let this process's threads be sampled; the message says why."""


class NativeSampler:
    """Samples the threads of a process. New ones are found by `find_threads`.

    Events that threads inherit would be there from a thread's first instruction, but they spoil the samples of a thread
    that starts others: the kernel exchanges the events of two threads when it switches from one to the other.
    """

    def __init__(self, pid: int) -> None:
        """Raises UnavailableError."""
        self._pid = pid
        self._threads: dict[int, _ThreadEvents] = {}
        self._ended: list[bytes] = []
        self.lost = 0
        """Samples that found their ring full."""
        self.unseen = 0
        """Threads that could not be sampled, as those before them could."""
        if _CALL is None:
            raise UnavailableError(f"the system's calls are not known on {platform.machine()}")
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            self._threads[pid] = _ThreadEvents(pid)
        except OSError as error:
            raise UnavailableError(_reason(error)) from None
        self.find_threads()

    def find_threads(self) -> None:
        """Sample threads that have started since the last call, and no longer those that have ended."""
        try:
            tids = set(map(int, os.listdir(f"/proc/{self._pid}/task")))  # noqa: PTH208 - the sampler imports little
        except OSError:
            return
        for tid in tids - self._threads.keys():
            self._add(tid)
        for tid in self._threads.keys() - tids:
            thread = self._threads.pop(tid)
            self._ended += self._rows(thread)
            thread.close()

    def read(self) -> list[bytes]:
        """The samples since the last call, each a `ROW`."""
        rows, self._ended = self._ended, []
        for thread in self._threads.values():
            rows.extend(self._rows(thread))
        return rows

    def close(self) -> None:
        """Stop sampling."""
        for thread in self._threads.values():
            thread.close()
        self._threads = {}

    def _add(self, tid: int) -> None:
        try:
            self._threads[tid] = _ThreadEvents(tid)
        except ProcessLookupError:
            pass  # it has ended
        except OSError:
            self.unseen += 1
            self._threads[tid] = _ThreadEvents(None)

    def _rows(self, thread: _ThreadEvents) -> Iterator[bytes]:
        data, at = thread.read(), 0
        while at + _HEADER.size <= len(data):
            kind, _, size = _HEADER.unpack_from(data, at)
            if size < _HEADER.size:
                return
            content = data[at + _HEADER.size : at + size]
            at += size
            if kind == _SAMPLE:
                yield content
            elif kind == _LOST:
                self.lost += int.from_bytes(content[8:16], "little")


class _ThreadEvents:
    """The events of a thread, which write into one ring; of None: nothing."""

    def __init__(self, tid: int | None) -> None:
        """Raises OSError."""
        self._files: list[int] = []
        self._ring: mmap.mmap | None = None
        if tid is None:
            return
        try:
            for period_ns in PERIODS_NS:
                self._files.append(_open_event(tid, period_ns))
            self._ring = mmap.mmap(self._files[0], mmap.PAGESIZE + max(RING_BYTES, mmap.PAGESIZE))
            for file in self._files[1:]:
                if _libc().ioctl(file, _SET_OUTPUT, self._files[0]) != 0:
                    raise OSError(ctypes.get_errno(), "two events cannot share a ring")
        except OSError:
            self.close()
            raise

    def read(self) -> bytes:
        """What the kernel has written since the last call."""
        if self._ring is None:
            return b""
        head, tail, offset, size = struct.unpack_from("<QQQQ", self._ring, _HEAD)
        if head == tail:
            return b""
        start, end = offset + tail % size, offset + head % size
        data = self._ring[start:end] if start < end else self._ring[start : offset + size] + self._ring[offset:end]
        struct.pack_into("<Q", self._ring, _TAIL, head)
        return data

    def close(self) -> None:
        """End the events."""
        if self._ring is not None:
            self._ring.close()
        for file in self._files:
            os.close(file)
        self._files, self._ring = [], None


def _open_event(tid: int, period_ns: int) -> int:
    attributes = _ATTRIBUTES.pack(
        _SOFTWARE, _ATTRIBUTES.size, _CPU_CLOCK, period_ns, _IP | _TID | _TIME, 0,
        _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR | _USE_CLOCK, 0, 0, 0, 0, 0, 0, 0, _CLOCK_MONOTONIC,
    )  # fmt: skip
    file = int(_libc().syscall(_CALL, attributes, tid, _ANY_CPU, -1, _CLOSE_ON_EXEC))
    if file < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return file


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def code_maps(pid: int) -> list[tuple[int, int, int, str]]:
    """First and last address, offset in the file, and path of what a process may execute. Raises OSError."""
    found = []
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
        for line in file:
            addresses, rights, offset, _, _, *path = line.rstrip("\n").split(None, 5)
            if "x" in rights:
                start, _, end = addresses.partition("-")
                found.append((int(start, 16), int(end, 16), int(offset, 16), path[0] if path else ""))
    return found


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOSYS:
        return "the system has no perf_event_open"
    if error.errno not in (errno.EPERM, errno.EACCES):
        return f"perf_event_open: {error.strerror or error}"
    try:
        with open(_PARANOID, encoding="ascii") as file:  # noqa: PTH123 - the sampler imports little
            level = int(file.read())
    except (OSError, ValueError):
        return "perf_event_open is not permitted"
    if level > 2:
        return f"perf_event_open is not permitted (kernel.perf_event_paranoid is {level}; 2 suffices)"
    return f"perf_event_open is not permitted ({error.strerror}): a container's seccomp profile often forbids it"
