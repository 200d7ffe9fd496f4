"""State of a thread from the system: time on a CPU and waiting for one, and the blocking call."""

from __future__ import annotations

import contextlib
import os
import struct
import time

RUNNING, RUNNABLE, GIL, LOCK, SLEEP, FILE, SOCKET, PROCESS, DRIVER, OTHER, UNKNOWN, PIPE = range(12)
"""Values of `model.host_samples.HostState`, not imported because the sampler uses only the standard library."""

DESCRIPTOR, POLL, EPOLL, SELECT, FUTEX, RECORD_LOCK = range(100, 106)
"""Calls whose wait depends on an argument."""

_CALLS = {
    "x86_64": {
        DESCRIPTOR: "0 1 5 8 16 17 18 19 20 40 42 43 44 45 46 47 74 75 77 217 277 285 288 295 296 299 307 327 328",
        FILE: "2 4 6 26 76 78 82 83 87 162 187 206 208 257 262 263 264 306 326 332 426",
        POLL: "7 271",
        EPOLL: "232 281 441",
        SELECT: "23 270",
        FUTEX: "202 449",
        RECORD_LOCK: "72",
        LOCK: "65 73 220",
        PROCESS: "61 247",
        SLEEP: "34 35 230",
        RUNNING: "24",
    },
    "aarch64": {
        DESCRIPTOR: "29 46 61 62 63 64 65 66 67 68 69 70 71 80 82 83 84 202 203 206 207 211 212 242 243 269 286 287",
        FILE: "4 34 35 36 37 38 45 47 56 79 81 213 227 267 285 291 426",
        POLL: "73",
        EPOLL: "22 441",
        SELECT: "72",
        FUTEX: "98 449",
        RECORD_LOCK: "25",
        LOCK: "32 192 193",
        PROCESS: "95 260",
        SLEEP: "101 115",
        RUNNING: "124",
    },
}
"""System call numbers by kind of wait."""

WAITS_FOR = {
    int(number): kind for kind, numbers in _CALLS.get(os.uname().machine, {}).items() for number in numbers.split()
}
WAIT_PRIORITY = (DRIVER, SOCKET, PIPE)
"""If a thread waits for several descriptors, the first of these kinds among them counts."""

MAX_POLLED = 64
"""Most descriptors to check when a thread waits for several."""

MAX_SOCKETS = 4096


class Process:
    """Classifies the waits of a process's threads, with its open `memory` and the addresses of the interpreter lock."""

    def __init__(self, pid: int, memory: int, gil: range) -> None:
        self.pid, self._memory, self._gil = pid, memory, gil
        self._sockets: dict[str, int] = {}

    def state(self, call: bytes) -> int:
        """State of a thread in a call (content of /proc/PID/task/TID/syscall; empty if not available)."""
        if not call:
            return UNKNOWN
        if call.startswith(b"running"):
            return RUNNING
        words = call.split()
        if words[0] == b"-1":
            return FILE  # blocked outside of a call: waiting for a page
        kind, arguments = WAITS_FOR.get(int(words[0]), OTHER), [int(word, 16) for word in words[1:7]]
        if kind == FUTEX:
            return GIL if arguments[0] in self._gil else LOCK
        if kind == DESCRIPTOR:
            return self._kind_of(arguments[0])
        if kind == RECORD_LOCK:
            return LOCK if (found := self._kind_of(arguments[0])) == FILE else found
        if kind == SELECT:
            return OTHER if arguments[0] else SLEEP
        if kind == POLL:
            return self._first(self._polled(arguments[0], arguments[1]), SOCKET) if arguments[1] else SLEEP
        if kind == EPOLL:
            waits_forever = not 0 < arguments[3] & 0xFFFFFFFF < 1 << 31
            return self._first(self._in_epoll(arguments[0]), LOCK if waits_forever else SLEEP, is_loop=True)
        return kind

    def _first(self, descriptors: list[int], otherwise: int, *, is_loop: bool = False) -> int:
        kinds = [self._kind_of(descriptor) for descriptor in descriptors]
        if is_loop and kinds.count(PIPE) == 1:
            kinds.remove(PIPE)  # the event loop's own pipe, for waking it
        return next((kind for kind in WAIT_PRIORITY if kind in kinds), otherwise)

    def _kind_of(self, descriptor: int) -> int:
        """State of a thread that waits to read or write a descriptor."""
        try:
            target = os.readlink(f"/proc/{self.pid}/fd/{descriptor & 0xFFFFFFFF}")  # noqa: PTH115 - few imports
        except OSError:
            return OTHER
        if target.startswith("pipe:"):
            return PIPE
        if target.startswith("socket:["):
            return self._kind_of_socket(target[len("socket:[") : -1])
        if target.startswith("/dev/nvidia"):
            return DRIVER
        return OTHER if target.startswith(("/dev/", "anon_inode:")) else FILE

    def _kind_of_socket(self, inode: str) -> int:
        """Classify a socket once, because searching a long system table of local sockets takes milliseconds."""
        kind = self._sockets.get(inode)
        if kind is None:
            if len(self._sockets) >= MAX_SOCKETS:
                self._sockets.clear()
            kind = self._sockets[inode] = PIPE if self._is_local(inode.encode()) else SOCKET
        return kind

    def _is_local(self, inode: bytes) -> bool:
        file = _open(f"/proc/{self.pid}/net/unix")
        if file < 0:
            return False
        with os.fdopen(file, "rb") as rows:
            return any(row.split()[6:7] == [inode] for row in rows)

    def _polled(self, address: int, count: int) -> list[int]:
        """Descriptors of a `poll`."""
        try:
            data = os.pread(self._memory, 8 * min(count, MAX_POLLED), address)
        except (OSError, OverflowError):
            return []
        return [one for one, _ in struct.iter_unpack("<ii", data[: len(data) // 8 * 8]) if one >= 0]

    def _in_epoll(self, descriptor: int) -> list[int]:
        """Descriptors watched by an epoll."""
        words = read_once(f"/proc/{self.pid}/fdinfo/{descriptor & 0xFFFFFFFF}", 1 << 14).split()
        return [int(words[at + 1]) for at, word in enumerate(words[:-1]) if word == b"tfd:"][:MAX_POLLED]


class ThreadFiles:
    """Open /proc files of one thread. Raises OSError if it has ended."""

    def __init__(self, pid: int, tid: int) -> None:
        folder = f"/proc/{pid}/task/{tid}/"
        self._stat = os.open(folder + "stat", os.O_RDONLY | os.O_CLOEXEC)
        self._schedule, self._call = _open(folder + "schedstat"), _open(folder + "syscall")

    def close(self) -> None:
        """Close them."""
        for file in (self._schedule, self._call, self._stat):
            if file >= 0:
                os.close(file)

    def schedule(self) -> bytes:
        """Nanoseconds on a CPU, nanoseconds ready without one, and number of time slices; empty if unknown."""
        return _read(self._schedule)

    def call(self) -> bytes:
        """System call it is blocked in, or `running`; empty if unknown."""
        return _read(self._call) or (b"running" if _is_ready(_read(self._stat)) else b"")


def process_cpu_ns(pid: int) -> int | None:
    """CPU time of all threads of a process, including ended ones; None if unknown."""
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)  # clock_getcpuclockid(3): the scheduler's clock
    except OSError:
        return None


def count_ready(pid: int) -> int:
    """Number of running or ready threads of a process."""
    folder = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        return sum(_is_ready(read_once(f"{folder}/{tid}/stat")) for tid in os.listdir(folder))  # noqa: PTH208 - ditto
    return 0


def _is_ready(stat: bytes) -> bool:
    return stat.rpartition(b")")[2].split()[:1] == [b"R"]


def read_once(path: str, length: int = 512) -> bytes:
    """Content of a small file; empty if unreadable."""
    file = _open(path)
    data = _read(file, length)
    if file >= 0:
        os.close(file)
    return data


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _read(file: int, length: int = 512) -> bytes:
    if file < 0:
        return b""
    try:
        return os.pread(file, length, 0)
    except OSError:
        return b""
