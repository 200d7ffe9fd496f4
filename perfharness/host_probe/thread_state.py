"""What the system says of a thread: how long it ran and waited for a CPU, and in which call it is blocked."""

from __future__ import annotations

import os
import struct
import time

RUNNING, RUNNABLE, GIL, LOCK, SLEEP, FILE, SOCKET, PROCESS, DRIVER, OTHER, UNKNOWN, PIPE, LOOPBACK = range(13)
"""As `model.host_samples.HostState`, which is not imported: the sampler has the standard library only."""

DESCRIPTOR, POLL, EPOLL, SELECT, FUTEX, RECORD_LOCK = range(100, 106)
"""Calls of which an argument decides what they wait for."""

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
"""Numbers of system calls by what they wait for."""

WAITS_FOR = {
    int(number): kind for kind, numbers in _CALLS.get(os.uname().machine, {}).items() for number in numbers.split()
}
WAIT_PRIORITY = (DRIVER, SOCKET, LOOPBACK, PIPE)
"""A wait for several descriptors counts as the first of these kinds that is among them."""

MAX_POLLED = 64
"""Descriptors that are looked at, of those that a thread waits for at once."""

MAX_SOCKETS = 4096
LOOPBACK_V6 = "0" * 24 + "01000000"
MAPPED_V4 = "0000000000000000FFFF0000"


class Process:
    """What is asked of a process for all of its threads.

    Args:
        memory: open file of its memory.
    """

    def __init__(self, pid: int, memory: int) -> None:
        self.pid = pid
        self.memory = memory
        self._sockets: dict[str, int] = {}

    def kind_of(self, descriptor: int) -> int:
        """What a thread waits for that reads or writes a descriptor."""
        path = f"/proc/{self.pid}/fd/{descriptor & 0xFFFFFFFF}"
        try:
            target = os.readlink(path)  # noqa: PTH115 - the sampler imports little
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
        """Each socket is looked up once in the system's tables, which takes milliseconds where these are long."""
        kind = self._sockets.get(inode)
        if kind is None:
            if len(self._sockets) >= MAX_SOCKETS:
                self._sockets.clear()
            kind = self._sockets[inode] = self._look_up(inode)
        return kind

    def _look_up(self, inode: str) -> int:
        if any(row[6:7] == [inode] for row in self._table("unix")):
            return PIPE
        for protocol in ("tcp", "tcp6", "udp", "udp6"):
            for row in self._table(protocol):
                if row[9:10] == [inode]:
                    return LOOPBACK if _is_here(*row[1].split(":"), *row[2].split(":")) else SOCKET
        return SOCKET

    def _table(self, protocol: str) -> list[list[str]]:
        try:
            with open(f"/proc/{self.pid}/net/{protocol}", encoding="ascii", errors="replace") as file:  # noqa: PTH123
                return [line.split() for line in file]
        except OSError:
            return []

    def polled(self, address: int, count: int) -> list[int]:
        """The descriptors of a `poll`."""
        try:
            data = os.pread(self.memory, 8 * min(count, MAX_POLLED), address)
        except (OSError, OverflowError):
            return []
        rows = struct.iter_unpack("<ii", data[: len(data) // 8 * 8])
        return [descriptor for descriptor, _ in rows if descriptor >= 0]

    def in_epoll(self, descriptor: int) -> list[int]:
        """The descriptors that an epoll watches."""
        file = _open(f"/proc/{self.pid}/fdinfo/{descriptor & 0xFFFFFFFF}")
        words = _read(file, 1 << 14).split()
        _close(file)
        return [int(words[at + 1]) for at, word in enumerate(words[:-1]) if word == b"tfd:"][:MAX_POLLED]


class ThreadFiles:
    """The files of one thread in /proc, open."""

    def __init__(self, process: Process, tid: int) -> None:
        self._process = process
        folder = f"/proc/{process.pid}/task/{tid}/"
        self._schedule = _open(folder + "schedstat")
        self._call = _open(folder + "syscall")
        self._stat = _open(folder + "stat")
        self._status = _open(folder + "status")

    def close(self) -> None:
        """Close them."""
        for file in (self._schedule, self._call, self._stat, self._status):
            _close(file)

    def schedule(self) -> tuple[int, int, int] | None:
        """Nanoseconds on a CPU, nanoseconds ready without one, and how often it was given one; None: not known."""
        try:
            on_cpu, runnable, times = map(int, _read(self._schedule).split()[:3])
        except ValueError:
            return None
        return on_cpu, runnable, times

    def counts(self) -> tuple[int, int, int, int] | None:
        """Minor and major page faults, voluntary and involuntary context switches so far; None: not known."""
        stat = _read(self._stat).rpartition(b")")[2].split()
        status = _read(self._status, 4096).rpartition(b"\nvoluntary_ctxt_switches:")[2].split()
        try:
            return int(stat[7]), int(stat[9]), int(status[0]), int(status[2])
        except (ValueError, IndexError):
            return None

    def state(self, gil: range) -> int:
        """What it does now.

        Args:
            gil: addresses of the interpreter lock.
        """
        data = _read(self._call)
        if not data:  # the system does not let the call be seen
            return RUNNING if _is_ready(_read(self._stat)) else UNKNOWN
        if data.startswith(b"running"):
            return RUNNING
        words = data.split()
        number = int(words[0])
        if number < 0:
            return FILE  # blocked, and in no call: it waits for a page
        return self._waits_for(WAITS_FOR.get(number, OTHER), [int(word, 16) for word in words[1:7]], gil)

    def _waits_for(self, kind: int, arguments: list[int], gil: range) -> int:
        if kind == FUTEX:
            return GIL if arguments[0] in gil else LOCK
        if kind == DESCRIPTOR:
            return self._process.kind_of(arguments[0])
        if kind == RECORD_LOCK:
            found = self._process.kind_of(arguments[0])
            return LOCK if found == FILE else found
        if kind == SELECT:
            return OTHER if arguments[0] else SLEEP
        if kind == POLL:
            kinds = [self._process.kind_of(one) for one in self._process.polled(arguments[0], arguments[1])]
            return _first(kinds, SOCKET) if arguments[1] else SLEEP
        if kind == EPOLL:
            kinds = [self._process.kind_of(one) for one in self._process.in_epoll(arguments[0])]
            if kinds.count(PIPE) == 1:
                kinds.remove(PIPE)  # an event loop's own, by which threads wake it
            return _first(kinds, SLEEP if 0 < arguments[3] & 0xFFFFFFFF < 1 << 31 else LOCK)
        return kind


def _first(kinds: list[int], otherwise: int) -> int:
    return next((kind for kind in WAIT_PRIORITY if kind in kinds), otherwise)


def _is_here(local: str, _: str, remote: str, port: str) -> bool:
    """Whether a socket's other end is this machine itself; addresses are as in /proc/net."""
    is_connected = int(port, 16) > 0
    address = remote if is_connected else local
    is_loopback = address == LOOPBACK_V6 or (address.endswith("7F") and address[:-8] in ("", MAPPED_V4))
    return is_loopback or (is_connected and remote == local)


def process_cpu_ns(pid: int) -> int | None:
    """CPU time of all threads of a process so far, ended ones too; None: not known."""
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)  # clock_getcpuclockid(3): the clock of its scheduler's count
    except OSError:
        return None


def affinity(pid: int) -> set[int]:
    """The CPUs that a process may run on; none: not known."""
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return set()


def count_cores(pid: int) -> int:
    """Cores that a process may run on, hyperthreads of one counted once; 0: not known."""
    cores = set()
    for cpu in affinity(pid):
        file = _open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(_read(file) or cpu)
        _close(file)
    return len(cores)


def count_ready(pid: int) -> int:
    """How many threads of a process run or are ready to. Raises OSError."""
    ready = 0
    for tid in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - the sampler imports little
        file = _open(f"/proc/{pid}/task/{tid}/stat")
        ready += _is_ready(_read(file))
        _close(file)
    return ready


def _is_ready(stat: bytes) -> bool:
    return stat.rpartition(b")")[2].split()[:1] == [b"R"]


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


def _close(file: int) -> None:
    if file >= 0:
        os.close(file)
