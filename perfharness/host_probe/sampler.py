"""The sampler process, which samples measured processes until they end.

It receives processes with memory and layout, recorder stacks and garbage collections over a socket.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import time
from typing import Any

from perfharness.host_probe import sample_file as files
from perfharness.host_probe import thread_state
from perfharness.host_probe.reader import UNREADABLE, InterpreterReader, RangeReader, ThreadState
from perfharness.host_probe.sample_file import SampleFile

FLUSH_S = 0.5
BLOCKED_EVERY_NS, IDLE_NS, IDLE_EVERY_NS = 20_000_000, 1_000_000_000, 200_000_000
"""A blocked thread does not change: it gets a row per first time, and after the second time, a row per third."""

COUNT_EVERY_NS, COUNT_SELDOM_NS, SELDOM_FROM_NS = 20_000_000, 500_000_000, 10_000_000
"""Time between counts of ready threads while there are enough CPUs; the longer one from the given interval on."""
COUNT_SHARE = 0.2
"""Share of the sampler's CPU time used for counting while there are not enough CPUs."""

ROWS_AT_FULL_RATE = 4_000_000
"""Rows after which the interval doubles, to keep files of long runs small."""

FREE_S = 0.05
"""CPU time allowed at once, because the first samples read every code object they meet."""

GIL_BYTES = 256
"""Size from the switch interval on, with the lock's condition variables and mutexes."""

MESSAGE_BYTES = 1 << 17
COLLECTION, CPU_CONTENTION, CPU_TIME = 0, 3, 4
"""Values of `model.host_samples.HostEventKind`."""


class SampledThread:
    """Last observation of a thread. Raises OSError if it has ended."""

    def __init__(self, pid: int, tid: int, row_ns: int) -> None:
        self.tid = tid
        self.files = thread_state.ThreadFiles(pid, tid)
        self.schedule = self.row_schedule = self.files.schedule()
        self.row_ns = self.seen_ns = row_ns
        self.blocked_since_ns = 0
        self.state = thread_state.RUNNING
        self.stack = self.stage = -1

    def used_ns(self, schedule: bytes) -> tuple[int, int]:
        """Time on a CPU and time ready without one since the last row; -1 if unknown."""
        if schedule == self.row_schedule:
            return (0, 0) if schedule else (-1, -1)
        (on_cpu, ready, *_), (on_cpu_before, ready_before, *_) = (
            map(int, one.split()) for one in (schedule, self.row_schedule)
        )
        return on_cpu - on_cpu_before, ready - ready_before


class SampledProcess:
    """A process with its threads and file.

    Args:
        hello: its first message.
        memory: open file of its memory.
        share: limit for sampling, as a share of a CPU.
    """

    def __init__(self, hello: dict[str, Any], memory: int, share: float) -> None:
        self.pid = hello["pid"]
        self._memory, self._interval_ns = memory, hello["interval_ns"]
        gil = hello["layout"]["gil"]
        self._process = thread_state.Process(self.pid, memory, range(gil, gil + GIL_BYTES) if gil else range(0))
        self.file = SampleFile(_claim(hello["folder"], self.pid, may_be_main=not hello["forked"]))
        self.file.write_json(files.META, {name: hello[name] for name in files.META_NAMES})
        self._reader = InterpreterReader(memory, hello["layout"], lambda frame: self.file.number("frames", frame))
        self.ranges = RangeReader(self._reader)
        self._threads: dict[int, SampledThread] = {}
        self._tids: dict[int, int] = {}
        self._count_every_ns = COUNT_EVERY_NS if self._interval_ns < SELDOM_FROM_NS else COUNT_SELDOM_NS
        self._count_share = COUNT_SHARE * share
        self._ready_counted_ns = self._count_at_ns = self._cpu_time_read_ns = time.monotonic_ns()
        self._too_many, self._cpu_time = 0, thread_state.process_cpu_ns(self.pid)

    def sample(self) -> bool:
        """Sample all threads; returns False if the process has ended."""
        found = set()
        for state in self._reader.threads():
            self._tids[state[0]] = tid = state[2]
            try:
                self._sample_thread(state)
                found.add(tid)
            except OSError:  # the thread has ended
                pass
        for tid in self._threads.keys() - found:
            self._threads.pop(tid).files.close()
        now_ns = time.monotonic_ns()
        if now_ns >= self._count_at_ns:
            self._count_ready(now_ns)
        self._note_cpu_time(now_ns)
        return bool(found)

    def close(self) -> None:
        """Write the rest and release."""
        self.file.close()
        self.release()

    def release(self) -> None:
        """Close files in /proc."""
        os.close(self._memory)
        for thread in self._threads.values():
            thread.files.close()

    def _count_ready(self, now_ns: int) -> None:
        """Record times with more ready threads than CPUs.

        Threads woken together are ready together for a moment, so only two counts in a row count.
        """
        began_ns, counted_ns, too_many = time.process_time_ns(), self._ready_counted_ns, 0
        with contextlib.suppress(OSError):  # it has ended
            too_many = max(thread_state.count_ready(self.pid) - len(os.sched_getaffinity(self.pid)), 0)
        if least := min(too_many, self._too_many):
            self.file.event(counted_ns, now_ns, self.pid, CPU_CONTENTION, least)
        self._ready_counted_ns, self._too_many = now_ns, too_many
        cost_ns = round((time.process_time_ns() - began_ns) / self._count_share)
        self._count_at_ns = now_ns + (cost_ns if too_many else max(cost_ns, self._count_every_ns))

    def _note_cpu_time(self, now_ns: int) -> None:
        """Record the CPU time of all threads of the process since the last time."""
        used_ns = thread_state.process_cpu_ns(self.pid)
        if used_ns is not None and self._cpu_time is not None:
            micros = (used_ns - self._cpu_time) // 1000
            self.file.event(self._cpu_time_read_ns, now_ns, self.pid, CPU_TIME, micros)
            used_ns = self._cpu_time + micros * 1000
        self._cpu_time, self._cpu_time_read_ns = used_ns, now_ns

    def _sample_thread(self, state: ThreadState) -> None:
        address, ident, tid = state
        now_ns, thread = time.monotonic_ns(), self._threads.get(tid)
        if thread is None:
            row_ns = now_ns - self._interval_ns
            thread = self._threads[tid] = SampledThread(self.pid, tid, row_ns)
        schedule = thread.files.schedule()
        if thread.blocked_since_ns and schedule == thread.schedule:  # unchanged: it has not run
            thread.seen_ns = now_ns
            blocked_ns, row_ns = now_ns - thread.blocked_since_ns, now_ns - thread.row_ns
            if blocked_ns <= BLOCKED_EVERY_NS or row_ns >= (
                IDLE_EVERY_NS if blocked_ns > IDLE_NS else BLOCKED_EVERY_NS
            ):
                self._write(thread, now_ns, self._holder())
            return
        if thread.schedule and not schedule:
            raise ProcessLookupError
        if thread.seen_ns > thread.row_ns:
            self._write(thread, thread.seen_ns, 0)
        thread.schedule = schedule
        try:  # stack, stage and state as close together as possible
            before = self.ranges.path(ident)
            frames = tuple(self._reader.stack(address))
            path = self.ranges.path(ident)
            if path != before:
                frames = ()  # a stage began or ended meanwhile, so the stack is ambiguous
        except UNREADABLE:
            path, frames = None, ()
        thread.state = self._process.state(thread.files.call())
        thread.stage = -1 if path is None else self.file.number("stages", path)
        thread.stack = self.file.number("stacks", frames) if frames else -1
        if thread.state == thread_state.RUNNING and thread.used_ns(schedule)[1] > (now_ns - thread.row_ns) / 2:
            thread.state = thread_state.RUNNABLE
        is_blocked = thread.state not in (thread_state.RUNNING, thread_state.RUNNABLE)
        thread.blocked_since_ns = now_ns if is_blocked and schedule else 0
        thread.seen_ns = now_ns
        self._write(thread, now_ns, self._holder() if is_blocked else 0)

    def _write(self, thread: SampledThread, now_ns: int, holder: int) -> None:
        row = now_ns, thread.tid, now_ns - thread.row_ns, *thread.used_ns(thread.schedule)
        self.file.sample(*row, thread.state, thread.stack, thread.stage, holder)
        thread.row_ns, thread.row_schedule = now_ns, thread.schedule

    def _holder(self) -> int:
        """The thread that holds the interpreter lock; 0 for none or unknown."""
        try:
            return self._tids.get(self._reader.gil_holder(), 0)
        except UNREADABLE:
            return 0


class Sampler:
    """All processes that hold the other end of the socket.

    Args:
        interval_ns: time between samples of a thread.
        share: limit for sampling beyond `FREE_S`, as a share of a CPU; the interval grows to meet it.
    """

    def __init__(self, connection: socket.socket, interval_ns: int, share: float) -> None:
        self._connection = connection
        self._interval_s, self._share = interval_ns / 1e9, share
        self._processes: dict[int, SampledProcess] = {}

    def run(self) -> None:
        """Sample until the last process has ended."""
        due_s, interval_s, began_s = 0.0, self._interval_s, time.monotonic()
        flush_s, free_s = began_s + FLUSH_S, time.process_time() + FREE_S
        while self._receive_until(due_s):
            now_s = time.monotonic()
            is_flush = now_s > flush_s
            for pid, process in list(self._processes.items()):
                self._sample(pid, process, flush=is_flush)
            if is_flush:
                flush_s = now_s + FLUSH_S
                rows = max((process.file.rows for process in self._processes.values()), default=0)
                interval_s = self._interval_s * 2 ** (rows // ROWS_AT_FULL_RATE)
            # Jitter keeps sampling from synchronising with loops of the program.
            due_s = now_s + interval_s * (0.5 + time.monotonic_ns() % 1000 / 1000)
            due_s = max(due_s, began_s + (time.process_time() - free_s) / self._share)
        for pid in list(self._processes):
            self._end(pid)

    def _receive_until(self, due_s: float) -> bool:
        """Handle messages until due; returns False if no process is left."""
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
                process.file.flush()
        except OSError:  # a full disk: existing data stays
            self._processes.pop(pid).release()

    def _end(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            self._processes.pop(pid).close()

    def _receive(self) -> bool:
        """Handle a message; returns False if no process is left."""
        data, descriptors, _, _ = socket.recv_fds(self._connection, MESSAGE_BYTES, 1)
        if not data:
            return False
        message = json.loads(data)
        kind, pid = message["kind"], message["pid"]
        process = self._processes.get(pid)
        if kind == "process":
            self._processes[pid] = SampledProcess(message, descriptors[0], self._share)
        elif process is None:
            pass
        elif kind == "stack":
            process.ranges.follow(message)
        elif kind == "collections":
            for start_ns, end_ns, tid, generation in message["rows"]:
                process.file.event(start_ns, end_ns, tid, COLLECTION, generation)
        elif kind == "end":
            self._end(pid)
            self._connection.send(b"ended")
        return True


def _claim(folder: str, pid: int, *, may_be_main: bool) -> str:
    """Path of a file that no other process in the folder uses."""
    path = f"{folder}/{files.FILE_NAME}"
    with contextlib.suppress(FileExistsError):
        if may_be_main:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            return path
    return f"{folder}/{files.FILE_PREFIX}_{pid}{files.FILE_SUFFIX}"


def main(descriptor: int, interval_ns: int, percent: int) -> None:
    """Sample the processes at the other end of a socket."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()
    _leave_cpus()
    Sampler(socket.socket(fileno=descriptor), interval_ns, percent / 100).run()


def _leave_cpus() -> None:
    """Move to CPUs that the process is not bound to, if any."""
    bound_to = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        others = os.sched_getaffinity(0) - bound_to
        os.sched_setaffinity(0, others or bound_to)
