"""Start the sampler of this process, and send it data that it cannot read."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import socket
import sys
import threading
import time
from typing import IO, Any

from perfharness.host_probe import layout as layouts
from perfharness.host_probe import reader, sample_file

SAMPLER = """
import os, sys
if os.fork():
    os._exit(0)  # not a child of the process, which may wait for all its children
sys.path.insert(0, sys.argv[1])
from perfharness.host_probe.sampler import main
main(*map(int, sys.argv[2:]))
"""
PACKAGES = __file__.rsplit("/", 3)[0]

KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
"""Environment of the sampler, without the tracer's variables, which would trace it."""

WITHOUT_STREAMS = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1)]
"""Keep pipes from staying open after the process because of the sampler."""

END_S = 20.0
"""Longest wait for the sampler at the end."""

SEND_EVERY_NS = 200_000_000
MAX_COLLECTIONS = 1000
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, 2**64 - 1


class HostProbe:
    """The probe of one process and its forked children.

    Samples a thread every `interval_ns` into a file in `folder`, with at most `percent` of a CPU.
    """

    def __init__(self, folder: str, interval_ns: int, percent: int) -> None:
        self._folder, self._interval_ns, self._percent = folder, interval_ns, percent
        self._pid = os.getpid()
        self._connection: socket.socket | None = None
        self._slots: dict[str, int] = {}
        self._followed: dict[tuple[int, str, int], dict[str, Any]] = {}
        self._layout: dict[str, Any] = {}
        self._collections: list[tuple[int, int, int, int]] = []
        self._sent_ns = 0
        self._collecting_since_ns: dict[int, int] = {}

    def start(self) -> None:
        """Start the sampler, or write the reason for a failure to the file."""
        try:
            with _own_memory() as memory:
                self._start(memory.fileno())
        except (OSError, layouts.LayoutError) as error:
            with contextlib.suppress(OSError):
                file = sample_file.SampleFile(f"{self._folder}/{sample_file.FILE_NAME}")
                file.write_json(sample_file.META, self._facts() | {"interval_ns": 0})
                file.write_json(sample_file.MISSING, [str(error)])
                file.close()

    def _start(self, memory: int) -> None:
        self._layout = layouts.find_layout(memory)
        if not reader.check(memory, self._layout):
            raise layouts.LayoutError("the stacks of this interpreter do not have the layout of its version")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
            command = [sys.executable, "-I", "-S", "-c", SAMPLER, PACKAGES]
            command += map(str, (theirs.fileno(), self._interval_ns, self._percent))
            first = os.posix_spawn(sys.executable, command, kept, file_actions=WITHOUT_STREAMS)
        os.waitpid(first, 0)  # its child is the sampler
        self._connection = ours
        self._introduce(memory, forked=False)
        gc.callbacks.append(self._on_collection)
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._after_fork)

    def follow(self, stack: Any, recorder: str) -> None:
        """Follow a recorder's stack (a `Stack`) of the calling thread."""
        if self._connection is None:
            return
        if not self._slots:
            try:
                self._slots = _slots_of(stack)
            except (OSError, layouts.LayoutError):
                return  # samples are then assigned to stages by time
        own = {"ident": threading.get_ident(), "recorder": recorder, "lane": stack.lane}
        message = {"kind": "stack", **own, "address": id(stack), "slots": self._slots}
        self._followed[threading.get_ident(), recorder, stack.lane] = message
        self._send(message)

    def end(self) -> None:
        """Complete the file."""
        if self._pid != os.getpid():
            return
        self._send_collections()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with connection, contextlib.suppress(OSError):
            connection.settimeout(END_S)
            connection.send(json.dumps({"kind": "end", "pid": self._pid}).encode(), socket.MSG_NOSIGNAL)
            connection.recv(64)

    # ---- messages ----

    def _facts(self) -> dict[str, Any]:
        clocks = {"monotonic_ns": time.monotonic_ns(), "unix_ns": time.time_ns()}
        return {"pid": self._pid, "interval_ns": self._interval_ns, **clocks}

    def _introduce(self, memory: int, *, forked: bool) -> None:
        """Send the process's memory, and allow the sampler to read its threads' calls, which Yama may forbid."""
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY), 0, 0, 0)
        own = {"kind": "process", "folder": self._folder, "forked": forked, "layout": self._layout}
        assert self._connection is not None
        message = json.dumps(own | self._facts()).encode()
        socket.send_fds(self._connection, [message], [memory], socket.MSG_NOSIGNAL)

    def _send(self, message: dict[str, Any]) -> None:
        """Send without blocking; messages that the sampler does not receive are lost."""
        with contextlib.suppress(OSError):
            if (connection := self._connection) is not None:
                text = json.dumps({**message, "pid": self._pid})
                connection.send(text.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        thread = threading.get_native_id()
        if phase == "start":
            self._collecting_since_ns[thread] = time.monotonic_ns()
            return
        start_ns, now_ns = self._collecting_since_ns.pop(thread, 0), time.monotonic_ns()
        if start_ns:
            self._collections.append((start_ns, now_ns, thread, info["generation"]))
        if now_ns - self._sent_ns > SEND_EVERY_NS or len(self._collections) >= MAX_COLLECTIONS:
            self._send_collections()

    def _send_collections(self) -> None:
        self._sent_ns = time.monotonic_ns()
        rows, self._collections = self._collections, []
        if rows:
            self._send({"kind": "collections", "rows": rows})

    def _after_fork(self) -> None:
        """Continue in a forked child, which has the same addresses in its own memory, and one thread."""
        self._collections, self._collecting_since_ns = [], {}
        if self._connection is None:
            return
        ident = threading.get_ident()
        self._pid = os.getpid()
        self._followed = {key: message for key, message in self._followed.items() if key[0] == ident}
        with contextlib.suppress(OSError, ctypes.ArgumentError):
            self._layout["thread"] = layouts.current_thread_state()
            with _own_memory() as memory:
                self._introduce(memory.fileno(), forked=True)
            for message in self._followed.values():
                self._send(message)


def _own_memory() -> IO[bytes]:
    """Open the own memory, which a process always may; the open file can be passed on."""
    return open("/proc/self/mem", "rb", buffering=0)  # noqa: PTH123 - pathlib costs start-up time


def _slots_of(stack: Any) -> dict[str, int]:
    """Offsets of the fields to read in stacks and ranges of recorders. Raises LayoutError."""
    node_type, stack_type = type(stack.node), type(stack)
    example = stack_type()
    node = example.node = node_type(example.root, "perfharness message".upper())
    slots = {"node": (example, node), "root": (example, example.root), "parent": (node, example.root)}
    slots["message"] = node, node.message
    with _own_memory() as memory:
        return {
            **{name: layouts.slot_offset(memory.fileno(), *pair) for name, pair in slots.items()},
            "stack_type": id(stack_type),
            "stack_bytes": stack_type.__basicsize__,
            "node_type": id(node_type),
            "node_bytes": node_type.__basicsize__,
        }
