"""Watch the processes of a launch from start to end: go at once, time limits, interrupts, and nobody left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal, Protocol

import psutil

from perfharness.errors import LaunchError
from perfharness.model.plan import LaunchPlan
from perfharness_launcher import child, spawn
from perfharness_launcher.barrier import StartBarrier, start_barrier
from perfharness_launcher.companions import Companions, MeasuredProcess
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.orphans import end_leftovers
from perfharness_launcher.spawn import RunningProcess

POLL_S = 0.05
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


class Observer(Protocol):
    """Is told of what goes on; all of it runs between two looks at the processes, so it has to be quick."""

    def started(self, processes: Sequence[RunningProcess]) -> None:
        """All are spawned."""

    def look(self, phases: Sequence[Phase]) -> None:
        """Called at every look, about 20 times a second."""

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
    """

    start: float = 120.0
    signal: float = 5.0
    tracer: float = 900.0


@dataclass(frozen=True)
class Ending:
    """Why a process was ended by us, or None."""

    process: RunningProcess
    stopped: Literal["timeout", "interrupted"] | None
    tracer_exit_code: int | None
    tracer_killed: bool = False


@dataclass
class _Watch:
    """The state of one process while it is watched."""

    process: RunningProcess
    stopped: Literal["timeout", "interrupted"] | None = None
    signals_sent: int = 0
    next_signal_at: float = 0.0
    tracer_killed: bool = False
    started_at: float | None = None
    told: bool = False
    released: bool = False


@dataclass
class Supervisor:
    """Runs the processes of one plan.

    Args:
        run_dir: where their folders are made.
        run_id: what marks every process of this launch.
        companions: those already started; told of the processes, and stopped when the last has ended.
    """

    plan: LaunchPlan
    run_dir: Path
    run_id: str
    interrupts: Interrupts
    observer: Observer
    patience: Patience = field(default_factory=Patience)
    companions: Companions = field(default_factory=lambda: Companions(()))
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _interrupts_told: int = field(default=0, init=False)
    leftovers: list[str] = field(default_factory=list)
    """Command lines of what was still running at the end and had to be ended."""
    barrier: StartBarrier | None = None
    """The start barrier of the run; None where there is one process only, or it is switched off."""

    has_measured: bool = False
    """Whether any measured process was started."""

    def run(self) -> list[Ending]:
        """Start, watch and end all processes; returns how each ended."""
        watches: list[_Watch] = []
        with _control_dir() as control_dir, self._start_barrier(control_dir) as self.barrier:
            held = self.barrier.folder if self.barrier is not None else None
            try:
                for spec in self.plan.processes:
                    started = spawn.start(spec, self.plan, self.run_dir, control_dir, self.run_id, held)
                    watches.append(_Watch(started))  # one by one: were the next to fail, these have to be ended
                self.observer.started([watch.process for watch in watches])
                self._wait_until_ready(watches)
                self._go(watches)
                self._wait_until_over(watches)
                self.companions.stop()
                self._wait_for_tracers(watches)
            finally:
                self._leave_nobody(watches)
        return [
            Ending(watch.process, watch.stopped, watch.process.popen.returncode, watch.tracer_killed)
            for watch in watches
        ]

    def _start_barrier(self, control_dir: Path) -> contextlib.AbstractContextManager[StartBarrier | None]:
        options, processes = self.plan.options, self.plan.processes
        if not options.barrier or len(processes) < 2:
            return contextlib.nullcontext()
        return start_barrier(
            control_dir, {spec.index: spec.folder for spec in processes}, options.barrier_timeout_s, self.clock
        )

    def _look(self, watches: list[_Watch]) -> Iterator[None]:
        """One look a turn: read the states, tell the observer, rest a little."""
        while True:
            for watch in watches:
                watch.process.refresh()
                self._tell_companions(watch)
            if self.interrupts.count > self._interrupts_told:
                self._interrupts_told = self.interrupts.count
                self.observer.interrupted(self._interrupts_told)
            self.observer.look([_phase(watch, self.barrier) for watch in watches])
            yield
            self.sleep(POLL_S)

    def _tell_companions(self, watch: _Watch) -> None:
        process = watch.process
        pid, start = process.status.pid, process.status.start_unix_ns
        if not watch.told and pid is not None and start is not None:
            watch.told = True
            self.companions.measured(MeasuredProcess(process.spec, process.folder, pid, start))

    def _wait_until_ready(self, watches: list[_Watch]) -> None:
        deadline = self.clock() + self.patience.start
        for _ in self._look(watches):
            waiting = [watch for watch in watches if not watch.process.status.ready and not _is_gone(watch)]
            if not waiting or self.interrupts:
                return
            if self.clock() > deadline:
                for watch in waiting:
                    watch.process.status.not_started = (
                        f"its tracer had not started it after {self.patience.start:g} seconds"
                    )
                    watch.process.kill_tracer()
                return

    def _go(self, watches: list[_Watch]) -> None:
        word = child.RELEASE if self.interrupts else child.GO
        for watch in watches:
            if not watch.process.is_over:
                watch.process.say(word)
                watch.started_at = self.clock()

    def _wait_until_over(self, watches: list[_Watch]) -> None:
        for _ in self._look(watches):
            running = [watch for watch in watches if not watch.process.is_over and not _is_gone(watch)]
            if not running:
                return
            for watch in running:
                self._stop_if_due(watch)
            self._look_at_barrier(watches)

    def _look_at_barrier(self, watches: list[_Watch]) -> None:
        if self.barrier is None:
            return
        if self.interrupts:  # a script that takes the signal for a request has to come out of its wait
            self.barrier.open()
        self.barrier.look([watch.process.spec.index for watch in watches if watch.process.is_over or _is_gone(watch)])

    def _stop_if_due(self, watch: _Watch) -> None:
        now = self.clock()
        limit = self.plan.options.timeout_s
        if watch.stopped is None:
            if self.interrupts:
                watch.stopped = "interrupted"
            elif limit is not None and watch.started_at is not None and now - watch.started_at > limit:
                watch.stopped = "timeout"
        if watch.stopped is None or not watch.process.is_measured:
            return
        if self.interrupts.count > 1:  # asked twice: no more patience
            watch.process.signal_measured(signal.SIGKILL)
        elif watch.signals_sent < len(ESCALATION) and now >= watch.next_signal_at:
            watch.process.signal_measured(ESCALATION[watch.signals_sent])
            watch.signals_sent += 1
            watch.next_signal_at = now + self.patience.signal

    def _wait_for_tracers(self, watches: list[_Watch]) -> None:
        """Let the tracers write their reports, all measured processes being over."""
        for watch in watches:
            watch.process.say(child.RELEASE)
            watch.released = True
        deadline = self.clock() + self.patience.tracer
        asked_before = self.interrupts.count
        for _ in self._look(watches):
            working = [watch for watch in watches if watch.process.popen.poll() is None]
            if not working:
                return
            if self.clock() > deadline or self.interrupts.count > max(asked_before, 1):
                for watch in working:
                    watch.tracer_killed = True
                    watch.process.kill_tracer()

    def _leave_nobody(self, watches: list[_Watch]) -> None:
        self.has_measured = any(watch.process.status.pid is not None for watch in watches)
        for watch in watches:
            watch.process.signal_measured(signal.SIGKILL)
            watch.process.kill_tracer()
        self.companions.stop()  # before the orphans are reaped, which would take their children's exit codes away
        for watch in watches:
            watch.process.popen.wait()
            with contextlib.suppress(OSError):
                os.close(watch.process.control)
        self.leftovers = end_leftovers(self.run_id, clock=self.clock, sleep=self.sleep)


@contextlib.contextmanager
def _control_dir() -> Iterator[Path]:
    """A folder for FIFOs, which the file system of the run folder may not have."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="perfharness-")
    except OSError as error:
        raise LaunchError(
            f"no temporary folder can be made ({error}); set TMPDIR to one that can be written"
        ) from error
    with folder as name:
        yield Path(name)


def _is_gone(watch: _Watch) -> bool:
    """Whether everything around the measured process has ended before it did: nothing more will be told."""
    if watch.process.popen.poll() is None:
        return False
    status = watch.process.refresh()
    return not watch.process.is_measured or not psutil.pid_exists(status.pid or 0)


def _phase(watch: _Watch, barrier: StartBarrier | None) -> Phase:
    process = watch.process
    if process.is_over:
        if process.popen.poll() is not None:
            return Phase.DONE
        return Phase.WRITING if watch.released else Phase.ENDED
    if process.status.pid is None:
        return Phase.STARTING
    if watch.stopped:
        return Phase.STOPPING
    return Phase.WAITING if barrier is not None and barrier.waits(process.spec.index) else Phase.RUNNING
