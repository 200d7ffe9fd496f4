"""Run the processes of a launch: start them, watch them, end them, and leave none running."""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import psutil

from perfharness.errors import LaunchError
from perfharness.model import environment
from perfharness_launcher.barrier import MayGo, StartBarrier
from perfharness_launcher.conditions import Run
from perfharness_launcher.interrupts import Interrupts
from perfharness_launcher.nsys import NsysTracing
from perfharness_launcher.process import ProcessSpec, RunningProcess, carries, is_alive

POLL_S = 0.05
END_POLL_S = 0.02
ESCALATION = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
START_S = 120.0
"""Longest time for a tracer to start its process."""

SIGNAL_S = 5.0
"""Time between SIGINT, SIGTERM and SIGKILL."""

LEFTOVER_GRACE_S = 3.0
"""Longest time for leftover processes to end by themselves."""

TRACER_S, IDLE_TRACER_S, IDLE_CPU_SHARE = 900.0, 60.0, 0.03
"""Longest time for a tracer to write its report, and with less CPU use than the share: nsys may wait forever for a
killed process of its own, with 1 % of a CPU."""


class Phase(Enum):
    """State of a process, as shown in the live view."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waits at the start barrier"
    STOPPING = "stopping"
    ENDED = "ended, waits for the others"
    WRITING = "tracer writes its report"
    DONE = "done"
    FAILED = "failed"


class Observer:
    """Base class of observers, whose methods must be quick; it ignores everything.

    Attributes:
        shows_output: whether other machines send the output of their processes.
    """

    shows_output = False

    def started(self, processes: Sequence[RunningProcess]) -> None:
        """Called when all tracers are started."""

    def poll(self, phases: Sequence[Phase]) -> None:
        """Called at every poll, about 20 times per second."""

    def message(self, text: str) -> None:
        """Called with a line about other machines, from any thread."""

    def output(self, line: str) -> None:
        """Called with a line of output of a process on another machine."""

    def stage(self, name: str) -> None:
        """Called with the next step after the processes, such as `exporting the traces`."""

    def interrupted(self, count: int) -> None:
        """Called at the `count`-th Ctrl-C or signal."""


@dataclass
class Supervisor:
    """Run the processes of a launch.

    Args:
        run: its conditions are left when the processes have ended.
        timeout_s: limit per process from its start, if any.
        barrier_timeout_s: longest wait at the start barrier after the first arrival, or None without a barrier.
        may_go: decides when processes pass the barrier (default: when all have arrived).

    Attributes:
        leftovers: command lines of processes that still ran at the end and were ended.
    """

    specs: Sequence[ProcessSpec]
    run: Run
    interrupts: Interrupts
    observer: Observer
    nsys: NsysTracing | None = None
    timeout_s: float | None = None
    barrier_timeout_s: float | None = None
    may_go: MayGo | None = None
    processes: list[RunningProcess] = field(default_factory=list, init=False)
    barrier: StartBarrier | None = field(default=None, init=False)
    leftovers: list[str] = field(default_factory=list, init=False)
    _interrupts_reported: int = field(default=0, init=False)

    @property
    def has_measured(self) -> bool:
        """Whether any measured process was started."""
        return any(process.pid is not None for process in self.processes)

    def watch(self) -> list[RunningProcess]:
        """Start, watch and end all processes; return them."""
        with _private_folder() as folder:
            variables = {environment.RUN_ID: self.run.run_id}
            if self.barrier_timeout_s is not None and (len(self.specs) > 1 or self.may_go is not None):
                names = {spec.index: spec.folder for spec in self.specs}
                self.barrier = StartBarrier(folder / "barrier", names, self.barrier_timeout_s, self.may_go)
                variables |= self.barrier.variables
            try:
                for spec in self.specs:
                    own_dir = folder / str(spec.index)
                    self.processes.append(RunningProcess(spec, self.nsys, self.run.folder, own_dir, variables))
                self.observer.started(self.processes)
                self._wait_for_processes()
                self.run.leave()
                self._end_leftovers(self._below_helpers)
                for process in self.processes:
                    process.release()
                self._wait_for_tracers()
            finally:
                self._end_all()
        return self.processes

    def _polls(self) -> Iterator[None]:
        """Read the states and notify the observer, then wait for a report (at most `POLL_S`)."""
        poll = select.poll()
        for process in self.processes:
            poll.register(process.status, select.POLLIN)
        while True:
            for process in self.processes:
                if process.refresh():
                    self.run.notify_started(process)
            if self.interrupts.count > self._interrupts_reported:
                self._interrupts_reported = self.interrupts.count
                self.observer.interrupted(self._interrupts_reported)
            self.observer.poll([self._phase(process) for process in self.processes])
            yield
            poll.poll(1000 * (END_POLL_S if all(process.is_over for process in self.processes) else POLL_S))

    def _phase(self, process: RunningProcess) -> Phase:
        if process.is_over:
            if self.nsys is None or not process.is_tracing:
                is_well = process.stopped == "done" or process.ended.get("exit_code") == 0
                return Phase.DONE if is_well else Phase.FAILED
            return Phase.WRITING if all(other.is_over for other in self.processes) else Phase.ENDED
        if process.pid is None:
            return Phase.STARTING
        if process.stopped is not None:
            return Phase.STOPPING
        is_held = self.barrier is not None and self.barrier.holds(process.spec.index)
        return Phase.WAITING if is_held else Phase.RUNNING

    def _wait_for_processes(self) -> None:
        """Wait until all processes have ended; end those that are due."""
        begin = time.monotonic()
        for _ in self._polls():
            running = [process for process in self.processes if not process.is_over]
            if not running:
                return
            is_done = self.run.is_done()
            for process in running:
                if process.pid is None and time.monotonic() > begin + START_S:
                    process.give_up(f"its tracer did not start it within {START_S:g} seconds")
                self._end_if_due(process, is_done=is_done)
            if self.barrier is not None:
                if self.interrupts:  # a script that handles the signal must not wait any longer
                    self.barrier.open()
                self.barrier.poll([process.spec.index for process in self.processes if process.is_over])

    def _end_if_due(self, process: RunningProcess, *, is_done: bool) -> None:
        """Send the next signal to a process that is due; kill it after the second Ctrl-C."""
        now, limit_s = time.monotonic(), self.timeout_s
        age_s = 0.0 if process.pid is None else (time.time_ns() - process.start_unix_ns) / 1e9
        if process.stopped is None:
            if is_done:
                process.stopped = "done"
            elif self.interrupts:
                process.stopped = "interrupted"
            elif limit_s is not None and age_s > limit_s:
                process.stopped = "timeout"
            else:
                return
        if self.interrupts.count > 1 and process.signals_sent < len(ESCALATION):
            process.signals_sent, process.next_signal_at = len(ESCALATION) - 1, now
        if process.pid is None:
            process.give_up("the launch was cancelled before the process started")
        elif now >= process.next_signal_at:
            if process.signals_sent == len(ESCALATION):
                process.give_up("")  # its helper did not report its end
                return
            process.send_signal(ESCALATION[process.signals_sent])
            process.signals_sent += 1
            process.next_signal_at = now + SIGNAL_S

    def _wait_for_tracers(self) -> None:
        """Wait for the reports of the tracers; kill tracers that are too slow or idle."""
        begin = active = asked = time.monotonic()
        cpu_s = 0.0
        for _ in self._polls():
            working = [process for process in self.processes if process.is_tracing]
            if not working:
                return
            now = time.monotonic()
            if now > asked + 1:
                asked, used_s = now, _cpu_s(self._carriers())
                if abs(used_s - cpu_s) > IDLE_CPU_SHARE * IDLE_TRACER_S:  # decreases when one ends
                    active, cpu_s = now, used_s
            is_idle = now - active > IDLE_TRACER_S
            if is_idle or now - begin > TRACER_S or self.interrupts.count > 1:
                for process in working:
                    process.tracer_killed = self.nsys is not None
                    process.kill_tracer()
                return

    def _end_all(self) -> None:
        """End all remaining processes, also after an exception."""
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.kill_tracer()
            process.release()  # its helper ends descendants
        self.run.leave()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.tracer.wait(SIGNAL_S)
            process.close()
        if self.barrier is not None:
            self.barrier.close()
        self._end_leftovers(self._carriers)

    def _end_leftovers(self, find: Callable[[], list[psutil.Process]]) -> None:
        """Wait for processes to end by themselves, then end them; note those that are not nsys's."""
        left = _wait_for(find(), LEFTOVER_GRACE_S)
        self.leftovers += filter(None, map(_describe, left))
        for number in ESCALATION:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
            left = left and _wait_for(find(), 1.0)

    def _below_helpers(self) -> list[psutil.Process]:
        """Descendants of the measured processes. Orphans become children of the helpers (subreapers)."""
        found: list[psutil.Process] = []
        for helper in filter(None, (process.helper for process in self.processes)):
            with contextlib.suppress(psutil.Error):
                found += psutil.Process(helper).children(recursive=True)
        return found

    def _carriers(self) -> list[psutil.Process]:
        """Processes with the run's id in their environment, such as an agent of nsys."""
        return [process for process in psutil.process_iter() if carries(process, self.run.run_id)]


def _wait_for(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until all processes have ended, or for some seconds; return those that still run."""
    deadline = time.monotonic() + seconds
    while processes := [process for process in processes if is_alive(process.pid)]:
        if time.monotonic() > deadline:
            break
        time.sleep(END_POLL_S)
    return processes


def _cpu_s(processes: list[psutil.Process]) -> float:
    total_s = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total_s += sum(process.cpu_times()[:2])
    return total_s


def _describe(process: psutil.Process) -> str:
    """Pid and command line of a process; empty for nsys."""
    try:
        is_nsys = process.name().startswith("nsys")
        return "" if is_nsys else f"{process.pid}: {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return str(process.pid)


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """Create a folder that only this user can read, for FIFOs and the tracers' temporary files."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="perfharness-", ignore_cleanup_errors=True)
    except OSError as error:
        raise LaunchError(f"cannot create a temporary folder ({error}); set TMPDIR to a writable one") from error
    with folder as name:
        yield Path(name)
