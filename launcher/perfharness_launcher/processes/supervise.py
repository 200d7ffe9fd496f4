"""Watch processes from start to end: a common start, time limits, interrupts, and no process left running."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

from perfharness.errors import LaunchError
from perfharness_launcher.conditions import MeasuredProcess, Run
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.processes import child, guard, spawn
from perfharness_launcher.processes.barrier import StartBarrier, start_barrier
from perfharness_launcher.processes.orphans import RUN_ID_VARIABLE, RunProcesses
from perfharness_launcher.processes.spawn import ProcessGroup, RunningProcess

POLL_S = 0.05
IDLE_SHARE = 0.03
"""Of a CPU: who uses less of it only waits. (An agent of nsys that waits uses 1 %.)"""

TRACER_STARTS = 3
"""nsys fails by itself now and then (2023.4: one of 200 starts), and the next start of it succeeds."""

CONTROL_NAME = ".control"
"""Folder of the FIFOs of a run, in the folder of its first process."""

ESCALATION = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class Phase(Enum):
    """What a process is doing, in the words of the live view."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waits for the others' first measured batch"
    STOPPING = "stopping"
    ENDED = "ended, waits for the others"
    WRITING = "tracer writes its report"
    DONE = "done"


class Observer:
    """Is notified of what goes on, between two polls of the processes, so it has to be quick; this one ignores it."""

    def started(self, processes: Sequence[RunningProcess]) -> None:
        """All are spawned."""

    def poll(self, phases: Sequence[Phase]) -> None:
        """Called at every poll, about 20 times a second."""

    def stage(self, name: str) -> None:
        """All processes are done; what comes next, e.g. `exporting the traces`."""

    def interrupted(self, count: int) -> None:
        """Ctrl-C or a signal came in, for the `count`-th time."""


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds.

    Args:
        start: for a tracer to start its process.
        signal: between SIGINT, SIGTERM and SIGKILL.
        tracer: for a tracer to write its report, once all measured processes have ended.
        idle_tracer: the same, where the tracers do nothing: nsys waits for ever for a part of it that was killed.
        orphaned_tracer: the same, where the launcher was killed.
    """

    start: float = 120.0
    signal: float = 5.0
    tracer: float = 900.0
    idle_tracer: float = 60.0
    orphaned_tracer: float = 120.0


@dataclass
class Watched:
    """The state of one process while it is watched, and at last how it and its tracer ended.

    Args:
        stopped: why it was ended by us, or None; `done`: it was no longer needed.
    """

    process: RunningProcess
    stopped: Literal["timeout", "interrupted", "done"] | None = None
    signals_sent: int = 0
    stopped_at: float = 0.0
    next_signal_at: float = 0.0
    tracer_killed: bool = False
    started_at: float | None = None
    is_announced: bool = False
    released: bool = False

    @property
    def tracer_exit_code(self) -> int | None:
        """Of a tracer that has ended."""
        return self.process.popen.returncode

    @property
    def tracer_restarts(self) -> int:
        """How often its tracer was started again before the process began."""
        return self.process.starts - 1

    def phase(self, barrier: StartBarrier | None) -> Phase:
        """What the process is doing."""
        process = self.process
        if process.is_over:
            if process.popen.poll() is not None:
                return Phase.DONE
            return Phase.WRITING if self.released else Phase.ENDED
        if process.status.pid is None:
            return Phase.STARTING
        if self.stopped:
            return Phase.STOPPING
        return Phase.WAITING if barrier is not None and barrier.waits(process.spec.index) else Phase.RUNNING


@dataclass
class Supervisor:
    """Runs a group of processes.

    Args:
        run: its folder gets those of the processes, which carry its id; its conditions are left at their end.
    """

    group: ProcessGroup
    run: Run
    interrupts: Interrupts
    observer: Observer = field(default_factory=Observer)
    patience: Patience = field(default_factory=Patience)
    _interrupts_reported: int = field(default=0, init=False)
    _processes: RunProcesses = field(init=False)
    leftovers: list[str] = field(default_factory=list)
    """Command lines of what was still running at the end and had to be ended."""
    barrier: StartBarrier | None = None
    """The start barrier of the run; None where there is one process only, or it is switched off."""

    has_measured: bool = False
    """Whether any measured process was started."""

    def watch(self) -> list[Watched]:
        """Start, watch and end all processes; returns how each ended."""
        watches: list[Watched] = []
        self._processes = RunProcesses(self.run.run_id)
        first_folder = self.run.folder / self.group.processes[0].folder
        with _control_dir(first_folder) as control_dir, self._start_barrier(control_dir) as self.barrier:
            held = self.barrier.folder if self.barrier is not None else None
            try:
                with self._guard() as notify_guard:
                    notify_guard(control_dir)
                    for spec in self.group.processes:
                        started = spawn.start(spec, self.group, self.run.folder, control_dir, self.run.run_id, held)
                        watches.append(Watched(started))  # one by one: were the next to fail, these have to be ended
                        self._processes.start_of(started.popen.pid)
                        notify_guard(started.tmp_dir)
                    self.observer.started([watch.process for watch in watches])
                    self._wait_until_ready(watches)
                    self._send_start(watches)
                    self._wait_until_over(watches)
                    self.run.leave()
                    self._wait_for_tracers(watches)
            finally:
                self._end_all(watches)
        return watches

    @contextlib.contextmanager
    def _guard(self) -> Iterator[Callable[[Path | None], None]]:
        """While open, a guard ends the tracers should the launcher be killed; without them, the helpers are enough.

        What it yields takes folders that are to be removed then.
        """
        if self.group.nsys is None:
            yield lambda _folder: None
            return
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, self.run.run_id, str(self.patience.orphaned_tracer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name != RUN_ID_VARIABLE},
            start_new_session=True,
        )
        self._processes.start_of(process.pid)
        pipe = process.stdin
        assert pipe is not None

        def notify(folder: Path | None) -> None:
            if folder is not None:
                with contextlib.suppress(OSError):  # it was killed
                    os.write(pipe.fileno(), os.fsencode(folder) + b"\0")

        try:
            yield notify
        finally:
            process.kill()  # before its pipe is closed, which would mean that the launcher is dead
            process.wait()
            pipe.close()

    def _start_barrier(self, control_dir: Path) -> contextlib.AbstractContextManager[StartBarrier | None]:
        processes, timeout_s = self.group.processes, self.group.barrier_timeout_s
        if timeout_s is None or len(processes) < 2:
            return contextlib.nullcontext()
        return start_barrier(control_dir, {spec.index: spec.folder for spec in processes}, timeout_s)

    def _poll(self, watches: list[Watched]) -> Iterator[None]:
        """One poll a turn: read the states, notify the observer, rest a little."""
        while True:
            for watch in watches:
                watch.process.refresh()
                self._notify(watch)
            if self.interrupts.count > self._interrupts_reported:
                self._interrupts_reported = self.interrupts.count
                self.observer.interrupted(self._interrupts_reported)
            self.observer.poll([watch.phase(self.barrier) for watch in watches])
            yield
            time.sleep(POLL_S)

    def _notify(self, watch: Watched) -> None:
        process = watch.process
        pid, start = process.status.pid, process.status.start_unix_ns
        if not watch.is_announced and pid is not None and start is not None:
            watch.is_announced = True
            uuids = tuple(gpu.uuid for gpu in process.spec.gpus)
            self.run.notify_started(MeasuredProcess(process.spec.folder, pid, start, uuids))

    def _wait_until_ready(self, watches: list[Watched]) -> None:
        deadline = time.monotonic() + self.patience.start
        for _ in self._poll(watches):
            if self.interrupts:
                return
            for watch in watches:
                self._restart_tracer_if_due(watch)
            waiting = [watch for watch in watches if not watch.process.status.ready and not watch.process.is_over]
            if not waiting:
                return
            if time.monotonic() > deadline:
                for watch in waiting:
                    watch.process.give_up(f"its tracer had not started it after {self.patience.start:g} seconds")
                    watch.process.kill_tracer()
                return

    def _restart_tracer_if_due(self, watch: Watched) -> None:
        process = watch.process
        if self.group.nsys is None or process.status.not_started is None or process.starts >= TRACER_STARTS:
            return
        if process.tmp_dir is not None:
            self._processes.kill_remains(process.tmp_dir)
        process.restart()
        self._processes.start_of(process.popen.pid)

    def _send_start(self, watches: list[Watched]) -> None:
        """Let all begin; after an interrupt none does, and what is not even ready is not waited for."""
        order = child.RELEASE if self.interrupts else child.GO
        for watch in watches:
            if watch.process.is_over:
                continue
            if watch.process.status.ready:
                watch.process.send(order)
                watch.started_at = time.monotonic()
            else:
                watch.stopped = "interrupted"
                watch.process.give_up("the launch was called off before the process started")
                watch.process.kill_tracer()

    def _wait_until_over(self, watches: list[Watched]) -> None:
        for _ in self._poll(watches):
            running = [watch for watch in watches if not watch.process.is_over]
            if not running:
                return
            is_done = self.run.is_done()
            for watch in running:
                self._stop_if_due(watch, is_done)
            self._poll_barrier(watches)

    def _poll_barrier(self, watches: list[Watched]) -> None:
        if self.barrier is None:
            return
        if self.interrupts:  # a script that takes the signal for a request has to come out of its wait
            self.barrier.open()
        self.barrier.poll([watch.process.spec.index for watch in watches if watch.process.is_over])

    def _stop_if_due(self, watch: Watched, is_done: bool) -> None:
        now = time.monotonic()
        limit = self.group.timeout_s
        if watch.stopped is None:
            if is_done:
                watch.stopped, watch.stopped_at = "done", now
            elif self.interrupts:
                watch.stopped, watch.stopped_at = "interrupted", now
            elif limit is not None and watch.started_at is not None and now - watch.started_at > limit:
                watch.stopped, watch.stopped_at = "timeout", now
        if watch.stopped is None:
            return
        asked_twice = self.interrupts.count > 1
        if asked_twice and watch.signals_sent < len(ESCALATION):  # no more patience
            watch.signals_sent, watch.next_signal_at = len(ESCALATION) - 1, now
        if not watch.process.is_measured:  # about to start; its helper reports so immediately, or never
            if asked_twice or now > watch.stopped_at + self.patience.signal:
                watch.process.give_up("the helper that starts it did not answer")
        elif now < watch.next_signal_at:
            return
        elif watch.signals_sent < len(ESCALATION):
            watch.process.signal_measured(ESCALATION[watch.signals_sent])
            watch.signals_sent += 1
            watch.next_signal_at = now + self.patience.signal
        else:  # killed, and its end is not reported
            watch.process.give_up("")

    def _wait_for_tracers(self, watches: list[Watched]) -> None:
        """Let the tracers write their reports, all measured processes being over."""
        for watch in watches:
            watch.process.send(child.RELEASE)
            watch.released = True
        deadline = time.monotonic() + self.patience.tracer
        killed_at: float | None = None
        activity = _Activity(self._processes, self.patience.idle_tracer)
        for _ in self._poll(watches):
            working = [watch for watch in watches if watch.process.popen.poll() is None]
            if not working or (killed_at is not None and time.monotonic() > killed_at + self.patience.signal):
                return
            given_up = time.monotonic() > deadline or self.interrupts.count > 1
            if killed_at is None and (given_up or activity.is_idle()):
                killed_at = time.monotonic()
                for watch in working:
                    watch.tracer_killed = self.group.nsys is not None
                    watch.process.kill_tracer()

    def _end_all(self, watches: list[Watched]) -> None:
        self.has_measured = any(watch.process.status.pid is not None for watch in watches)
        for watch in watches:
            watch.process.signal_measured(signal.SIGKILL)
            watch.process.kill_tracer()
        self.run.leave()
        for watch in watches:
            with contextlib.suppress(subprocess.TimeoutExpired):
                watch.process.popen.wait(self.patience.signal)
        self.leftovers = self._processes.end()
        for watch in watches:
            self.leftovers += watch.process.leftovers()
            watch.process.close()


class _Activity:
    """Whether the processes of a run have done next to nothing for some time."""

    def __init__(self, processes: RunProcesses, limit_s: float) -> None:
        self._processes = processes
        self._limit_s = limit_s
        self._since = self._asked = time.monotonic()
        self._cpu_s = 0.0

    def is_idle(self) -> bool:
        """Called at every poll; updated once a second, for it takes a while."""
        now = time.monotonic()
        if now < self._asked + 1:
            return False
        self._asked = now
        cpu_s = self._processes.cpu_s()
        if abs(cpu_s - self._cpu_s) > IDLE_SHARE * self._limit_s:  # it sinks where one of them ends
            self._since, self._cpu_s = now, cpu_s
        return now - self._since > self._limit_s


@contextlib.contextmanager
def _control_dir(folder: Path) -> Iterator[Path]:
    """A folder for FIFOs: in `folder`, so that it goes with it, or a temporary one where its file system has none."""
    made = folder / CONTROL_NAME
    try:
        made.mkdir(mode=0o700, parents=True)
        os.mkfifo(made / "trial")
        (made / "trial").unlink()
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        made = _temporary_dir()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _temporary_dir() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="perfharness-"))
    except OSError as error:
        raise LaunchError(
            f"no temporary folder can be made ({error}); set TMPDIR to one that can be written"
        ) from error
