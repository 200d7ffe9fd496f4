"""The sampler: a process beside the measured one, which it samples until that has ended.

It gets messages over a socket: a process with its memory and layout, stacks of recorders, collections of the garbage
collector. It ends with the last process that holds the other end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from typing import Any

from perfharness.host_probe import spool as files
from perfharness.host_probe import thread_state
from perfharness.host_probe.reader import InterpreterReader, Memory, RangeReader, UnreadableError
from perfharness.host_probe.spool import Spool

FLUSH_S = 0.5
CHECK_THREADS_S = 1.0
BLOCKED_EVERY_NS = 20_000_000
"""A thread that stays blocked gets a row this often: it has not run meanwhile, so nothing can have changed."""

COUNT_READY_EVERY_NS = 20_000_000
COUNT_AGAIN_NS = 5_000_000
"""Where there were more threads ready than CPUs: whether there still are."""

ROWS_AT_FULL_RATE = 4_000_000
"""With as many more rows the interval doubles, so that files stay small in long runs."""

FREE_S = 0.05
"""CPU time that may be spent at once: the first samples read every code object that they meet."""

GIL_BYTES = 256
"""From the switch interval on: the lock's condition variables and mutexes lie in there."""

MESSAGE_BYTES = 1 << 17
COLLECTION, CROWDED, CPU_TIME, CPUS = 0, 3, 4, 6
"""As `model.host_samples.HostEventKind`."""

Schedule = tuple[int, int, int] | None


class SampledThread:
    """What was last seen of a thread."""

    def __init__(self, process: thread_state.Process, tid: int, row_ns: int, *, counts: bool) -> None:
        self.tid = tid
        self.files = thread_state.ThreadFiles(process, tid)
        self.schedule = self.files.schedule()
        self.counts = self.files.counts() if counts else None
        self.row_ns = self.seen_ns = row_ns
        self.blocked_since_ns = 0
        self.state = thread_state.RUNNING
        self.stack = self.stage = -1


class SampledProcess:
    """A process, its threads, and its file."""

    def __init__(self, hello: dict[str, Any], memory: int) -> None:
        self.pid = hello["pid"]
        self._layout, self._interval_ns = hello["layout"], hello["interval_ns"]
        self._process = thread_state.Process(self.pid, memory)
        self._cpus = thread_state.affinity(self.pid)
        self.spool = Spool(_claim(hello["folder"], self.pid, may_be_main=not hello["forked"]))
        cores = thread_state.count_cores(self.pid)
        meta = {name: hello[name] for name in ("pid", "interval_ns", "monotonic_ns", "unix_ns")}
        self.spool.write_json(files.META, meta | {"cpus": cores})
        gil = self._layout["gil"]
        self._gil = range(gil, gil + GIL_BYTES) if gil else range(0)
        self._reader = InterpreterReader(Memory(memory), self._layout)
        self._ranges: RangeReader | None = None
        self._counts = hello["counts"]
        self._threads: dict[int, SampledThread] = {}
        self._tids: dict[int, int] = {}
        self._next_check_s = 0.0
        now_ns = time.monotonic_ns()
        self._ready_counted_ns, self._too_many = now_ns, 0
        self._cpu_time, self._cpu_time_read_ns = thread_state.process_cpu_ns(self.pid), now_ns

    def follow(self, stack: dict[str, Any]) -> None:
        """Read the open ranges of a thread off a recorder's stack from now on."""
        if self._ranges is None:
            self._ranges = RangeReader(self._reader, stack["slots"])
        self._ranges.add(stack["ident"], stack["recorder"], stack["lane"], stack["address"])

    def sample(self) -> bool:
        """Sample all threads; False: the process has ended."""
        try:
            threads = list(self._reader.threads())
        except UnreadableError:
            return self._is_there()
        if time.monotonic() >= self._next_check_s:
            self._next_check_s = time.monotonic() + CHECK_THREADS_S
            self._forget_ended({ident for _, ident in threads})
        tids = {address: tid for address, ident in threads if (tid := self._tid_of(ident))}
        for address, ident in threads:
            if address in tids:
                self._sample_thread(address, ident, tids)
        self._count_ready()
        self._note_cpu_time()
        return True

    def close(self) -> None:
        """Write the rest."""
        self.spool.close()
        self.release()

    def release(self) -> None:
        """Close the files in /proc."""
        os.close(self._process.memory)
        for thread in self._threads.values():
            thread.files.close()

    def _count_ready(self) -> None:
        """Note where the process has more threads ready to run than CPUs, and where its CPUs change.

        Threads that are woken together are ready together for a moment, so two counts in a row say something.
        """
        now_ns, counted_ns = time.monotonic_ns(), self._ready_counted_ns
        every_ns = COUNT_AGAIN_NS if self._too_many else max(COUNT_READY_EVERY_NS, 5 * self._interval_ns)
        cpus = thread_state.affinity(self.pid)
        if now_ns - counted_ns < every_ns or not cpus:
            return
        if cpus != self._cpus:
            self._cpus = cpus
            self.spool.event(now_ns, now_ns, self.pid, CPUS, thread_state.count_cores(self.pid))
        with contextlib.suppress(OSError):
            too_many = max(thread_state.count_ready(self.pid) - len(cpus), 0)
            if least := min(too_many, self._too_many):
                self.spool.event(counted_ns, now_ns, self.pid, CROWDED, least)
            self._ready_counted_ns, self._too_many = now_ns, too_many

    def _note_cpu_time(self) -> None:
        """Note how much CPU time all threads of the process used since the last time."""
        used_ns, now_ns = thread_state.process_cpu_ns(self.pid), time.monotonic_ns()
        if used_ns is not None and self._cpu_time is not None:
            micros = (used_ns - self._cpu_time) // 1000
            self.spool.event(self._cpu_time_read_ns, now_ns, self.pid, CPU_TIME, micros)
            used_ns = self._cpu_time + micros * 1000
        self._cpu_time, self._cpu_time_read_ns = used_ns, now_ns

    def _sample_thread(self, address: int, ident: int, tids: dict[int, int]) -> None:
        now_ns, tid = time.monotonic_ns(), tids[address]
        thread = self._threads.get(tid)
        if thread is None:
            thread = self._threads[tid] = SampledThread(
                self._process, tid, now_ns - self._interval_ns, counts=self._counts
            )
        schedule = thread.files.schedule()
        is_blocked = thread.blocked_since_ns > 0
        if is_blocked and schedule == thread.schedule and schedule is not None:
            thread.seen_ns = now_ns
            due_ns = BLOCKED_EVERY_NS if now_ns - thread.blocked_since_ns > BLOCKED_EVERY_NS else 0
            if now_ns - thread.row_ns >= due_ns:
                self._write(thread, now_ns, schedule, self._holder(tids))
            return
        if is_blocked and thread.seen_ns > thread.row_ns:
            self._write(thread, thread.seen_ns, thread.schedule, 0)
        try:
            # Stage, stack and state as close to each other as can be; the stack's first frame is read anew.
            path = self._ranges.path(ident) if self._ranges is not None else None
            now_ns = time.monotonic_ns()
            frames = self._reader.stack(self._reader.first_frame(address))
        except UnreadableError:
            path, frames = None, []
        holder = self._holder(tids)
        thread.state = self._state(thread, schedule, now_ns)
        thread.stage = -1 if path is None else self.spool.number("stages", path)
        numbers = tuple(self.spool.number("frames", frame) for frame in frames)
        thread.stack = self.spool.number("stacks", numbers) if numbers else -1
        is_blocked = thread.state not in (thread_state.RUNNING, thread_state.RUNNABLE)
        thread.blocked_since_ns = now_ns if is_blocked and schedule is not None else 0
        thread.seen_ns = now_ns
        self._write(thread, now_ns, schedule, holder)

    def _state(self, thread: SampledThread, schedule: Schedule, now_ns: int) -> int:
        state = thread.files.state(self._gil)
        if state == thread_state.RUNNING and schedule is not None and thread.schedule is not None:
            waited_ns = schedule[1] - thread.schedule[1]
            if waited_ns > (now_ns - thread.row_ns) / 2:
                return thread_state.RUNNABLE
        return state

    def _write(self, thread: SampledThread, now_ns: int, schedule: Schedule, holder: int) -> None:
        on_cpu = runnable = -1
        if schedule is not None and thread.schedule is not None:
            on_cpu, runnable = schedule[0] - thread.schedule[0], schedule[1] - thread.schedule[1]
        counts: tuple[int, ...] = (-1, -1, -1, -1)
        if thread.counts is not None and schedule == thread.schedule and schedule is not None:
            counts = (0, 0, 0, 0)  # it has not run
        elif thread.counts is not None and (now := thread.files.counts()) is not None:
            counts = tuple(after - before for after, before in zip(now, thread.counts, strict=True))
            thread.counts = now
        length_ns, thread.row_ns, thread.schedule = now_ns - thread.row_ns, now_ns, schedule
        seen = thread.state, thread.stack, thread.stage
        self.spool.sample(now_ns, thread.tid, length_ns, on_cpu, runnable, *seen, holder, counts=counts)

    def _holder(self, tids: dict[int, int]) -> int:
        try:
            return tids.get(self._reader.gil_holder(), 0)
        except UnreadableError:
            return 0

    def _tid_of(self, ident: int) -> int:
        """The system's id of a thread; 0: it has ended. A new thread often gets the ident of one that has ended."""
        try:
            tid = self._reader.tid(ident)
        except UnreadableError:
            return 0
        if self._tids.get(ident) != tid:
            if not os.path.exists(f"/proc/{self.pid}/task/{tid}"):  # noqa: PTH110 - the sampler imports little
                return 0
            self._tids[ident] = tid
        return tid

    def _forget_ended(self, idents: set[int]) -> None:
        """Threads that have ended; another may have got the ident of one."""
        self._tids = {}
        alive = {self._tid_of(ident) for ident in idents}
        for tid in [tid for tid in self._threads if tid not in alive]:
            self._threads.pop(tid).files.close()

    def _is_there(self) -> bool:
        try:
            return bool(os.pread(self._process.memory, 8, self._layout["thread"]))
        except OSError:
            return False


class Sampler:
    """All processes that hold the other end of the socket.

    Args:
        interval_ns: between two samples of a thread.
        share: of a CPU that sampling takes at most, beyond `FREE_S`; the interval grows until it does.
    """

    def __init__(self, connection: socket.socket, interval_ns: int, share: float) -> None:
        self._connection = connection
        self._interval_s, self._share = interval_ns / 1e9, share
        self._processes: dict[int, SampledProcess] = {}

    def run(self) -> None:
        """Until the last process has ended."""
        due_s, flush_s = 0.0, time.monotonic() + FLUSH_S
        began_s, free_s = time.monotonic(), time.process_time() + FREE_S
        while self._receive_until(due_s):
            started_s = time.monotonic()
            for pid, process in list(self._processes.items()):
                self._sample(pid, process, flush=started_s > flush_s)
            if started_s > flush_s:
                flush_s = started_s + FLUSH_S
            rows = max((process.spool.rows for process in self._processes.values()), default=0)
            interval_s = self._interval_s * 2 ** (rows // ROWS_AT_FULL_RATE)
            # Jitter, so that a loop of the program cannot keep step with it.
            due_s = started_s + interval_s * (0.5 + os.urandom(1)[0] / 255)
            due_s = max(due_s, began_s + (time.process_time() - free_s) / self._share)
        for pid in list(self._processes):
            self._end(pid)

    def _receive_until(self, due_s: float) -> bool:
        """Handle messages; False: no process is left."""
        while True:
            wait_s = max(due_s - time.monotonic(), 0.0) if self._processes else None
            if not select.select([self._connection], [], [], wait_s)[0]:
                return True
            if not self._receive():
                return False

    def _sample(self, pid: int, process: SampledProcess, *, flush: bool) -> None:
        try:
            if not process.sample():
                self._end(pid)
            elif flush:
                process.spool.flush()
        except OSError:  # a full disk: what is in the file stays
            self._processes.pop(pid).release()

    def _end(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            self._processes.pop(pid).close()

    def _receive(self) -> bool:
        """Handle a message; False: no process is left."""
        data, descriptors, _, _ = socket.recv_fds(self._connection, MESSAGE_BYTES, 1)
        if not data:
            return False
        message = json.loads(data)
        kind, pid = message["kind"], message["pid"]
        if kind == "process":
            self._processes[pid] = SampledProcess(message, descriptors[0])
            return True
        process = self._processes.get(pid)
        if process is None:
            return True
        if kind == "stack":
            process.follow(message)
        elif kind == "collections":
            for start_ns, end_ns, tid, generation in message["rows"]:
                process.spool.event(start_ns, end_ns, tid, COLLECTION, generation)
        elif kind == "end":
            self._end(pid)
            self._connection.send(b"ended")
        return True


def _claim(folder: str, pid: int, *, may_be_main: bool) -> str:
    """The path of a file that no other process of the folder has."""
    if may_be_main:
        path = os.path.join(folder, files.FILE_NAME)  # noqa: PTH118 - the sampler imports little
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            return path
        except FileExistsError:
            pass
    return os.path.join(folder, f"{files.FILE_PREFIX}_{pid}{files.FILE_SUFFIX}")  # noqa: PTH118


def main(descriptor: int, interval_ns: int, percent: int) -> None:
    """Sample the processes at the other end of a socket."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _leave_cpus()
    Sampler(socket.socket(fileno=descriptor), interval_ns, percent / 100).run()


def _leave_cpus() -> None:
    """Run where the process does not, where it is bound to some of the CPUs."""
    bound_to = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        others = os.sched_getaffinity(0) - bound_to
        os.sched_setaffinity(0, others or bound_to)
