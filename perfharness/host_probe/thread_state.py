"""What the system says of a thread: how long it ran and waited for a CPU, and in which call it is blocked."""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import struct
import time

from perfharness.host_probe import peers

RUNNING, RUNNABLE, GIL, LOCK, SLEEP, FILE, SOCKET, PROCESS, DRIVER, OTHER, UNKNOWN, PIPE, LOOPBACK = range(13)
"""As `model.host_samples.HostState`, which is not imported: the sampler has the standard library only."""

_X86_64 = {
    FILE: (0, 1, 2, 4, 5, 6, 8, 17, 18, 19, 20, 40, 72, 74, 75, 76, 77, 78, 82, 83, 87, 162, 206, 208, 217, 257, 262,
           263, 264, 277, 285, 306, 326, 327, 328, 332, 426, 26, 187, 295, 296),
    SOCKET: (42, 43, 44, 45, 46, 47, 288, 299, 307, 232, 281, 441, 7, 271, 23, 270),
    PROCESS: (61, 247),
    SLEEP: (35, 230, 34),
    LOCK: (202, 65, 220, 73, 449),
    DRIVER: (16,),
    RUNNING: (24,),
}  # fmt: skip
_AARCH64 = {
    FILE: (63, 64, 56, 79, 80, 62, 67, 68, 65, 66, 71, 81, 82, 83, 84, 45, 46, 34, 35, 36, 37, 38, 4, 47, 61, 69, 70,
           267, 285, 286, 287, 291, 426, 227, 213),
    SOCKET: (203, 202, 206, 207, 211, 212, 242, 243, 269, 22, 441, 73, 72),
    PROCESS: (260, 95),
    SLEEP: (101, 115),
    LOCK: (98, 193, 192, 32, 449),
    DRIVER: (29,),
    RUNNING: (124,),
}  # fmt: skip
_CALLS = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(platform.machine(), {})
STATE_OF_CALL = {number: state for state, numbers in _CALLS.items() for number in numbers}

FUTEX = {"x86_64": (202, 449), "aarch64": (98, 449)}.get(platform.machine(), ())
TAKES_FILE = {
    "x86_64": frozenset((0, 1, 5, 8, 17, 18, 19, 20, 40, 72, 74, 75, 77, 16, 217, 277, 285, 295, 296, 327, 328,
                         42, 43, 44, 45, 46, 47, 288, 299, 307)),
    "aarch64": frozenset((63, 64, 80, 62, 67, 68, 65, 66, 71, 82, 83, 46, 29, 61, 69, 70, 84, 286, 287,
                          203, 202, 206, 207, 211, 212, 242, 243, 269)),
}.get(platform.machine(), frozenset[int]())  # fmt: skip
"""Calls whose first argument is a file descriptor, by which it is decided what they wait for."""
POLL = {"x86_64": (7, 271), "aarch64": (73,)}.get(platform.machine(), ())
SELECT = {"x86_64": (23, 270), "aarch64": (72,)}.get(platform.machine(), ())
EPOLL = {"x86_64": (232, 281, 441), "aarch64": (22, 441)}.get(platform.machine(), ())
FCNTL = {"x86_64": 72, "aarch64": 25}.get(platform.machine(), -1)
WRITES = {
    "x86_64": frozenset((1, 18, 20, 44, 46, 296, 307, 328)), "aarch64": frozenset((64, 66, 68, 70, 206, 211, 269, 287)),
}.get(platform.machine(), frozenset[int]())  # fmt: skip
"""Of them, those that write."""
WAIT4, WAITID = {"x86_64": (61, 247), "aarch64": (260, 95)}.get(platform.machine(), (-1, -1))
P_PID = 1
MAX_POLLED = 64
"""Descriptors that are looked at, of those that a thread waits for at once."""
OF_PEER = {peers.PIPE: PIPE, peers.LOOPBACK: LOOPBACK, peers.REMOTE: SOCKET}
FARTHEST = (DRIVER, SOCKET, LOOPBACK, PIPE, LOCK)
"""Of several that a thread waits for at once, the first of these that is among them."""


class ThreadFiles:
    """The files of one thread in /proc, open."""

    def __init__(self, pid: int, tid: int, ends: peers.Peers | None = None) -> None:
        self.pid = pid
        self.peer = 0
        """The process that it waits for since the last `state`; 0: none, or it is not known."""
        self._ends = peers.Peers(pid) if ends is None else ends
        folder = f"/proc/{pid}/task/{tid}/"
        self._schedule = _open(folder + "schedstat")
        self._call = _open(folder + "syscall")
        self._stat = _open(folder + "stat")
        self._status = _open(folder + "status")

    def close(self) -> None:
        """Close them."""
        for file in (self._schedule, self._call, self._stat, self._status):
            if file >= 0:
                os.close(file)

    def schedule(self) -> tuple[int, int, int] | None:
        """Nanoseconds on a CPU, nanoseconds ready without one, and how often it was given one; None: not known."""
        data = _read(self._schedule)
        try:
            on_cpu, runnable, times = map(int, data.split()[:3])
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
        data, self.peer = _read(self._call), 0
        if not data:
            return self._coarse_state()
        if data.startswith(b"running"):
            return RUNNING
        words = data.split()
        number = int(words[0])
        if number < 0:
            return FILE  # blocked, and in no call: it waits for a page
        arguments = [int(word, 16) for word in words[1:7]]
        if number in FUTEX and arguments[0] in gil:
            return GIL
        if number in SELECT:
            return SLEEP if arguments[0] == 0 else self._of_several(self._selected(arguments))
        if number in POLL:
            return SLEEP if arguments[1] == 0 else self._of_several(self._polled(arguments))
        if number in EPOLL:
            timeout_ms = arguments[3] & 0xFFFFFFFF
            is_sleep = number in EPOLL[:2] and 0 < timeout_ms < 1 << 31
            state = self._of_several(self._in_epoll(arguments[0]), has_own_pipe=True)
            return SLEEP if state == LOCK and is_sleep else state
        if number in TAKES_FILE:
            return self._of_file(arguments[0], number)
        if number == WAIT4 or (number == WAITID and arguments[0] == P_PID):
            pid = arguments[0 if number == WAIT4 else 1] & 0xFFFFFFFF
            self.peer = pid if pid < 1 << 31 else 0
        return STATE_OF_CALL.get(number, OTHER)

    def _coarse_state(self) -> int:
        """Where the system does not let the call be seen."""
        return RUNNING if _is_ready(_read(self._stat)) else UNKNOWN

    def _of_file(self, descriptor: int, number: int) -> int:
        try:
            target = os.readlink(f"/proc/{self.pid}/fd/{descriptor & 0xFFFFFFFF}")  # noqa: PTH115
        except OSError:
            return STATE_OF_CALL.get(number, OTHER)
        if target.startswith(("socket:", "pipe:")):
            peer = self._ends.process(target, reads=number not in WRITES)
            self.peer = 0 if peer == self.pid else peer
            return LOCK if peer == self.pid else OF_PEER[self._ends.kind(target)]
        if target.startswith("/dev/nvidia"):
            return DRIVER
        if target.startswith(("/dev/", "anon_inode:")):
            return OTHER
        if number == FCNTL:
            return LOCK
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.stat(f"/proc/{self.pid}/fd/{descriptor & 0xFFFFFFFF}").st_mode):  # noqa: PTH116
                return PIPE
        return FILE if STATE_OF_CALL.get(number) == FILE else OTHER

    def _of_several(self, descriptors: list[int], *, has_own_pipe: bool = False) -> int:
        """Waiting until one of several is ready.

        Args:
            has_own_pipe: a local socket among them whose other end is not known may be the process's own, by which
                threads wake each other (asyncio).
        """
        found, peer = set(), 0
        for descriptor in descriptors[:MAX_POLLED]:
            self.peer = 0
            state = self._of_file(descriptor, -1)
            if state == PIPE and has_own_pipe and not self.peer:
                continue
            found.add(state)
            peer = self.peer or peer
        self.peer = peer
        return next((state for state in FARTHEST if state in found), SOCKET)

    def _polled(self, arguments: list[int]) -> list[int]:
        data = self._memory(arguments[0], 8 * min(arguments[1], MAX_POLLED))
        return [descriptor for descriptor, _ in struct.iter_unpack("<ii", data) if descriptor >= 0]

    def _selected(self, arguments: list[int]) -> list[int]:
        bits = b""
        for address in arguments[1:3]:  # to read from, to write to
            if address:
                one = self._memory(address, min((arguments[0] + 63) // 64 * 8, 128))
                bits = bytes(left | right for left, right in zip(one, bits or bytes(len(one)), strict=False))
        return [at for at in range(min(arguments[0], 8 * len(bits))) if bits[at // 8] >> at % 8 & 1]

    def _in_epoll(self, descriptor: int) -> list[int]:
        file = _open(f"/proc/{self.pid}/fdinfo/{descriptor & 0xFFFFFFFF}")
        words = _read(file, 1 << 14).split()
        if file >= 0:
            os.close(file)
        return [int(words[at + 1]) for at, word in enumerate(words[:-1]) if word == b"tfd:"]

    def _memory(self, address: int, length: int) -> bytes:
        """What the process has there; whole rows of 8 bytes, none where it cannot be read."""
        try:
            memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            data = os.pread(memory, length, address)
        except (OSError, OverflowError):
            data = b""
        finally:
            os.close(memory)
        return data[: len(data) // 8 * 8]


def process_cpu_ns(pid: int) -> int | None:
    """CPU time of all threads of a process so far, ended ones too; None: not known."""
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)  # clock_getcpuclockid(3): the clock of its scheduler's count
    except OSError:
        return None


def count_cores(pid: int) -> int:
    """Cores that a process may run on, hyperthreads of one counted once; 0: not known."""
    try:
        cpus = os.sched_getaffinity(pid)
    except OSError:
        return 0
    cores = set()
    for cpu in cpus:
        file = _open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(_read(file) or cpu)
        if file >= 0:
            os.close(file)
    return len(cores)


def count_ready(pid: int) -> int:
    """How many threads of a process run or are ready to."""
    ready = 0
    for tid in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - the sampler imports little
        file = _open(f"/proc/{pid}/task/{tid}/stat")
        ready += _is_ready(_read(file))
        if file >= 0:
            os.close(file)
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
