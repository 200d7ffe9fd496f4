"""What is at the other end of a pipe or socket that a thread waits at: another process of this machine, and which, or
another machine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time

PIPE, LOOPBACK, REMOTE = range(3)
"""A pipe, a FIFO or a local (AF_UNIX) socket; a socket of the network to this machine itself; any other."""

SEARCH_AGAIN_S = 1.0
MAX_SEARCHING, AT_ONCE_S = 0.02, 0.2
"""Of the time, and that may be spent before. Reading a table, or looking through the open files of a family of
processes, takes some milliseconds, in which nothing is sampled; a program may open sockets all the time."""
MAX_KNOWN = 4096

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
UDIAG_SHOW_PEER, UNIX_DIAG_PEER = 4, 2
_HEADER, _REQUEST, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBHIIIII"), struct.Struct("=HH")
ANY = 0xFFFFFFFF


class Peers:
    """Ends of pipes and sockets of one process, each looked up once."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._kinds: dict[str, int] = {}
        self._other_ends: dict[str, str] = {}
        self._processes: dict[tuple[str, bool], tuple[int, float]] = {}
        self._family: list[int] = []
        self._family_until_s = self._spent_s = 0.0
        self._began_s = time.monotonic()

    def kind(self, target: str) -> int:
        """Of a link in /proc/PID/fd, `pipe:[NUMBER]` or `socket:[NUMBER]`; `REMOTE` where it was not looked up yet."""
        if not target.startswith("socket:["):
            return PIPE
        kind = self._kinds.get(target)
        if kind is not None:
            return kind
        if len(self._kinds) > MAX_KNOWN:
            self._kinds.clear()
            self._other_ends.clear()
        number = target[len("socket:[") : -1]
        is_local, other = _ask_kernel(int(number))
        if is_local is None:
            is_local = number in {row[6] for row in self._table("unix") if len(row) > 6}
        if is_local:
            self._other_ends[target] = other
            self._kinds[target] = PIPE
            return PIPE
        now_s = time.monotonic()
        if not self._may_spend(now_s):
            return REMOTE
        kind = self._kinds[target] = self._look_up(number)
        self._spent_s += time.monotonic() - now_s
        return kind

    def process(self, target: str, *, reads: bool) -> int:
        """The one process that has the other end: of its family (`family`), or itself; 0: several have it, it is not
        known, or not looked up yet.

        Args:
            reads: of a pipe, whether it is read from; its ends have the same number.
        """
        known, now_s = self._processes.get((target, reads)), time.monotonic()
        if known is not None and (now_s < known[1] or (known[0] and os.path.exists(f"/proc/{known[0]}"))):  # noqa: PTH110
            return known[0]
        if not self._may_spend(now_s):
            return 0
        other = target
        if target.startswith("socket:["):
            self.kind(target)
            other = self._other_ends.get(target, "")
        if now_s >= self._family_until_s:
            self._family = family(self.pid)
            self._family_until_s = now_s + SEARCH_AGAIN_S
        found = [pid for pid in (self.pid, *self._family) if other and _has_open(pid, other, writes=reads)]
        pid = found[0] if len(found) == 1 else 0
        if len(self._processes) > MAX_KNOWN:
            self._processes.clear()
        ended_s = time.monotonic()
        self._processes[target, reads] = pid, ended_s + SEARCH_AGAIN_S
        self._spent_s += ended_s - now_s
        return pid

    def _may_spend(self, now_s: float) -> bool:
        return self._spent_s <= AT_ONCE_S + MAX_SEARCHING * (now_s - self._began_s)

    def _look_up(self, number: str) -> int:
        """What the system's tables say of a socket of the network."""
        for protocol in ("tcp", "tcp6", "udp", "udp6"):
            rows = [row for row in self._table(protocol) if len(row) > 9]
            mine = next((row for row in rows if row[9] == number), None)
            if mine is not None:
                local, remote = mine[1], mine[2]
                other = next((row[9] for row in rows if (row[1], row[2]) == (remote, local)), None)
                if other is not None:
                    self._other_ends[f"socket:[{number}]"] = f"socket:[{other}]"
                return LOOPBACK if _is_here(local, remote) else REMOTE
        return REMOTE

    def _table(self, protocol: str) -> list[list[str]]:
        return [line.split() for line in _lines(f"/proc/{self.pid}/net/{protocol}")]


def family(pid: int) -> list[int]:
    """The parent of a process and all that it has started, without the process itself."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - the sampler imports little
        if name.isdigit():
            fields = "".join(_lines(f"/proc/{name}/stat")).rpartition(")")[2].split()
            if len(fields) > 1:
                parents[int(name)] = int(fields[1])
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    above = parents.get(pid, 0)
    found = [above if above > 1 else pid]
    for one in found:
        found += children.get(one, ())
    return [one for one in found if one != pid]


def name_of(pid: int) -> str:
    """The name of a process, without its arguments, which may hold secrets; "": it has ended."""
    return "".join(_lines(f"/proc/{pid}/comm")).strip()


def _is_here(local: str, remote: str) -> bool:
    """Whether an address of /proc/net (hexadecimal, words in the machine's order) is this machine's own."""
    (own, _, _), (other, _, port) = local.rpartition(":"), remote.rpartition(":")
    is_connected = int(port, 16) > 0
    address = other if is_connected else own  # of one that listens
    if is_connected and own == other:
        return True
    if len(address) == 8 or address.startswith("0000000000000000FFFF0000"):
        return address.endswith("7F")
    return address == "00000000000000000000000001000000"


def _ask_kernel(number: int) -> tuple[bool | None, str]:
    """Whether a socket is a local one (None: the kernel does not say), and its other end, where it has one."""
    request = _REQUEST.pack(socket.AF_UNIX, 0, 0, ANY, number, UDIAG_SHOW_PEER, ANY, ANY)
    header = _HEADER.pack(_HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(0.1)
            kernel.send(header + request)
            answer = kernel.recv(4096)
        kind = _HEADER.unpack_from(answer)[1]
        if kind != SOCK_DIAG_BY_FAMILY:
            (code,) = struct.unpack_from("=i", answer, _HEADER.size)
            return (False if -code == errno.ENOENT else None), ""
        at = _HEADER.size + 16  # family, type, state, number, cookie
        while at + _ATTRIBUTE.size <= len(answer):
            length, kind = _ATTRIBUTE.unpack_from(answer, at)
            if kind == UNIX_DIAG_PEER:
                return True, f"socket:[{struct.unpack_from('=I', answer, at + _ATTRIBUTE.size)[0]}]"
            at += max((length + 3) & ~3, 4)
        return True, ""
    except (OSError, struct.error):
        return None, ""


def _has_open(pid: int, target: str, *, writes: bool) -> bool:
    """Whether a process has a socket open, or the end of a pipe that is written to, or read from."""
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{name}") == target:  # noqa: PTH115
                    is_end = os.lstat(f"{folder}/{name}").st_mode & (0o200 if writes else 0o400)
                    if is_end or target.startswith("socket:"):
                        return True
    return False


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:  # noqa: PTH123
            return stream.readlines()
    except OSError:
        return []
