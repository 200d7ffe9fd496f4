"""Windows: a running process records its next batches when `perfharness record` asks (`PERFHARNESS_ON_DEMAND=1`).

1. The first recorder of a process starts a daemon thread that listens on a Unix socket, `PID.sock`
   in a private folder. It answers only its own user and root. A forked child listens from its first range on.
2. The thread greets each caller with facts about the process. A caller requests a window by sending
   a folder and a number of batches. Other callers are told that the process is busy.
3. A window is a range log of the embedded tracer in that folder, with CUPTI's records if CUDA is in use.
4. During a window, recorders call `before_batch`. A thread or task joins the window with its next
   outermost batch: the thread itself replaces its prepared calls by those of the log.
5. The window ends with its last batch, or when the caller hangs up. Threads take their calls back.
   Later events are ignored, and open ranges are cut off (`log_reader`).
6. The caller makes the trace from the log; a process that uses CUDA writes it itself.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import threading
import time
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from perfharness.boot import ranks
from perfharness.distribution import VERSION
from perfharness.model import environment
from perfharness.model import nsys_schema as schema
from perfharness.recorder.journal import Journal, arguments_to_json
from perfharness.recorder.stacks import COUNTS
from perfharness.tracer import cupti, write_trace
from perfharness.tracer.session import Session

if TYPE_CHECKING:
    from perfharness.recorder.ranges import Range
    from perfharness.recorder.stacks import Stack
    from perfharness.tracer.gpu import GpuTrace
    from perfharness.tracer.range_log import RangeLog

POLL_S = 0.05
REQUEST_S = 120.0
"""Longest time from the greeting to the request; the caller inspects the machine meanwhile."""

SEND_S = 5.0

MAX_REQUEST_BYTES = 1 << 16
CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the caller (SO_PEERCRED)."""


class Core(Protocol):
    """The recorder, as windows use it."""

    def begin_window(self) -> None:
        """Call `Windows.before_batch` from now on."""

    def connect(self, stack: Stack, node: Range) -> None:
        """Give a range the calls of its stack's current output."""


CUDA_UNUSED = "CUDA was not in use when the window began"


def socket_folders(user: int) -> list[Path]:
    """Folders for the sockets of a user's processes; a process uses the first that it can create."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") if user == os.geteuid() else None
    return [Path(runtime or f"/run/user/{user}") / "perfharness", Path(f"/tmp/perfharness-{user}")]


def user_of(connection: socket.socket) -> int:
    """Return the user of the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(credentials)[1])


class Window(Journal):
    """A window: its tracer session, counts and `recorder.json` (`file_name`); `recorders` with their arguments."""

    def __init__(self, folder: Path, file_name: str, batches: int, recorders: dict[Any, dict[str, Any]]) -> None:
        super().__init__(folder)
        self._path, self.is_claimed, self._recorders = folder / file_name, True, recorders
        self.session = Session(str(folder), write_trace, is_window=True)
        self.lock = threading.Lock()
        self.wanted, self.begun, self.ended = batches, 0, 0
        self.until_ns = 0
        self.is_closed = False
        self._counted: defaultdict[Core, Counter[str]] = defaultdict(Counter)

    @property
    def is_full(self) -> bool:
        """Whether the last batch has ended."""
        return self.ended >= self.wanted

    def count(self, core: Core, added: Counter[str]) -> None:
        """Add the counts up to the end of a batch, with the lock held."""
        self._counted[core].update(added)
        self.ended += 1
        if self.is_full:
            self.until_ns = time.perf_counter_ns()

    def counts_of(self, recorder: Any) -> dict[str, Any]:
        """Return the counts of a recorder in the window."""
        counted = {name: self._counted[recorder][name] for name in COUNTS}
        return {**recorder.counts(), **counted, "finalized": self.is_closed, "open_ranges": []}

    def close(self) -> None:
        """End the log, and write the journal and, if CUDA is used, the trace."""
        session = self.session
        session.log.note_window(self.until_ns or time.perf_counter_ns())
        if session.gpu is not None:
            cupti.wait_for_gpus(session.gpu.driver)
        session.finish()
        self.finish("finalized")


class Windows:
    """The windows of this process. `current`: the open one."""

    def __init__(self) -> None:
        self.current: Window | None = None
        self._recorders: dict[Any, dict[str, Any]] = {}
        self._inside: dict[Stack, _Inside] = {}
        self._gpu: GpuTrace | None = None
        self._gpu_reason: str | None = None
        self._listener: socket.socket | None = None
        self._has_begun = False
        self._lock = threading.Lock()

    # ---- called by recorders ----

    def add(self, recorder: Any, args: object) -> None:
        """Add a recorder, or arguments to a known one."""
        self._recorders.setdefault(recorder, {}).update(arguments_to_json(args))
        self.listen()

    def log_of(self, stack: Stack) -> RangeLog | None:
        """Return the log that currently records a stack."""
        inside = self._inside.get(stack)
        return None if inside is None else inside.window.session.log

    def before_batch(self, core: Core, stack: Stack) -> None:
        """Add a stack to the window while batches are missing, else remove it."""
        window, inside = self.current, self._inside.get(stack)
        if window is not None:
            with window.lock:
                if not window.is_closed and window.begun < window.wanted:
                    window.begun += 1
                    if inside is None:
                        self._enter(core, stack, window)
                    return
        if inside is not None:
            self._leave(stack)

    def after_batch(self, core: Core, stack: Stack) -> None:
        """Count a batch that is not inside another."""
        inside = self._inside.get(stack)
        if inside is None or stack.is_in_batch:
            return
        window = inside.window
        with window.lock:
            if not window.is_closed:
                counted, inside.counted = inside.counted, stack.counts()
                window.count(core, inside.counted - counted)
        window.write_now_and_then()

    def _enter(self, core: Core, stack: Stack, window: Window) -> None:
        around = stack.open_ranges()
        stack.forget_prepared()
        stack.sinks = {}
        self._inside[stack] = _Inside(core, window, around, stack.counts())
        for node in around:
            core.connect(stack, node)
        stack.push_again()

    def _leave(self, stack: Stack) -> None:
        """Take the calls back, for open ranges only if they began before the window."""
        inside = self._inside.pop(stack, None)
        if inside is None:  # another thread was first
            return
        stack.sinks = {}
        stack.forget_prepared()
        for node in inside.around:
            inside.core.connect(stack, node)

    # ---- the thread ----

    def listen(self) -> None:
        """Start the thread that waits for callers, unless it runs."""
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
            try:
                self._listener = _bound_socket()
            except OSError as error:
                hint = f"Make {socket_folders(os.geteuid())[-1]} your own folder with mode 0700."
                message = f"perfharness record cannot reach this process ({error}). {hint}"
                warnings.warn(message, RuntimeWarning, stacklevel=3)
                return
        threading.Thread(target=self._serve, args=(self._listener,), name="perfharness-record", daemon=True).start()

    def begin_in_child(self) -> None:
        """Begin in a forked child, without the parent's window."""
        if self._listener is not None:
            self._listener.close()
        if self._gpu is not None:
            self._gpu.pool.close()
            self._gpu, self._gpu_reason = None, schema.CUPTI_FORKED
        self.current, self._inside, self._listener = None, {}, None
        self._has_begun, self._lock = False, threading.Lock()

    def _serve(self, listener: socket.socket) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                if not _greet(connection, is_busy=False):
                    continue
                try:
                    if request := _request(listener, connection):
                        self._record(listener, connection, **json.loads(request))
                except Exception as error:  # later callers need the thread
                    _send(connection, {"error": f"{type(error).__name__}: {error}"})

    def _record(
        self, listener: socket.socket, caller: socket.socket, folder: str, file_name: str, batches: int
    ) -> None:
        window = Window(Path(folder), file_name, batches, dict(self._recorders))
        window.session.log.open()
        if window.session.log.has_failed:
            _send(caller, {"error": f"cannot write to {folder}"})
            return
        window.write()
        self._start_gpu(window.session)
        self.current = window
        try:
            for core in list(self._recorders):
                core.begin_window()
            seen = 0
            with contextlib.suppress(OSError):
                while not window.is_full and not _has_spoken(listener, caller, POLL_S):
                    if window.ended > seen:
                        seen = window.ended
                        _send(caller, {"batches": seen})
        finally:
            self._close(window)
        _send(caller, {"batches": window.ended, "is_closed": True})

    def _start_gpu(self, session: Session) -> None:
        session.gpu_reason = session.gpu_reason or self._gpu_reason
        if session.gpu_reason is None and not cupti.cuda_was_used():
            session.gpu_reason = CUDA_UNUSED
        if self._gpu is None:
            session.start_gpu()
            self._gpu, self._gpu_reason = session.gpu, session.gpu_reason
        elif session.gpu_reason is None:
            try:
                self._gpu.record()
                session.gpu = self._gpu
            except cupti.CuptiError as error:
                session.gpu_reason = f"CUPTI could not be started again: {error}"

    def _close(self, window: Window) -> None:
        with window.lock:
            window.is_closed = True
        self.current = None
        for stack in list(self._inside):
            self._leave(stack)
        window.close()
        if self._gpu is not None:
            self._gpu.pool.release()


@dataclass
class _Inside:
    """A stack in a window: the ranges that were open when it joined, and its counts at the last batch."""

    core: Core
    window: Window
    around: list[Range]
    counted: Counter[str]


def _bound_socket() -> socket.socket:
    """Return a socket in the first private folder. Raises `OSError`."""
    problem = OSError("no private folder")
    for folder in socket_folders(os.geteuid()):
        path = folder / f"{os.getpid()}.sock"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise OSError(f"{folder} is not private")
            path.unlink(missing_ok=True)  # left by an earlier process with this pid
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(path))
            listener.listen()
        except OSError as error:
            problem = error
            continue
        atexit.register(_unlink_in, os.getpid(), path)
        return listener
    raise problem


def _unlink_in(pid: int, path: Path) -> None:
    if os.getpid() == pid:
        path.unlink(missing_ok=True)


def _greet(connection: socket.socket, *, is_busy: bool) -> bool:
    """Send facts about the process to a trusted caller; return whether it is trusted."""
    connection.settimeout(SEND_S)
    is_trusted = user_of(connection) in (0, os.geteuid())
    if is_trusted:
        _send(connection, {**_facts(), "is_busy": is_busy})
    return is_trusted


def _has_spoken(listener: socket.socket, caller: socket.socket, timeout_s: float) -> bool:
    """Whether the caller has sent something or hung up; tell other callers that the process is busy."""
    readable, _, _ = select.select([caller, listener], [], [], timeout_s)
    if listener in readable:
        other, _ = listener.accept()
        with other, contextlib.suppress(OSError):
            _greet(other, is_busy=True)
    return caller in readable


def _request(listener: socket.socket, caller: socket.socket) -> bytes:
    """Return the caller's request; empty after a timeout or if the caller hung up."""
    deadline_s = time.monotonic() + REQUEST_S
    while time.monotonic() < deadline_s:
        if _has_spoken(listener, caller, deadline_s - time.monotonic()):
            return caller.makefile("rb").readline(MAX_REQUEST_BYTES)
    return b""


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _facts() -> dict[str, Any]:
    """Facts about this process, for the greeting."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return {
        "version": VERSION,
        "pid": os.getpid(),
        "start_ticks": ranks.start_ticks(),
        "executable": sys.executable,
        "arguments": sys.orig_argv[1:],
        "script": main and str(Path(main).absolute()),
        "working_dir": str(Path.cwd()),
        "uses_cuda": cupti.cuda_was_used(),
    }


@cache
def active() -> Windows | None:
    """Return the windows of this process, or None without `PERFHARNESS_ON_DEMAND=1`."""
    return Windows() if os.environ.get(environment.ON_DEMAND) == "1" else None
